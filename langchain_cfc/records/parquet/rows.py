"""Rows as arrays where they are certain to be right, and else as records by the strict reader."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from langchain_cfc._arrays import BoolArray, FloatArray, IntArray
from langchain_cfc._extras import require
from langchain_cfc.draws import Draws, JsonMetadata, LabelledDraws, kinds_of_json_prompts
from langchain_cfc.errors import RecordError
from langchain_cfc.records.batches import first_slots, one_or_none
from langchain_cfc.records.decoding import DoubtError, are_metadata, json_values
from langchain_cfc.records.lines import json_value
from langchain_cfc.records.parquet.schema import JSON_COLUMNS
from langchain_cfc.records.problems import validated
from langchain_cfc.records.schema import (
    Candidate,
    PromptRecord,
    canonical,
)
from langchain_cfc.records.strict_json import RepeatedKey


@dataclass(frozen=True)
class ParquetBatch:
    """A batch of records as columns, all checked; see `Batch`.

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

    def records(self) -> list[PromptRecord]:
        """The records themselves, which only errors need."""
        return list(strict_rows(self.rows, self.source, self.first))

    def table(self, n: int, names: Sequence[str]) -> LabelledDraws | None:
        """The records as arrays, as `Batch` says."""
        raw = {name: self.outputs.of(name).reshape(self.scores.shape)[:, :n] for name in names}
        if any(np.isnan(outputs).any() for outputs in raw.values()):
            return None
        candidates = _candidates(self.rows)
        keys = _answer_keys(candidates)
        equal = self._used(keys.dictionary_encode().indices, n).astype(np.int64)
        draws = Draws(
            np.ascontiguousarray(self.scores[:, :n]),
            first_slots(equal),
            self._used(_answer_lengths(keys), n).astype(np.int64),
            self.metadata,
        )
        answered = self._used(candidates["answer"].is_valid(), n)
        return LabelledDraws(
            draws,
            self._used(candidates["correct"], n).astype(np.bool_),
            tuple(self.ids),
            tuple(self.rows["cluster"].to_pylist()),
            self.recorded,
            one_or_none(set(np.unique(answered).tolist())),
            {name: outputs.copy() for name, outputs in raw.items()},
            prompt_kinds=kinds_of_json_prompts(text.decode() for text in _texts(self.rows["input"])),
        )

    def _used(self, column: Any, n: int) -> Any:
        """(N, n) values of the first n slots."""
        return column.to_numpy(zero_copy_only=False).reshape(self.scores.shape)[:, :n]


@dataclass(frozen=True)
class Outputs:
    """Raw outputs of some candidates' verifiers.

    Attributes:
        size: Number of candidates.
        candidates: (k,) which candidate each output is of.
        names: (k,) position of each output's name.
        known: The names.
        values: (k,) the outputs.
    """

    size: int
    candidates: IntArray
    names: IntArray
    known: Sequence[str]
    values: FloatArray

    def of(self, name: str) -> FloatArray:
        """(size,) outputs of one verifier; NaN where a candidate has none, which no file can hold."""
        found = np.full(self.size, np.nan)
        if name in self.known:
            own = self.names == self.known.index(name)
            found[self.candidates[own]] = self.values[own]
        return found


def decoded_rows(rows: Any, source: str, first: int) -> ParquetBatch | None:
    """Check the records of some rows, column by column.

    Args:
        rows: At least one row in the schema's types.
        source: The file.
        first: Number of the first row.

    Returns:
        The records; None where only the strict reader can tell what is in the rows.
    """
    try:
        metadata = _checked_prompts(rows)
        scores, outputs = _checked_candidates(rows)
    except (DoubtError, ValueError):
        return None
    return ParquetBatch(rows, source, first, scores, metadata, outputs)


def strict_rows(rows: Any, source: str, first: int) -> Iterator[PromptRecord]:
    """The records of some rows, one by one.

    Args:
        rows: Rows in the schema's types.
        source: The file.
        first: Number of the first row.

    Yields:
        The records.

    Raises:
        RecordError: At the first row that is none.
    """
    for line, row in enumerate(rows.to_pylist(), start=first):
        fields = {name: value for name, value in row.items() if value is not None}
        for name in JSON_COLUMNS:
            if name in fields:
                fields[name] = _parsed(fields[name], source, line, name)
        if "candidates" in fields:
            fields["candidates"] = [
                one if one is None else _candidate_fields(one, source, line, f"candidates[{slot}]")
                for slot, one in enumerate(fields["candidates"])
            ]
        yield validated(PromptRecord, fields, source, line)


