"""The columns of a records file, and whether a file has them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from langchain_cfc._extras import require
from langchain_cfc.errors import RecordError
from langchain_cfc.records.schema import (
    Provenance,
    provenance_json,
)

# Where the file keeps its provenance.
PROVENANCE = b"langchain-cfc"
# Columns that hold any JSON, as text.
JSON_COLUMNS = ("input", "reference", "metadata")
_REQUIRED = ("id", "input", "candidates", "candidates.score", "candidates.correct")


def parquet_schema(provenance: Provenance | None = None) -> Any:
    """The Arrow schema of a records file, for those who write one with pyarrow.

    Args:
        provenance: Where the records come from; goes into the metadata of the schema.

    Returns:
        The `pyarrow.Schema`. `input`, `reference`, `metadata` and a candidate's `message` are JSON texts.

    Raises:
        MissingExtraError: If pyarrow is not installed.
    """
    pa = require("pyarrow", "collect", "Parquet")
    text = pa.string()
    candidate = pa.struct(
        {
            "text": text,
            "message": text,
            "score": pa.float64(),
            "correct": pa.bool_(),
            "answer": text,
            "scores": pa.map_(text, pa.float64()),
        }
    )
    columns = dict.fromkeys(("id", "input", "reference", "metadata", "cluster"), text)
    known = None if provenance is None else {PROVENANCE: provenance_json(provenance)}
    return pa.schema(columns | {"candidates": pa.list_(pa.field("element", candidate))}, metadata=known)


def conformed(batch: Any) -> Any:
    """The same rows with the columns and types of the schema."""
    pa = require("pyarrow", "collect", "reading Parquet")
    schema = parquet_schema()
    columns = [
        batch[field.name].cast(field.type)
        if field.name in batch.schema.names
        else pa.nulls(len(batch), field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def check_columns(found: Iterable[Any], expected: Any, source: str, within: str) -> None:
    """Refuse columns that are not those of records; kinds of numbers and of texts may differ."""
    known = {field.name: field.type for field in expected}
    seen: set[str] = set()
    for field in found:
        name = f"{within}{field.name}"
        if field.name not in known or field.name in seen:
            problem = f"unknown column, or one that comes twice; known are {', '.join(known)}"
            raise RecordError(source, 0, name, problem)
        seen.add(field.name)
        _check_type(field.type, known[field.name], source, name)
    missing = next((name for name in known if name not in seen and f"{within}{name}" in _REQUIRED), None)
    if missing is not None:
        raise RecordError(
            source, 0, f"{within}{missing}", f"no such column; expected one of {known[missing]}"
        )


def _check_type(found: Any, expected: Any, source: str, name: str) -> None:
    types = require("pyarrow.types", "collect", "reading Parquet")
    if types.is_struct(expected) and types.is_struct(found):
        check_columns(found, expected, source, f"{name}.")
        return
    if types.is_dictionary(found):
        found = found.value_type
    kinds = {
        "text": (types.is_string, types.is_large_string),
        "number": (types.is_floating, types.is_integer),
        "boolean": (types.is_boolean,),
        "map": (types.is_map,),
    }
    if types.is_list(expected) and (
        types.is_list(found) or types.is_large_list(found) or types.is_fixed_size_list(found)
    ):
        _check_type(found.value_type, expected.value_type, source, name)
        return
    fits = any(
        any(is_kind(expected) for is_kind in group) and any(is_kind(found) for is_kind in group)
        for group in kinds.values()
    )
    if not fits:
        raise RecordError(source, 0, name, f"found a column of {found}; expected one of {expected}")
