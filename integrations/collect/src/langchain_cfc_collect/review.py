"""Review of labels by people: write sheets with a sample of candidates or claims, and evaluate filled sheets.

**The sample.** It has k random prompts, and one random slot of the n slots of each prompt. So every slot of
every record is equally likely to be chosen, and the rows are independent: shares among them estimate shares
among all candidates, and counts are binomial. One prompt stands for a
cluster (paraphrases, a conversation), as in calibration. More rows than prompts are refused, because a second
candidate of the same prompt adds little information to the first, and costs people as much.

For claims, a sheet holds all claims of each sampled answer, one row each: people read an answer once.

**Why the sheet is not balanced by label.** A sheet with half of its rows labelled correct and half labelled
wrong would estimate the mistakes that matter less well where they are hard to find. A guarantee is overstated
by wrong candidates that are labelled correct. Where most candidates are correct, such mistakes are rare among
those labelled correct, and a balanced sheet has fewer of these rows.

**The sheet.** It shows neither labels nor scores, and its rows are in random order, so that people are not
influenced. It is CSV, which spreadsheet programs open and change: they calculate `=1+1`, fetch data that a
formula asks for, and turn `3/4` into a date and `007` into 7, so that the text could not be found in the
records again. Which texts are changed depends on program and country. So every cell that people do not fill
in starts with an apostrophe. So do the names of these columns, which tells `HumanLabels` to remove it.

**What a filled sheet says.** Let each row of a sheet be a candidate drawn at random among all, one per
prompt, as `write_review` draws them. Then two counts are binomial: of the w wrong candidates, the number
labelled correct, with w and e0; and of the c correct ones, the number labelled wrong, with c and e1. Both
intervals are those of Clopper and Pearson. A guarantee is overstated by wrong candidates that are labelled
correct, whose share is e0. It says nothing about which: a judge may err where the verifier errs, on the
answers that are served. What a promise is worth in truth is certified by people's labels of a random sample,
see `PeopleSample`.
"""

from __future__ import annotations

import csv
import hashlib
import io
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from langchain_cfc.certificates.bounds import clopper_pearson
from langchain_cfc.errors import InputError
from langchain_cfc.records import (
    Candidate,
    ClaimsRecord,
    LabelledRecord,
    PromptRecord,
)
from langchain_cfc.records.dataset import check_records
from langchain_cfc.records.splits import digest_inputs
from langchain_cfc.support.files import atomic_writer
from langchain_cfc.support.units import UNITS, Unit, UnitTraits
from langchain_cfc_collect.human import (
    MAX_CELL_SIZE,
    TEXT_MARK,
    Sheet,
    format_cell,
    format_input,
    format_value,
    make_key,
    read_sheet,
)

# Of the hashes that choose the sample; the order of the records does not matter.
_SEED = "0"
COLUMNS = ("id", "input", "reference", "text")
CLAIM_COLUMNS = ("id", "input", "reference", "answer", "span", "text")


def write_review(records: Iterable[LabelledRecord], k: int, path: str | os.PathLike[str]) -> None:
    """Write a sheet for people to mark whether k random candidates are correct, or claims are supported.

    The sheet is CSV in UTF-8 with the columns `'id`, `'input`, `'reference`, `'text` and `correct`. People
    fill in yes or no in the last column, and leave the others as they are. `HumanLabels` and
    `create_review_report` read the filled sheet. A sheet of claims has one row per claim, the further columns
    `'answer` and `'span` (the part of the answer that makes the claim), and `supported` as its last column.

    Args:
        records: Any number of labelled records: only all ids and at most 2 k records are held in memory.
        k: Number of candidates, or of answers with all their claims, at least 1. Each is from another prompt,
            and from another cluster if there are clusters.
        path: Where to write, ending in `.csv`. An existing file is never overwritten, because it may hold
            people's work.

    Raises:
        InputError: If the file exists or cannot be written, k is not a positive whole number or more than the
            number of independent prompts, or a chosen candidate or claim is too long for a cell, or is
            labelled both correct and wrong in its record.
        RecordError: If the records are not one dataset.
    """
    if not isinstance(k, int) or k < 1:  # type: ignore[redundant-expr]  # floats come too
        msg = f"the number of candidates to review is {k!r}; expected a whole number of at least 1"
        raise InputError(msg)
    target = check_sheet_path(path)
    sample = _sample_records(records, k)
    what = "answers" if isinstance(sample[0], ClaimsRecord) else "candidates"
    if len(sample) < k:
        msg = (
            f"asked for {k} {what}, but the records hold {len(sample)} independent prompts, and several "
            f"{what} of one say little more than the first: ask for at most {len(sample)}"
        )
        raise InputError(msg)
    write_rows(target, [(record, _choose_slots(record)) for record in sample])


