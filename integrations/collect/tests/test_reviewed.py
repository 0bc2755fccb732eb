"""From labelled records over a review sheet to bounds on true coverage.

Statistical tests draw independent repetitions, by seeds that are fixed; a false alarm, a failing assertion
although the law holds, has probability at most 1e-6 per test.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from langchain_cfc_collect import IntervalEstimate
from langchain_cfc_collect.review import ReviewReport, create_review_report, write_review
from scipy.stats import binom

from integrations.collect.tests.filling import fill_in, make_numbered_records, make_record, write_rows
from langchain_cfc import PromptRecord
from langchain_cfc.certificates.bounds import clopper_pearson
from langchain_cfc.errors import InputError, RecordError
from tests.lengths import mostly_long

FALSE_ALARM = 1e-6
REPETITIONS, ROWS = 200, 80
Bools = np.ndarray[Any, np.dtype[np.bool_]]

# Prompts: a share is hopeless, elsewhere each of n candidates is correct with this probability.
HOPELESS, CORRECT, N = 0.3, 0.8, 3
E0, E1 = 0.08, 0.05
WRONG = 1 - (1 - HOPELESS) * CORRECT
# Any of n candidates is correct, or labelled so.
TRUE_COVERAGE = (1 - HOPELESS) * (1 - (1 - CORRECT) ** N)
_CALLED = CORRECT * (1 - E1) + (1 - CORRECT) * E0
LABELLED_COVERAGE = HOPELESS * (1 - (1 - E0) ** N) + (1 - HOPELESS) * (1 - (1 - _CALLED) ** N)


@dataclass(frozen=True)
class Drawn:
    """Labelled records, and what is true of them."""

    records: list[PromptRecord]
    truth: dict[tuple[str, str], bool]


def make_drawn(correct: Bools, labels: Bools) -> Drawn:
    """Records of prompts whose candidates are correct, and labelled correct, as the (I, n) arrays say."""
    names = [f"p{number}" for number in range(len(correct))]
    records = [
        make_record(name, *((f"a{slot}", bool(label)) for slot, label in enumerate(row)))
        for name, row in zip(names, labels, strict=True)
    ]
    truth = {
        (name, f"a{slot}"): bool(one)
        for name, row in zip(names, correct, strict=True)
        for slot, one in enumerate(row)
    }
    return Drawn(records, truth)


def draw_population(rng: np.random.Generator, size: int) -> Drawn:
    """Independent mistakes at rates of E0 and E1."""
    correct = (rng.random((size, N)) < CORRECT) & (rng.random((size, 1)) >= HOPELESS)
    return make_drawn(correct, correct ^ (rng.random((size, N)) < np.where(correct, E1, E0)))


def review_sheets(
    given: Drawn, k: int, path: Path, *, lying: bool = False, confidence: float = 0.95
) -> ReviewReport:
    """Write a sheet, fill in the truth, and report on it."""
    path.unlink(missing_ok=True)
    write_review(given.records, k, path)
    fill_in(path, lambda name, text: given.truth[name, text] ^ lying)
    return create_review_report(given.records, path, coverage=(LABELLED_COVERAGE,), confidence=confidence)


def covers(estimate: IntervalEstimate | None, truth: float) -> bool:
    assert estimate is not None
    return estimate.low <= truth <= estimate.high


def chance_to_cover(share: float, size: int) -> float:
    """That the interval of Clopper and Pearson for Binomial(size, share) holds the share."""
    counts = np.arange(size + 1)
    inside = [low <= share <= high for low, high in (clopper_pearson(int(one), size) for one in counts)]
    return float(binom.pmf(counts, size, share)[inside].sum())


def mean_chance_to_cover(share: float, among: float, k: int) -> float:
    """The same if the size is Binomial(k, among)."""
    sizes = np.arange(k + 1)
    chances = [chance_to_cover(share, int(size)) for size in sizes]
    return float(binom.pmf(sizes, k, among) @ chances)


def compute_true_kappa() -> float:
    called = WRONG * E0 + (1 - WRONG) * (1 - E1)
    observed = WRONG * (1 - E0) + (1 - WRONG) * (1 - E1)
    by_chance = called * (1 - WRONG) + (1 - called) * WRONG
    return (observed - by_chance) / (1 - by_chance)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[ReviewReport, ReviewReport]]:
    """Reports of R independent sheets of k rows, and of the same with people's labels reversed."""
    path, rng = tmp_path_factory.mktemp("runs") / "sheet.csv", np.random.default_rng(1)
    found = []
    for _ in range(REPETITIONS):
        given = draw_population(rng, ROWS + 20)
        found.append((review_sheets(given, ROWS, path), review_sheets(given, ROWS, path, lying=True)))
    return found


