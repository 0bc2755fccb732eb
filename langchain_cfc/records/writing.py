"""Writing records files, whole or not at all."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import BinaryIO

from langchain_cfc._files import atomic_writer
from langchain_cfc.records.checks import checked
from langchain_cfc.records.reading import Records
from langchain_cfc.records.schema import PromptRecord, Provenance


def write_records(
    path: str | os.PathLike[str], records: Iterable[PromptRecord], provenance: Provenance | None = None
) -> int:
    """Write a records file, a line at a time; equal records give equal bytes.

    The file appears, or replaces an older one, only when all records have been written.

    Args:
        path: Where to write; compressed by gzip if it ends in `.gz`.
        records: At least one record; may be the `Records` of the file to replace.
        provenance: Where the records come from; if left out, that of the `Records` is carried over.

    Returns:
        How many records were written.

    Raises:
        RecordError: If the records are not one dataset: none, unequal numbers of candidates, equal ids.
        InputError: If the folder does not exist or cannot be written to.
    """
    if provenance is None and isinstance(records, Records):
        provenance = records.provenance
    written = 0
    with atomic_writer(path) as file, _compressed(file, path) as lines:
        if provenance is not None:
            lines.write(_provenance_line(provenance))
        for record in checked(records, provenance):
            lines.write(record.model_dump_json(exclude_defaults=True).encode() + b"\n")
            written += 1
    return written


def _provenance_line(provenance: Provenance) -> bytes:
    # Not `exclude_defaults`, which would leave out the format and its version.
    fields = {name: value for name, value in provenance if value is not None}
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def _compressed(
    file: BinaryIO, path: str | os.PathLike[str]
) -> AbstractContextManager[BinaryIO] | AbstractContextManager[gzip.GzipFile]:
    if Path(path).suffix != ".gz":
        return nullcontext(file)
    # Neither name nor time in the gzip header, so that equal records give equal bytes.
    return gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0)
