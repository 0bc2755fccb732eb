"""`tabulate`: turn records into arrays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np

from langchain_cfc.candidates import (
    UNITS,
    LabelledBatch,
    check_unit,
    check_unweighted,
    find_prompt_kinds,
    warn_if_sorted,
)
from langchain_cfc.errors import InputError
from langchain_cfc.records.dataset import check_records
from langchain_cfc.records.files import Records
from langchain_cfc.records.schema import (
    Candidate,
    ClaimsRecord,
    LabelledRecord,
    Provenance,
    require_candidates,
    require_claims,
)
from langchain_cfc.records.splits import cluster_repeated_inputs, digest_inputs

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
        labelled = records
        _check_provenance(labelled, provenance)
    else:
        labelled = LabelledBatch.concatenate(_stack_records(records, provenance))
    if not weighted:
        check_unweighted(labelled)
    if not claims:
        check_unit(labelled)
    labelled = _keep_first_candidates(labelled, n)
    stopped = UNITS[labelled.unit].is_fixed_count and labelled.draws.drawn is not None
    if stopped and not shortened:
        msg = (
            "a draw rule stopped drawing these candidates, so they can be used only with this rule: pass it "
            "as draws= (on the command line --draws) to calibrate or compare, evaluate and certify an "
            "artifact with the same rule, or use records with all n candidates"
        )
        raise InputError(msg)
    return cluster_repeated_inputs(labelled)


def _stack_records(
    records: Iterable[LabelledRecord], provenance: Provenance | None
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
    while several := list(islice(stream, _BATCH_SIZE)):
        yield _stack(several, at_most)


def _stack(records: Sequence[LabelledRecord], at_most: int | None) -> LabelledBatch:
    """Make a table of records of one kind, which have fewer than `at_most` candidates if a rule stopped."""
    ids = [one.id for one in records]
    about: dict[str, Any] = {
        "clusters": [one.cluster for one in records],
        "metadata": [one.metadata for one in records],
        "prompt_kinds": find_prompt_kinds(one.input for one in records),
    }
    if isinstance(records[0], ClaimsRecord):
        claims = [require_claims(one).claims for one in records]
        scores = [[one.score for one in row] for row in claims]
        supported = [[one.supported for one in row] for row in claims]
        table = LabelledBatch.from_claims(ids, scores, supported, **about)
    else:
        candidates = [require_candidates(one).candidates for one in records]
        table = _stack_candidates(ids, candidates, at_most, about)
    return replace(table, inputs=digest_inputs(one.input for one in records))


def _stack_candidates(
    ids: Sequence[str],
    drawn: Sequence[tuple[Candidate, ...]],
    at_most: int | None,
    about: Mapping[str, Any],
) -> LabelledBatch:
    recorded = at_most or len(drawn[0])
    # The first candidate pads a row that a draw rule left short; `keep_drawn` overwrites it.
    rows = [row + row[:1] * (recorded - len(row)) for row in drawn]
    extracted = {one.answer is not None for row in rows for one in row}
    table = LabelledBatch.from_arrays(
        ids,
        [[one.score for one in row] for row in rows],
        [[one.correct for one in row] for row in rows],
        [[one.answer_key for one in row] for row in rows],
        extracted=extracted.pop() if len(extracted) == 1 else None,
        **about,
    )
    has_verdict = np.array([[one.no_verdict is None for one in row] for row in rows])
    draws = replace(table.draws, lengths=np.where(has_verdict, np.asarray(table.draws.lengths), 0))
    return replace(table, draws=draws).keep_drawn(np.array([len(row) for row in drawn]))


def _check_provenance(labelled: LabelledBatch, provenance: Provenance | None) -> None:
    """Refuse a table of another unit or number of candidates than its provenance states."""
    if provenance is None:
        return
    recorded = labelled.recorded or labelled.draws.n
    if (provenance.unit or "answers") != labelled.unit:
        msg = f"the table holds {labelled.unit}; expected {provenance.unit or 'answers'}, by the provenance"
        raise InputError(msg)
    if UNITS[labelled.unit].is_fixed_count and recorded != provenance.n:
        msg = f"the table has {recorded} recorded candidates; expected {provenance.n}, by the provenance"
        raise InputError(msg)


def _keep_first_candidates(labelled: LabelledBatch, n: int | None) -> LabelledBatch:
    """Return only the first n candidates of each prompt; all of them if None, and all claims."""
    if n is None or n == labelled.draws.n or not UNITS[labelled.unit].is_fixed_count:
        return labelled
    fewer = labelled.keep_first_candidates(n)
    if labelled.draws.drawn is not None:  # a draw rule leaves padding, which is no candidate
        return fewer.keep_drawn(np.minimum(labelled.draws.drawn, n))
    warn_if_sorted(labelled)
    return fewer
