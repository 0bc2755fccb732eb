"""`tabulate`: turn records into arrays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from operator import attrgetter, itemgetter
from typing import Any

import numpy as np

from langchain_cfc.candidates import (
    LabelledBatch,
    check_unit,
    find_prompt_kinds,
    warn_if_sorted,
)
from langchain_cfc.errors import InputError
from langchain_cfc.records.dataset import check_records
from langchain_cfc.records.files import Records
from langchain_cfc.records.schema import ClaimsRecord, LabelledRecord, PlainRecord, Provenance
from langchain_cfc.records.splits import cluster_repeated_inputs, digest_inputs
from langchain_cfc.support.units import UNITS

# Number of records turned into arrays at a time.
_BATCH_SIZE = 256
_read_claim = attrgetter("score", "supported")
_read_plain = itemgetter("score", "correct", "text")
_N_PLAIN = 3  # number of these fields; the only other one is the answer
_read_candidate = attrgetter("score", "correct", "answer", "no_verdict", "text")


def tabulate(
    records: Iterable[LabelledRecord] | LabelledBatch,
    *,
    n: int | None = None,
    provenance: Provenance | None = None,
    shortened: bool = False,
    claims: bool = False,
) -> LabelledBatch:
    """Turn N records into arrays, without keeping their texts.

    Args:
        records: At least one record. A `Records` is streamed, so that only numbers, ids and metadata stay in
            memory. A table (`LabelledBatch`) is checked and reduced to n slots.
        n: Use only the first n slots of every record, 1 <= n <= the recorded number; by default all.
        provenance: What the records must agree with, if they have no header of their own; not for a table.
        shortened: Whether the caller supports draw rules, so that prompts may have fewer candidates than n.
        claims: Whether the caller supports claims, so that records may hold them in place of candidates.

    Returns:
        The (N, n) draws with their labels; answers are equal if their `Candidate.answer_key` has the
        same normal form. Prompts that say the same form one cluster, unless they name their own.

    Raises:
        RecordError: If the records are not one dataset (none, unequal numbers of candidates, equal ids).
        InputError: If n is less than 1 or more than was recorded, or the caller does not support the claims
            or draw rule of the records.
    """
    if isinstance(records, LabelledBatch):
        labelled = records
    else:
        labelled = LabelledBatch.concatenate(_stack_records(records, provenance))
    if not claims:
        check_unit(labelled)
    labelled = _keep_first_candidates(labelled, n)
    stopped = UNITS[labelled.unit].is_fixed_count and labelled.draws.drawn is not None
    if stopped and not shortened:
        msg = (
            "a draw rule stopped drawing these candidates, so they can be used only with this rule: "
            "draws=RULE"
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
        stream, provenance = records.read_plain(), records.provenance
    else:
        stream = check_records(records, provenance)
    at_most = None if provenance is None or provenance.draws is None else provenance.n
    # Not the records themselves, whose many objects keep the garbage collector busy.
    rows = map(_list_values, stream)
    while several := list(islice(rows, _BATCH_SIZE)):
        yield _stack(several, at_most)


def _list_values(record: LabelledRecord | PlainRecord) -> tuple[Any, ...]:
    """Return what a table keeps of a record: four values, then columns of its candidates or claims."""
    values = record.id, record.cluster, record.metadata, record.input
    if isinstance(record, ClaimsRecord):
        return *values, *zip(*map(_read_claim, record.claims), strict=True)
    if isinstance(record, PlainRecord):
        scores, correct, answers = zip(*map(_read_plain, record.candidates), strict=True)
        found: tuple[str | None, ...] = (None,) * len(answers)
        no_verdict: tuple[Any, ...] = found
        if max(map(len, record.candidates)) > _N_PLAIN:
            found = tuple([one.get("answer") for one in record.candidates])
            answers = tuple([one.get("answer", one["text"]) for one in record.candidates])
    else:
        scores, correct, found, no_verdict, answers = zip(
            *map(_read_candidate, record.candidates), strict=True
        )
        if None in answers or found.count(None) < len(found):
            answers = tuple([one.answer_key for one in record.candidates])
    missing = found.count(None)
    extracted = missing == 0 if missing in {0, len(found)} else None
    return *values, scores, correct, answers, no_verdict, extracted


def _stack(rows: Sequence[tuple[Any, ...]], at_most: int | None) -> LabelledBatch:
    """Make a table of some records, which have fewer than `at_most` candidates if a draw rule stopped."""
    ids, clusters, metadata, inputs, *columns = zip(*rows, strict=True)
    names: dict[str, Any] = {"ids": ids, "clusters": clusters, "metadata": metadata}
    names["prompt_kinds"] = find_prompt_kinds(inputs)
    if len(columns) == 2:  # noqa: PLR2004 - scores and labels
        table = LabelledBatch.from_arrays(scores=columns[0], correct=columns[1], **names)
    else:
        *columns, extracted = columns
        drawn = np.array([len(row) for row in columns[0]])
        n = at_most or int(drawn[0])
        if (drawn != n).any():
            # The first value pads a row that a draw rule left short; `keep_drawn` overwrites it.
            columns = [tuple([row + row[:1] * (n - len(row)) for row in one]) for one in columns]
        scores, correct, answers, no_verdict = columns
        table = LabelledBatch.from_arrays(
            scores=scores,
            correct=correct,
            answers=answers,
            extracted=extracted[0] if len(set(extracted)) == 1 else None,
            **names,
        )
        if any(map(any, no_verdict)):
            lengths = np.where(np.array(no_verdict, dtype=np.bool_), 0, np.asarray(table.draws.lengths))
            table = replace(table, draws=replace(table.draws, lengths=lengths))
        table = table.keep_drawn(drawn)
    return replace(table, inputs=digest_inputs(inputs))


def _keep_first_candidates(labelled: LabelledBatch, n: int | None) -> LabelledBatch:
    """Return only the first n candidates of each prompt; all of them if None, and all claims."""
    if n is None or n == labelled.draws.n or not UNITS[labelled.unit].is_fixed_count:
        return labelled
    fewer = labelled.keep_first_candidates(n)
    if labelled.draws.drawn is not None:  # a draw rule leaves padding, which is no candidate
        return fewer.keep_drawn(np.minimum(labelled.draws.drawn, n))
    warn_if_sorted(labelled)
    return fewer
