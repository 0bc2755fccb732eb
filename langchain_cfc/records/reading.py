"""Reading records from JSON Lines files, a line at a time."""

from __future__ import annotations

import codecs
import gzip
import json
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO, cast

from langchain_cfc.errors import InputError, RecordError
from langchain_cfc.records.checks import DatasetChecks, no_records
from langchain_cfc.records.problems import validated
from langchain_cfc.records.schema import PromptRecord, Provenance
from langchain_cfc.records.strict_json import parse_json, shown

_GZIP_MAGIC = b"\x1f\x8b"


def read_records(*paths: str | os.PathLike[str], max_line_bytes: int = 16 * 1024 * 1024) -> Records:
    """Open records files as one dataset.

    Files are JSON Lines in UTF-8 (a byte order mark is tolerated), plain or compressed by gzip, whatever
    their names. Lines of white space are skipped. Files are read, and checked, only while iterating.

    Args:
        paths: At least one file. Their provenance must be the same, and either all or none must have it.
        max_line_bytes: Longest line to accept, line end included, at least 1; bounds the memory that a
            damaged file can take.

    Returns:
        The records, to iterate over as often as needed.

    Raises:
        RecordError: If a file is not there, or is a folder or a pipe.
        InputError: If there is no path, or `max_line_bytes` is less than 1.
    """
    if not paths or max_line_bytes < 1:
        msg = f"expected at least one file and max_line_bytes >= 1, got {paths} and {max_line_bytes}"
        raise InputError(msg)
    records = Records(tuple(Path(path) for path in paths), max_line_bytes)
    for path in records.paths:
        if not path.exists():
            raise RecordError(str(path), 0, "", "no such file")
        if not path.is_file():
            raise RecordError(str(path), 0, "", "not a regular file; expected one that can be read again")
    return records


@dataclass(frozen=True)
class Records:
    """The records of some files; every iteration reads the files anew and holds one record at a time.

    Iterating raises `RecordError` at the first line that cannot be used, after all records before it.

    Attributes:
        paths: The files, at least one.
        max_line_bytes: Longest line to accept.
    """

    paths: tuple[Path, ...]
    max_line_bytes: int

    @cached_property
    def provenance(self) -> Provenance | None:
        """Where the records come from, None if the files do not say; reads no more than their first lines.

        Raises:
            RecordError: If a first line cannot be read, or files contradict each other.
        """
        _, first = self._header(self.paths[0])
        for path in self.paths[1:]:
            line, header = self._header(path)
            if header != first:
                field, contrast = _contrast(header, first)
                problem = f"contradicting provenance: {contrast} in {self.paths[0]}; expected the same"
                raise RecordError(str(path), line, field, problem)
        return first

    def __iter__(self) -> Iterator[PromptRecord]:
        """Read all files from the start."""
        checks = DatasetChecks()
        if self.provenance is not None:
            checks.expect(self.provenance.n, f"the provenance of {self.paths[0]}")
        for path in self.paths:
            for line, record in self._records(path):
                checks.add(record, str(path), line)
                yield record

    def _header(self, path: Path) -> tuple[int, Provenance | None]:
        """The first line's number, and the provenance if that is what it holds."""
        for line, fields in _objects(path, self.max_line_bytes):
            if not _is_provenance(fields):
                return line, None
            # Optional in Python, where whoever writes it is this release; a file may come from another.
            if "version" not in fields:
                raise RecordError(str(path), line, "version", "missing; expected 1")
            return line, validated(Provenance, fields, str(path), line)
        raise no_records(str(path))

    def _records(self, path: Path) -> Iterator[tuple[int, PromptRecord]]:
        empty = True
        for position, (line, fields) in enumerate(_objects(path, self.max_line_bytes)):
            if not _is_provenance(fields):
                empty = False
                yield line, validated(PromptRecord, fields, str(path), line)
            elif position > 0:
                problem = "a provenance can only be the first line; give files one by one instead of joined"
                raise RecordError(str(path), line, "format", problem)
        if empty:
            raise no_records(str(path))


def _is_provenance(fields: dict[str, Any]) -> bool:
    return "format" in fields and "candidates" not in fields


def _contrast(header: Provenance | None, first: Provenance | None) -> tuple[str, str]:
    """The first field in which two files differ, and how."""
    if header is None or first is None:
        return "", "none here, but one" if header is None else "one here, but none"
    field = next(name for name in Provenance.model_fields if getattr(header, name) != getattr(first, name))
    return field, f"found {shown(getattr(header, field))}, but {shown(getattr(first, field))}"


def _objects(path: Path, max_line_bytes: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """The JSON objects of one file, with the numbers of their lines."""
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
            content = (raw.removeprefix(codecs.BOM_UTF8) if line == 1 else raw).rstrip()
            if content:
                yield line, _parsed(content, source, line)


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


def _parsed(content: bytes, source: str, line: int) -> dict[str, Any]:
    try:
        fields = parse_json(content.decode())
    except UnicodeDecodeError as error:
        problem = f"not UTF-8: byte 0x{content[error.start]:02x} at position {error.start + 1}"
    except json.JSONDecodeError as error:
        near = shown(error.doc[max(0, error.pos - 20) : error.pos + 20])
        problem = (
            f"not JSON: {error.msg}: character {error.pos + 1}, near {near}; expected one object per line"
        )
    except RecursionError:
        problem = "nested too deeply to be parsed"
    except ValueError as error:  # an integer of thousands of digits
        problem = f"not JSON that can be used: {error}"
    else:
        if isinstance(fields, dict):
            return fields
        problem = f"found {shown(fields)}; expected one JSON object per line"
    raise RecordError(source, line, "", problem)
