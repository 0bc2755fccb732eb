"""Records to review, and review sheets as people fill them in."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from pathlib import Path

from langchain_cfc import Candidate, PromptRecord

Row = list[str]


def make_record(
    name: str, *candidates: tuple[str, bool], cluster: str | None = None, score: float = 0.5
) -> PromptRecord:
    """A prompt with texts and their labels."""
    given = tuple(Candidate(text=text, score=score, correct=label) for text, label in candidates)
    return PromptRecord(id=name, input=f"What is {name}?", reference="x", cluster=cluster, candidates=given)


def make_numbered_records(size: int, n: int = 3) -> list[PromptRecord]:
    """Prompts 0, 1, ... of n candidates; the first of each is labelled correct."""
    return [
        make_record(f"p{number}", *((f"answer {slot}", slot == 0) for slot in range(n)))
        for number in range(size)
    ]


def read_rows_of(path: Path) -> list[Row]:
    """Return all rows of a sheet, the header first."""
    return list(csv.reader(io.StringIO(path.read_bytes().decode("utf-8-sig"), newline="")))


def write_rows(path: Path, rows: Sequence[Row], delimiter: str = ",") -> Path:
    """Write rows as a spreadsheet program does."""
    table = io.StringIO(newline="")
    csv.writer(table, delimiter=delimiter).writerows(rows)
    path.write_bytes(table.getvalue().encode("utf-8-sig"))
    return path


def fill_in(path: Path, says: Callable[[str, str], bool | None]) -> Path:
    """Fill in yes or no by id and text of the candidate or claim; None leaves a row empty."""
    words = {True: "yes", False: "no", None: ""}
    header, *rows = read_rows_of(path)
    return write_rows(path, [header, *([*row[:-1], words[says(row[0][1:], row[-2][1:])]] for row in rows)])
