"""Records as Parquet: a column for every field, JSON text where a field may hold anything.

This is the format for large datasets: whatever calibration needs goes from columns to arrays, a batch of rows
at a time, and no text of a candidate becomes an object. As with JSON Lines, rows that certainly are valid are
decoded this way, and all others are left to the strict reader.

A small file may unpack to gigabytes: values that stand in a dictionary once may be used millions of times,
and compressed pages may hold one byte over and over (a file of 46 kB has been made that took 868 MB to read).
So batches and columns that unpack to too much are refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from langchain_cfc._internal.arrays import BoolArray, FloatArray, IntArray
from langchain_cfc._internal.imports import require
from langchain_cfc._internal.text import canonical_json
from langchain_cfc.candidates import (
    CandidateBatch,
    JsonMetadata,
    LabelledBatch,
    find_first_equal,
    find_json_prompt_kinds,
)
from langchain_cfc.errors import RecordError
from langchain_cfc.records._json import RepeatedKey, parse_object, parse_value
from langchain_cfc.records.batches import (
    Batch,
    DatasetChecks,
    RecordBatch,
    no_records_error,
    single_or_none,
)
from langchain_cfc.records.jsonl import DoubtError, are_metadata, parse_values, require_certain
from langchain_cfc.records.schema import (
    Candidate,
    LabelledRecord,
    PromptRecord,
    Provenance,
    compact_json,
    encode_provenance,
    require_candidates,
    validate_fields,
)

# Where the file keeps its provenance.
PROVENANCE = b"langchain-cfc"
# Columns that hold any JSON, as text.
JSON_COLUMNS = ("input", "reference", "metadata")
_REQUIRED = ("id", "input", "candidates", "candidates.score", "candidates.correct")
_MAGIC = b"PAR1"
# Number of rows that become arrays at a time, and of those that are tried again if they may be invalid.
_ROWS = 256
_PART = 64
# A group of rows holds about this many candidates; the writer keeps one group in memory.
_CANDIDATES = 100_000
_MIB = 1 << 20
# More than a few hundred records take in memory.
MOST_BATCH_BYTES = 256 * _MIB
# A large column with a higher compression ratio is not unpacked at all.
_MOST_RATIO = 2000
_LARGE = 64 * _MIB


def parquet_schema(provenance: Provenance | None = None) -> Any:
    """Return the Arrow schema of a records file, for programs that write one with pyarrow.

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
    known = None if provenance is None else {PROVENANCE: encode_provenance(provenance)}
    return pa.schema(columns | {"candidates": pa.list_(pa.field("element", candidate))}, metadata=known)


def cast_to_schema(batch: Any) -> Any:
    """Return the same rows with the columns and types of the schema."""
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
    """Refuse columns other than those of records; kinds of numbers and of texts may differ."""
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


@dataclass(frozen=True)
class ParquetBatch:
    """A batch of records as checked columns; see `Batch`.

    Attributes:
        rows: N rows in the schema's types.
        source: The file.
        first: Number of the first row.
        scores: (N, recorded) scores.
        metadata: The metadata of N prompts.
        outputs: Raw outputs of verifiers.
    """

    rows: Any
    source: str
    first: int
    scores: FloatArray
    metadata: JsonMetadata
    outputs: Outputs

    @cached_property
    def ids(self) -> Sequence[str]:
        """Their ids."""
        ids: list[str] = self.rows["id"].to_pylist()
        return ids

    @property
    def recorded(self) -> int:
        """Their number of candidates."""
        return int(self.scores.shape[1])

    def records(self) -> list[LabelledRecord]:
        """The records themselves, for errors."""
        return list(parse_rows(self.rows, self.source, self.first))

    def table(self, n: int, names: Sequence[str]) -> LabelledBatch | None:
        """Return the records as arrays."""
        candidates = _flatten_candidates(self.rows)
        raw = {name: self.outputs.of(name).reshape(self.scores.shape)[:, :n] for name in names}
        # No file can hold NaN, so it marks a missing output.
        if any(np.isnan(outputs).any() for outputs in raw.values()):
            return None
        keys = _answer_keys(candidates)
        equal = self._take_slots(keys.dictionary_encode().indices, n).astype(np.int64)
        draws = CandidateBatch(
            np.ascontiguousarray(self.scores[:, :n]),
            find_first_equal(equal),
            self._take_slots(_answer_lengths(keys), n).astype(np.int64),
            self.metadata,
        )
        answered = self._take_slots(candidates["answer"].is_valid(), n)
        return LabelledBatch(
            draws,
            self._take_slots(candidates["correct"], n).astype(np.bool_),
            tuple(self.ids),
            tuple(self.rows["cluster"].to_pylist()),
            self.recorded,
            single_or_none(set(np.unique(answered).tolist())),
            {name: outputs.copy() for name, outputs in raw.items()},
            prompt_kinds=find_json_prompt_kinds(text.decode() for text in _texts(self.rows["input"])),
        )

    def _take_slots(self, column: Any, n: int) -> Any:
        """Return the (N, n) values of the first n slots."""
        return column.to_numpy(zero_copy_only=False).reshape(self.scores.shape)[:, :n]