@pytest.mark.long
@mostly_long(
    ("rate", "share", "among"),
    [("error_on_wrong", E0, WRONG), ("error_on_correct", E1, 1 - WRONG), ("flattering", WRONG * E0, 1.0)],
    quick=1,
)
def test_error_rate_intervals_cover_with_their_exact_probability(
    runs: list[tuple[ReviewReport, ReviewReport]], rate: str, share: float, among: float
) -> None:
    """Law: rows are independent, so of R intervals Binomial(R, p) cover, p by enumeration, at least 0.95."""
    hits = sum(covers(getattr(report, rate), share) for report, _ in runs)
    chance = mean_chance_to_cover(share, among, ROWS)
    assert chance >= 0.95
    low, high = (float(binom.ppf(one, REPETITIONS, chance)) for one in (FALSE_ALARM / 2, 1 - FALSE_ALARM / 2))
    assert low <= hits <= high
    # The negative control: people who say the contrary.
    assert sum(covers(getattr(lied, rate), share) for _, lied in runs) < low


@pytest.mark.long
def test_kappa_interval_covers_the_true_kappa(runs: list[tuple[ReviewReport, ReviewReport]]) -> None:
    """Law: it covers with probability 0.95 up to O(1/k), for which two points are left."""
    hits = sum(covers(report.kappa, compute_true_kappa()) for report, _ in runs)
    assert hits >= binom.ppf(FALSE_ALARM, REPETITIONS, 0.93)
    assert sum(covers(lied.kappa, compute_true_kappa()) for _, lied in runs) == 0


@pytest.mark.long
def test_true_coverage_bounds_hold_with_their_confidence(
    runs: list[tuple[ReviewReport, ReviewReport]],
) -> None:
    """Law: each lower bound lies above true coverage with probability 0.025 at most."""
    allowed = binom.ppf(1 - FALSE_ALARM / 2, REPETITIONS, 0.025)
    for kind in ("independent", "at_worst"):
        worths = [getattr(report.promises[0], kind) for report, _ in runs]
        assert sum(worth > TRUE_COVERAGE for worth in worths) <= allowed
        # The bounds are not trivial, and at most the limits without any mistake.
        assert np.mean(worths) > 0.2
        limits = [getattr(report.promises[0], f"{kind}_limit") for report, _ in runs]
        assert all(worth <= limit for worth, limit in zip(worths, limits, strict=True))
    # The negative control: the promise itself, taken for true coverage, lies above it each time.
    assert LABELLED_COVERAGE > TRUE_COVERAGE + 0.05


def test_correlated_mistakes_break_only_the_independent_bound(tmp_path: Path) -> None:
    """In half of the hopeless prompts, one candidate is labelled correct; there are no other mistakes.

    Law: at a confidence of 1 - FALSE_ALARM, the bound for any mistakes holds but for FALSE_ALARM / 2.
    """
    rng, size = np.random.default_rng(2), 4000
    hopeless = rng.random((size, 1)) < HOPELESS
    correct = (rng.random((size, N)) < CORRECT) & ~hopeless
    fooled = hopeless & (rng.random((size, 1)) < 0.5) & (np.arange(N) == rng.integers(N, size=(size, 1)))
    path = tmp_path / "sheet.csv"
    given = make_drawn(correct, correct | fooled)
    write_review(given.records, size, path)
    fill_in(path, lambda name, text: given.truth[name, text])
    labelled = TRUE_COVERAGE + HOPELESS / 2
    report = create_review_report(given.records, path, coverage=[labelled], confidence=1 - FALSE_ALARM)
    assert report.promises[0].at_worst <= TRUE_COVERAGE < report.promises[0].independent - 0.03


