"""Labels that people gave, from a file."""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from langchain_core.runnables import RunnableConfig

from langchain_cfc.errors import InputError, LabelerError, RecordError
from langchain_cfc.execution import Steps
from langchain_cfc.labelers.base import BaseLabeler, LabelerInput, reject_duplicate_keys
from langchain_cfc.verifiers.base import combined_fingerprint

_WORDS = {"true": True, "false": False, "yes": True, "no": False, "1": True, "0": False}
By = Literal["id", "prompt"]
_NAMES: tuple[By, By] = ("id", "prompt")

# A spreadsheet calculates a cell that begins with = + - or @, and rewrites one that looks like a number or a
# date: 3/4 becomes a day in April. One that begins with this is text to all of them.
TEXT_MARK = "'"


@dataclass(frozen=True)
class SheetRow:
    """What people said of one candidate.

    Attributes:
        line: Where it stands in the file, counted from 1; for a CSV row of several lines the last of them.
        correct: True, False, or None where nobody has said yet.
    """

    line: int
    correct: bool | None


@dataclass(frozen=True)
class Sheet:
    """What people said of some candidates.

    Attributes:
        source: Name of the file.
        by: Whether candidates are found by the `id` of their record or by its `prompt`.
        rows: By id or prompt, and text.
        digest: SHA-256 of the file.
    """

    source: str
    by: By
    rows: Mapping[tuple[str, str], SheetRow]
    digest: str


def read_sheet(path: str | Path, *, partly: bool = False) -> Sheet:
    """Read a file of the form that `HumanLabels` describes.

    Args:
        path: The file.
        partly: Whether `correct` may be empty, or null, in some rows.

    Returns:
        Its rows, each candidate once.

    Raises:
        InputError: If it is neither `.csv` nor `.jsonl`, or cannot be read.
        RecordError: If a line lacks a field, holds something else in it, or contradicts an earlier one.
    """
    source = Path(path)
    if source.suffix not in {".csv", ".jsonl"}:
        msg = f"{source} is neither .csv nor .jsonl, so how labels are written in it is not settled"
        raise InputError(msg)
    try:
        content = source.read_bytes()
        text = content.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        msg = f"{source} cannot be read as text in UTF-8: {error}"
        raise InputError(msg) from error
    lines = _csv_rows(source.name, text) if source.suffix == ".csv" else _json_rows(source.name, text)
    by, rows = _table(source.name, lines, partly=partly)
    return Sheet(source.name, by, rows, f"sha256:{hashlib.sha256(content).hexdigest()}")


def format_value(value: Any) -> str:
    r"""A prompt or a candidate as such a file has it: text as it is, anything else as canonical JSON.

    Args:
        value: Text, or plain data.

    Returns:
        Its text, whose lines end in \n: spreadsheet programs change line ends within cells.

    Raises:
        LabelerError: If it is neither.
    """
    if isinstance(value, str):
        return value.replace("\r\n", "\n").replace("\r", "\n")
    try:
        return json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        msg = f"the prompt is a {type(value).__name__} that is no JSON: label by id"
        raise LabelerError(msg) from error


def _table(
    source: str, lines: Iterator[tuple[int, Mapping[str, Any]]], *, partly: bool
) -> tuple[By, dict[tuple[str, str], SheetRow]]:
    """Rows by id or prompt, and text."""
    by: By | None = None
    rows: dict[tuple[str, str], SheetRow] = {}
    for line, row in lines:
        own = _named_by(source, line, row)
        by = by or own
        if own != by:
            raise RecordError(source, line, own, f"found it; expected {by}, as in the lines above")
        key = (_name(source, line, own, row[own]), _text(source, line, row))
        label = _label(source, line, row.get("correct"), partly=partly)
        earlier = rows.get(key)
        if earlier is None or earlier.correct is None:
            rows[key] = SheetRow(line, label)
        elif label is not None and label != earlier.correct:
            problem = f"found {_word(label)}, and the other label for the same candidate in an earlier line"
            raise RecordError(source, line, "correct", problem)
    if by is None:
        raise RecordError(source, 0, "", "it holds no labels")
    return by, rows


def _named_by(source: str, line: int, row: Mapping[str, Any]) -> By:
    given: list[By] = [one for one in _NAMES if row.get(one) is not None]
    if len(given) == 1:
        return given[0]
    raise RecordError(
        source, line, "", f"found {'both' if given else 'neither'} of id and prompt; expected one"
    )


def _name(source: str, line: int, by: By, value: Any) -> str:
    if by == "id" and not isinstance(value, str):
        raise RecordError(source, line, "id", f"found a {type(value).__name__}; expected text")
    return format_value(value) if by == "prompt" else value