def check_sheet_path(path: str | os.PathLike[str]) -> Path:
    """Return the path of a sheet to write; raise if it does not end in `.csv`, or the file exists."""
    target = Path(path)
    if target.suffix != ".csv":
        msg = f"the sheet {target} would be CSV: give it a name that ends in .csv"
        raise InputError(msg)
    if target.exists():
        msg = f"{target} exists and may hold people's work; it will not be overwritten: give another path"
        raise InputError(msg)
    return target


def write_rows(target: Path, sample: Sequence[tuple[LabelledRecord, Sequence[int]]]) -> None:
    """Write a sheet with the given slots of each record, at least one, in the order of the sample."""
    table = io.StringIO(newline="")
    lines = csv.writer(table)
    first = sample[0][0]
    columns = CLAIM_COLUMNS if isinstance(first, ClaimsRecord) else COLUMNS
    lines.writerow([*(TEXT_MARK + name for name in columns), _find_unit(first).correct])
    for record, slots in sample:
        for cells in _list_rows(record, slots):
            lines.writerow([*(TEXT_MARK + cell for cell in cells), ""])
    with atomic_writer(target, private=True) as file:
        # Some programs need the byte order mark to recognize UTF-8.
        file.write(table.getvalue().encode("utf-8-sig"))


def format_candidate(candidate: Candidate) -> str:
    """Return the text of a candidate on a sheet; canonical JSON if it is structured."""
    return format_value(candidate.message if candidate.text is None else candidate.text)


def _sample_records(records: Iterable[LabelledRecord], k: int) -> list[LabelledRecord]:
    """Return one record from each of k clusters in random order by hash, or from all if there are fewer."""
    best: dict[int, tuple[int, LabelledRecord]] = {}
    for record in check_records(records):
        # Without a cluster, prompts that say the same are one, as in calibration.
        cluster = record.cluster or f"input:{digest_inputs([record.input])[0]}"
        place = _hash_to_int("cluster", cluster)
        mine = (_hash_to_int("pick", record.id), record)
        best[place] = min(mine, best.get(place, mine), key=lambda one: one[0])
        if len(best) >= 2 * k:
            best = dict(sorted(best.items())[:k])
    return [record for _, (_, record) in sorted(best.items())[:k]]


def _hash_to_int(*parts: str) -> int:
    """Return a pseudo-random whole number that depends only on the given texts."""
    content = "\0".join(("review", _SEED, *parts)).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.sha256(content).digest(), "big")


def _choose_slots(record: LabelledRecord) -> Sequence[int]:
    """Choose one candidate of a prompt by hash, or all claims of its answer."""
    if isinstance(record, PromptRecord):
        return [_hash_to_int("slot", record.id) % len(record.candidates)]
    return range(len(record.claims))


def _list_rows(record: LabelledRecord, slots: Sequence[int]) -> Iterator[tuple[str, ...]]:
    """Yield the cells of the candidates or claims in some slots of a record, each text once.

    Raises `InputError` for a text that is too long for a cell, or has both labels.
    """
    shown = record.id, format_cell(format_input(record.input)), format_cell(record.reference)
    items, labels, written = _list_items(record), list_labels(record), set[str]()
    for slot in slots:
        text, label = items[slot]
        if text in written:
            continue
        written.add(text)
        if len(text) > MAX_CELL_SIZE:
            what = _find_unit(record).item
            msg = (
                f"{what} {slot} of record {record.id!r} has {len(text)} characters, and a spreadsheet would "
                f"cut it off: let people label such {what}s elsewhere, and write a sheet (see HumanLabels)"
            )
            raise InputError(msg)
        if (make_key(text), not label) in labels:
            raise _make_contradiction_error(record, text)
        if isinstance(record, PromptRecord):
            yield (*shown, text)
            continue
        claim, answer = record.claims[slot], record.answer or ""
        span = "" if claim.start is None else answer[claim.start : claim.end]
        yield (*shown, format_cell(answer), format_cell(span), text)


def _list_items(record: LabelledRecord) -> list[tuple[str, bool]]:
    """Return the texts of candidates or claims as a sheet shows them, with their labels."""
    if isinstance(record, PromptRecord):
        return [(format_candidate(one), one.correct) for one in record.candidates]
    return [(format_value(one.text), one.supported) for one in record.claims]


def list_labels(record: LabelledRecord) -> list[tuple[str, bool]]:
    """Return the texts of candidates or claims as `Sheet.rows` names them, with their labels."""
    return [(make_key(text), label) for text, label in _list_items(record)]


def _find_unit(record: LabelledRecord) -> UnitTraits:
    return UNITS["claims" if isinstance(record, ClaimsRecord) else "answers"]


