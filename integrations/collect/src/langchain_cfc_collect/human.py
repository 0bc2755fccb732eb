"""`HumanLabels`: labels that people gave, read from a CSV file."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from langchain_core.messages import get_buffer_string
from langchain_core.runnables import RunnableConfig

from langchain_cfc.errors import InputError, LabelerError, RecordError, VerifierError
from langchain_cfc.execution import Steps
from langchain_cfc.labelers.base import BaseLabeler, LabelerInput
from langchain_cfc.support.csv_files import read_csv
from langchain_cfc.support.json_text import check_regular_file
from langchain_cfc.support.normalisation import unify_characters
from langchain_cfc.support.serialization import canonical_json, compute_sha256
from langchain_cfc.verifiers.base import combine_fingerprints
from langchain_cfc.verifiers.prompts import read_prompt

# What people write, and what spreadsheet programs make of it in several languages. A cross is not read: it
# means "right" to some and "wrong" to others.
_TRUE_WORDS = (
    "true yes y 1 1.0 1,0 1,00 100% correct right ✓ ✔ wahr ja richtig vrai oui juste verdadero correcto "
    "verdadeiro correto vero corretto waar juist goed sim si sí sì sand sant sann rätt rigtigt riktig prawda "
    "tak pravda ano áno tosi kyllä igaz igen adevărat da doğru evet αληθης αληθής ναι истина да верно "
    "правильно так はい 正しい 是 对 對 正确 正確 예 네 참 نعم صحيح כן נכון हाँ सही ใช่ đúng benar"
)
_FALSE_WORDS = (
    "false no n 0 0.0 0,0 0,00 0% incorrect wrong ✗ ✘ falsch nein faux non falso incorrecto incorreto não "
    "sbagliato onwaar nee onjuist fout falsk falskt fel forkert usann feil nej nei fałsz nie nepravda ne "
    "epätosi ei hamis nem fals nu yanlış yanliş hayır hayir ψευδης ψευδής οχι όχι ложь нет неверно "
    "неправильно ні いいえ 誤り 否 错 錯 错误 錯誤 아니요 아니오 거짓 لا خطأ לא שגוי नहीं गलत ไม่ sai salah"
)
# A number that a program took for a decimal.
_WHOLE_DECIMAL = re.compile(r"([0-9]+)[.,]0+")
_PLAIN_MARKS = (
    dict.fromkeys(map(ord, "\u201c\u201d\u201e\u201f\u00ab\u00bb"), '"')
    | dict.fromkeys(map(ord, "\u2018\u2019\u201a\u201b"), "'")
    | dict.fromkeys(map(ord, "\u2013\u2014"), "-")
    | {0x2026: "...", 0x00A0: " ", 0x202F: " "}
)
# Spreadsheets evaluate cells that begin with = + - or @, and rewrite those that look like a number or a date:
# 3/4 becomes a day in April. A cell that begins with this mark is text to all of them.
TEXT_MARK = "'"
# A spreadsheet cell holds 32,767 characters; programs cut off the rest, or spread it over more cells.
MAX_CELL_SIZE = 32_000
_CUT_MARK = " [... cut off here]"
_COLUMNS = ("id", "text", "correct", "supported")


@dataclass(frozen=True)
class SheetRow:
    """The label of one candidate, and the line that it was read from."""

    line: int  # counted from 1; a CSV row of several lines has the number of its first one
    correct: bool | None  # None for a label that is still missing


@dataclass(frozen=True)
class Sheet:
    """The labels that people gave in one file."""

    source: str  # name of the file
    rows: Mapping[tuple[str, str], SheetRow]  # by id of the record, and text as `make_key` gives it
    inputs: Mapping[str, Mapping[str, int]]  # inputs by id, where there are inputs, with a line of each
    digest: str  # SHA-256 of the file

    def check_input(self, name: str, prompt: Any) -> None:
        """Raise a `RecordError` if the file has another input for a record: it belongs to others."""
        for found, line in self.inputs.get(name, {}).items():
            if make_key(found) != make_key(format_cell(format_input(prompt))):
                problem = f"{found!r:.80} is not the input of {name!r:.80}: does the sheet belong to others?"
                raise RecordError(self.source, line, "input", problem)

    def check_rows(self, known: Collection[tuple[str, str]], item: str, missing: str) -> None:
        """Raise a `RecordError` for rows that are not `known`, given the noun for one that is.

        `missing` says of an id what is wrong if no known row has it.
        """
        unknown = [(row.line, key) for key, row in self.rows.items() if key not in known]
        if unknown:
            line, (name, text) = unknown[0]
            more = f"; {len(unknown)} such rows in all" if len(unknown) > 1 else ""
            if name not in {one for one, _ in known}:
                raise RecordError(self.source, line, "id", f"{name!r:.80} is {missing}{more}")
            problem = f"{text!r:.80} is not a {item} of {name!r:.80}: was the text changed?{more}"
            raise RecordError(self.source, line, "text", problem)


def read_sheet(path: str | Path, *, partly: bool = False) -> Sheet:
    """Read a file in the format of `HumanLabels`; with `partly`, labels may be missing.

    Raises:
        InputError: If it is not `.csv` or `.tsv`, or cannot be read.
        RecordError: If there are no labels, or a line lacks a field, has an invalid value in it, or
            contradicts an earlier one.
    """
    path = Path(path)
    source = str(path)
    if path.suffix.lower() not in {".csv", ".tsv"}:
        msg = f"{path} is not a sheet of labels; expected a .csv or .tsv file"
        raise InputError(msg)
    check_regular_file(path)
    rows: dict[tuple[str, str], SheetRow] = {}
    inputs: dict[str, dict[str, int]] = {}
    # Spreadsheet programs of some countries write Windows-1252 unless asked for UTF-8.
    for line, found in read_csv(path, fallback="cp1252"):
        if isinstance(found, str):
            raise RecordError(source, line, "", found)
        cells = _read_cells(source, line, found)
        key = cells["id"], make_key(cells["text"])
        column = "correct" if "correct" in cells else "supported"
        try:
            label = read_label(cells[column]) if cells[column].strip() or not partly else None
        except ValueError as error:
            raise RecordError(source, line, column, str(error)) from error
        if "input" in cells:
            inputs.setdefault(key[0], {}).setdefault(cells["input"], line)
        earlier = rows.get(key)
        if earlier is None or earlier.correct is None:
            rows[key] = SheetRow(line, label)
        elif label is not None and label != earlier.correct:
            word = "true" if label else "false"
            problem = f"found {word}, but the same candidate has the other label in an earlier line"
            raise RecordError(source, line, column, problem)
    if not rows:
        raise RecordError(source, 0, "", "it holds no labels")
    return Sheet(path.name, rows, inputs, compute_sha256(path.read_bytes()))


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
        msg = f"found a {type(value).__name__} that is not JSON"
        raise LabelerError(msg) from error


def format_cell(value: Any) -> str:
    """Return an input or a reference as text, cut off at the size of a cell."""
    text = "" if value is None else format_value(value)
    return text if len(text) <= MAX_CELL_SIZE else text[: MAX_CELL_SIZE - len(_CUT_MARK)] + _CUT_MARK


def format_input(value: Any) -> Any:
    """Return messages of text as a transcript; return other inputs as is, which are shown as JSON."""
    if not isinstance(value, list):
        return value
    try:
        content = read_prompt(value, "it is shown as JSON", VerifierError)
        if isinstance(content, str):
            return content
        return get_buffer_string(content) if all(isinstance(one.content, str) for one in content) else value
    except (VerifierError, ValueError):
        return value


def make_key(value: Any) -> str:
    """Return a candidate as `Sheet.rows` names it: `format_value` without typographic marks.

    Programs write typographic quotation marks, dashes and an ellipsis where people type plain ones.
    """
    return format_value(value).translate(_PLAIN_MARKS)


def _clean_word(word: str) -> str:
    return unify_characters(word).strip(" .!=()'\"").lower()


_LABEL_WORDS = {
    _clean_word(word): label
    for words, label in ((_TRUE_WORDS, True), (_FALSE_WORDS, False))
    for word in words.split()
}


def read_label(value: Any) -> bool:
    """Return a label that is written in any way that sheets know, or as 0 or 1; else raise `ValueError`."""
    label = _LABEL_WORDS.get(_clean_word(str(value)))
    if label is None:
        msg = f"found {value!r:.60}; expected yes or no"
        raise ValueError(msg)
    return label


def _read_cells(source: str, line: int, row: Mapping[str, str]) -> dict[str, str]:
    """Return the cells of a row of CSV without marks."""
    # Only columns with a marked name have marked cells. A cell may have lost its mark, because some programs
    # drop it from a cell that was opened, and may have read its number.
    cells: dict[str, str] = {}
    for name, cell in row.items():
        column, is_marked = name.removeprefix(TEXT_MARK).strip().lower(), name.startswith(TEXT_MARK)
        if column in cells and column in _COLUMNS:
            raise RecordError(source, line, column, "found two columns of this name; expected one")
        text = cell.removeprefix(TEXT_MARK) if is_marked else cell
        is_rewritten = column == "id" and not (is_marked and cell.startswith(TEXT_MARK))
        whole = _WHOLE_DECIMAL.fullmatch(text) if is_rewritten else None
        cells[column] = whole[1] if whole else text
    for column in ("id", "text", "supported" if "supported" in cells else "correct"):
        if column not in cells:
            problem = f"there is no such column; the first row names {', '.join(map(repr, row))}"
            raise RecordError(source, line, column, problem)
    return cells


class HumanLabels(BaseLabeler):
    """Looks up the labels that people gave to each candidate.

    The file is CSV with a header (`.csv` or `.tsv`), in UTF-8, UTF-16 or, as Excel writes it, Windows-1252.
    Each line has

    - `id`, the id of the record;
    - `text`, the candidate as it was drawn, except for what programs change unasked: the kind of line ends,
      spaces at the end, typographic quotation marks and dashes, and whether an accent is a character of its
      own; of candidates with one extracted answer, the first;
    - `correct`, or `supported` for claims: true, false, yes, no, y, n, 1, 0, correct, wrong, a tick, and the
      words for true, false, yes and no in many languages, in any letter case.

    Further columns are ignored, except that `input` must hold the record's input, so that labels of other
    records are not taken. A line may be repeated with the same label. If several people disagree, resolve it
    first.

    Cells may be separated by commas, semicolons, tabs or vertical bars. If a column's name begins with an
    apostrophe, an apostrophe at the start of its cells is not part of them: it keeps spreadsheet programs
    from rewriting what they take for a number, a date or a formula. `write_review` writes its sheets like
    that.

    Args:
        path: The file, which is read immediately.

    Raises:
        InputError: If it is another kind of file or cannot be read.
        RecordError: If a line lacks a field, has an invalid value in it, or contradicts an earlier one.
    """

    reads_text = True

    def __init__(self, path: str | Path) -> None:
        self.name = "human-labels"
        self._sheet = read_sheet(path)
        self.fingerprint = combine_fingerprints(self.name, {"labels": self._sheet.digest}, {})

    def __repr__(self) -> str:
        """State the number of labels."""
        return f"HumanLabels({self._sheet.source}: {len(self._sheet.rows)} by id and text)"

    def flow(self, given: LabelerInput, config: RunnableConfig) -> Steps[list[bool]]:
        """Look up each candidate."""
        del config
        yield from ()  # nothing is called
        if "id" not in given:
            msg = f"{self._sheet.source} identifies prompts by id, but this prompt came without one: pass id="
            raise LabelerError(msg)
        try:
            self._sheet.check_input(given["id"], given["prompt"])
        except RecordError as error:
            raise LabelerError(str(error)) from error
        return [self._find_label(given["id"], candidate.text) for candidate in given["candidates"]]

    def _find_label(self, key: str, text: str) -> bool:
        sheet = self._sheet
        row = sheet.rows.get((key, make_key(text)))
        if row is not None and row.correct is not None:
            return row.correct
        msg = f"no label for id {key!r:.80}, text {text!r:.80} in {sheet.source}: add a line"
        raise LabelerError(msg)