def _text(source: str, line: int, row: Mapping[str, Any]) -> str:
    text = row.get("text")
    if isinstance(text, str):
        return format_value(text)
    raise RecordError(source, line, "text", f"found a {type(text).__name__}; expected text, empty if need be")


def _label(source: str, line: int, value: Any, *, partly: bool) -> bool | None:
    if isinstance(value, bool):
        return value
    if partly and (value is None or (isinstance(value, str) and not value.strip())):
        return None
    problem = f"found {value!r:.60}; expected true or false"
    raise RecordError(source, line, "correct", problem)


def _word(label: bool) -> str:
    return "true" if label else "false"


def _csv_rows(source: str, text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    # Spreadsheet programs separate by the sign that is usual in their country.
    delimiter = max(",;\t", key=text.partition("\n")[0].count)
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        for row in reader:
            # A line that is too short holds None, one that is too long a list under None.
            if None in row or None in row.values():
                problem = (
                    f"found another number of fields than the {len(reader.fieldnames or [])} of the header"
                )
                raise RecordError(source, reader.line_num, "", problem)
            cells = dict(_unmarked(name, cell) for name, cell in row.items())
            word = cells.get("correct", "")
            yield reader.line_num, {**cells, "correct": _WORDS.get(word.strip().lower(), word)}
    except csv.Error as error:
        # The reader of the rows has not counted the one that it could not read.
        raise RecordError(source, reader.reader.line_num, "", f"not CSV: {error}") from error


def _unmarked(name: str, cell: str) -> tuple[str, str]:
    """A column and a cell without marks; one whose name has none is taken as it stands.

    A cell of a marked column may lack its mark: some programs drop it where somebody looked into the cell.
    """
    return (name[1:], cell.removeprefix(TEXT_MARK)) if name.startswith(TEXT_MARK) else (name, cell)


def _json_rows(source: str, text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    for line, content in enumerate(text.split("\n"), start=1):
        if not content.strip():
            continue
        try:
            row = json.loads(content, object_pairs_hook=reject_duplicate_keys)
        except (ValueError, RecursionError) as error:
            raise RecordError(source, line, "", f"not JSON: {error}") from error
        if not isinstance(row, dict):
            raise RecordError(source, line, "", f"found a {type(row).__name__}; expected an object")
        yield line, row


class HumanLabels(BaseLabeler):
    """Looks up what people said of each candidate.

    The file is JSON Lines (`.jsonl`) or CSV with a header (`.csv`), in UTF-8. Each line has

    - `id`, that of the record, or `prompt`, its input; one of the two, the same throughout the file. In CSV
      an input that is no text is written as JSON with sorted keys and without spaces;
    - `text`, the candidate exactly as it was drawn, but for the kind of its line ends;
    - `correct`: true or false; in CSV also yes, no, 1 or 0, in any case.

    Further fields are ignored. A line may be repeated with the same label; where several people disagree,
    settle it first; `compare_labels` says how often they do.

    CSV may be separated by commas, semicolons or tabs. An apostrophe in front of a column's name says that
    one in front of its cells is no part of them: it keeps spreadsheet programs from rewriting what they take
    for a number, a date or a formula. The sheets of `write_review` are written like that.

    Args:
        path: The file, read at once.

    Raises:
        InputError: If it is neither kind of file or cannot be read.
        RecordError: If a line lacks a field, holds something else in it, or contradicts an earlier one.
    """

    def __init__(self, path: str | Path) -> None:
        self.name = "human-labels"
        self._sheet = read_sheet(path)
        self.fingerprint = combined_fingerprint(self.name, {"labels": self._sheet.digest}, {})

    def __repr__(self) -> str:
        """How many labels there are, and by what they are found."""
        sheet = self._sheet
        return f"HumanLabels({sheet.source}: {len(sheet.rows)} by {sheet.by} and text)"

    def labelled(self, given: LabelerInput, config: RunnableConfig) -> Steps[list[bool]]:
        """One look into the table per candidate."""
        del config
        key = self._key(given)
        labels = {text: self._label(key, text) for text in (one.text for one in given["candidates"])}
        yield from ()  # nothing is called
        return [labels[one.text] for one in given["candidates"]]

    def _label(self, key: str, text: str) -> bool:
        row = self._sheet.rows.get((key, format_value(text)))
        if row is not None and row.correct is not None:
            return row.correct
        sheet = self._sheet
        msg = f"no label for {sheet.by} {key!r:.80}, text {text!r:.80} in {sheet.source}: add a line"
        raise LabelerError(msg)

    def _key(self, given: LabelerInput) -> str:
        if self._sheet.by == "prompt":
            return format_value(given["prompt"])
        if "id" in given:
            return given["id"]
        msg = (
            f"{self._sheet.source} goes by id, and the prompt came without one: pass id=, or label by prompt"
        )
        raise LabelerError(msg)