def _make_contradiction_error(record: LabelledRecord, text: str) -> InputError:
    unit = _find_unit(record)
    words = f"both {unit.correct} and {unit.wrong}: choose one label"
    return InputError(f"record {record.id!r} labels the {unit.item} {text!r:.80} {words}")


class ErrorRate(BaseModel):
    """Share of the correct or of the wrong candidates whose label is a mistake."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    mistakes: int
    rows: int  # correct or wrong candidates
    value: float | None  # the observed share; None without any row
    low: float  # of its two-sided confidence interval at 95 %
    high: float


class ReviewReport(BaseModel):
    """Comparison of labels with people's labels, which are taken to be right.

    Attributes:
        unit: What the sheet holds: candidate `answers`, or `claims`. Claims are supported or unsupported
            instead of correct or wrong.
        rows: Number of different candidates on the sheet.
        unfilled: Number of candidates on the sheet that are not judged yet.
        prompts: Number of independent prompts that the judged candidates are from.
        error_on_correct: Share of the correct candidates that are labelled wrong, e1.
        error_on_wrong: Share of the wrong candidates that are labelled correct, e0.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    unit: Unit
    rows: int
    unfilled: int
    prompts: int
    error_on_correct: ErrorRate
    error_on_wrong: ErrorRate


def create_review_report(records: Iterable[LabelledRecord], sheet: str | Path) -> ReviewReport:
    """Compare the labels of records with people's labels on a sheet.

    Args:
        records: The records that the sheet is a sample of.
        sheet: The sheet, filled in at least in part. Its rows must be a random sample of candidates, like
            those of `write_review`; rows that people chose to judge say little about the others.

    Returns:
        The mistakes of the labels.

    Raises:
        InputError: If the sheet cannot be read or no row is filled in, or a record labels a reviewed
            candidate both correct and wrong.
        RecordError: If a row of the sheet cannot be used or is not from these records, or the records are
            not one dataset.
        MissingExtraError: If SciPy is not installed.
    """
    people = read_sheet(sheet, partly=True)
    truths = {key: row.correct for key, row in people.rows.items() if row.correct is not None}
    if not truths:
        msg = f"no row of {people.source} is filled in: write yes or no in its last column"
        raise InputError(msg)
    labelled, unit = _find_labels(records, people)
    judged = {truth: [labelled[key] for key in truths if truths[key] is truth] for truth in (True, False)}
    return ReviewReport(
        unit=unit,
        rows=len(people.rows),
        unfilled=len(people.rows) - len(truths),
        prompts=len({labelled[key][1] for key in truths}),
        error_on_correct=_estimate_rate(judged[True], truth=True),
        error_on_wrong=_estimate_rate(judged[False], truth=False),
    )


def _estimate_rate(labelled: Sequence[tuple[bool, str]], *, truth: bool) -> ErrorRate:
    """Return the share of labels that differ from the truth, given each candidate's label and its prompt.

    The interval is that of Clopper and Pearson. If prompts have several candidates, the i-th m_i, the
    variance of the share is largest if mistakes come together. Then it equals the variance of
    (sum m_i)^2 / sum m_i^2 independent ones (Kish 1965, "Survey Sampling"), and the interval for that number
    is used as an approximation.
    """
    total, mistakes = len(labelled), sum(label is not truth for label, _ in labelled)
    if total == 0:
        return ErrorRate(mistakes=0, rows=0, value=None, low=0.0, high=1.0)
    size = total**2 / sum(count**2 for count in Counter(prompt for _, prompt in labelled).values())
    low, high = clopper_pearson(mistakes * size / total, size)
    return ErrorRate(mistakes=mistakes, rows=total, value=mistakes / total, low=low, high=high)


def _find_labels(
    records: Iterable[LabelledRecord], sheet: Sheet
) -> tuple[dict[tuple[str, str], tuple[bool, str]], Unit]:
    """Return the recorded label and the independent prompt of each row, and the records' unit."""
    names = {name for name, _ in sheet.rows}
    found: dict[tuple[str, str], tuple[bool, str]] = {}
    unit: Unit = "answers"
    for record in check_records(records):
        if isinstance(record, ClaimsRecord):
            unit = "claims"
        name = record.id
        if name not in names:
            continue
        sheet.check_input(name, record.input)
        prompt = f"prompt {name}" if record.cluster is None else f"cluster {record.cluster}"
        for text, label in list_labels(record):
            key = (name, text)
            if found.setdefault(key, (label, prompt))[0] != label and key in sheet.rows:
                raise _make_contradiction_error(record, text)
    sheet.check_rows(found, UNITS[unit].item, "in none of the records: does the sheet belong to others?")
    return found, unit
