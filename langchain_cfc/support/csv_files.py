"""`read_csv`: the rows of a CSV file, in the forms in which people and spreadsheet programs write it.

Rows are read one at a time, by their line. What a row cannot say with certainty is a problem of that row: too
few or too many cells, or bytes that are not UTF-8. A misplaced quotation mark ends the reading, because it is
not certain where the rows after it begin.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from langchain_cfc.errors import RecordError
from langchain_cfc.support.json_text import MAX_LINE_BYTES, describe_decode_error, read_lines, short_repr
from langchain_cfc.support.text import join_names

_DELIMITERS = ",;\t|"
_QUOTED = re.compile(r'"[^"]*"')
_AFTER_RETURN = re.compile(r"(?<=\r)(?=[^\n])")
# With which Excel states the delimiter.
_DELIMITER_LINE = re.compile(r'"?sep=([^\w\s"]|\t)"?[\r\n]*', re.IGNORECASE)
# What stands for bytes that are not UTF-8.
_REPLACED = "\ufffd"


def read_csv(path: Path, fallback: str | None = None) -> Iterator[tuple[int, dict[str, str] | str]]:
    """Yield the line in which each row begins, and its cells by column, or what is wrong with it.

    The first row names the columns; white space around names does not count. Cells are separated by commas,
    semicolons, tabs or vertical bars, whichever is most frequent in that row, or by what a first line `sep=;`
    says. Blank rows and columns without a name are left out.

    Args:
        path: The file, in UTF-8, UTF-16 or packed with gzip, all recognised by its first bytes.
        fallback: Encoding of lines that are not UTF-8, such as `cp1252`; None if they are a problem.

    Raises:
        RecordError: If the file cannot be read, its header is not UTF-8 or names a column twice, or a
            quotation mark is misplaced.
    """
    header: list[str] | None = None
    for line, cells, flaw in _read_cells(path, fallback):
        if header is None:
            if flaw:
                raise RecordError(str(path), line, "", flaw)
            header = [name.strip() for name in cells]
            check_names([name for name in header if name], str(path), line)
        elif flaw:
            named = [repr(name) for name, cell in zip(header, cells, strict=False) if _REPLACED in cell]
            where = f"the cell {join_names(named)} is " if named else ""
            yield line, f"{where}{flaw}; save the file as CSV in UTF-8"
        elif len(cells) != len(header):
            advice = "a cell with a delimiter, a quotation mark or a line break needs quotation marks"
            yield line, f"found {len(cells)} cells; expected {len(header)}, as in the header: {advice}"
        else:
            yield line, {name: cell for name, cell in zip(header, cells, strict=True) if name}


def check_names(names: list[str], source: str, line: int) -> None:
    """Raise a `RecordError` if two columns have one name."""
    duplicate = next((name for place, name in enumerate(names) if name in names[:place]), None)
    if duplicate is not None:
        problem = f"found the column {short_repr(duplicate)} twice; expected names to differ"
        raise RecordError(source, line, "", problem)


def _read_cells(path: Path, fallback: str | None) -> Iterator[tuple[int, list[str], str]]:
    """Yield the number of each row's first line, its cells, and the problem if they are not UTF-8."""
    flaws: list[str] = []

    def decode(raw: bytes) -> str:
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            if fallback is not None:
                return raw.decode(fallback, errors="replace")
            flaws.append(describe_decode_error(error))
            # Replacing bytes keeps commas and quotation marks, so the next row begins where it should.
            return raw.decode(errors="replace")

    lines = (decode(raw) for _, raw in read_lines(path))
    header = next(lines, "")
    # Spreadsheet programs write different delimiters, depending on the user's country.
    stated = _DELIMITER_LINE.fullmatch(header)
    line = 1
    if stated:
        header, line = next(lines, ""), 2
    unquoted = _QUOTED.sub("", header)
    delimiter = stated[1] if stated else max(_DELIMITERS, key=unquoted.count)
    # To `read_lines`, a carriage return alone ends no line.
    texts = chain.from_iterable(map(_AFTER_RETURN.split, chain([header], lines)))
    spaced = f"{delimiter} " in unquoted
    # The limit is of the whole process. What bounds memory here is the length of a line.
    csv.field_size_limit(max(csv.field_size_limit(), MAX_LINE_BYTES))
    reader = csv.reader(texts, delimiter=delimiter, skipinitialspace=spaced, strict=True)
    first = line
    try:
        for cells in reader:
            if any(cell.strip() for cell in cells):
                yield line, cells, flaws[0] if flaws else ""
            flaws.clear()
            line = reader.line_num + first
    except csv.Error as error:
        problem = f"not CSV: {error}; is a quotation mark in this row not closed, or not doubled?"
        raise RecordError(str(path), line, "", problem) from error
