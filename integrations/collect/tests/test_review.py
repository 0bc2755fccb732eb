"""Review sheets: how candidates are sampled, what is written, how it is read back, and reports on labels.

Statistical tests draw independent repetitions, by seeds that are fixed; a false alarm, a failing assertion
although the law holds, has probability at most 1e-6 per test.
"""

from __future__ import annotations

import gc
import json
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from langchain_cfc_collect import HumanLabels, review
from langchain_cfc_collect.human import MAX_CELL_SIZE
from langchain_cfc_collect.review import (
    ErrorRate,
    ReviewReport,
    create_review_report,
    format_candidate,
    write_review,
)
from scipy.stats import binom

from integrations.collect.tests.filling import (
    Row,
    fill_in,
    make_numbered_records,
    make_record,
    read_rows_of,
    write_rows,
)
from langchain_cfc import Candidate, PromptRecord
from langchain_cfc.certificates.bounds import clopper_pearson
from langchain_cfc.errors import InputError, RecordError
from langchain_cfc.labelers import LabelerInput
from langchain_cfc.records import Provenance, read_records, write_records
from langchain_cfc.sampling import DrawnCandidate
from tests.cli.running import run
from tests.factories import change_candidates, make_answer
from tests.lengths import mostly_long, repetitions
from tests.recordings import list_facts

FALSE_ALARM = 1e-6
Writer = Callable[[list[PromptRecord], int, Path], None]


def write_and_read_sheet(
    folder: Path, records: list[PromptRecord], k: int, seed: str | int = "0"
) -> list[Row]:
    path = folder / f"{len(list(folder.iterdir()))}.csv"
    with mock.patch.object(review, "_SEED", str(seed)):
        write_review(records, k, path)
    return read_rows_of(path)


@settings(max_examples=repetitions(60, share=0.3))
@given(
    st.lists(
        st.tuples(*[st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))] * 3),
        min_size=1,
        max_size=5,
        unique_by=(lambda one: one[0], lambda one: " ".join(one[1].split())),
    )
)
@example([("\r\n", "\r", "\r\n=1\r"), ("\n", "\ufeff", "'"), ("'", '"', "''")])
def test_review_sheet_preserves_any_text(rows: list[tuple[str, str, str]]) -> None:
    records = [
        PromptRecord(id=f"={name}", input=asked, candidates=(Candidate(text=text, score=0.5, correct=True),))
        for name, asked, text in rows
    ]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "sheet.csv"
        write_review(records, len(records), path)
        people = HumanLabels(fill_in(path, lambda name, _: len(name) % 2 == 0))
        for name, asked, text in rows:
            asking = LabelerInput(
                id=f"={name}", prompt=asked, reference=None, candidates=[DrawnCandidate(text)]
            )
            assert people.invoke(asking) == [len(name) % 2 == 1]


TRAPS = ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1+1", "\r=1+1", "3/4", "007", "1e5", "TRUE", "'quoted'", ""]


def is_formula(cell: str) -> bool:
    return cell[:1] in set("=+-@\t\r")


def is_reformatted(cell: str) -> bool:
    """Whether a spreadsheet may take a cell for a number, a date or a truth value."""
    return cell[:1].isdigit() or cell.lower() in {"true", "false"}


def test_review_sheet_cells_are_safe_from_spreadsheet_conversion(tmp_path: Path) -> None:
    records = [
        PromptRecord(
            id=text or "empty",
            input=text,
            cluster=repr(text),
            reference=text,
            candidates=(Candidate(text=text, score=0.5, correct=True),),
        )
        for text in TRAPS
    ]
    rows = write_and_read_sheet(tmp_path, records, len(records))
    assert not [cell for row in rows for cell in row if is_formula(cell) or is_reformatted(cell)]
    # The negative control: the texts themselves would be.
    assert sum(is_formula(text) or is_reformatted(text) for text in TRAPS) == 10


def depends_on_labels(write: Writer, folder: Path) -> bool:
    """Whether a sheet depends on labels or scores."""
    records = make_numbered_records(40)
    others = [
        change_candidates(one, lambda each: {"correct": not each.correct, "score": 0.1, "answer": "other"})
        for one in records
    ]
    contents = []
    for number, given_records in enumerate((records, others)):
        path = folder / f"leak{number}.csv"
        path.unlink(missing_ok=True)
        write(given_records, 20, path)
        contents.append(path.read_bytes())
    return contents[0] != contents[1]


