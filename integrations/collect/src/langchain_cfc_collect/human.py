"""`HumanLabels`: labels that people gave, read from a CSV or JSON Lines file."""

from __future__ import annotations

import codecs
import csv
import io
import json
import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from langchain_core.runnables import RunnableConfig

from langchain_cfc.errors import InputError, LabelerError, RecordError
from langchain_cfc.execution import Steps
from langchain_cfc.labelers.base import BaseLabeler, LabelerInput
from langchain_cfc.support.json_text import build_object
from langchain_cfc.support.serialization import canonical_json, compute_sha256
from langchain_cfc.support.suggestions import suggest_file
from langchain_cfc.verifiers.base import combine_fingerprints

# What people write, and what spreadsheet programs make of it in several languages. A cross is not read: it
# means "right" to some and "wrong" to others.
_TRUE_WORDS = (
    "true yes y 1 1.0 1,0 correct right \u2713 \u2714 wahr ja vrai oui verdadero verdadeiro vero waar sim si "
    "s\u00ed s\u00ec sand sant prawda tak \u662f"
)
_FALSE_WORDS = (
    "false no n 0 0.0 0,0 incorrect wrong \u2717 \u2718 falsch nein faux non falso onwaar nee n\u00e3o "
    "falsk falskt nej nei fa\u0142sz nie \u5426"
)
_LABEL_WORDS = dict.fromkeys(_TRUE_WORDS.split(), True) | dict.fromkeys(_FALSE_WORDS.split(), False)
# A whole number that a program took for a decimal.
_WHOLE_DECIMAL = re.compile(r"([0-9]+)\.0")
By = Literal["id", "prompt"]
_KEY_COLUMNS: tuple[By, By] = ("id", "prompt")

# Spreadsheets evaluate cells that begin with = + - or @, and rewrite those that look like a number or a date:
# 3/4 becomes a day in April. A cell that begins with this mark is text to all of them.
TEXT_MARK = "'"


@dataclass(frozen=True)
class SheetRow:
    """The label of one candidate, and the line that it was read from."""

    line: int  # counted from 1; a CSV row of several lines has the number of its last one
    correct: bool | None  # None for a label that is still missing


@dataclass(frozen=True)
class Sheet:
    """The labels that people gave in one file."""

    source: str  # name of the file
    by: By  # whether candidates are found by the `id` of their record or by its `prompt`
    rows: Mapping[tuple[str, str], SheetRow]  # by id or prompt, and text
    digest: str  # SHA-256 of the file


def read_sheet(path: str | Path, *, partly: bool = False) -> Sheet:
    """Read a file in the format of `HumanLabels`; with `partly`, labels may be missing.

    Raises:
        InputError: If it is neither `.csv` nor `.jsonl`, or cannot be read.
        RecordError: If there are no labels, or a line lacks a field, has an invalid value in it, or
            contradicts an earlier one.
    """
    source = Path(path)
    ending = source.suffix.lower()
    if ending not in {".csv", ".tsv", ".jsonl"}:
        msg = f"{source} is neither .csv nor .jsonl, so its format is unknown"
        raise InputError(msg)
    try:
        content = source.read_bytes()
        text = _decode(content, "utf-8-sig" if ending == ".jsonl" else "cp1252")
    except FileNotFoundError as error:
        msg = f"{source}: no such file{suggest_file(source)}"
        raise InputError(msg) from error
    except (OSError, UnicodeDecodeError) as error:
        msg = f"{source} cannot be read as text: {error}. Save it in UTF-8"
        raise InputError(msg) from error
    read_rows = _read_json_rows if ending == ".jsonl" else _read_csv_rows
    by: By | None = None
    rows: dict[tuple[str, str], SheetRow] = {}
    for line, row in read_rows(source.name, text):
        own, key, label = _read_row(source.name, line, row, partly=partly)
        by = by or own
        if own != by:
            raise RecordError(source.name, line, own, f"found it; expected {by}, as in the lines above")
        earlier = rows.get(key)
        if earlier is None or earlier.correct is None:
            rows[key] = SheetRow(line, label)
        elif label is not None and label != earlier.correct:
            found = "true" if label else "false"
            problem = f"found {found}, but the same candidate has the other label in an earlier line"
            raise RecordError(source.name, line, "correct", problem)
    if by is None:
        raise RecordError(source.name, 0, "", "it holds no labels")
    return Sheet(source.name, by, rows, compute_sha256(content))


def _decode(content: bytes, fallback: str) -> str:
    """Return the text of a file in UTF-8 or UTF-16, or else in the code that spreadsheet programs write."""
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return content.decode("utf-16")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return content.decode(fallback)


def format_value(value: Any) -> str:
    r"""Return a prompt or a candidate as such a file states it: a text itself, any other value as JSON.

    JSON is canonical. Spreadsheet programs change line ends within cells, join letters with their accents,
    and drop spaces at the end. So a text is in Unicode's form NFC, its line ends are \n, and white space at
    its end is left out. A value that is not JSON raises a `LabelerError`.
    """
    if isinstance(value, str):
        text = value.replace("\r\n", "\n").replace("\r", "\n")
        return unicodedata.normalize("NFC", text).rstrip()
    try:
        return canonical_json(value)
    except (TypeError, ValueError) as error:
        msg = f"the prompt is a {type(value).__name__} that is not JSON: label by id"
        raise LabelerError(msg) from error


