"""From labelled records over a review sheet to the shares of wrong labels.

Statistical tests draw independent repetitions, by seeds that are fixed; a false alarm, a failing assertion
although the law holds, has probability at most 1e-6 per test.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from langchain_cfc_collect.review import IntervalEstimate, ReviewReport, create_review_report, write_review
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


def review_sheets(given: Drawn, k: int, path: Path, *, lying: bool = False) -> ReviewReport:
    """Write a sheet, fill in the truth, and report on it."""
    path.unlink(missing_ok=True)
    write_review(given.records, k, path)
    fill_in(path, lambda name, text: given.truth[name, text] ^ lying)
    return create_review_report(given.records, path)


def covers(estimate: IntervalEstimate, truth: float) -> bool:
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
    [("error_on_wrong", E0, WRONG), ("error_on_correct", E1, 1 - WRONG)],
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


def test_review_report_equals_figures_worked_out_by_hand(tmp_path: Path) -> None:
    given = [make_record(f"p{number}", ("a", number < 6), ("b", False)) for number in range(10)]
    header = ["id", "text", "correct"]
    # Two of those labelled correct are wrong, one of those labelled wrong is correct.
    rows = [[f"p{number}", "a", "yes" if number in {0, 1, 2, 3, 9} else "no"] for number in range(10)]
    report = create_review_report(given, write_rows(tmp_path / "a.csv", [header, *rows]))
    assert (report.rows, report.unfilled, report.prompts) == (10, 0, 10)
    assert (report.correct_called_correct, report.correct_called_wrong) == (4, 1)
    assert (report.wrong_called_correct, report.wrong_called_wrong) == (2, 3)
    for rate, part, size in ((report.error_on_wrong, 2, 5), (report.error_on_correct, 1, 5)):
        assert (rate.value, rate.low, rate.high) == (part / size, *clopper_pearson(part, size))
    assert report.notes == ()


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
    missing = report.error_on_wrong if correct else report.error_on_correct
    assert (missing.value, missing.low, missing.high) == (None, 0.0, 1.0)
    assert report.notes == (f"People found no {unknown} candidate, so it is unknown how these are labelled.",)


UNFIT_SHEETS = [
    ([["p0", "answer 0", ""]], "no row of a.csv is filled in"),
    ([["p0", "answer 0", "yes"], ["q", "a", "no"]], r"a.csv, line 3: id: 'q' is in none of the records"),
    ([["q", "a", ""], ["p0", "answer 0", "no"], ["r", "a", ""]], r"line 2: id: 'q' .* 2 such rows in all"),
    ([["p0", "answer 7", "yes"]], r"line 2: text: 'answer 7' is not a candidate of 'p0': was the"),
    ([["p0", "answer 0", "perhaps"]], r"line 2: correct: found 'perhaps'"),
    ([["p0", "answer 0", "yes", "Who is p0?"]], r"line 2: input: 'Who is p0\?' is not the input of 'p0'"),
    ([["x", "a", "yes"]], "record 'x' labels the candidate 'a' both correct and wrong"),
]


@pytest.mark.parametrize(("rows", "says"), UNFIT_SHEETS)
def test_review_report_refuses_sheets_that_do_not_fit_the_records(
    tmp_path: Path, rows: list[list[str]], says: str
) -> None:
    given = [*make_numbered_records(3), make_record("x", ("a", True), ("a", False), ("b", True))]
    header = ["id", "text", "correct", "input"]
    path = write_rows(tmp_path / "a.csv", [header[: len(rows[0])], *rows])
    with pytest.raises((InputError, RecordError), match=says):
        create_review_report(given, path)
