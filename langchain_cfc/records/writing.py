"""Writing records files, whole or not at all."""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import BinaryIO

from langchain_cfc._files import atomic_writer
from langchain_cfc.records.checks import checked
from langchain_cfc.records.parquet import write_parquet
from langchain_cfc.records.reading import Records
from langchain_cfc.records.schema import PromptRecord, Provenance, provenance_json


def write_records(
    path: str | os.PathLike[str], records: Iterable[PromptRecord], provenance: Provenance | None = None
) -> int:
    """Write a records file, a few at a time; equal records give equal bytes.

    The file appears, or replaces an older one, only when all records have been written.

    Args:
        path: Where to write JSON Lines; compressed by gzip if it ends in `.gz`, Parquet in place of them if
            it ends in `.parquet`.
        records: At least one record; may be the `Records` of the file to replace.
        provenance: Where the records come from; if left out, that of the `Records` is carried over.

    Returns:
        How many records were written.

    Raises:
        RecordError: If the records are not one dataset: none, unequal numbers of candidates, equal ids.
        InputError: If the folder does not exist or cannot be written to.
        MissingExtraError: If Parquet is asked for and pyarrow is not installed.
    """
    if provenance is None and isinstance(records, Records):
        provenance = records.provenance
    good = checked(records, provenance)
    if Path(path).suffix == ".parquet":
        with atomic_writer(path) as file:
            return write_parquet(file, good, provenance)
    with atomic_writer(path) as file, _compressed(file, path) as lines:
        return _write_lines(lines, good, provenance)


def _write_lines(
    lines: BinaryIO | gzip.GzipFile, records: Iterable[PromptRecord], provenance: Provenance | None
) -> int:
    if provenance is not None:
        lines.write(provenance_json(provenance) + b"\n")
    written = 0
    for record in records:
        lines.write(record.model_dump_json(exclude_defaults=True).encode() + b"\n")
        written += 1
    return written


def _compressed(
    file: BinaryIO, path: str | os.PathLike[str]
) -> AbstractContextManager[BinaryIO] | AbstractContextManager[gzip.GzipFile]:
    if Path(path).suffix != ".gz":
        return nullcontext(file)
    # Neither name nor time in the gzip header, so that equal records give equal bytes.
    return gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0)
