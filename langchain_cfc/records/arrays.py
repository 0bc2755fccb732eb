"""`tabulate`: turn records into arrays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from langchain_cfc.candidates import (
    CandidateBatch,
    LabelledBatch,
    check_candidate_count,
    check_unit,
    check_unweighted,
    encode_answers,
    find_prompt_kinds,
    warn_if_sorted,
)
from langchain_cfc.errors import InputError
from langchain_cfc.records.dataset import check_records
from langchain_cfc.records.files import Records
from langchain_cfc.records.schema import ClaimsRecord, LabelledRecord, Provenance
from langchain_cfc.records.splits import cluster_repeated_inputs, digest_inputs
from langchain_cfc.support.metadata import Scalar

_Item = TypeVar("_Item", bool, float)
_Kind = TypeVar("_Kind", bound=np.generic)
# Number of records turned into arrays at a time.
_BATCH_SIZE = 64


def tabulate(
    records: Iterable[LabelledRecord] | LabelledBatch,
    *,
    n: int | None = None,
    provenance: Provenance | None = None,
    weighted: bool = False,
    shortened: bool = False,
    claims: bool = False,
) -> LabelledBatch:
    """Turn N records into arrays, without keeping their texts.

    Args:
        records: At least one record. A `Records` is streamed, so that only numbers, ids and metadata stay in
            memory. A table (`LabelledBatch`) is checked and reduced to n slots.
        n: Use only the first n slots of every record, 1 <= n <= the recorded number; by default all.
        provenance: What the records must agree with, if they have no header of their own.
        weighted: Whether the caller supports weights, so that a table may have them.
        shortened: Whether the caller supports draw rules, so that prompts may have fewer candidates than n.
        claims: Whether the caller supports claims, so that records may hold them in place of candidates.

    Returns:
        The (N, n) draws with their labels; answers are equal if their `Candidate.answer_key` has the
        same normal form. Prompts that say the same form one cluster, unless they name their own.

    Raises:
        RecordError: If the records are not one dataset (none, unequal numbers of candidates, equal ids).
        InputError: If n is less than 1 or more than was recorded, a table contradicts the provenance, or the
            caller does not support the weights, claims or draw rule of the records.
    """
    if isinstance(records, LabelledBatch):
        if not weighted:
            check_unweighted(records)
        if not claims:
            check_unit(records)
        labelled = _select_from_table(records, n, provenance)
    else:
        parts = _stack_records(records, n, provenance)
        labelled = LabelledBatch.concatenate(parts if claims else map(check_unit, parts))
    if labelled.unit == "answers" and labelled.draws.drawn is not None and not shortened:
        msg = (
            "a draw rule stopped drawing these candidates, so they can be used only with this rule: pass it "
            "as draws= (on the command line --draws) to calibrate or compare, evaluate and certify an "
            "artifact with the same rule, or use records with all n candidates"
        )
        raise InputError(msg)
    return cluster_repeated_inputs(labelled)


def _stack_records(
    records: Iterable[LabelledRecord], n: int | None, provenance: Provenance | None
) -> Iterator[LabelledBatch]:
    """Yield the records in tables of some prompts each, so that no more texts are in memory."""
    if isinstance(records, Records):
        if provenance is not None and provenance != records.provenance:
            # The checks of the files ensure that all other records have as many candidates.
            next(check_records(records.read_all(), provenance))
        stream, provenance = records.read_all(), records.provenance
    else:
        stream = check_records(records, provenance)
    at_most = None if provenance is None or provenance.draws is None else provenance.n
    # Not the records themselves, whose many objects would not fit in the processor's cache.
    rows = map(_make_row, stream)
    while several := list(islice(rows, _BATCH_SIZE)):
        yield _stack_candidates(several, n, at_most) if several[0].keys else _stack_claims(several)


class _Row(NamedTuple):
    """What a table holds of one record: a value for each candidate or claim, or of the prompt."""

    record_id: str
    cluster: str | None
    metadata: Mapping[str, Scalar]
    prompt: str | list[Any] | dict[str, Any]
    scores: list[float]
    labels: list[bool]
    keys: list[str]  # of equal answers; empty for claims
    has_verdict: list[bool]
    is_extracted: list[bool]


def _make_row(record: LabelledRecord) -> _Row:
    about = (record.id, record.cluster, record.metadata, record.input)
    if isinstance(record, ClaimsRecord):
        claims = record.claims
        scores, supported = [one.score for one in claims], [one.supported for one in claims]
        return _Row(*about, scores, supported, [], [], [])
    candidates = record.candidates
    return _Row(
        *about,
        [one.score for one in candidates],
        [one.correct for one in candidates],
        [one.answer_key if one.answer is None else one.answer for one in candidates],
        [one.no_verdict is None for one in candidates],
        [one.answer is not None for one in candidates],
    )


def _stack_candidates(rows: Sequence[_Row], n: int | None, at_most: int | None) -> LabelledBatch:
    """Stack the first n candidates of N records, which have fewer than `at_most` if a draw rule stopped."""
    recorded = at_most or len(rows[0].scores)
    used = recorded if n is None else n
    check_candidate_count(used, recorded)

    def stack(values: Iterable[list[_Item]], kind: type[_Kind]) -> NDArray[_Kind]:
        # The first value pads a row that a draw rule left short; `keep_drawn` overwrites it.
        padded = values if at_most is None else (one + one[:1] * (recorded - len(one)) for one in values)
        return np.fromiter(chain.from_iterable(padded), kind).reshape(-1, recorded)

    keys = [row.keys + row.keys[:1] * (recorded - len(row.keys)) for row in rows]
    codes, lengths = encode_answers(list(chain.from_iterable(keys)), recorded)
    has_verdict = stack((row.has_verdict for row in rows), np.bool_)
    is_extracted = stack((row.is_extracted for row in rows), np.bool_)[:, :used]
    scores = stack((row.scores for row in rows), np.float64)
    draws = CandidateBatch(
        scores, codes, np.where(has_verdict, lengths, 0), tuple([row.metadata for row in rows])
    )
    table = LabelledBatch(
        draws,
        stack((row.labels for row in rows), np.bool_),
        recorded=recorded,
        extracted=True if is_extracted.all() else None if is_extracted.any() else False,
        **_describe_prompts(rows),
    )
    if used < recorded:
        if at_most is None:  # a draw rule leaves padding, which is not exchangeable
            warn_if_sorted(table)
        table = table.keep_first_candidates(used)
    if at_most is None:
        return table
    return table.keep_drawn(np.minimum([len(row.scores) for row in rows], used))


def _stack_claims(rows: Sequence[_Row]) -> LabelledBatch:
    """Stack the claims of N answers in rows that are padded to the longest answer."""
    counts = np.array([len(row.scores) for row in rows], dtype=np.int64)
    held = np.arange(counts.max()) < counts[:, np.newaxis]
    scores, supported = np.ones(held.shape), np.zeros(held.shape, dtype=np.bool_)
    scores[held] = [score for row in rows for score in row.scores]
    supported[held] = [label for row in rows for label in row.labels]
    draws = CandidateBatch(scores, None, None, tuple([row.metadata for row in rows]), drawn=counts)
    return LabelledBatch(draws, supported, unit="claims", **_describe_prompts(rows))


def _describe_prompts(rows: Sequence[_Row]) -> dict[str, Any]:
    """Return the fields of a table that do not depend on candidates or claims."""
    return {
        "ids": tuple([row.record_id for row in rows]),
        "clusters": tuple([row.cluster for row in rows]),
        "prompt_kinds": find_prompt_kinds([row.prompt for row in rows]),
        "inputs": digest_inputs(row.prompt for row in rows),
    }


def _select_from_table(
    labelled: LabelledBatch, n: int | None, provenance: Provenance | None
) -> LabelledBatch:
    recorded = labelled.recorded or labelled.draws.n
    if provenance is not None and (provenance.unit or "answers") != labelled.unit:
        msg = f"the table holds {labelled.unit}; expected {provenance.unit or 'answers'}, by the provenance"
        raise InputError(msg)
    if labelled.unit == "answers" and provenance is not None and recorded != provenance.n:
        msg = f"the table has {recorded} recorded candidates; expected {provenance.n}, by the provenance"
        raise InputError(msg)
    if labelled.unit == "claims":
        return labelled
    if n is None or n == labelled.draws.n:
        return labelled
    if labelled.draws.drawn is not None:  # a draw rule leaves padding, which is no candidate
        return labelled.keep_first_candidates(n).keep_drawn(np.minimum(labelled.draws.drawn, n))
    warn_if_sorted(labelled)
    return labelled.keep_first_candidates(n)