@dataclass(frozen=True)
class Outputs:
    """Raw outputs of verifiers for `size` candidates.

    The k outputs are `values`; each is of the candidate in `candidates` and of the verifier whose position in
    `known` stands in `names`. `pyarrow.compute.map_lookup` would take twice as long as these arrays.
    """

    size: int
    candidates: IntArray
    names: IntArray
    known: Sequence[str]
    values: FloatArray

    def of(self, name: str) -> FloatArray:
        """Return the (size,) outputs of one verifier; NaN where a candidate has none."""
        outputs = np.full(self.size, np.nan)
        if name in self.known:
            own = self.names == self.known.index(name)
            outputs[self.candidates[own]] = self.values[own]
        return outputs


def decode_rows(rows: Any, source: str, first: int) -> ParquetBatch | None:
    """Check and decode rows column by column; None if only the strict reader can decide about them."""
    try:
        metadata = _check_prompts(rows)
        scores, outputs = _check_candidates(rows)
    except (DoubtError, ValueError):
        return None
    return ParquetBatch(rows, source, first, scores, metadata, outputs)


def parse_rows(rows: Any, source: str, first: int) -> Iterator[PromptRecord]:
    """Yield the records of rows one by one; a RecordError names the first invalid row."""
    for line, row in enumerate(rows.to_pylist(), start=first):
        fields = {name: value for name, value in row.items() if value is not None}
        for name in JSON_COLUMNS:
            if name in fields:
                fields[name] = _parse_cell(fields[name], source, line, name)
        if "candidates" in fields:
            fields["candidates"] = [
                one if one is None else _candidate_fields(one, source, line, f"candidates[{slot}]")
                for slot, one in enumerate(fields["candidates"])
            ]
        yield validate_fields(PromptRecord, fields, source, line)


def _candidate_fields(row: dict[str, Any], source: str, line: int, where: str) -> dict[str, Any]:
    fields = {name: value for name, value in row.items() if value is not None}
    if "message" in fields:
        fields["message"] = _parse_cell(fields["message"], source, line, f"{where}.message")
    if "scores" in fields:
        pairs = fields["scores"]
        outputs = dict(pairs)
        fields["scores"] = outputs if len(outputs) == len(pairs) else RepeatedKey(pairs)
    return fields


def _parse_cell(text: str, source: str, line: int, field: str) -> Any:
    try:
        return parse_value(text.encode(), source, line, expected="one JSON value")
    except RecordError as error:
        raise RecordError(source, line, field, error.problem) from None


def _compute() -> Any:
    return require("pyarrow.compute", "collect", "reading Parquet")


def _flatten_candidates(rows: Any) -> dict[str, Any]:
    """Return the columns of the candidates of all rows, one after the other."""
    every = rows["candidates"].flatten()
    return dict(zip(Candidate.model_fields, every.flatten(), strict=True))


def _check_prompts(rows: Any) -> JsonMetadata:
    """Return the metadata; raise DoubtError for prompts that the strict reader might refuse."""
    for name in ("id", "cluster"):
        shortest = _compute().min(_compute().utf8_length(rows[name])).as_py()
        require_certain(shortest is None or shortest > 0)
    require_certain(rows["id"].null_count == rows["input"].null_count == 0)
    inputs = parse_values(_texts(rows["input"]))
    require_certain(set(map(type, inputs)) <= {str, list, dict})
    parse_values(_texts(rows["reference"]))
    encoded = rows["metadata"].fill_null("{}").dictionary_encode()
    require_certain(are_metadata(parse_values(_texts(encoded.dictionary))))
    return JsonMetadata(encoded.dictionary.to_pylist(), encoded.indices.to_numpy().astype(np.int64))


