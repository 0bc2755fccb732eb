"""Records to review, and sheets as people give them back."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from pathlib import Path

from langchain_cfc import Candidate, PromptRecord

Row = list[str]


def record(
    name: str, *candidates: tuple[str, bool], cluster: str | None = None, score: float = 0.5
) -> PromptRecord:
    """A prompt with texts and their labels."""
    given = tuple(Candidate(text=text, score=score, correct=label) for text, label in candidates)
    return PromptRecord(id=name, input=f"What is {name}?", reference="x", cluster=cluster, candidates=given)


def make_numbered_records(size: int, n: int = 3) -> list[PromptRecord]:
    """Prompts 0, 1, ... of n candidates; the first of each is labelled correct."""
    return [
        record(f"p{number}", *((f"answer {slot}", slot == 0) for slot in range(n))) for number in range(size)
    ]


def rows_of(path: Path) -> list[Row]:
    """All rows of a sheet as they stand, the header first."""
    return list(csv.reader(io.StringIO(path.read_bytes().decode("utf-8-sig"), newline="")))


def save(path: Path, rows: Sequence[Row], delimiter: str = ",") -> Path:
    """Rows as a spreadsheet program writes them."""
    table = io.StringIO(newline="")
    csv.writer(table, delimiter=delimiter).writerows(rows)
    path.write_bytes(table.getvalue().encode("utf-8-sig"))
    return path


def fill(path: Path, says: Callable[[str, str], bool | None]) -> Path:
    """People's work: yes or no by id and text, and nothing for None."""
    words = {True: "yes", False: "no", None: ""}
    header, *rows = rows_of(path)
    return save(path, [header, *([*row[:4], words[says(row[0][1:], row[3][1:])]] for row in rows)])