def _read_row(
    source: str, line: int, row: Mapping[str, Any], *, partly: bool
) -> tuple[By, tuple[str, str], bool | None]:
    """Return whether a row goes by id or prompt, its key (id or prompt, and text) and its label."""
    given: list[By] = [one for one in _KEY_COLUMNS if row.get(one) is not None]
    if len(given) != 1:
        problem = f"found {'both' if given else 'neither'} of id and prompt; expected one"
        raise RecordError(source, line, "", problem)
    by, text, column = given[0], row.get("text"), _find_label_column(row)
    label = row.get(column)
    name = row[by]
    if by == "id" and not isinstance(name, str):
        raise RecordError(source, line, "id", f"found a {type(name).__name__}; expected text")
    if by == "prompt":
        name = format_value(name)
    if not isinstance(text, str):
        problem = f"found a {type(text).__name__}; expected text, which may be empty"
        raise RecordError(source, line, "text", problem)
    if partly and (label is None or (isinstance(label, str) and not label.strip())):
        label = None
    elif not isinstance(label, bool):
        raise RecordError(source, line, column, f"found {label!r:.60}; expected true or false")
    return by, (name, format_value(text)), label


def _find_label_column(row: Mapping[str, Any]) -> str:
    """Return which column holds the label: `correct`, or `supported` on a sheet of claims."""
    return "supported" if "supported" in row and "correct" not in row else "correct"


def _read_csv_rows(source: str, text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    # Spreadsheet programs use the separator of their locale.
    delimiter = max(",;\t", key=text.partition("\n")[0].count)
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        for row in reader:
            # `DictReader` fills short rows with None, and puts the surplus of long rows under the key None.
            if None in row or None in row.values():
                problem = (
                    f"the number of fields differs from the {len(reader.fieldnames or [])} of the header"
                )
                raise RecordError(source, reader.line_num, "", problem)
            if not any(row.values()):
                continue
            # Only columns with a marked name have marked cells. A cell may have lost its mark, because some
            # programs drop it from a cell that was opened.
            cells = {
                name.removeprefix(TEXT_MARK).strip().lower(): cell.removeprefix(TEXT_MARK)
                if name.startswith(TEXT_MARK)
                else cell
                for name, cell in row.items()
            }
            column = _find_label_column(cells)
            word = cells.get(column, "")
            if whole := _WHOLE_DECIMAL.fullmatch(cells.get("id", "")):
                cells["id"] = whole[1]
            known = unicodedata.normalize("NFC", word).strip(" .\u00a0").lower()
            yield reader.line_num, {**cells, column: _LABEL_WORDS.get(known, word)}
    except csv.Error as error:
        # `DictReader` has not counted the row that it could not read; the reader inside it has.
        raise RecordError(source, reader.reader.line_num, "", f"not CSV: {error}") from error


def _read_json_rows(source: str, text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    for line, content in enumerate(text.split("\n"), start=1):
        if not content.strip():
            continue
        try:
            row = json.loads(content, object_pairs_hook=build_object)
        except (ValueError, RecursionError) as error:
            raise RecordError(source, line, "", f"not JSON: {error}") from error
        if not isinstance(row, dict):
            raise RecordError(source, line, "", f"found a {type(row).__name__}; expected an object")
        yield line, row


class HumanLabels(BaseLabeler):
    """Looks up the labels that people gave to each candidate.

    The file is JSON Lines (`.jsonl`) or CSV with a header (`.csv`), in UTF-8; CSV may also be in UTF-16 or
    Windows-1252, as Excel writes it. Each line has

    - `id`, the id of the record, or `prompt`, its input: one of the two, the same throughout the file. In CSV
      an input that is not text is written as JSON with sorted keys and without spaces;
    - `text`, the candidate as it was drawn, except for what programs change unasked: the kind of line ends,
      spaces at the end, and whether an accent is a character of its own;
    - `correct`, or `supported` for claims: true or false; in CSV also yes, no, y, n, 1, 0, correct, wrong, a
      tick, and the words for true, false, yes and no in several languages, in any letter case.

    Further fields are ignored. A line may be repeated with the same label. If several people disagree,
    resolve it first; `compare_labels` measures how often they do.

    CSV may be separated by commas, semicolons or tabs. If a column's name begins with an apostrophe, an
    apostrophe at the start of its cells is not part of them: it keeps spreadsheet programs from rewriting
    what they take for a number, a date or a formula. `write_review` writes its sheets like that.

    Args:
        path: The file, which is read immediately.

    Raises:
        InputError: If it is neither kind of file or cannot be read.
        RecordError: If a line lacks a field, has an invalid value in it, or contradicts an earlier one.
    """

    def __init__(self, path: str | Path) -> None:
        self.name = "human-labels"
        self._sheet = read_sheet(path)
        self.fingerprint = combine_fingerprints(self.name, {"labels": self._sheet.digest}, {})

    def __repr__(self) -> str:
        """State the number of labels, and whether they go by id or prompt."""
        sheet = self._sheet
        return f"HumanLabels({sheet.source}: {len(sheet.rows)} by {sheet.by} and text)"

    def flow(self, given: LabelerInput, config: RunnableConfig) -> Steps[list[bool]]:
        """Look up each candidate."""
        del config
        sheet = self._sheet
        yield from ()  # nothing is called
        if sheet.by == "prompt":
            key = format_value(given["prompt"])
        elif "id" in given:
            key = given["id"]
        else:
            msg = (
                f"{sheet.source} identifies prompts by id, but this prompt came without one: pass id=, or "
                "label by prompt"
            )
            raise LabelerError(msg)
        return [self._find_label(key, candidate.text) for candidate in given["candidates"]]

    def _find_label(self, key: str, text: str) -> bool:
        sheet = self._sheet
        row = sheet.rows.get((key, format_value(text)))
        if row is not None and row.correct is not None:
            return row.correct
        msg = f"no label for {sheet.by} {key!r:.80}, text {text!r:.80} in {sheet.source}: add a line"
        raise LabelerError(msg)