def _check_candidates(rows: Any) -> tuple[FloatArray, Outputs]:
    """Return (N, n) scores and raw outputs; DoubtError for what the strict reader might refuse."""
    require_certain(rows["candidates"].null_count == 0)
    sizes = np.unique(_compute().list_value_length(rows["candidates"]).to_numpy())
    require_certain(len(sizes) == 1 and sizes[0] > 0)
    require_certain(rows["candidates"].flatten().null_count == 0)
    columns = _flatten_candidates(rows)
    require_certain(columns["score"].null_count == columns["correct"].null_count == 0)
    scores: FloatArray = columns["score"].to_numpy().reshape(len(rows), -1)
    # In this form the comparison refuses NaN as well.
    require_certain(bool(((scores >= 0.0) & (scores <= 1.0)).all()))
    with_text, with_message = (_to_bools(columns[name].is_valid()) for name in ("text", "message"))
    require_certain(bool((with_text != with_message).all()))
    require_certain(set(map(type, parse_values(_texts(columns["message"])))) <= {dict})
    return scores, _check_outputs(columns["scores"])


def _check_outputs(maps: Any) -> Outputs:
    """Return raw outputs; DoubtError for those that are not finite, or that come twice under one name."""
    offsets = maps.offsets.to_numpy()
    sizes = np.diff(offsets)
    require_certain(not sizes[~_to_bools(maps.is_valid())].any())
    every = slice(int(offsets[0]), int(offsets[-1]))
    names = maps.keys[every].dictionary_encode()
    values = maps.items[every]
    require_certain(values.null_count == 0)
    numbers = values.to_numpy()
    require_certain(bool(np.isfinite(numbers).all()))
    candidates = np.repeat(np.arange(len(maps)), sizes)
    codes = names.indices.to_numpy().astype(np.int64)
    pairs = candidates * max(1, len(names.dictionary)) + codes
    require_certain(len(np.unique(pairs)) == len(pairs))
    return Outputs(len(maps), candidates, codes, names.dictionary.to_pylist(), numbers)


def _answer_keys(candidates: dict[str, Any]) -> Any:
    """Return the key of each candidate's answer, as `Candidate.answer_key` does."""
    pa = require("pyarrow", "collect", "reading Parquet")
    keys = _compute().coalesce(candidates["answer"], candidates["text"])
    if keys.null_count == 0:
        return keys
    messages = parse_values(_texts(candidates["message"]))
    every = candidates["message"].is_valid()
    texts = pa.array([canonical_json(message) for message in messages], pa.string())
    return _compute().coalesce(keys, _compute().replace_with_mask(candidates["message"], every, texts))


def _answer_lengths(keys: Any) -> Any:
    """Return the number of characters of each answer, 0 for blank ones, as `encode_answers` does."""
    blank = _compute().utf8_is_space(keys)
    return _compute().if_else(blank, 0, _compute().utf8_length(keys))


def _texts(column: Any) -> list[bytes]:
    """Return the texts of a column, without its nulls."""
    texts: list[bytes] = column.drop_null().cast("binary").to_pylist()
    return texts


def _to_bools(column: Any) -> BoolArray:
    values: BoolArray = column.to_numpy(zero_copy_only=False).astype(np.bool_)
    return values


def read_batches(file: Any, source: str, rows: int) -> Iterator[Any]:
    """Yield batches of at most `rows` rows; refuse a file that unpacks to far more than records need."""
    _check_compression(file.metadata, source)
    row = 1
    for batch in file.iter_batches(batch_size=rows):
        if batch.nbytes > MOST_BATCH_BYTES:
            problem = (
                f"unpacks to {batch.nbytes // _MIB} MiB in {len(batch)} rows; expected at most "
                f"{MOST_BATCH_BYTES // _MIB} MiB"
            )
            raise RecordError(source, row, "", problem)
        row += len(batch)
        yield batch


