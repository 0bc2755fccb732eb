"""Sheets for people: a sample of labelled candidates, to be judged again by those who know.

**The sample.** k prompts at random, and of each prompt one of its n slots at random. So every slot of every
record is as likely to be chosen as any other, and the rows are independent: shares among them are those among
all candidates, their numbers are binomial, and `compare_labels` applies as it is. Of a cluster (paraphrases,
a conversation) one prompt stands for all, as in calibration. More rows than prompts are refused, for a second
candidate of the same prompt tells little that the first has not told, and costs people as much.

**Why not as many labelled correct as labelled wrong.** Because mistakes that matter would be seen less well
where they are hard to see. What flatters a promise is a wrong candidate that is labelled correct; where most
candidates are correct, such are rare among those labelled correct, and that half of the sheet gets smaller.
Mean upper end of the 95 % interval of e0, the share of wrong candidates labelled correct, over simulated
sheets of 200 rows with e1 = 0.05:

    wrong candidates     e0      at random    half and half
         10 %           0.02       0.21           0.33
         30 %           0.02       0.09           0.13
         50 %           0.02       0.07           0.08
         90 %           0.02       0.05           0.03

Halves win only where nearly everything is wrong, and e0 is well known either way. A test holds this.

**The sheet.** Neither label nor score is on it, and the order of its rows is by chance, so that nobody is
led. It is CSV that spreadsheet programs open, and these are dangerous to texts: they calculate `=1+1`, fetch
what a formula in a text written by somebody else asks for, and turn `3/4` into a date and `007` into 7, so
that neither could be found in the records again. So every cell that is not for people to fill in has an
apostrophe in front, whatever it holds: which texts a program would take for something else depends on
program and country. The names of these columns have one too, by which `HumanLabels` knows to take it off.
"""

from __future__ import annotations

import csv
import hashlib
import io
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from langchain_cfc._files import atomic_writer
from langchain_cfc.errors import InputError, VerifierError
from langchain_cfc.labelers.sheets import MARK, written
from langchain_cfc.records import Candidate, PromptRecord
from langchain_cfc.records.checks import checked
from langchain_cfc.verifiers._prompts import read_prompt

COLUMNS = ("id", "input", "reference", "text")
# What a cell of a spreadsheet holds is 32,767 characters; programs cut the rest off, or spread it over more.
LONGEST_CELL = 32_000
_CUT = " [... cut off here]"


def write_review(
    records: Iterable[PromptRecord], k: int, path: str | os.PathLike[str], *, seed: str | int = "0"
) -> None:
    """Write a sheet on which people say whether k random candidates are correct.

    The sheet is CSV in UTF-8 with the columns `'id`, `'input`, `'reference`, `'text` and `correct`. The last
    is empty and takes yes or no; the others stay as they are. Filled in, `HumanLabels` and `review_report`
    read it.

    Args:
        records: Labelled records, however many: at most 2 k of them are held at a time, and all ids.
        k: Number of candidates, each of another prompt, and of another cluster where there are clusters;
            at least 1.
        path: Where to write, ending in `.csv`. An existing file is never overwritten: it may hold people's
            work.
        seed: Another seed gives another sample; the order of the records plays no role.

    Raises:
        InputError: If the file exists or cannot be written, k is no positive whole number or more than there
            are independent prompts, or a chosen candidate is too long for a cell, or is labelled both
            correct and wrong in its record.
        RecordError: If the records are not one dataset.
    """
    target = Path(path)
    _check(k, target)
    chosen = _chosen(records, k, str(seed))
    if len(chosen) < k:
        msg = (
            f"asked for {k} candidates, but the records hold {len(chosen)} independent prompts, and several "
            f"candidates of one say little more than the first: ask for at most {len(chosen)}"
        )
        raise InputError(msg)
    rows = [_row(record, _number(str(seed), "slot", record.id) % len(record.candidates)) for record in chosen]
    table = io.StringIO(newline="")
    lines = csv.writer(table)
    lines.writerow([*(MARK + name for name in COLUMNS), "correct"])
    lines.writerows([*(MARK + cell for cell in row), ""] for row in rows)
    with atomic_writer(target) as file:
        # With a byte order mark, without which some programs take UTF-8 for something else.
        file.write(table.getvalue().encode("utf-8-sig"))


def candidate_text(candidate: Candidate) -> str:
    """What a sheet calls a candidate.

    Args:
        candidate: A candidate of a record.

    Returns:
        Its text; canonical JSON where it is structured.
    """
    return written(candidate.message if candidate.text is None else candidate.text)


def _check(k: int, target: Path) -> None:
    if not isinstance(k, int) or k < 1:  # type: ignore[redundant-expr]  # floats come too
        msg = f"the number of candidates to review is {k!r}; expected a whole number of at least 1"
        raise InputError(msg)
    if target.suffix != ".csv":
        msg = f"the sheet {target} would be CSV: give it a name that ends in .csv"
        raise InputError(msg)
    if target.exists():
        msg = f"{target} exists and may hold people's work; it will not be overwritten: give another path"
        raise InputError(msg)


def _chosen(records: Iterable[PromptRecord], k: int, seed: str) -> list[PromptRecord]:
    """One record of each of k clusters, by hash and so in random order; fewer if there are not so many."""
    best: dict[int, tuple[int, PromptRecord]] = {}
    for record in checked(records):
        alone = record.cluster is None
        place = _number(seed, "id" if alone else "cluster", record.id if alone else str(record.cluster))
        mine = (_number(seed, "pick", record.id), record)
        best[place] = min(mine, best.get(place, mine), key=lambda one: one[0])
        if len(best) >= 2 * k:
            best = _first(best, k)
    return [record for _, record in _first(best, k).values()]


def _first(best: dict[int, tuple[int, PromptRecord]], k: int) -> dict[int, tuple[int, PromptRecord]]:
    return {place: best[place] for place in sorted(best)[:k]}


def _number(*parts: str) -> int:
    """A random whole number that is the same for the same texts."""
    content = "\0".join(("review", *parts)).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.sha256(content).digest(), "big")


def _row(record: PromptRecord, slot: int) -> tuple[str, str, str, str]:
    candidate = record.candidates[slot]
    text = candidate_text(candidate)
    if len(text) > LONGEST_CELL:
        msg = (
            f"candidate {slot} of record {record.id!r} has {len(text)} characters, and a spreadsheet would "
            "cut it off: have such candidates labelled in JSON Lines (see HumanLabels)"
        )
        raise InputError(msg)
    if any(
        other.correct != candidate.correct and candidate_text(other) == text for other in record.candidates
    ):
        raise contradiction(record, text)
    return record.id, _shown(_transcript(record.input)), _shown(record.reference), text


def contradiction(record: PromptRecord, text: str) -> InputError:
    """The error of a candidate that is labelled both ways.

    Args:
        record: Its record.
        text: The candidate.

    Returns:
        What to raise.
    """
    msg = f"record {record.id!r} labels the candidate {text!r:.80} both correct and wrong: settle it first"
    return InputError(msg)


def _shown(value: Any) -> str:
    """An input or a reference for people to read, as much of it as a cell holds."""
    text = "" if value is None else written(value)
    return text if len(text) <= LONGEST_CELL else text[: LONGEST_CELL - len(_CUT)] + _CUT


def _transcript(value: Any) -> Any:
    """Return messages as people read them, parts other than text named in brackets, and all else as it is."""
    if not isinstance(value, list):
        return value
    try:
        return read_prompt(value, "it is shown as JSON", VerifierError).text
    except VerifierError:
        return value