def test_review_report_equals_figures_worked_out_by_hand(tmp_path: Path) -> None:
    given = [make_record(f"p{number}", ("a", number < 6), ("b", False)) for number in range(10)]
    header = ["id", "text", "correct"]
    # Two of those labelled correct are wrong, one of those labelled wrong is correct.
    rows = [[f"p{number}", "a", "yes" if number in {0, 1, 2, 3, 9} else "no"] for number in range(10)]
    report = create_review_report(
        given, write_rows(tmp_path / "a.csv", [header, *rows]), coverage=[0.95, 0.9]
    )
    assert (report.rows, report.unfilled, report.prompts, report.n) == (10, 0, 10, 2)
    assert (report.correct_called_correct, report.correct_called_wrong) == (4, 1)
    assert (report.wrong_called_correct, report.wrong_called_wrong) == (2, 3)
    for rate, part, size in (
        (report.error_on_wrong, 2, 5),
        (report.error_on_correct, 1, 5),
        (report.flattering, 2, 10),
    ):
        assert (rate.value, rate.low, rate.high) == (part / size, *clopper_pearson(part, size))
    assert report.kappa is not None
    assert report.kappa.value == pytest.approx(0.4)
    e0, f = clopper_pearson(2, 5)[1], clopper_pearson(2, 10)[1]
    first, second = report.promises
    assert first.independent == max(0.0, 1 - 0.05 / (1 - e0) ** 2)
    assert second.at_worst == max(0.0, 0.9 - 2 * f)
    # Nothing wrong among 5 and 10: 1 - (1 - 0.025)^(1/5) by hand is the upper end.
    assert first.independent_limit == pytest.approx(1 - 0.05 / 0.025 ** (2 / 5))
    assert first.at_worst_limit == pytest.approx(0.95 - 2 * (1 - 0.025**0.1))
    one = create_review_report(given, tmp_path / "a.csv", n=1).promises[0]
    assert one.at_worst == pytest.approx(max(0.0, 0.9 - f))
    assert report.notes == ("One label was given fewer than 10 times: the interval of kappa is too narrow.",)


def test_review_report_uses_the_effective_size_of_clustered_candidates(tmp_path: Path) -> None:
    """Kish: of 3 prompts with 4, 1 and 1 wrong candidates, 36 / 18 = 2 independent ones are left."""
    given = [
        make_record(f"p{number}", *((f"a{slot}", slot == 3) for slot in range(4))) for number in range(3)
    ]
    rows = [["p0", f"a{slot}", "no"] for slot in range(4)] + [["p1", "a0", "no"], ["p2", "a0", "no"]]
    report = create_review_report(given, write_rows(tmp_path / "a.csv", [["id", "text", "correct"], *rows]))
    assert report.prompts == 3
    assert report.error_on_wrong.value == 1 / 6
    assert report.error_on_wrong.high == pytest.approx(clopper_pearson(2 / 6, 2)[1])
    assert "The 6 candidates are from only 3 independent prompts." in report.notes[0]
    # Paraphrases of a cluster are one prompt.
    clustered = [one.model_copy(update={"cluster": "c"}) for one in given]
    together = create_review_report(clustered, tmp_path / "a.csv")
    assert together.prompts == 1
    assert together.error_on_wrong.high == pytest.approx(clopper_pearson(1 / 6, 1)[1])


def clustered_rates(rng: np.random.Generator, prompts: int) -> Drawn:
    """A third of the prompts with mistakes on all of their candidates, which are all wrong."""
    labels = np.repeat(rng.random((prompts, 1)) < 0.3, N, axis=1)
    return make_drawn(np.zeros_like(labels), labels)


