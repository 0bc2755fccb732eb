"""Dataset files for the tests of sources."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped] # it has no types
import pyarrow.parquet as pq  # type: ignore[import-untyped] # it has no types
import pytest
from langchain_cfc_collect import Columns, Rows, read_examples

from langchain_cfc.errors import RecordError

Written = Sequence[Mapping[str, Any]]


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def write_jsonl(path: Path, rows: Written) -> Path:
    return write(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def write_json(path: Path, rows: Written) -> Path:
    return write(path, json.dumps(rows, indent=1))


def write_csv(path: Path, rows: Written) -> Path:
    """Texts as they are, everything else as JSON."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        for row in rows:
            cells = {name: cell if isinstance(cell, str) else json.dumps(cell) for name, cell in row.items()}
            writer.writerow(cells)
    return path


def write_parquet(path: Path, rows: Written, **options: Any) -> Path:
    pq.write_table(pa.Table.from_pylist(list(rows)), path, **options)
    return path


WRITERS: dict[str, Callable[[Path, Any], Path]] = {
    "a.jsonl": write_jsonl,
    "a.json": write_json,
    "a.csv": write_csv,
    "a.parquet": write_parquet,
}


def catch_record_error(
    source: Path | Rows | Written, columns: Columns, bad_rows: Any = "refuse"
) -> RecordError:
    with pytest.raises(RecordError) as caught:
        list(read_examples(source, columns, bad_rows))
    return caught.value