def write_sorted_by_label(records: list[PromptRecord], k: int, path: Path) -> None:
    """Write a sheet whose row order reveals the labels."""
    write_review(records, k, path)
    labels = {(one.id, each.text): each.correct for one in records for each in one.candidates}
    header, *rows = read_rows_of(path)
    write_rows(path, [header, *sorted(rows, key=lambda row: labels[row[0][1:], row[3][1:]])])


def write_with_scores(records: list[PromptRecord], k: int, path: Path) -> None:
    """Write a sheet with a column of scores."""
    write_review(records, k, path)
    scores = {one.id: one.candidates[0].score for one in records}
    write_rows(path, [[*row, str(scores.get(row[0][1:], "score"))] for row in read_rows_of(path)])


def test_review_sheet_does_not_depend_on_labels_or_scores(tmp_path: Path) -> None:
    assert not depends_on_labels(write_review, tmp_path)
    # The negative controls: sheets that tell what the label is.
    assert depends_on_labels(write_sorted_by_label, tmp_path)
    assert depends_on_labels(write_with_scores, tmp_path)


def test_review_sample_depends_on_the_seed_not_on_record_order(tmp_path: Path) -> None:
    records = make_numbered_records(50)
    first = write_and_read_sheet(tmp_path, records, 20)
    assert write_and_read_sheet(tmp_path, records[::-1], 20) == first
    assert write_and_read_sheet(tmp_path, records, 20, seed=0) == first
    assert write_and_read_sheet(tmp_path, records, 10) == first[:11]
    other = write_and_read_sheet(tmp_path, records, 20, seed=1)
    assert other != first
    # Shuffled: neither in the order of the records nor in that of the ids.
    names = [row[0] for row in first[1:]]
    assert names != sorted(names, key=lambda name: int(name[2:]))
    assert names != sorted(names)


def is_uneven(samples: list[list[Row]], prompts: int, n: int) -> bool:
    """Whether some prompt, or some slot, is chosen more or less often than chance explains.

    Law: of R independent sheets with k of I prompts, a prompt is on Binomial(R, k / I), and a slot of n is
    that of Binomial(R k, 1 / n) rows.
    """
    rows = [row for one in samples for row in one[1:]]
    k = len(rows) // len(samples)
    level = FALSE_ALARM / 2 / (prompts + n)
    for column, size, share, kinds in ((0, len(samples), k / prompts, prompts), (3, len(rows), 1 / n, n)):
        counts = Counter(row[column] for row in rows)
        low, high = (float(binom.ppf(one, size, share)) for one in (level, 1 - level))
        if len(counts) < kinds or not all(low <= count <= high for count in counts.values()):
            return True
    return False


def test_review_sample_is_uniform_over_prompts_and_slots(tmp_path: Path) -> None:
    records, repetitions = make_numbered_records(30), 400
    samples = [write_and_read_sheet(tmp_path, records, 10, seed) for seed in range(repetitions)]
    assert all(len({row[0] for row in one[1:]}) == 10 for one in samples)
    assert not is_uneven(samples, 30, 3)
    # Each place on the sheet is as good as any other: of R first rows, a prompt has Binomial(R, 1 / I).
    assert not is_uneven([one[:2] for one in samples], 30, 3)
    # The negative controls: always the first slot; one prompt twice as often as the others.
    assert is_uneven([[[*row[:3], "'answer 0", ""] for row in one] for one in samples], 30, 3)
    renamed = [[["'p0" if row[0] == "'p1" else row[0], *row[1:]] for row in one] for one in samples]
    assert is_uneven(renamed, 30, 3)


def test_review_sample_takes_one_prompt_of_each_cluster(tmp_path: Path) -> None:
    records = [
        make_record(f"p{number}", ("a", True), cluster=f"c{number % 8}" if number % 2 else None)
        for number in range(64)
    ]
    clusters = {one.id: one.cluster or one.id for one in records}
    rows = write_and_read_sheet(tmp_path, records, 36)
    assert len({clusters[row[0][1:]] for row in rows[1:]}) == 36
    with pytest.raises(InputError, match="asked for 37 candidates, but the records hold 36 independent"):
        write_and_read_sheet(tmp_path, records, 37)
    # Which prompt of a cluster it is, depends on the seed.
    first = {
        write_and_read_sheet(tmp_path, [one for one in records if one.cluster == "c1"], 1, s)[1][0]
        for s in range(40)
    }
    assert len(first) == 8


def test_write_review_holds_few_records_in_memory(tmp_path: Path) -> None:
    held = 0

    def stream() -> Iterator[PromptRecord]:
        nonlocal held
        for number in range(300):
            yield make_record(f"p{number}", ("a", True))
        held = sum(type(one) is PromptRecord and one.id[0] == "p" for one in gc.get_objects()) - before

    before = sum(type(one) is PromptRecord and one.id[0] == "p" for one in gc.get_objects())
    write_review(stream(), 10, tmp_path / "a.csv")
    assert 10 <= held <= 2 * 10 + 1


