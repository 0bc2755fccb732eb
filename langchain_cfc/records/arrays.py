"""`tabulate`: turn records into arrays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from langchain_cfc.candidates import (
    LabelledBatch,
    check_candidate_count,
    check_unit,
    check_unweighted,
    warn_if_sorted,
)
from langchain_cfc.errors import InputError
from langchain_cfc.records.batches import (
    CLAIMS_SENTINEL,
    Batch,
    check_in_batches,
    check_records,
)
from langchain_cfc.records.files import Records
from langchain_cfc.records.schema import LabelledRecord, Provenance
from langchain_cfc.records.splits import cluster_repeated_inputs


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
        parts = _tabulate_batches(_read_batches(records, provenance), n)
        labelled = LabelledBatch.concatenate(parts if claims else map(check_unit, parts))
    if labelled.unit == "answers" and labelled.draws.drawn is not None and not shortened:
        msg = (
            "a draw rule stopped drawing these candidates, so they can be used only with this rule: pass it "
            "as draws= (on the command line --draws) to calibrate or compare, evaluate and certify an "
            "artifact with the same rule, or use records with all n candidates"
        )
        raise InputError(msg)
    return cluster_repeated_inputs(labelled)


def _read_batches(records: Iterable[LabelledRecord], provenance: Provenance | None) -> Iterator[Batch]:
    if not isinstance(records, Records):
        return check_in_batches(records, provenance)
    if provenance is not None and provenance != records.provenance:
        # The checks of the files ensure that all other records have as many candidates.
        next(check_records(records.read_all(), provenance))
    return records.read_batches()


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


def _tabulate_batches(batches: Iterable[Batch], n: int | None) -> Iterator[LabelledBatch]:
    for batch in batches:
        if n is not None and batch.recorded != CLAIMS_SENTINEL:
            check_candidate_count(n, batch.recorded)
        yield batch.make_table(n or batch.recorded)