def test_intervals_cover_with_several_candidates_of_a_prompt(tmp_path: Path) -> None:
    """Law: as many intervals cover 0.3 as do for one candidate of each of the prompts."""
    rng, prompts, repetitions = np.random.default_rng(3), 40, 200
    hits = naive = 0
    for _ in range(repetitions):
        given = clustered_rates(rng, prompts)
        rows = [[name, text, "no"] for name, text in given.truth]
        path = write_rows(tmp_path / "a.csv", [["id", "text", "correct"], *rows])
        report = create_review_report(given.records, path)
        hits += covers(report.error_on_wrong, 0.3)
        low, high = clopper_pearson(report.wrong_called_correct, prompts * N)
        naive += low <= 0.3 <= high
    chance = chance_to_cover(0.3, prompts)
    assert hits >= binom.ppf(FALSE_ALARM, repetitions, chance)
    # The negative control: to take them all for independent.
    assert naive < binom.ppf(FALSE_ALARM, repetitions, chance)


@pytest.mark.parametrize(("correct", "unknown"), [(True, "wrong"), (False, "correct")])
def test_review_report_notes_what_the_sheet_cannot_show(
    tmp_path: Path, *, correct: bool, unknown: str
) -> None:
    given = [make_record(f"p{number}", ("a", correct)) for number in range(12)]
    write_review(given, 12, tmp_path / "a.csv")
    report = create_review_report(given, fill_in(tmp_path / "a.csv", lambda *_: correct))
    assert report.kappa is None
    missing = report.error_on_wrong if correct else report.error_on_correct
    assert (missing.value, missing.low, missing.high) == (None, 0.0, 1.0)
    assert report.notes == (
        f"People found no {unknown} candidate, so it is unknown how these are labelled.",
        "Both sides give every candidate the same label, as chance alone would: kappa is undefined.",
    )
    [promise] = report.promises
    assert (promise.independent == 0.0) is correct
    assert promise.at_worst == pytest.approx(0.9 - (1 - 0.025 ** (1 / 12)))


UNFIT_SHEETS = [
    ([["p0", "answer 0", ""]], "no row of a.csv is filled in"),
    ([["p0", "answer 0", "yes"], ["q", "a", "no"]], r"a.csv, line 3: id: 'q' is in none of the records"),
    ([["q", "a", ""], ["p0", "answer 0", "no"], ["r", "a", ""]], r"line 2: id: 'q' .* 2 such rows in all"),
    ([["p0", "answer 7", "yes"]], r"line 2: text: 'answer 7' is not a candidate of 'p0': was the"),
    ([["p0", "answer 0", "perhaps"]], r"line 2: correct: found 'perhaps'"),
    ([["x", "a", "yes"]], "record 'x' labels the candidate 'a' both correct and wrong"),
]


@pytest.mark.parametrize(("rows", "says"), UNFIT_SHEETS)
def test_review_report_refuses_sheets_that_do_not_fit_the_records(
    tmp_path: Path, rows: list[list[str]], says: str
) -> None:
    given = [*make_numbered_records(3), make_record("x", ("a", True), ("a", False), ("b", True))]
    path = write_rows(tmp_path / "a.csv", [["id", "text", "correct"], *rows])
    with pytest.raises((InputError, RecordError), match=says):
        create_review_report(given, path)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"coverage": [0.0]}, "promised coverage is 0.0"),
        ({"coverage": [0.9, 1.0]}, "promised coverage is 1.0"),
        ({"coverage": [math.nan]}, "promised coverage is nan"),
        ({"n": 0}, "n is 0; expected at least 1 and at most 3"),
        ({"n": 4}, "n is 4; expected at least 1 and at most 3"),
        ({"confidence": 1.0}, "strictly between 0 and 1"),
    ],
)
def test_review_report_refuses_numbers_out_of_range(
    tmp_path: Path, options: dict[str, Any], says: str
) -> None:
    path = write_rows(tmp_path / "a.csv", [["id", "text", "correct"], ["p0", "answer 0", "yes"]])
    with pytest.raises(InputError, match=says):
        create_review_report(make_numbered_records(3), path, **options)