def _check_compression(metadata: Any, source: str) -> None:
    for group in range(metadata.num_row_groups):
        for number in range(metadata.num_columns):
            column = metadata.row_group(group).column(number)
            unpacked, packed = column.total_uncompressed_size, column.total_compressed_size
            if unpacked > _LARGE and unpacked > _MOST_RATIO * packed:
                problem = (
                    f"the column {column.path_in_schema} unpacks from {packed / 1024:,.0f} KiB to "
                    f"{unpacked / _MIB:,.0f} MiB; expected at most {_MOST_RATIO} times as much"
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
    """A file with a record in every row.

    Attributes:
        path: The file.
    """

    path: Path

    def header(self) -> tuple[int, Provenance | None]:
        """Return line 0, for the whole file, and the provenance if the file holds one."""
        source = str(self.path)
        with self._open() as file:
            if file.metadata.num_rows == 0:
                raise no_records_error(source)
            text = (file.schema_arrow.metadata or {}).get(PROVENANCE)
        if text is None:
            return 0, None
        return 0, validate_fields(Provenance, parse_object(text, source, 0), source, 0)

    def records(self, checks: DatasetChecks) -> Iterator[LabelledRecord]:
        """Yield the records one by one; the line of an error is the number of the row."""
        for row, rows in self._rows():
            for start in range(0, len(rows), _PART):
                yield from self._parse_rows(row + start, rows.slice(start, _PART), checks)

    def batches(self, checks: DatasetChecks) -> Iterator[Batch]:
        """Yield the same records in batches."""
        for row, rows in self._rows():
            yield from self._decode_or_parse(row, rows, checks)

    def _decode_or_parse(self, row: int, rows: Any, checks: DatasetChecks) -> Iterator[Batch]:
        """Yield batches of rows, decoded where these certainly are valid, else parsed strictly."""
        source = str(self.path)
        batch = decode_rows(rows, source, row)
        numbers = range(row, row + len(rows))
        if batch is not None and checks.try_add(batch.ids, batch.recorded, source, numbers):
            yield batch
        elif len(rows) > _PART:
            for start in range(0, len(rows), _PART):
                yield from self._decode_or_parse(row + start, rows.slice(start, _PART), checks)
        else:
            yield RecordBatch(list(self._parse_rows(row, rows, checks)))

    def _parse_rows(self, row: int, rows: Any, checks: DatasetChecks) -> Iterator[PromptRecord]:
        for number, record in enumerate(parse_rows(rows, str(self.path), row), start=row):
            checks.add(record, str(self.path), number)
            yield record

    def _rows(self) -> Iterator[tuple[int, Any]]:
        """Yield batches of rows in the schema's types, with the number of the first row, counted from 1."""
        row = 1
        with self._open() as file:
            for batch in read_batches(file, str(self.path), _ROWS):
                batch.validate(full=True)
                yield row, cast_to_schema(batch)
                row += len(batch)
        if row == 1:
            raise no_records_error(str(self.path))

    @contextmanager
    def _open(self) -> Iterator[Any]:
        parquet = require("pyarrow.parquet", "collect", "reading Parquet")
        source = str(self.path)
        try:
            with parquet.ParquetFile(self.path, page_checksum_verification=True) as file:
                check_columns(file.schema_arrow, parquet_schema(), source, "")
                yield file
        except RecordError:
            raise
        except (OSError, ValueError, NotImplementedError) as error:  # pyarrow's errors are among them
            problem = f"damaged, or not Parquet that can be read: {error}"
            raise RecordError(source, 0, "", problem) from error


def write_parquet(file: BinaryIO, records: Iterable[LabelledRecord], provenance: Provenance | None) -> int:
    """Write checked records, and return how many there were."""
    pa = require("pyarrow", "collect", "writing Parquet")
    parquet = require("pyarrow.parquet", "collect", "writing Parquet")
    schema = parquet_schema(provenance)
    written = 0
    with parquet.ParquetWriter(file, schema, compression="zstd", write_page_checksum=True) as writer:
        for rows in _group_rows(map(_to_row, map(require_candidates, records))):
            writer.write_batch(pa.RecordBatch.from_pylist(rows, schema=schema))
            written += len(rows)
    return written


def _to_row(record: PromptRecord) -> dict[str, Any]:
    fields = record.model_dump(exclude_defaults=True)
    for name in JSON_COLUMNS:
        if name in fields:
            fields[name] = compact_json(fields[name])
    for candidate in fields["candidates"]:
        if "message" in candidate:
            candidate["message"] = compact_json(candidate["message"])
    return fields


def _group_rows(rows: Iterable[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    group: list[dict[str, Any]] = []
    for row in rows:
        group.append(row)
        if len(group) * len(row["candidates"]) >= _CANDIDATES:
            yield group
            group = []
    if group:
        yield group
