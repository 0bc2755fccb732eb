"""Comparison of two ways of reading records."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from langchain_cfc.candidates import LabelledBatch
from langchain_cfc.errors import InputError
from langchain_cfc.records import LabelledRecord, tabulate


def get_outcome(records: Iterable[LabelledRecord], **options: Any) -> object:
    """The table in parts that can be compared to the bit, or the error."""
    try:
        return get_parts(tabulate(records, **options))
    except InputError as error:
        return type(error), str(error)


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
