"""Comparison of tables to the bit, and of lines with what Python's own parser makes of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from langchain_cfc.candidates import LabelledBatch
from langchain_cfc.errors import RecordError
from langchain_cfc.records import (
    ClaimsRecord,
    LabelledRecord,
    PromptRecord,
    read_records,
    tabulate,
    write_records,
)
from langchain_cfc.records.jsonl import read_json_lines


def parse_with_json(content: bytes) -> LabelledRecord | None:
    """The record on a line, by Python's parser, which keeps the last of two keys; None if there is none."""
    try:
        fields = json.loads(content.decode().removeprefix("\ufeff"))
        holds_claims = "claims" in fields and "candidates" not in fields
        return (ClaimsRecord if holds_claims else PromptRecord).model_validate(fields)
    except (ValueError, TypeError, RecursionError):
        return None


def holds_repeated_key(content: bytes) -> bool:
    found: list[bool] = []

    def note(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found.append(len(dict(pairs)) < len(pairs))
        return dict(pairs)

    try:
        json.loads(content.decode().removeprefix("\ufeff"), object_pairs_hook=note)
    except (ValueError, RecursionError):
        return False
    return any(found)


def check_line(path: Path, content: bytes) -> None:
    """Check that a line is the record that Python's parser gives, or refused if it has a repeated key."""
    path.write_bytes(content)
    records, expected = read_records(path), parse_with_json(content.rstrip())
    if expected is None or holds_repeated_key(content.rstrip()):
        # The search for a provenance reads the first line too, and in another way.
        for read in (
            lambda: list(read_json_lines(path, PromptRecord)),
            lambda: tabulate(records, claims=True),
        ):
            with pytest.raises(RecordError):
                read()
        return
    assert repr(list(records.read_all())) == repr([expected])
    assert get_parts(tabulate(records, claims=True)) == get_parts(tabulate([expected], claims=True))
    write_records(path, [expected])
    assert repr(list(records.read_all())) == repr([expected])


def get_parts(table: LabelledBatch) -> list[object]:
    draws = table.draws
    # Claims are not compared with each other.
    assert (draws.answer_codes is None) == (draws.lengths is None) == (table.unit == "claims")
    answers = [array for array in (draws.answer_codes, draws.lengths) if array is not None]
    arrays = [draws.scores, draws.counts, *answers, table.correct]
    # As bytes, so that -0.0 is not 0.0; as repr, so that 1 is neither 1.0 nor True.
    return [
        *((array.dtype, array.shape, np.ascontiguousarray(array).tobytes()) for array in arrays),
        table.ids,
        table.clusters,
        [repr(dict(entries)) for entries in draws.metadata],
        table.recorded,
        table.extracted,
        table.unit,
    ]
