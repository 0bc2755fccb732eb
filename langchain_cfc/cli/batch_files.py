"""The files of `ask --batch`: questions as CSV, and their answers as CSV once all are decided."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from langchain_cfc.errors import InputError, RecordError
from langchain_cfc.runnable import BatchResult
from langchain_cfc.support.csv_files import read_csv
from langchain_cfc.support.files import atomic_writer, check_target
from langchain_cfc.support.json_text import check_regular_file

# Names of the column with the questions; a file with one column may call it anything.
COLUMNS = ("question", "input")
ANSWER_COLUMNS = ("question", "answer", "reason", "p_value")


def read_questions(path: Path) -> dict[int, str]:
    """Read the questions of a CSV file, as `read_csv` reads it, by the lines that they start in.

    Raises:
        InputError: If the file is missing, malformed, or has no question in some line; the message names the
            line.
    """
    check_regular_file(path)
    questions: dict[int, str] = {}
    column: str | None = None
    for line, cells in read_csv(path):
        if isinstance(cells, str):
            raise RecordError(str(path), line, "", cells)
        column = column or _find_column(path, list(cells))
        if not cells[column].strip():
            raise RecordError(str(path), line, column, "found a blank cell; expected a question")
        questions[line] = cells[column]
    return questions


def _find_column(path: Path, header: Sequence[str]) -> str:
    found = [name for name in header if name.lower() in COLUMNS]
    if len(header) == 1 or len(found) == 1:
        return (found or header)[0]
    problem = (
        f"found {', '.join(map(repr, header)) or 'nothing'}; expected one column named "
        f"{' or '.join(COLUMNS)}, or a single column of any name"
    )
    raise RecordError(str(path), 1, "", problem)


def check_batch_output(path: Path) -> None:
    """Raise InputError for a path to which answers cannot be written, or a file that holds something else."""
    check_target(path)
    if path.exists() and path.stat().st_size:
        with path.open("rb") as file:
            first = file.readline().strip()
        if first != ",".join(ANSWER_COLUMNS).encode():
            msg = f"{path} exists and holds no answers of a batch; it will not be overwritten"
            raise InputError(msg)


def write_answers(path: Path, questions: Sequence[str], result: BatchResult) -> None:
    """Write the questions in their order with answers, reasons and p-values; atomically, in UTF-8.

    The answer of a question that is not answered is empty.
    """
    made = io.StringIO(newline="")
    rows = csv.writer(made)
    rows.writerow(ANSWER_COLUMNS)
    for question, one, p_value in zip(questions, result.results, result.p_values, strict=True):
        rows.writerow([question, one.best or "", one.reason, f"{p_value:.6g}"])
    with atomic_writer(path, private=True) as file:
        file.write(made.getvalue().encode("utf-8", "replace"))