def test_review_sheet_shows_messages_and_structured_values_as_text(tmp_path: Path) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Where?"}]
    tool = {"tool_calls": [{"name": "go", "args": {}}], "content": ""}
    plain = make_numbered_records(1)[0].candidates
    records = [
        PromptRecord(id="a", input=messages, candidates=(Candidate(message=tool, score=0.5, correct=True),)),
        PromptRecord(id="b", input={"q": "Wo?", "n": 1}, reference=["x", "y"], candidates=plain),
        PromptRecord(id="c", input=[{"no": "message"}], reference=4, candidates=plain),
        PromptRecord(
            id="e",
            input=[{"role": "user", "content": ["What is this?", {"type": "image", "base64": "aaaa"}]}],
            candidates=plain,
        ),
        PromptRecord(id="d", input="x" * (MAX_CELL_SIZE + 1), candidates=plain),
    ]
    path = tmp_path / "sheet.csv"
    write_review([one.model_copy(update={"candidates": one.candidates[:1]}) for one in records], 5, path)
    rows = {row[0]: row for row in read_rows_of(path)}
    called = '{"content":"","tool_calls":[{"args":{},"name":"go"}]}'
    assert rows["'a"][1:4] == ["'System: Be brief.\nHuman: Where?", "'", f"'{called}"]
    assert rows["'b"][1:3] == ["'" + '{"n":1,"q":"Wo?"}', "'" + '["x","y"]']
    assert rows["'c"][1:3] == ["'" + '[{"no":"message"}]', "'4"]
    assert "What is this?" in rows["'e"][1]
    assert "image" in rows["'e"][1]
    assert rows["'d"][1].endswith("x [... cut off here]")
    assert len(rows["'d"][1]) == MAX_CELL_SIZE + 1
    people = HumanLabels(fill_in(path, lambda *_: True))
    # As serving and collecting see it, the candidate is this text.
    asked = LabelerInput(
        id="a", prompt=messages, reference=None, candidates=[DrawnCandidate(called, None, tool)]
    )
    assert people.invoke(asked) == [True]


THREE, LONG = make_numbered_records(3), "a" * (MAX_CELL_SIZE + 1)
BOTH = make_answer("p", ("a", 0.5, True), ("a", 0.5, False))
INVALID_ARGUMENTS: list[tuple[list[Any], Any, str, str]] = [
    (THREE, 0, "a.csv", "the number of candidates to review is 0"),
    (THREE, 1.5, "a.csv", "the number of candidates to review is 1.5"),
    (THREE, 4, "a.csv", "hold 3 independent prompts.*at most 3"),
    (THREE, 1, "a.xlsx", r"a name that ends in .csv"),
    (THREE, 1, "none/a.csv", "does not exist"),
    ([make_record("p", ("a", True), ("a", False))], 1, "a.csv", "labels the candidate 'a' both correct and"),
    ([BOTH], 1, "a.csv", "'p' labels the claim 'a' both supported and unsupported"),
    ([make_record("p", (LONG, True))], 1, "a.csv", "candidate 0 of record 'p' has 32001 characters"),
    ([make_answer("p", (LONG, 0.5, True))], 1, "a.csv", "claim 0 of record 'p' has 32001 characters"),
    ([*THREE, *make_numbered_records(1)], 1, "a.csv", "'p0' is the id of an"),
    ([], 1, "a.csv", "no records"),
]


@pytest.mark.parametrize(("records", "k", "name", "says"), INVALID_ARGUMENTS)
def test_write_review_refuses_invalid_arguments_and_leaves_no_file(
    tmp_path: Path, records: list[Any], k: Any, name: str, says: str
) -> None:
    with pytest.raises((InputError, RecordError), match=says):
        write_review(records, k, tmp_path / name)
    assert list(tmp_path.iterdir()) == []


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


def report_on_rows(records: list[PromptRecord], rows: list[Row], folder: Path) -> ReviewReport:
    """Report on a sheet with these rows: id, text, whether it is correct, and perhaps the input."""
    header = ["id", "text", "correct", "input"][: len(rows[0])]
    return create_review_report(records, write_rows(folder / "a.csv", [header, *rows]))


