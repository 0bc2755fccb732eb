"""From records to arrays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice

import numpy as np

from langchain_cfc._arrays import FloatArray
from langchain_cfc.combination import Combination, check_names
from langchain_cfc.draws import Draws, LabelledDraws
from langchain_cfc.errors import InputError, RecordError
from langchain_cfc.records.checks import IN_MEMORY, checked
from langchain_cfc.records.schema import PromptRecord, Provenance
from langchain_cfc.records.strict_json import shown

# So many records become arrays at a time; their texts are all that is held besides the arrays.
_BATCH = 256


def tabulate(
    records: Iterable[PromptRecord],
    *,
    n: int | None = None,
    provenance: Provenance | None = None,
    combination: Combination | None = None,
) -> LabelledDraws:
    """Turn N records into arrays, without holding their texts.

    Args:
        records: At least one record; a `Records` is streamed.
        n: Use only the first n slots of every record, 1 <= n <= the recorded number; all if left out.
        provenance: What the records must agree with, where they do not come with a header of their own.
        combination: What makes the scores out of the candidates' `scores`, such as an artifact's; their
            `score` if left out.

    Returns:
        The (N, n) draws with their labels; answers are told apart by `Candidate.answer_key`.

    Raises:
        RecordError: If the records are not one dataset: none, unequal numbers of candidates, equal ids; or if
            a candidate lacks a raw output that the combination needs.
        InputError: If n is less than 1 or more than was recorded.
    """
    if combination is None:
        return _joined([_table(batch, used) for _, batch, used in _batches(records, n, provenance)])
    labelled, raw = tabulate_raw(records, combination.names, n=n, provenance=provenance)
    return with_scores(labelled, combination.score_all(raw))


def tabulate_raw(
    records: Iterable[PromptRecord],
    names: Sequence[str],
    *,
    n: int | None = None,
    provenance: Provenance | None = None,
) -> tuple[LabelledDraws, FloatArray]:
    """The same with the raw outputs of several verifiers beside it, for a combination to be fitted to them.

    Args:
        records: As in `tabulate`, like all that follows.
        names: Names of k verifiers in the candidates' `scores`.
        n: See there.
        provenance: See there.

    Returns:
        The draws, whose scores are the candidates' `score`, and the (N, n, k) raw outputs.

    Raises:
        RecordError: As in `tabulate`, or if a candidate lacks one of the raw outputs.
        InputError: As in `tabulate`, or if the names do not tell verifiers apart.
    """
    check_names(names)
    tables, raw = [], []
    for first, batch, used in _batches(records, n, provenance):
        tables.append(_table(batch, used))
        raw.append([_raw(record, names, used, line) for line, record in enumerate(batch, start=first)])
    return _joined(tables), np.concatenate([np.array(part, dtype=np.float64) for part in raw])


def with_scores(labelled: LabelledDraws, scores: FloatArray) -> LabelledDraws:
    """The same prompts with other scores.

    Args:
        labelled: N labelled prompts with n candidates each.
        scores: (N, n) their new scores in [0, 1], smaller is better.

    Returns:
        The prompts with these scores.
    """
    return replace(labelled, draws=replace(labelled.draws, scores=scores))


def _batches(
    records: Iterable[PromptRecord], n: int | None, provenance: Provenance | None
) -> Iterator[tuple[int, list[PromptRecord], int]]:
    """Batches of records, each with the line of its first record and the number of slots to use."""
    stream = checked(records, provenance)
    line = 1
    while batch := list(islice(stream, _BATCH)):
        recorded = len(batch[0].candidates)
        if n is not None and not 1 <= n <= recorded:
            msg = f"n is {n}; expected at least 1 and at most {recorded}, the recorded number of candidates"
            raise InputError(msg)
        yield line, batch, n or recorded
        line += len(batch)


def _raw(record: PromptRecord, names: Sequence[str], n: int, line: int) -> list[list[float]]:
    """(n, k) raw outputs of one prompt."""
    rows = []
    for slot, candidate in enumerate(record.candidates[:n]):
        known = candidate.scores or {}
        missing = next((name for name in names if name not in known), None)
        if missing is not None:
            problem = (
                f"candidate {slot} of record {shown(record.id)} has no raw output of {missing!r}; it has "
                f"{', '.join(map(repr, known)) or 'none'}. Bring the outputs of {', '.join(names)} for every "
                "candidate, or leave the record out"
            )
            raise RecordError(IN_MEMORY, line, f"candidates[{slot}].scores", problem)
        rows.append([known[name] for name in names])
    return rows


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
