"""Records into a Parquet file, a group of rows at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

from langchain_cfc._extras import require
from langchain_cfc.records.parquet.schema import JSON_COLUMNS, parquet_schema
from langchain_cfc.records.schema import (
    PromptRecord,
    Provenance,
    compact,
)

# A group of rows holds about so many candidates; what is written is held in memory until then.
_CANDIDATES = 100_000


def write_parquet(file: BinaryIO, records: Iterable[PromptRecord], provenance: Provenance | None) -> int:
    """Write a records file.

    Args:
        file: Where to write.
        records: The records, checked to be one dataset.
        provenance: Where they come from.

    Returns:
        How many there were.

    Raises:
        MissingExtraError: If pyarrow is not installed.
    """
    pa = require("pyarrow", "collect", "writing Parquet")
    parquet = require("pyarrow.parquet", "collect", "writing Parquet")
    schema = parquet_schema(provenance)
    written = 0
    with parquet.ParquetWriter(file, schema, compression="zstd", write_page_checksum=True) as writer:
        for rows in _groups(map(_row, records)):
            writer.write_batch(pa.RecordBatch.from_pylist(rows, schema=schema))
            written += len(rows)
    return written


def _row(record: PromptRecord) -> dict[str, Any]:
    fields = record.model_dump(exclude_defaults=True)
    for name in JSON_COLUMNS:
        if name in fields:
            fields[name] = compact(fields[name])
    for candidate in fields["candidates"]:
        if "message" in candidate:
            candidate["message"] = compact(candidate["message"])
    return fields


def _groups(rows: Iterable[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    group: list[dict[str, Any]] = []
    for row in rows:
        group.append(row)
        if len(group) * len(row["candidates"]) >= _CANDIDATES:
            yield group
            group = []
    if group:
        yield group
