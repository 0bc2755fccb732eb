"""Checks across the records of a dataset, and batches of records that become arrays."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count, islice
from operator import itemgetter

import numpy as np

from langchain_cfc.candidates import (
    CandidateBatch,
    LabelledBatch,
    PromptKind,
    encode_answers,
    find_prompt_kinds,
    warn_if_sorted,
)
from langchain_cfc.errors import RecordError
from langchain_cfc.records.schema import (
    ClaimsRecord,
    LabelledRecord,
    PromptRecord,
    Provenance,
)
from langchain_cfc.records.splits import digest_inputs
from langchain_cfc.support.arrays import BoolArray, FloatArray, IntArray
from langchain_cfc.support.json_text import short_repr
from langchain_cfc.support.metadata import Scalar

# Number of records turned into arrays at a time; more would not fit in the processor's cache.
BATCH_SIZE = 64
# Stands in for the number of candidates if records hold claims, whose number differs between answers.
CLAIMS_SENTINEL = 0
# Source in errors about records that come from no file, or from several.
IN_MEMORY = "records"


class DatasetChecker:
    """Checks that all records have the same number of candidates and different ids, across files.

    Keeps the ids and where each was seen, nothing else of a record. A provenance fixes the number of
    candidates, or claims, and the draw rule; errors name `origin` as the reason.

    Attributes:
        max_candidates: Largest number of candidates that a draw rule may have left; None without a draw rule.
    """

    def __init__(self, provenance: Provenance | None = None, origin: str = "the provenance") -> None:
        self.max_candidates: int | None = None
        self._n: int | None = None
        self._n_origin = origin
        if provenance is not None:
            self._n = CLAIMS_SENTINEL if provenance.unit == "claims" else provenance.n
            self.max_candidates = None if provenance.draws is None else provenance.n
        # Each record's position by id, its line by position, and where each source begins. For a million
        # records, objects would take more memory than all of their scores.
        self._positions: dict[str, int] = {}
        self._lines = array("Q")
        self._sources: list[tuple[int, str]] = []

    def add(self, record: LabelledRecord, source: str, line: int) -> None:
        """Check one more record."""
        n = len(record.candidates) if isinstance(record, PromptRecord) else CLAIMS_SENTINEL
        if self._n is None:
            self._n, self._n_origin = n, f"{source}, line {line}"
        elif n != self._n and CLAIMS_SENTINEL in {n, self._n}:
            found, expected = ("claims", "candidates") if n == CLAIMS_SENTINEL else ("candidates", "claims")
            problem = f"found {found}; expected {expected} for every prompt, by {self._n_origin}"
            if n == CLAIMS_SENTINEL:
                problem += ' (a header of claims says "unit": "claims")'
            raise RecordError(source, line, found, problem)
        elif n != self._n and (self.max_candidates is None or n > self.max_candidates):
            at_most = "" if self.max_candidates is None else "at most "
            problem = f"found {n}; expected {at_most}{self._n} for every prompt, by {self._n_origin}"
            raise RecordError(source, line, "candidates", problem)
        position = len(self._positions)
        first = self._positions.setdefault(record.id, position)
        if first != position:
            known, its_line = self._locate(first)
            problem = (
                f"{short_repr(record.id)} is also the id of {known}, line {its_line}; expected unique ids"
            )
            raise RecordError(source, line, "id", problem)
        self._append_lines(source, [line])

    def try_add(self, ids: Sequence[str], n: int, source: str, lines: Sequence[int]) -> bool:
        """Add several records of n candidates each; add none and return False if `add` would refuse one."""
        here = dict(zip(ids, count(len(self._positions)), strict=False))
        new = len(here) == len(ids) and self._positions.keys().isdisjoint(here)
        if not new or self._n not in {None, n}:
            return False
        if self._n is None:
            self._n, self._n_origin = n, f"{source}, line {lines[0]}"
        self._positions.update(here)
        self._append_lines(source, lines)
        return True

    def _append_lines(self, source: str, lines: Sequence[int]) -> None:
        if not self._sources or self._sources[-1][1] != source:
            self._sources.append((len(self._lines), source))
        self._lines.extend(lines)

    def _locate(self, position: int) -> tuple[str, int]:
        """Return source and line of the record at a position."""
        after = bisect_right(self._sources, position, key=itemgetter(0))
        return self._sources[after - 1][1], self._lines[position]


def check_records(
    records: Iterable[LabelledRecord], provenance: Provenance | None = None
) -> Iterator[LabelledRecord]:
    """Yield records after checking that they form one dataset; refuse an empty dataset."""
    checks = DatasetChecker(provenance)
    line = 0
    for line, record in enumerate(records, start=1):
        _add_record(checks, record, line)
        yield record
    if line == 0:
        raise make_empty_dataset_error(IN_MEMORY)


def check_in_batches(
    records: Iterable[LabelledRecord], provenance: Provenance | None = None
) -> Iterator[Batch]:
    """Yield records as `check_records` does, but in batches of at most `BATCH_SIZE`, with fewer calls."""
    checks = DatasetChecker(provenance)
    stream = iter(records)
    first = 1
    while batch := list(islice(stream, BATCH_SIZE)):
        lines = range(first, first + len(batch))
        if not _try_add_records(checks, batch, lines):
            for line, record in zip(lines, batch, strict=True):
                _add_record(checks, record, line)
        first += len(batch)
        yield make_batch(batch, checks.max_candidates)
    if first == 1:
        raise make_empty_dataset_error(IN_MEMORY)


def _try_add_records(checks: DatasetChecker, batch: Sequence[LabelledRecord], lines: Sequence[int]) -> bool:
    """Add several records; return False, and add none, if one may have to be refused."""
    if not set(map(type, batch)) <= {PromptRecord, ClaimsRecord}:
        return False
    sizes = {len(one.candidates) if isinstance(one, PromptRecord) else CLAIMS_SENTINEL for one in batch}
    return len(sizes) == 1 and checks.try_add([record.id for record in batch], sizes.pop(), IN_MEMORY, lines)


def _add_record(checks: DatasetChecker, record: object, line: int) -> None:
    """Add a record, or refuse it."""
    if not isinstance(record, (PromptRecord, ClaimsRecord)):
        problem = f"found {short_repr(record)}; expected a PromptRecord (use read_records for files)"
        raise RecordError(IN_MEMORY, line, "", problem)
    checks.add(record, IN_MEMORY, line)


def make_empty_dataset_error(source: str) -> RecordError:
    """Make the error for a source without records."""
    return RecordError(source, 0, "", "no records; expected at least one prompt with its candidates")


@dataclass(frozen=True)
class Batch:
    """Valid records of one dataset as arrays, either of candidates or of claims.

    Attributes:
        labelled: All candidates or claims.
        is_extracted: (N, n) whether an extractor made the answer of a candidate; None for claims.
        counts: (N,) numbers of candidates that a draw rule left; None without a draw rule.
    """

    labelled: LabelledBatch
    is_extracted: BoolArray | None = None
    counts: IntArray | None = None

    @property
    def ids(self) -> Sequence[str]:
        """Ids of the records, at least one."""
        return self.labelled.ids

    @property
    def recorded(self) -> int:
        """Number of candidates per record, the largest one if they differ; `CLAIMS_SENTINEL` for claims."""
        return self.labelled.recorded or CLAIMS_SENTINEL

    def make_table(self, n: int) -> LabelledBatch:
        """Return the first n slots, or all claims."""
        table = self.labelled
        if self.is_extracted is not None:
            is_extracted = self.is_extracted[:, :n]
            extracted = True if is_extracted.all() else None if is_extracted.any() else False
            table = replace(table, extracted=extracted)
            if n < table.draws.n:
                if self.counts is None:  # a draw rule leaves padding, which is not exchangeable
                    warn_if_sorted(table)
                table = table.keep_first_candidates(n)
        return table if self.counts is None else table.keep_drawn(np.minimum(self.counts, n))


def make_batch(records: list[LabelledRecord], max_candidates: int | None = None) -> Batch:
    """Make a batch of at least one record, all of one kind; `max_candidates` is that of `DatasetChecker`."""
    claims = [one for one in records if isinstance(one, ClaimsRecord)]
    if claims:
        return _make_batch_of_claims(claims)
    several = [one for one in records if not isinstance(one, ClaimsRecord)]
    return _make_batch_of_candidates(several, max_candidates)


def _make_batch_of_candidates(records: list[PromptRecord], max_candidates: int | None) -> Batch:
    several = [record.candidates for record in records]
    counts = np.array([len(one) for one in several], dtype=np.int64)
    n = max_candidates or len(several[0])
    if max_candidates is not None:
        several = [one + one[:1] * (n - len(one)) for one in several]  # `keep_drawn` overwrites this padding
    candidates = list(chain.from_iterable(several))
    # For speed, most candidates are handled without a call of `answer_key`.
    keys = [one.text if one.answer is None and one.text is not None else one.answer_key for one in candidates]
    codes, lengths = encode_answers(keys, n)
    draws = CandidateBatch(
        np.array([one.score for one in candidates], np.float64).reshape(-1, n),
        codes,
        np.where(np.array([one.no_verdict or False for one in candidates]).reshape(-1, n), 0, lengths),
        tuple([record.metadata for record in records]),
    )
    labelled = LabelledBatch(
        draws,
        np.array([one.correct for one in candidates], np.bool_).reshape(-1, n),
        tuple([record.id for record in records]),
        tuple([record.cluster for record in records]),
        n,
        prompt_kinds=find_prompt_kinds([record.input for record in records]),
        inputs=digest_inputs(record.input for record in records),
    )
    return Batch(
        labelled,
        np.array([one.answer is not None for one in candidates], np.bool_).reshape(-1, n),
        None if max_candidates is None else counts,
    )


def _make_batch_of_claims(records: list[ClaimsRecord]) -> Batch:
    claims = [claim for record in records for claim in record.claims]
    return stack_claims(
        np.array([len(record.claims) for record in records], dtype=np.int64),
        ids=[record.id for record in records],
        clusters=[record.cluster for record in records],
        metadata=tuple([record.metadata for record in records]),
        scores=[claim.score for claim in claims],
        supported=[claim.supported for claim in claims],
        prompt_kinds=find_prompt_kinds([record.input for record in records]),
        inputs=digest_inputs(record.input for record in records),
    )


def stack_claims(
    counts: IntArray,
    *,
    ids: Sequence[str],
    clusters: Sequence[str | None],
    metadata: Sequence[Mapping[str, Scalar]],
    scores: Sequence[float] | FloatArray,
    supported: Sequence[bool] | BoolArray,
    prompt_kinds: frozenset[PromptKind],
    inputs: IntArray,
) -> Batch:
    """Stack the claims of N answers, listed answer by answer, in rows padded to the longest answer."""
    held = np.arange(counts.max()) < counts[:, np.newaxis]

    def stack(values: Sequence[float] | FloatArray, padding: float) -> FloatArray:
        rows = np.full(held.shape, padding)
        rows[held] = values
        return rows

    labels = np.zeros(held.shape, dtype=np.bool_)
    labels[held] = supported
    labelled = LabelledBatch(
        CandidateBatch(stack(scores, 1.0), None, None, metadata, drawn=counts),
        labels,
        tuple(ids),
        tuple(clusters),
        prompt_kinds=prompt_kinds,
        inputs=inputs,
        unit="claims",
    )
    return Batch(labelled)