def covers(estimate: ErrorRate, truth: float) -> bool:
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
    # Two of those labelled correct are wrong, one of those labelled wrong is correct.
    rows = [[f"p{number}", "a", "yes" if number in {0, 1, 2, 3, 9} else "no"] for number in range(10)]
    report = report_on_rows(given, rows, tmp_path)
    assert (report.rows, report.unfilled, report.prompts) == (10, 0, 10)
    for rate, part, size in ((report.error_on_wrong, 2, 5), (report.error_on_correct, 1, 5)):
        assert (rate.mistakes, rate.rows) == (part, size)
        assert (rate.value, rate.low, rate.high) == (part / size, *clopper_pearson(part, size))


def test_review_report_uses_the_effective_size_of_clustered_candidates(tmp_path: Path) -> None:
    """Kish: of 3 prompts with 4, 1 and 1 wrong candidates, 36 / 18 = 2 independent ones are left."""
    given = [
        make_record(f"p{number}", *((f"a{slot}", slot == 3) for slot in range(4))) for number in range(3)
    ]
    rows = [["p0", f"a{slot}", "no"] for slot in range(4)] + [["p1", "a0", "no"], ["p2", "a0", "no"]]
    report = report_on_rows(given, rows, tmp_path)
    assert report.prompts == 3
    assert report.error_on_wrong.value == 1 / 6
    assert report.error_on_wrong.high == pytest.approx(clopper_pearson(2 / 6, 2)[1])
    # Paraphrases of a cluster are one prompt.
    clustered = [one.model_copy(update={"cluster": "c"}) for one in given]
    together = report_on_rows(clustered, rows, tmp_path)
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
        report = report_on_rows(given.records, rows, tmp_path)
        hits += covers(report.error_on_wrong, 0.3)
        low, high = clopper_pearson(report.error_on_wrong.mistakes, prompts * N)
        naive += low <= 0.3 <= high
    chance = chance_to_cover(0.3, prompts)
    assert hits >= binom.ppf(FALSE_ALARM, repetitions, chance)
    # The negative control: to take them all for independent.
    assert naive < binom.ppf(FALSE_ALARM, repetitions, chance)


@pytest.mark.parametrize("correct", [True, False])
def test_review_report_knows_no_rate_without_a_row_of_its_kind(tmp_path: Path, *, correct: bool) -> None:
    given = [make_record(f"p{number}", ("a", correct)) for number in range(12)]
    write_review(given, 12, tmp_path / "a.csv")
    report = create_review_report(given, fill_in(tmp_path / "a.csv", lambda *_: correct))
    missing = report.error_on_wrong if correct else report.error_on_correct
    assert (missing.value, missing.low, missing.high) == (None, 0.0, 1.0)


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
    with pytest.raises((InputError, RecordError), match=says):
        report_on_rows(given, rows, tmp_path)


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("records") / "facts.jsonl"
    write_records(path, list_facts(), Provenance(n=10, labeler={"id": "exact"}))
    return path


def read_labels(records: list[PromptRecord]) -> dict[tuple[str, str], bool]:
    return {
        (record.id, format_candidate(candidate)): candidate.correct
        for record in records
        for candidate in record.candidates
    }


@pytest.fixture(scope="module")
def sheet(records: Path) -> Path:
    """A sheet that agrees with the labels except in every twentieth row; the last ten rows are empty."""
    path = records.parent / "review.csv"
    given = list(read_records(records))
    write_review(given, 300, path)
    labels = read_labels(given)
    seen: list[str] = []

    def says(name: str, candidate: str) -> bool | None:
        seen.append(name)
        return None if len(seen) > 290 else labels[name, candidate] ^ (len(seen) % 20 == 0)

    return fill_in(path, says)


def test_agreement_prints_the_report(records: Path, sheet: Path) -> None:
    (store := records.with_name("a store.db")).write_bytes(b"SQLite format 3\0")
    refusal = " ".join(run("store", "agreement", store, sheet).err.split())
    assert f"store export '{store}' records.jsonl" in refusal
    ran = run("store", "agreement", records, sheet)
    assert (ran.code, ran.err) == (0, "")
    assert max(map(len, ran.out.splitlines())) <= 80
    said = " ".join(ran.out.split())
    report = create_review_report(read_records(records), sheet)
    assert run("store", "agreement", records, sheet, "--json").data == json.loads(report.model_dump_json())
    e0 = report.error_on_wrong
    assert e0.value is not None
    for words in (
        "review.csv: 290 of 300 rows filled in, from 290 independent prompts",
        f"wrong ones labelled correct {e0.mistakes} of {e0.rows}",
        f" {100 * e0.value:.1f} {100 * e0.low:.1f} to {100 * e0.high:.1f}",
        "Empty rows are left out",
    ):
        assert words in said
