"""Reading records from files and writing them."""

from __future__ import annotations

import gzip
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

from langchain_cfc.candidates import LabelledBatch
from langchain_cfc.errors import InputError, RecordError
from langchain_cfc.records.dataset import check_dataset, check_records
from langchain_cfc.records.jsonl import read_header, read_json_lines
from langchain_cfc.records.schema import (
    ClaimsRecord,
    LabelledRecord,
    PlainRecord,
    PromptRecord,
    Provenance,
    RecordT,
    require_candidates,
    require_claims,
)
from langchain_cfc.support.files import atomic_writer
from langchain_cfc.support.json_text import check_regular_file, short_repr

# Everything that `open_records` reads.
RecordsLike: TypeAlias = (
    str | os.PathLike[str] | Iterable[LabelledRecord] | Iterable[Mapping[str, Any]] | LabelledBatch
)


def read_records(*paths: str | os.PathLike[str]) -> Records:
    """Open records files as one dataset.

    Files are JSON Lines in UTF-8 (a byte order mark is tolerated), plain or compressed by gzip; their names
    do not matter. Blank lines are skipped. Files are read and checked only while iterating.

    Args:
        *paths: At least one file. Their provenance must be the same, and either all or none must have it.

    Returns:
        The records, to iterate over as often as needed.

    Raises:
        RecordError: If a file does not exist, or is a folder or a pipe.
        InputError: If there is no path.
    """
    if not paths:
        msg = "no file of records is given"
        raise InputError(msg)
    records = Records(tuple(Path(path) for path in paths))
    for path in records.paths:
        check_regular_file(path)
    return records


@dataclass(frozen=True)
class Records:
    """The records of some files; each iteration reads the files again and holds one record at a time.

    Iterating raises `RecordError` at the first line that cannot be used, after all records before it.

    Attributes:
        paths: The files, at least one.
        on_read: Called with the number of records just read, if there is one.
    """

    paths: tuple[Path, ...]
    on_read: Callable[[int], None] | None = field(default=None, compare=False)

    @cached_property
    def provenance(self) -> Provenance | None:
        """The provenance of the records, None if the files hold none; reads only their headers."""
        _, first = read_header(self.paths[0])
        for path in self.paths[1:]:
            line, header = read_header(path)
            if header != first:
                names = Provenance.model_fields
                name = next(one for one in names if getattr(header, one, None) != getattr(first, one, None))
                found, known = (short_repr(getattr(one, name, None)) for one in (header, first))
                where = f"{self.paths[0]}; expected the same"
                problem = f"contradicting provenance: found {found}, but {known} in {where}"
                raise RecordError(str(path), line, name, problem)
        return first

    def __iter__(self) -> Iterator[PromptRecord]:
        """Read all files from the start; records of claims are refused, see `read_claims`."""
        return map(require_candidates, self.read_all())

    def read_claims(self) -> Iterator[ClaimsRecord]:
        """Read all files from the start, which must hold claims.

        Raises:
            InputError: If a record holds candidates.
        """
        return map(require_claims, self.read_all())

    def read_all(self) -> Iterator[LabelledRecord]:
        """Read all files from the start, with candidates or with claims."""
        return self._read(PromptRecord)

    def read_plain(self) -> Iterator[LabelledRecord | PlainRecord]:
        """Read all files from the start; faster than `read_all`, since most candidates become no models."""
        return self._read(PlainRecord)

    def _read(self, model: type[RecordT]) -> Iterator[RecordT | LabelledRecord]:
        numbered = chain.from_iterable(read_json_lines(path, model) for path in self.paths)
        for record in check_dataset(numbered, self.provenance, f"the provenance of {self.paths[0]}"):
            if self.on_read is not None:
                self.on_read(1)
            yield record


def open_records(
    given: Any, provenance: Provenance | None = None
) -> tuple[Iterable[LabelledRecord] | LabelledBatch, Provenance | None]:
    """Return records given in any form, and the provenance: the given one, or else the records' own.

    Args:
        given: `Records`, a table, records or mappings of their fields, the path of a records file, or a
            pandas DataFrame with a row for each prompt.
        provenance: Where the records come from; None to use what they carry.

    Returns:
        The records, whose mappings are checked while iterating, and their provenance if it is known.

    Raises:
        RecordError: If a path is no file.
        InputError: If it is nothing of these, or the provenance is none.
    """
    if provenance is not None and not isinstance(provenance, Provenance):
        msg = f"provenance is {short_repr(provenance)}; expected the `provenance` of records"
        raise InputError(msg)
    if isinstance(given, (str, os.PathLike)):
        given = read_records(given)
    elif hasattr(given, "to_dict") and hasattr(given, "columns"):
        # Missing cells are NaN.
        rows = given.to_dict("records")
        given = [{key: value for key, value in row.items() if not _is_nan(value)} for row in rows]
    if isinstance(given, Records):
        return given, given.provenance if provenance is None else provenance
    if isinstance(given, Mapping) or not isinstance(given, (Iterable, LabelledBatch)):
        msg = f"records are {short_repr(given)}; expected records, mappings of their fields, or a file's path"
        raise InputError(msg)
    return given, provenance


def _is_nan(value: object) -> bool:
    return isinstance(value, float) and math.isnan(value)


def write_records(
    path: str | os.PathLike[str], records: RecordsLike, provenance: Provenance | None = None
) -> int:
    """Write a records file as a stream; equal records give equal bytes.

    The file appears, or replaces an older one, only when all records have been written. A new file can be
    read by its owner only; a file that is replaced keeps its mode.

    Args:
        path: File to write: JSON Lines, compressed by gzip if it ends in `.gz`. An existing file that holds
            something other than records is not replaced.
        records: At least one record, in any form that `calibrate` takes but tables; may be the `Records` of
            the file to replace.
        provenance: Where the records come from; by default that of the `Records`.

    Returns:
        Number of records written.

    Raises:
        RecordError: If the records are not one dataset: none, unequal numbers of candidates, equal ids.
        InputError: If the folder does not exist or cannot be written to, or the path holds another file.
    """
    check_records_target(path)
    given, provenance = open_records(records, provenance)
    if isinstance(given, LabelledBatch):
        msg = "a table holds no texts to write: pass the records that it was made of"
        raise InputError(msg)
    good = check_records(given.read_all() if isinstance(given, Records) else given, provenance)
    written = 0
    with atomic_writer(path, private=True) as file, _wrap_in_gzip(file, path) as lines:
        if provenance is not None:
            lines.write(provenance.model_dump_json(exclude_none=True).encode() + b"\n")
        for record in good:
            lines.write(record.model_dump_json(exclude_defaults=True).encode() + b"\n")
            written += 1
    return written


def check_records_target(path: str | os.PathLike[str]) -> None:
    """Refuse to replace a file that holds something other than records, such as a dataset or a store.

    Raises:
        InputError: If the file exists and is neither empty nor a records file.
    """
    target = Path(path)
    if not target.is_file() or not target.stat().st_size:
        return
    try:
        next(read_records(target).read_all())
    except RecordError as error:
        msg = f"{target} exists and holds no records; it will not be overwritten: give another path"
        raise InputError(msg) from error


def _wrap_in_gzip(
    file: BinaryIO, path: str | os.PathLike[str]
) -> AbstractContextManager[BinaryIO] | AbstractContextManager[gzip.GzipFile]:
    if Path(path).suffix != ".gz":
        return nullcontext(file)
    # Neither name nor time in the gzip header, so that equal records give equal bytes.
    return gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0)
