"""Lines of a file, plain or compressed, and the JSON in them."""

from __future__ import annotations

import codecs
import gzip
import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO, cast

from langchain_cfc.errors import RecordError
from langchain_cfc.records.strict_json import parse_json, shown

MAX_LINE_BYTES = 16 * 1024 * 1024
_GZIP_MAGIC = b"\x1f\x8b"


def check_regular(path: Path) -> None:
    """Refuse what cannot be read again and again.

    Args:
        path: The file.

    Raises:
        RecordError: If it is not there, or is a folder or a pipe.
    """
    if not path.exists():
        raise RecordError(str(path), 0, "", "no such file")
    if not path.is_file():
        raise RecordError(str(path), 0, "", "not a regular file; expected one that can be read again")


def numbered_lines(path: Path, max_line_bytes: int = MAX_LINE_BYTES) -> Iterator[tuple[int, bytes]]:
    """Read a file a line at a time; one compressed by gzip is told by its first bytes.

    Args:
        path: The file.
        max_line_bytes: Longest line to accept, line end included, at least 1.

    Yields:
        Numbers of lines, counted from 1, and the lines with their ends; a byte order mark is left out.

    Raises:
        RecordError: If the file cannot be opened, is damaged or cut off, or has a longer line.
    """
    source = str(path)
    with _opened(path) as file:
        for line in count(1):
            try:
                raw = file.readline(max_line_bytes + 1)
            except (EOFError, OSError, zlib.error) as error:
                problem = f"the file is damaged or cut off here: {error}"
                raise RecordError(source, line, "", problem) from error
            if not raw:
                return
            if len(raw) > max_line_bytes:
                raise RecordError(source, line, "", f"longer than max_line_bytes = {max_line_bytes}")
            # Only at the start of a file is this a byte order mark.
            yield line, raw.removeprefix(codecs.BOM_UTF8) if line == 1 else raw


def json_object(content: bytes, source: str, line: int) -> dict[str, Any]:
    """Parse the one JSON object of a line.

    Args:
        content: The line.
        source: The file, for errors.
        line: Its number, for errors.

    Returns:
        The object.

    Raises:
        RecordError: If the line is not UTF-8, not JSON, or something other than one object.
    """
    fields = json_value(content, source, line, expected="one object per line")
    if isinstance(fields, dict):
        return fields
    raise RecordError(source, line, "", f"found {shown(fields)}; expected one JSON object per line")


def json_value(content: bytes, source: str, line: int, expected: str) -> Any:
    """Parse one JSON value, whatever it is.

    Args:
        content: The value and nothing else.
        source: The file, for errors.
        line: Number of its line, for errors; 0 where it is the whole file.
        expected: What errors say was expected.

    Returns:
        The value, as `parse_json` gives it.

    Raises:
        RecordError: If it is not UTF-8 or not JSON.
    """
    try:
        return parse_json(content.decode())
    except UnicodeDecodeError as error:
        problem = not_utf8(error)
    except json.JSONDecodeError as error:
        near = shown(error.doc[max(0, error.pos - 20) : error.pos + 20])
        problem = f"not JSON: {error.msg}: character {error.pos + 1}, near {near}; expected {expected}"
    except RecursionError:
        problem = "nested too deeply to be parsed"
    except ValueError as error:  # an integer of thousands of digits
        problem = f"not JSON that can be used: {error}"
    raise RecordError(source, line, "", problem)


def not_utf8(error: UnicodeDecodeError) -> str:
    """What is wrong with bytes that are no text."""
    return f"not UTF-8: byte 0x{error.object[error.start]:02x} at position {error.start + 1}"


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    try:
        file = path.open("rb")
    except OSError as error:
        raise RecordError(str(path), 0, "", f"cannot be opened: {error.strerror}") from error
    with file:
        if file.peek(len(_GZIP_MAGIC)).startswith(_GZIP_MAGIC):
            with gzip.GzipFile(fileobj=file) as unzipped:
                yield cast("BinaryIO", unzipped)
        else:
            yield file
