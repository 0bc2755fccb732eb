"""Rows of Parquet as records, one by one, or as arrays, without an object for any candidate or claim."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from langchain_cfc._internal.arrays import BoolArray, FloatArray, IntArray, find_first_equal
from langchain_cfc._internal.imports import require
from langchain_cfc._internal.metadata import JsonMetadata
from langchain_cfc._internal.text import canonical_json
from langchain_cfc.candidates import (
    CandidateBatch,
    LabelledBatch,
    PromptKind,
    find_json_prompt_kinds,
)
from langchain_cfc.errors import RecordError
from langchain_cfc.records._json import RepeatedKey, parse_value
from langchain_cfc.records.batches import CLAIMS, single_or_none, stack_claims
from langchain_cfc.records.jsonl import DoubtError, are_metadata, parse_values, require_certain
from langchain_cfc.records.schema import (
    ClaimsRecord,
    LabelledRecord,
    PromptRecord,
    validate_fields,
)

# Columns that hold any JSON, as text.
JSON_COLUMNS = ("input", "reference", "metadata")


def find_list_column(names: Sequence[str]) -> str:
    """Return the column that holds what is labelled in each row: candidates, or claims in their place."""
    return "claims" if "claims" in names and "candidates" not in names else "candidates"


@dataclass(frozen=True)
class _ParquetBatch:
    """A batch of records as checked columns; see `Batch`.

    Attributes:
        rows: N rows in the schema's types.
        source: The file.
        first: Number of the first row.
        metadata: The metadata of N prompts.
        outputs: Raw outputs of verifiers.
    """

    rows: Any
    source: str
    first: int
    metadata: JsonMetadata
    outputs: Outputs

    @cached_property
    def ids(self) -> Sequence[str]:
        """Their ids."""
        ids: list[str] = self.rows["id"].to_pylist()
        return ids

    def records(self) -> list[LabelledRecord]:
        """The records themselves, for errors."""
        return list(parse_rows(self.rows, self.source, self.first))


@dataclass(frozen=True)
class CandidateRows(_ParquetBatch):
    """A batch of records of candidates.

    Attributes:
        scores: (N, recorded) scores.
    """

    scores: FloatArray

    @property
    def recorded(self) -> int:
        """Their number of candidates."""
        return int(self.scores.shape[1])

    def table(self, n: int, names: Sequence[str]) -> LabelledBatch | None:
        """Return the records as arrays."""
        candidates = _flatten(self.rows, "candidates")
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
            prompt_kinds=_find_prompt_kinds(self.rows),
        )

    def _take_slots(self, column: Any, n: int) -> Any:
        """Return the (N, n) values of the first n slots."""
        return column.to_numpy(zero_copy_only=False).reshape(self.scores.shape)[:, :n]


@dataclass(frozen=True)
class ClaimRows(_ParquetBatch):
    """A batch of records of claims.

    Attributes:
        counts: (N,) numbers of claims.
    """

    counts: IntArray

    @property
    def recorded(self) -> int:
        """The number that stands for claims."""
        return CLAIMS

    def table(self, n: int, names: Sequence[str]) -> LabelledBatch | None:
        """Return the records as arrays."""
        del n
        raw = {name: self.outputs.of(name) for name in names}
        if any(np.isnan(outputs).any() for outputs in raw.values()):
            return None
        claims = _flatten(self.rows, "claims")
        return stack_claims(
            self.counts,
            ids=self.ids,
            clusters=self.rows["cluster"].to_pylist(),
            metadata=self.metadata,
            scores=claims["score"].to_numpy(),
            supported=_to_bools(claims["supported"]),
            raw=raw,
            prompt_kinds=_find_prompt_kinds(self.rows),
        )


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


def decode_rows(rows: Any, source: str, first: int) -> CandidateRows | ClaimRows | None:
    """Check and decode rows column by column; None if only the strict reader can decide about them."""
    try:
        metadata = _check_prompts(rows)
        if find_list_column(rows.schema.names) == "claims":
            counts, outputs = _check_claims(rows)
            return ClaimRows(rows, source, first, metadata, outputs, counts)
        scores, outputs = _check_candidates(rows)
        return CandidateRows(rows, source, first, metadata, outputs, scores)
    except (DoubtError, ValueError):
        return None


def parse_rows(rows: Any, source: str, first: int) -> Iterator[LabelledRecord]:
    """Yield the records of rows one by one; a RecordError names the first invalid row."""
    column = find_list_column(rows.schema.names)
    model: type[LabelledRecord] = ClaimsRecord if column == "claims" else PromptRecord
    for line, row in enumerate(rows.to_pylist(), start=first):
        fields = {name: value for name, value in row.items() if value is not None}
        for name in JSON_COLUMNS:
            if name in fields:
                fields[name] = _parse_cell(fields[name], source, line, name)
        if column in fields:
            fields[column] = [
                one if one is None else _parse_item(one, source, line, f"{column}[{slot}]")
                for slot, one in enumerate(fields[column])
            ]
        yield validate_fields(model, fields, source, line)


def _parse_item(row: dict[str, Any], source: str, line: int, where: str) -> dict[str, Any]:
    """Return the fields of a candidate or a claim."""
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


def _flatten(rows: Any, column: str) -> dict[str, Any]:
    """Return the columns of the candidates or claims of all rows, one after the other."""
    every = rows[column].flatten()
    return {field.name: values for field, values in zip(every.type, every.flatten(), strict=True)}


def _find_prompt_kinds(rows: Any) -> frozenset[PromptKind]:
    return find_json_prompt_kinds(text.decode() for text in _texts(rows["input"]))


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
    sizes, columns = _check_items(rows, "candidates", "correct")
    require_certain(bool((sizes == sizes[0]).all()))
    with_text, with_message = (_to_bools(columns[name].is_valid()) for name in ("text", "message"))
    require_certain(bool((with_text != with_message).all()))
    require_certain(set(map(type, parse_values(_texts(columns["message"])))) <= {dict})
    return columns["score"].to_numpy().reshape(len(rows), -1), _check_outputs(columns["scores"])


def _check_claims(rows: Any) -> tuple[IntArray, Outputs]:
    """Return (N,) numbers of claims and raw outputs; DoubtError for what the strict reader might refuse."""
    counts, columns = _check_items(rows, "claims", "supported")
    require_certain(columns["text"].null_count == 0)
    require_certain(_compute().min(_compute().utf8_length(columns["text"])).as_py() > 0)
    # A claim of unknown place stands for one that ends at 0.
    starts, ends = (columns[name].fill_null(no).to_numpy() for name, no in (("start", -1), ("end", 0)))
    known = _to_bools(columns["end"].is_valid())
    require_certain(bool((known == _to_bools(columns["start"].is_valid())).all()))
    require_certain(bool(((starts >= 0) == known).all() and (starts < ends).all()))
    lasts = np.maximum.reduceat(ends, np.cumsum(counts) - counts)
    lengths = _compute().utf8_length(rows["answer"])
    given = _to_bools(lengths.is_valid())
    require_certain(bool((lasts <= lengths.fill_null(0).to_numpy())[given].all()))
    return counts, _check_outputs(columns["scores"])


def _check_items(rows: Any, column: str, label: str) -> tuple[IntArray, dict[str, Any]]:
    """Return (N,) numbers of candidates or claims, and their columns with scores and labels checked."""
    require_certain(rows[column].null_count == 0)
    counts: IntArray = _compute().list_value_length(rows[column]).to_numpy().astype(np.int64)
    require_certain(bool((counts > 0).all()))
    require_certain(rows[column].flatten().null_count == 0)
    columns = _flatten(rows, column)
    require_certain(columns["score"].null_count == columns[label].null_count == 0)
    scores = columns["score"].to_numpy()
    # In this form the comparison refuses NaN as well.
    require_certain(bool(((scores >= 0.0) & (scores <= 1.0)).all()))
    return counts, columns


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
