"""Decoding of Parquet rows, to arrays without an object per candidate or claim, or to single records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from langchain_cfc.candidates import (
    CandidateBatch,
    LabelledBatch,
    PromptKind,
    encode_answers,
    find_json_prompt_kinds,
)
from langchain_cfc.errors import RecordError
from langchain_cfc.records.batches import Batch, stack_claims
from langchain_cfc.records.jsonl import UncertainError, are_valid_metadata, parse_values, require_certain
from langchain_cfc.records.schema import ClaimsRecord, LabelledRecord, PromptRecord, validate_fields
from langchain_cfc.records.splits import digest_inputs
from langchain_cfc.support.arrays import BoolArray, IntArray
from langchain_cfc.support.imports import require
from langchain_cfc.support.json_text import RepeatedKey, parse_value
from langchain_cfc.support.metadata import JsonMetadata
from langchain_cfc.support.serialization import canonical_json

# Columns that hold any JSON, as text.
JSON_COLUMNS = ("input", "reference", "metadata")


def find_list_column(names: Sequence[str]) -> str:
    """Return the name of the column that holds the labelled items: `candidates` or `claims`."""
    return "claims" if "claims" in names and "candidates" not in names else "candidates"


def decode_rows(rows: Any) -> Batch | None:
    """Check and decode rows column by column; None if only the strict reader can decide about them."""
    decode = _decode_claims if find_list_column(rows.schema.names) == "claims" else _decode_candidates
    try:
        return decode(rows, *_check_prompts(rows))
    except (UncertainError, ValueError):
        return None


def _decode_candidates(
    rows: Any,
    metadata: JsonMetadata,
    inputs: IntArray,
) -> Batch:
    sizes, candidates = _check_items(rows, "candidates", "correct")
    n = int(sizes[0])
    require_certain(bool((sizes == n).all()))
    with_text, with_message = (_to_bools(candidates[name].is_valid()) for name in ("text", "message"))
    require_certain(bool((with_text != with_message).all()))
    require_certain(set(map(type, parse_values(_list_texts(candidates["message"])))) <= {dict})
    _check_outputs(candidates["scores"])
    keys = _compute_answer_keys(candidates)
    draws = CandidateBatch(
        candidates["score"].to_numpy().reshape(-1, n), *encode_answers(keys.to_pylist(), n), metadata
    )
    labelled = LabelledBatch(
        draws,
        _to_bools(candidates["correct"]).reshape(-1, n),
        tuple(rows["id"].to_pylist()),
        tuple(rows["cluster"].to_pylist()),
        n,
        prompt_kinds=_find_prompt_kinds(rows),
        inputs=inputs,
    )
    is_extracted = _to_bools(candidates["answer"].is_valid()).reshape(-1, n)
    return Batch(labelled, is_extracted)


def _decode_claims(
    rows: Any,
    metadata: JsonMetadata,
    inputs: IntArray,
) -> Batch:
    counts, claims = _check_items(rows, "claims", "supported")
    require_certain(claims["text"].null_count == 0)
    require_certain(_require_compute().min(_require_compute().utf8_length(claims["text"])).as_py() > 0)
    # A claim at an unknown place gets start -1 and end 0.
    starts, ends = (claims[name].fill_null(no).to_numpy() for name, no in (("start", -1), ("end", 0)))
    has_place = _to_bools(claims["end"].is_valid())
    require_certain(bool((has_place == _to_bools(claims["start"].is_valid())).all()))
    require_certain(bool(((starts >= 0) == has_place).all() and (starts < ends).all()))
    lasts = np.maximum.reduceat(ends, np.cumsum(counts) - counts)
    lengths = _require_compute().utf8_length(rows["answer"])
    has_answer = _to_bools(lengths.is_valid())
    require_certain(bool((lasts <= lengths.fill_null(0).to_numpy())[has_answer].all()))
    _check_outputs(claims["scores"])
    return stack_claims(
        counts,
        ids=rows["id"].to_pylist(),
        clusters=rows["cluster"].to_pylist(),
        metadata=metadata,
        scores=claims["score"].to_numpy(),
        supported=_to_bools(claims["supported"]),
        prompt_kinds=_find_prompt_kinds(rows),
        inputs=inputs,
    )


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


def _require_compute() -> Any:
    return require("pyarrow.compute", "parquet", "reading Parquet")


def _list_item_columns(rows: Any, column: str) -> dict[str, Any]:
    """Return the fields of all candidates or claims as columns, row after row."""
    every = rows[column].flatten()
    return {field.name: values for field, values in zip(every.type, every.flatten(), strict=True)}


def _find_prompt_kinds(rows: Any) -> frozenset[PromptKind]:
    return find_json_prompt_kinds(text.decode() for text in _list_texts(rows["input"]))


def _check_prompts(rows: Any) -> tuple[JsonMetadata, IntArray]:
    """Return the metadata and the digests of the inputs.

    Raises:
        UncertainError: If the strict reader might refuse a prompt.
    """
    for name in ("id", "cluster"):
        shortest = _require_compute().min(_require_compute().utf8_length(rows[name])).as_py()
        require_certain(shortest is None or shortest > 0)
    require_certain(rows["id"].null_count == rows["input"].null_count == 0)
    inputs = parse_values(_list_texts(rows["input"]))
    require_certain(set(map(type, inputs)) <= {str, list, dict})
    parse_values(_list_texts(rows["reference"]))
    encoded = rows["metadata"].fill_null("{}").dictionary_encode()
    require_certain(are_valid_metadata(parse_values(_list_texts(encoded.dictionary))))
    codes = encoded.indices.to_numpy().astype(np.int64)
    return JsonMetadata(encoded.dictionary.to_pylist(), codes), digest_inputs(inputs)


def _check_items(rows: Any, column: str, label: str) -> tuple[IntArray, dict[str, Any]]:
    """Return (N,) numbers of candidates or claims, and their columns after checking scores and labels."""
    require_certain(rows[column].null_count == 0)
    counts: IntArray = _require_compute().list_value_length(rows[column]).to_numpy().astype(np.int64)
    require_certain(bool((counts > 0).all()))
    require_certain(rows[column].flatten().null_count == 0)
    columns = _list_item_columns(rows, column)
    flags = [columns[name] for name in ("no_answer", "no_verdict", "no_label") if name in columns]
    require_certain(all(one.null_count == len(one) for one in flags))
    require_certain(columns["score"].null_count == columns[label].null_count == 0)
    scores = columns["score"].to_numpy()
    # In this form the comparison refuses NaN as well.
    require_certain(bool(((scores >= 0.0) & (scores <= 1.0)).all()))
    return counts, columns


def _check_outputs(maps: Any) -> None:
    """Raise UncertainError if raw outputs are null, not finite, or repeated under one name."""
    offsets = maps.offsets.to_numpy()
    sizes = np.diff(offsets)
    require_certain(not sizes[~_to_bools(maps.is_valid())].any())
    every = slice(int(offsets[0]), int(offsets[-1]))
    names = maps.keys[every].dictionary_encode()
    values = maps.items[every]
    require_certain(values.null_count == 0)
    require_certain(bool(np.isfinite(values.to_numpy()).all()))
    items = np.repeat(np.arange(len(maps)), sizes)
    codes = names.indices.to_numpy().astype(np.int64)
    pairs = items * max(1, len(names.dictionary)) + codes
    require_certain(len(np.unique(pairs)) == len(pairs))


def _compute_answer_keys(candidates: dict[str, Any]) -> Any:
    """Return the key of each candidate's answer, as `Candidate.answer_key` does."""
    pa = require("pyarrow", "parquet", "reading Parquet")
    keys = _require_compute().coalesce(candidates["answer"], candidates["text"])
    if keys.null_count == 0:
        return keys
    messages = parse_values(_list_texts(candidates["message"]))
    every = candidates["message"].is_valid()
    texts = pa.array([canonical_json(message) for message in messages], pa.string())
    return _require_compute().coalesce(
        keys, _require_compute().replace_with_mask(candidates["message"], every, texts)
    )


def _list_texts(column: Any) -> list[bytes]:
    """Return the texts of a column, without its nulls."""
    texts: list[bytes] = column.drop_null().cast("binary").to_pylist()
    return texts


def _to_bools(column: Any) -> BoolArray:
    values: BoolArray = column.to_numpy(zero_copy_only=False).astype(np.bool_)
    return values
