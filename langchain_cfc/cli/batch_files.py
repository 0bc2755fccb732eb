"""The files of `ask --batch`: questions as CSV, and their answers as CSV once all are decided."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from langchain_cfc.errors import InputError
from langchain_cfc.runnable import BatchResult
from langchain_cfc.support.files import atomic_writer, check_target
from langchain_cfc.support.suggestions import suggest_file

# Names of the column with the questions; a file with one column may call it anything.
COLUMNS = ("question", "input")
ANSWER_COLUMNS = ("answer", "reason", "p_value")


def read_questions(path: Path) -> dict[int, str]:
    """Read the questions of a CSV file with a header, in UTF-8 (RFC 4180), by the lines that they start in.

    Raises:
        InputError: If the file is missing, not UTF-8, malformed, or has no question in some line; the message
            names the line.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        msg = f"{path}: no such file{suggest_file(path)}"
        raise InputError(msg) from error
    except OSError as error:
        msg = f"{path}: cannot be read ({error.strerror or error})"
        raise InputError(msg) from error
    except UnicodeDecodeError as error:
        line = path.read_bytes()[: error.start].count(b"\n") + 1
        msg = f"{path}, line {line}: not UTF-8: save the file as CSV in UTF-8"
        raise InputError(msg) from error
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        header = next(reader, [])
        column = _find_column(path, header)
        questions, line = {}, reader.line_num + 1
        for row in reader:
            first, line = line, reader.line_num + 1
            if not row:  # an empty line, as at the end of many files
                continue
            if len(row) != len(header):
                msg = (
                    f"{path}, line {first}: {len(row)} cells, but the header has {len(header)}: a "
                    "cell with a comma, a quotation mark or a line break needs quotation marks"
                )
                raise InputError(msg)
            if not row[column].strip():
                msg = f"{path}, line {first}: the cell {header[column]!r} is empty"
                raise InputError(msg)
            questions[first] = row[column]
    except csv.Error as error:
        msg = f"{path}, line {reader.line_num}: not CSV ({error})"
        raise InputError(msg) from error
    return questions


def _find_column(path: Path, header: Sequence[str]) -> int:
    names = [one.strip().lower() for one in header]
    found = [place for place, name in enumerate(names) if name in COLUMNS]
    if len(header) == 1:
        return 0
    if len(found) == 1:
        return found[0]
    msg = (
        f"{path}, line 1: expected one column named {' or '.join(COLUMNS)} (or a single column of any name), "
        f"found {', '.join(map(repr, header)) or 'nothing'}"
    )
    raise InputError(msg)


def check_batch_output(path: Path) -> None:
    """Raise InputError for a path to which answers cannot be written, or a file that holds something else."""
    check_target(path)
    if path.exists() and path.stat().st_size:
        with path.open("rb") as file:
            first = file.readline().strip()
        if first != _format_row(["question", *ANSWER_COLUMNS]).encode():
            msg = f"{path} exists and holds no answers of a batch; it will not be overwritten"
            raise InputError(msg)


def write_answers(path: Path, questions: Sequence[str], result: BatchResult) -> None:
    """Write the questions in their order with answers, reasons and p-values; atomically, in UTF-8.

    The answer of a question that is not answered is empty.
    """
    rows = [["question", *ANSWER_COLUMNS]]
    rows += [
        [question, one.best or "", one.reason, f"{p_value:.6g}"]
        for question, one, p_value in zip(questions, result.results, result.p_values, strict=True)
    ]
    with atomic_writer(path, private=True) as file:
        file.write("".join(f"{_format_row(row)}\r\n" for row in rows).encode("utf-8", "replace"))


def _format_row(row: Sequence[str]) -> str:
    made = io.StringIO()
    csv.writer(made, lineterminator="").writerow(row)
    return made.getvalue()
