"""From records to arrays."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

import numpy as np

from langchain_cfc.draws import Draws, LabelledDraws
from langchain_cfc.errors import InputError
from langchain_cfc.records.checks import checked
from langchain_cfc.records.schema import PromptRecord, Provenance

# So many records become arrays at a time; their texts are all that is held besides the arrays.
_BATCH = 256


def tabulate(
    records: Iterable[PromptRecord], *, n: int | None = None, provenance: Provenance | None = None
) -> LabelledDraws:
    """Turn N records into arrays, without holding their texts.

    Args:
        records: At least one record; a `Records` is streamed.
        n: Use only the first n slots of every record, 1 <= n <= the recorded number; all if left out.
        provenance: What the records must agree with, where they do not come with a header of their own.

    Returns:
        The (N, n) draws with their labels; answers are told apart by `Candidate.answer_key`.

    Raises:
        RecordError: If the records are not one dataset: none, unequal numbers of candidates, equal ids.
        InputError: If n is less than 1 or more than was recorded.
    """
    stream = checked(records, provenance)
    parts = []
    while batch := list(islice(stream, _BATCH)):
        recorded = len(batch[0].candidates)
        if n is not None and not 1 <= n <= recorded:
            msg = f"n is {n}; expected at least 1 and at most {recorded}, the recorded number of candidates"
            raise InputError(msg)
        parts.append(_table(batch, n or recorded))
    return _joined(parts)


def _table(records: Sequence[PromptRecord], n: int) -> LabelledDraws:
    rows = [record.candidates[:n] for record in records]
    draws = Draws.of(
        [[candidate.score for candidate in row] for row in rows],
        [[candidate.answer_key for candidate in row] for row in rows],
        [record.metadata for record in records],
    )
    return LabelledDraws(
        draws,
        np.array([[candidate.correct for candidate in row] for row in rows], dtype=np.bool_),
        tuple(record.id for record in records),
        tuple(record.cluster for record in records),
        recorded=len(records[0].candidates),
        extracted=_one_or_none({candidate.answer is not None for row in rows for candidate in row}),
    )


def _joined(parts: Sequence[LabelledDraws]) -> LabelledDraws:
    draws = [part.draws for part in parts]
    return LabelledDraws(
        Draws(
            np.concatenate([one.scores for one in draws]),
            np.concatenate([one.answer_codes for one in draws if one.answer_codes is not None]),
            np.concatenate([one.lengths for one in draws if one.lengths is not None]),
            tuple(metadata for one in draws for metadata in one.metadata),
        ),
        np.concatenate([part.correct for part in parts]),
        tuple(name for part in parts for name in part.ids),
        tuple(cluster for part in parts for cluster in part.clusters),
        recorded=parts[0].recorded,
        extracted=_one_or_none({part.extracted for part in parts}),
    )


def _one_or_none(values: set[bool] | set[bool | None]) -> bool | None:
    """The one value; None where there are several."""
    return next(iter(values)) if len(values) == 1 else None
