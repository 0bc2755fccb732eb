"""Records as Parquet: a column for every field, with JSON text if a field may hold any value.

A small file may unpack to gigabytes: a dictionary value stored once may be used millions of times, and
compressed pages may repeat a single byte (a test file of 46 kB took 868 MB to read). So batches and columns
that unpack to too much are refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

from langchain_cfc.errors import RecordError
from langchain_cfc.records.dataset import make_empty_dataset_error
from langchain_cfc.records.schema import (
    ClaimsRecord,
    Example,
    LabelledRecord,
    PromptRecord,
    Provenance,
    encode_compact_json,
    encode_provenance,
    validate_fields,
)
from langchain_cfc.support.imports import require
from langchain_cfc.support.json_text import build_object, parse_object, parse_value

# Columns that hold any JSON, as text.
_JSON_COLUMNS = ("input", "reference", "metadata")
# Metadata key of the provenance.
PROVENANCE_KEY = b"langchain-cfc"
_MAGIC = b"PAR1"
# Number of rows read at a time.
_BATCH_ROWS = 256
# A group of rows holds about this many candidates or claims; the writer keeps one group in memory.
_GROUP_ITEMS = 100_000
_MIB = 1 << 20
# More memory than a few hundred records need.
MAX_BATCH_BYTES = 256 * _MIB
# A large column with a higher compression ratio is not unpacked at all.
_MAX_COMPRESSION_RATIO = 2000
_LARGE_COLUMN_BYTES = 64 * _MIB


def make_parquet_schema(provenance: Provenance | None = None) -> Any:
    """Return the Arrow schema of a records file, for programs that write one with pyarrow.

    Args:
        provenance: Where the records come from; stored in the schema's metadata. If its `unit` is `claims`,
            the schema is that of records with claims.

    Returns:
        The `pyarrow.Schema`. `input`, `reference`, `metadata` and a candidate's `message` are JSON texts.

    Raises:
        MissingExtraError: If pyarrow is not installed.
    """
    is_claims = provenance is not None and provenance.unit == "claims"
    known = None if provenance is None else {PROVENANCE_KEY: encode_provenance(provenance)}
    return _make_schema("claims" if is_claims else "candidates").with_metadata(known)


def _make_schema(column: str) -> Any:
    """Make the schema of records with a list of candidates, or of claims."""
    pa = require("pyarrow", "parquet", "Parquet")
    text, outputs = pa.string(), pa.map_(pa.string(), pa.float64())
    columns = dict.fromkeys(("id", "input", "reference", "metadata", "cluster"), text)
    if column == "claims":
        columns["answer"] = text
        place = {"start": pa.int64(), "end": pa.int64()}
        item = {"text": text, **place, "score": pa.float64(), "supported": pa.bool_(), "scores": outputs}
        item |= {"no_verdict": pa.bool_(), "no_label": pa.bool_()}
    else:
        label = {"score": pa.float64(), "correct": pa.bool_()}
        item = {"text": text, "message": text, **label, "answer": text, "scores": outputs}
        item |= {"no_answer": text, "no_verdict": pa.bool_(), "no_label": pa.bool_()}
    return pa.schema(columns | {column: pa.list_(pa.field("element", pa.struct(item)))})


def read_batches(file: Any, source: str, rows: int) -> Iterator[Any]:
    """Yield batches of at most `rows` rows; refuse a file that unpacks to far more than records need."""
    _check_compression(file.metadata, source)
    row = 1
    for batch in file.iter_batches(batch_size=rows):
        if batch.nbytes > MAX_BATCH_BYTES:
            problem = (
                f"unpacks to {batch.nbytes // _MIB} MiB in {len(batch)} rows; expected at most "
                f"{MAX_BATCH_BYTES // _MIB} MiB"
            )
            raise RecordError(source, row, "", problem)
        row += len(batch)
        yield batch


def _check_compression(metadata: Any, source: str) -> None:
    for group in range(metadata.num_row_groups):
        for number in range(metadata.num_columns):
            column = metadata.row_group(group).column(number)
            unpacked, packed = column.total_uncompressed_size, column.total_compressed_size
            if unpacked > _LARGE_COLUMN_BYTES and unpacked > _MAX_COMPRESSION_RATIO * packed:
                problem = (
                    f"the column {column.path_in_schema} unpacks from {packed / 1024:,.0f} KiB to "
                    f"{unpacked / _MIB:,.0f} MiB; expected at most {_MAX_COMPRESSION_RATIO} times as much"
                )
                raise RecordError(source, 0, "", problem)


def is_parquet(path: Path) -> bool:
    """Whether a file can be opened and begins like Parquet."""
    try:
        with path.open("rb") as file:
            return file.read(len(_MAGIC)) == _MAGIC
    except OSError:
        return False


@dataclass(frozen=True)
class ParquetFile:
    """A Parquet file with one record per row."""

    path: Path

    def read_header(self) -> tuple[int, Provenance | None]:
        """Return line 0, for the whole file, and the provenance if the file holds one."""
        source = str(self.path)
        with self._open() as file:
            if file.metadata.num_rows == 0:
                raise make_empty_dataset_error(source)
            text = (file.schema_arrow.metadata or {}).get(PROVENANCE_KEY)
        if text is None:
            return 0, None
        return 0, validate_fields(Provenance, parse_object(text, source, 0), source, 0)

    def read_records(self) -> Iterator[tuple[int, LabelledRecord]]:
        """Yield each record with the number of its row, counted from 1."""
        source, row = str(self.path), 0
        with self._open() as file:
            holds_claims = _find_list_column(file.schema_arrow.names) == "claims"
            model: type[LabelledRecord] = ClaimsRecord if holds_claims else PromptRecord
            for batch in read_batches(file, source, _BATCH_ROWS):
                batch.validate(full=True)
                for cells in batch.to_pylist():
                    row += 1
                    yield row, validate_fields(model, _parse_cells(cells, source, row), source, row)
        if row == 0:
            raise make_empty_dataset_error(source)

    @contextmanager
    def _open(self) -> Iterator[Any]:
        parquet = require("pyarrow.parquet", "parquet", "reading Parquet")
        source = str(self.path)
        try:
            with parquet.ParquetFile(self.path, page_checksum_verification=True) as file:
                _refuse_repeated(file.schema_arrow.names, source)
                yield file
        except RecordError:
            raise
        except (OSError, ValueError, NotImplementedError) as error:  # pyarrow's errors are among them
            problem = f"damaged or unreadable Parquet: {error}"
            raise RecordError(source, 0, "", problem) from error


def _refuse_repeated(names: Sequence[str], source: str) -> None:
    """Refuse two columns of one name, of which a row as a dictionary would hold the last."""
    if len(set(names)) < len(names):
        raise RecordError(source, 0, "", f"two columns of one name among {', '.join(names)}")


def _find_list_column(names: Sequence[str]) -> str:
    """Return the name of the column that holds the labelled items: `candidates` or `claims`."""
    return "claims" if "claims" in names and "candidates" not in names else "candidates"


def _parse_cells(cells: Mapping[str, Any], source: str, row: int) -> dict[str, Any]:
    """Return the fields of the record in a row: null stands for a missing field."""
    fields = {name: value for name, value in cells.items() if value is not None}
    for name in _JSON_COLUMNS:
        if name in fields:
            fields[name] = _parse_cell(fields[name], source, row, name)
    for name in ("candidates", "claims"):
        items = fields.get(name)
        for slot, item in enumerate(items if isinstance(items, list) else ()):
            if not isinstance(item, dict):
                continue
            where = f"{name}[{slot}]"
            if "message" in item:
                item["message"] = _parse_cell(item["message"], source, row, f"{where}.message")
            scores = item.get("scores")
            if isinstance(scores, list) and all(isinstance(pair, tuple) for pair in scores):
                try:
                    item["scores"] = build_object(scores)
                except ValueError as error:
                    raise RecordError(source, row, f"{where}.scores", str(error)) from None
    return fields


def _parse_cell(cell: Any, source: str, line: int, field: str) -> Any:
    """Parse a cell of JSON text; the model checks whatever else a cell holds."""
    if not isinstance(cell, str):
        return cell
    try:
        return parse_value(cell.encode(), source, line, expected="one JSON value")
    except RecordError as error:
        raise RecordError(source, line, field, error.problem) from None


def write_parquet(file: BinaryIO, records: Iterable[LabelledRecord], provenance: Provenance | None) -> int:
    """Write checked records of one kind, and return their number."""
    pa = require("pyarrow", "parquet", "writing Parquet")
    parquet = require("pyarrow.parquet", "parquet", "writing Parquet")
    stream = iter(records)
    first = next(stream)
    column = "claims" if isinstance(first, ClaimsRecord) else "candidates"
    schema = _make_schema(column).with_metadata(make_parquet_schema(provenance).metadata)
    written = 0
    with parquet.ParquetWriter(file, schema, compression="zstd", write_page_checksum=True) as writer:
        for rows in _group_rows(map(encode_record, chain([first], stream)), column):
            writer.write_batch(pa.RecordBatch.from_pylist(rows, schema=schema))
            written += len(rows)
    return written


def encode_record(record: Example) -> dict[str, Any]:
    """Return a record as a row of `make_parquet_schema()`, without the fields that have their default."""
    fields = record.model_dump(exclude_defaults=True)
    for name in _JSON_COLUMNS:
        if name in fields:
            fields[name] = encode_compact_json(fields[name])
    for candidate in fields.get("candidates", ()):
        if "message" in candidate:
            candidate["message"] = encode_compact_json(candidate["message"])
    return fields


def _group_rows(rows: Iterable[dict[str, Any]], column: str) -> Iterator[list[dict[str, Any]]]:
    group: list[dict[str, Any]] = []
    size = 0
    for row in rows:
        group.append(row)
        size += len(row[column])
        if size >= _GROUP_ITEMS:
            yield group
            group, size = [], 0
    if group:
        yield group