def _candidate_fields(row: dict[str, Any], source: str, line: int, where: str) -> dict[str, Any]:
    fields = {name: value for name, value in row.items() if value is not None}
    if "message" in fields:
        fields["message"] = _parsed(fields["message"], source, line, f"{where}.message")
    if "scores" in fields:
        pairs = fields["scores"]
        outputs = dict(pairs)
        fields["scores"] = outputs if len(outputs) == len(pairs) else RepeatedKey(pairs)
    return fields


def _parsed(text: str, source: str, line: int, field: str) -> Any:
    try:
        return json_value(text.encode(), source, line, expected="one JSON value")
    except RecordError as error:
        raise RecordError(source, line, field, error.problem) from None


def _compute() -> Any:
    return require("pyarrow.compute", "collect", "reading Parquet")


def _require(certain: bool) -> None:
    if not certain:
        raise DoubtError


def _candidates(rows: Any) -> dict[str, Any]:
    """The columns of the candidates of all rows, one after the other."""
    every = rows["candidates"].flatten()
    return dict(zip(Candidate.model_fields, every.flatten(), strict=True))


def _checked_prompts(rows: Any) -> JsonMetadata:
    """The metadata; doubts rows whose prompts the strict reader might refuse."""
    for name in ("id", "cluster"):
        shortest = _compute().min(_compute().utf8_length(rows[name])).as_py()
        _require(shortest is None or shortest > 0)
    _require(rows["id"].null_count == rows["input"].null_count == 0)
    inputs = json_values(_texts(rows["input"]))
    _require(set(map(type, inputs)) <= {str, list, dict})
    json_values(_texts(rows["reference"]))
    encoded = rows["metadata"].fill_null("{}").dictionary_encode()
    _require(are_metadata(json_values(_texts(encoded.dictionary))))
    return JsonMetadata(encoded.dictionary.to_pylist(), encoded.indices.to_numpy().astype(np.int64))


def _checked_candidates(rows: Any) -> tuple[FloatArray, Outputs]:
    """Scores and raw outputs; doubts rows whose candidates the strict reader might refuse."""
    _require(rows["candidates"].null_count == 0)
    sizes = np.unique(_compute().list_value_length(rows["candidates"]).to_numpy())
    _require(len(sizes) == 1 and sizes[0] > 0)
    _require(rows["candidates"].flatten().null_count == 0)
    columns = _candidates(rows)
    _require(columns["score"].null_count == columns["correct"].null_count == 0)
    scores = columns["score"].to_numpy().reshape(len(rows), -1)
    # Written so that NaN fails it as well.
    _require(bool(((scores >= 0.0) & (scores <= 1.0)).all()))
    with_text, with_message = (_numpy(columns[name].is_valid()) for name in ("text", "message"))
    _require(bool((with_text != with_message).all()))
    _require(set(map(type, json_values(_texts(columns["message"])))) <= {dict})
    return scores, _checked_outputs(columns["scores"])


def _checked_outputs(maps: Any) -> Outputs:
    offsets = maps.offsets.to_numpy()
    sizes = np.diff(offsets)
    _require(not sizes[~_numpy(maps.is_valid())].any())
    every = slice(int(offsets[0]), int(offsets[-1]))
    names = maps.keys[every].dictionary_encode()
    values = maps.items[every]
    _require(values.null_count == 0)
    numbers = values.to_numpy()
    _require(bool(np.isfinite(numbers).all()))
    candidates = np.repeat(np.arange(len(maps)), sizes)
    codes = names.indices.to_numpy().astype(np.int64)
    pairs = candidates * max(1, len(names.dictionary)) + codes
    _require(len(np.unique(pairs)) == len(pairs))
    return Outputs(len(maps), candidates, codes, names.dictionary.to_pylist(), numbers)


def _answer_keys(candidates: dict[str, Any]) -> Any:
    """What tells each candidate's answer, as `Candidate.answer_key` does."""
    pa = require("pyarrow", "collect", "reading Parquet")
    keys = _compute().coalesce(candidates["answer"], candidates["text"])
    if keys.null_count == 0:
        return keys
    messages = json_values(_texts(candidates["message"]))
    every = candidates["message"].is_valid()
    texts = pa.array([canonical(message) for message in messages], pa.string())
    return _compute().coalesce(keys, _compute().replace_with_mask(candidates["message"], every, texts))


def _answer_lengths(keys: Any) -> Any:
    """Return the number of characters of each answer, 0 for blank ones, as `answer_length` does."""
    blank = _compute().utf8_is_space(keys)
    return _compute().if_else(blank, 0, _compute().utf8_length(keys))


def _texts(column: Any) -> list[bytes]:
    """The texts of a column, without its nulls."""
    texts: list[bytes] = column.drop_null().cast("binary").to_pylist()
    return texts


def _numpy(column: Any) -> BoolArray:
    values: BoolArray = column.to_numpy(zero_copy_only=False).astype(np.bool_)
    return values
