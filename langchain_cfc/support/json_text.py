"""Strict JSON, and reading of files that hold a JSON value on each line.

Python's parser keeps the last of two equal keys, accepts NaN, turns 1e999 into infinity, and half a
surrogate pair into a string that cannot be written again. `build_object` refuses the first, and `check_json`
or the type of a field the others, so that the error can say where they are.
"""

from __future__ import annotations

import codecs
import gzip
import io
import json
import math
import reprlib
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from langchain_cfc.errors import RecordError
from langchain_cfc.support.suggestions import suggest_file

_Value = TypeVar("_Value")

# Largest depth of nesting: far beyond any prompt or tool call, and far below Python's recursion limit.
_MAX_DEPTH = 100
_MAX_REPR_LENGTH = 60

_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxlong = _REPR.maxother = _MAX_REPR_LENGTH
_REPR.maxlevel = 2
_REPR.maxlist = _REPR.maxtuple = _REPR.maxdict = 3


class NotJsonError(ValueError):
    """A value that cannot be written as JSON and read back unchanged.

    Attributes:
        found: The value, for a message.
        path: Keys and positions that lead to it from the value checked.
    """

    def __init__(self, found: str, path: tuple[str | int, ...] = ()) -> None:
        self.found = found
        self.path = path
        super().__init__(f"found {found}; expected JSON")


def check_json(value: _Value) -> _Value:
    """Return a value of strict JSON as it is; raise NotJsonError for anything else."""
    _check_value(value, ())
    return value


def short_repr(value: object) -> str:
    """Return the repr of a value for an error message, at most 60 characters long."""
    text = _REPR.repr(value)
    return text if len(text) <= _MAX_REPR_LENGTH else f"{text[: _MAX_REPR_LENGTH - 3]}..."


def _check_value(value: object, path: tuple[str | int, ...]) -> None:
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            found = f"half of a surrogate pair at character {error.start + 1} of {short_repr(value)}"
            raise NotJsonError(found, path) from None
    elif isinstance(value, dict | list):
        if len(path) == _MAX_DEPTH:
            found = f"more than {_MAX_DEPTH} nested levels"
            raise NotJsonError(found)
        for key in value if isinstance(value, dict) else ():
            if not isinstance(key, str):
                raise NotJsonError(short_repr(key), path)
            _check_value(key, path)
        for step, item in value.items() if isinstance(value, dict) else enumerate(value):
            _check_value(item, (*path, step))
    elif not (value is None or isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))):
        raise NotJsonError(short_repr(value), path)


def build_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of keys and values, as `object_pairs_hook`; a ValueError if a key occurs twice."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for position, key in enumerate(keys) if key in keys[:position])
        msg = f"the key {short_repr(twice)} twice in one object"
        raise ValueError(msg)
    return fields


parse_json = json.JSONDecoder(object_pairs_hook=build_object).decode
MAX_LINE_BYTES = 16 * 1024 * 1024
GZIP_MAGIC = b"\x1f\x8b"
_UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def check_regular_file(path: Path) -> None:
    """Refuse a path that is not a regular file, since it might not be readable twice."""
    if not path.exists():
        raise RecordError(str(path), 0, "", f"no such file{suggest_file(path)}")
    if not path.is_file():
        raise RecordError(str(path), 0, "", "not a regular file; expected one that can be read twice")


def read_lines(path: Path, most_bytes: int = MAX_LINE_BYTES) -> Iterator[tuple[int, bytes]]:
    """Yield line numbers (from 1) and lines of a file in UTF-8.

    gzip and UTF-16 (the "Unicode text" of spreadsheet programs) are recognised by their first bytes.
    """
    source = str(path)
    with _open_unpacked(path) as file:
        text: io.TextIOWrapper | None = None
        for line in count(1):
            try:
                if line == 1 and file.peek(2).startswith(_UTF16_MARKS):
                    text = io.TextIOWrapper(file, encoding="utf-16", newline="\n")
                size = most_bytes + 1
                raw = file.readline(size) if text is None else text.readline(size).encode()
            except (EOFError, OSError, zlib.error, UnicodeError) as error:
                problem = f"the file is damaged or cut off here: {error}"
                raise RecordError(source, line, "", problem) from error
            if not raw:
                return
            if len(raw) > most_bytes:
                raise RecordError(source, line, "", f"longer than {most_bytes:,} bytes")
            if line == 1 and b"\0" in raw[:4]:
                problem = "holds NUL bytes; expected text in UTF-8, or in UTF-16 with a byte order mark"
                raise RecordError(source, line, "", problem)
            # These bytes are a byte order mark only at the start of a file.
            yield line, raw.removeprefix(codecs.BOM_UTF8) if line == 1 else raw


def parse_object(content: bytes, source: str, line: int) -> dict[str, Any]:
    """Parse a line that holds one JSON object."""
    fields = parse_value(content, source, line, expected="one object per line")
    if isinstance(fields, dict):
        return fields
    raise RecordError(source, line, "", f"found {short_repr(fields)}; expected one JSON object per line")


def parse_value(content: bytes, source: str, line: int, expected: str) -> Any:
    """Parse one JSON value of any type; line 0 stands for the whole file."""
    try:
        return parse_json(content.decode())
    except UnicodeDecodeError as error:
        problem = describe_decode_error(error)
    except json.JSONDecodeError as error:
        near = short_repr(error.doc[max(0, error.pos - 20) : error.pos + 20])
        problem = f"not JSON: {error.msg}: character {error.pos + 1}, near {near}; expected {expected}"
    except RecursionError:
        problem = "nested too deeply to be parsed"
    except ValueError as error:  # a repeated key, or an integer of thousands of digits
        problem = f"unusable JSON: {error}"
    raise RecordError(source, line, "", problem)


def describe_decode_error(error: UnicodeDecodeError) -> str:
    """Describe why bytes are not UTF-8."""
    return f"not UTF-8: byte 0x{error.object[error.start]:02x} at position {error.start + 1}"


@contextmanager
def _open_unpacked(path: Path) -> Iterator[io.BufferedReader | gzip.GzipFile]:
    try:
        file = path.open("rb")
    except OSError as error:
        raise RecordError(str(path), 0, "", f"cannot be opened: {error.strerror}") from error
    with file:
        if file.peek(len(GZIP_MAGIC)).startswith(GZIP_MAGIC):
            with gzip.GzipFile(fileobj=file) as unzipped:
                yield unzipped
        else:
            yield file
