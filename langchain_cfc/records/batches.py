"""Checks across the records of a dataset, and batches of records that become arrays."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, count, islice
from operator import itemgetter
from typing import Protocol

import numpy as np

from langchain_cfc._internal.arrays import BoolArray, FloatArray, IntArray
from langchain_cfc._internal.metadata import Scalar
from langchain_cfc.candidates import (
    CandidateBatch,
    LabelledBatch,
    PromptKind,
    encode_answers,
    find_prompt_kinds,
)
from langchain_cfc.errors import RecordError
from langchain_cfc.records._json import short_repr
from langchain_cfc.records.schema import (
    ClaimsRecord,
    LabelledRecord,
    PromptRecord,
    Provenance,
    require_candidates,
)

# Records that are checked and become arrays at a time; more would not stay in the processor's cache.
BATCH = 64
# Stands for the number of candidates where records hold claims, of which answers have as many as they have.
CLAIMS = 0
# Source in errors about records that come from no file, or from several.
IN_MEMORY = "records"


class DatasetChecks:
    """Checks that all records have the same number of candidates and different ids, across files.

    Keeps the ids and where each was seen, nothing else of a record.

    Attributes:
        longest: The largest number of candidates where a draw rule made them unequal; None where it did not.
    """

    longest: int | None = None

    def __init__(self) -> None:
        self._n: int | None = None
        self._n_from = ""
        # By id the record's position, by position its line, and where each source begins. For a million
        # records objects would take more memory than all of their scores.
        self._positions: dict[str, int] = {}
        self._lines = array("Q")
        self._sources: list[tuple[int, str]] = []

    def expect(self, n: int, origin: str) -> None:
        """Fix the number of candidates, or `CLAIMS`; errors name `origin` as the reason."""
        self._n, self._n_from = n, origin

    def expect_provenance(self, provenance: Provenance, origin: str) -> None:
        """Fix what a header says about all records."""
        self.expect(CLAIMS if provenance.unit == "claims" else provenance.n, origin)
        self.longest = None if provenance.draws is None else provenance.n

    def add(self, record: LabelledRecord, source: str, line: int) -> None:
        """Check one more record."""
        n = count_candidates(record)
        if self._n is None:
            self.expect(n, f"{source}, line {line}")
        elif n != self._n and CLAIMS in {n, self._n}:
            found, expected = ("claims", "candidates") if n == CLAIMS else ("candidates", "claims")
            problem = f"found {found}; expected {expected} for every prompt, by {self._n_from}"
            if n == CLAIMS:
                problem += ' (a header of claims says "unit": "claims")'
            raise RecordError(source, line, found, problem)
        elif n != self._n and (self.longest is None or n > self.longest):
            at_most = "" if self.longest is None else "at most "
            problem = f"found {n}; expected {at_most}{self._n} for every prompt, by {self._n_from}"
            raise RecordError(source, line, "candidates", problem)
        position = len(self._positions)
        first = self._positions.setdefault(record.id, position)
        if first != position:
            known, its_line = self._locate(first)
            problem = (
                f"{short_repr(record.id)} is the id of {known}, line {its_line} too; expected ids to differ"
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
            self.expect(n, f"{source}, line {lines[0]}")
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
    """Yield the records of one dataset after checking that they fit each other; refuse an empty dataset."""
    checks = _start_checks(provenance)
    line = 0
    for line, record in enumerate(records, start=1):
        _add(checks, record, line)
        yield record
    if line == 0:
        raise no_records_error(IN_MEMORY)


def check_in_batches(
    records: Iterable[LabelledRecord], provenance: Provenance | None = None
) -> Iterator[Batch]:
    """Yield the records as `check_records` does, but up to `BATCH` at a time, which takes fewer calls."""
    checks = _start_checks(provenance)
    stream = iter(records)
    first = 1
    while batch := list(islice(stream, BATCH)):
        lines = range(first, first + len(batch))
        if not _try_add_all(checks, batch, lines):
            for line, record in zip(lines, batch, strict=True):
                _add(checks, record, line)
        first += len(batch)
        yield make_batch(batch, checks.longest)
    if first == 1:
        raise no_records_error(IN_MEMORY)


def _start_checks(provenance: Provenance | None) -> DatasetChecks:
    checks = DatasetChecks()
    if provenance is not None:
        checks.expect_provenance(provenance, "the provenance")
    return checks


def _try_add_all(checks: DatasetChecks, batch: Sequence[LabelledRecord], lines: Sequence[int]) -> bool:
    """Add records that are valid together; return False, and add none, if one has to be refused."""
    if not set(map(type, batch)) <= {PromptRecord, ClaimsRecord}:
        return False
    sizes = {count_candidates(record) for record in batch}
    return len(sizes) == 1 and checks.try_add([record.id for record in batch], sizes.pop(), IN_MEMORY, lines)


def _add(checks: DatasetChecks, record: object, line: int) -> None:
    """Add a record, or refuse it."""
    if not isinstance(record, (PromptRecord, ClaimsRecord)):
        problem = f"found {short_repr(record)}; expected a PromptRecord (files are opened by read_records)"
        raise RecordError(IN_MEMORY, line, "", problem)
    checks.add(record, IN_MEMORY, line)


def count_candidates(record: LabelledRecord) -> int:
    """Return the number of candidates of a record; `CLAIMS` where it holds claims."""
    return len(record.candidates) if isinstance(record, PromptRecord) else CLAIMS


def no_records_error(source: str) -> RecordError:
    """Make the error of a source without records."""
    return RecordError(source, 0, "", "no records; expected at least one prompt with its candidates")


class Batch(Protocol):
    """Valid records of one dataset with the same number of candidates each, or with claims."""

    @property
    def ids(self) -> Sequence[str]:
        """Their ids, at least one."""

    @property
    def recorded(self) -> int:
        """Their number of candidates, or `CLAIMS`."""

    def table(self, n: int, names: Sequence[str]) -> LabelledBatch | None:
        """Return the first n slots, or all claims, as arrays; None where one lacks a named raw output."""

    def records(self) -> list[LabelledRecord]:
        """The records themselves."""


class RecordBatch:
    """A batch of at least one record as objects; see `Batch`.

    Args:
        records: The records.
        longest: As in `DatasetChecks`.
    """

    def __init__(self, records: list[PromptRecord], longest: int | None = None) -> None:
        self._records = records
        self._longest = longest

    @property
    def ids(self) -> Sequence[str]:
        """Their ids."""
        return [record.id for record in self._records]

    @property
    def recorded(self) -> int:
        """Their number of candidates; the largest one where a draw rule made them unequal."""
        return self._longest or len(self._records[0].candidates)

    def records(self) -> list[LabelledRecord]:
        """The records themselves."""
        return list(self._records)

    def table(self, n: int, names: Sequence[str]) -> LabelledBatch | None:
        """Return the records as arrays."""
        several = [record.candidates[:n] for record in self._records]
        counts = np.array([len(one) for one in several], dtype=np.int64)
        if self._longest is not None:
            several = [(*one, *one[:1] * (n - len(one))) for one in several]  # `keep_drawn` overwrites it
        candidates = list(chain.from_iterable(several))
        outputs = [candidate.scores or {} for candidate in candidates] if names else []
        if any(name not in known for known in outputs for name in names):
            return None
        # The properties of most candidates are read without a call of `answer_key`.
        keys = [
            one.text if one.answer is None and one.text is not None else one.answer_key for one in candidates
        ]
        draws = CandidateBatch(
            np.array([one.score for one in candidates], np.float64).reshape(-1, n),
            *encode_answers(keys, n),
            tuple([record.metadata for record in self._records]),
        )
        whole = LabelledBatch(
            draws,
            np.array([one.correct for one in candidates], np.bool_).reshape(-1, n),
            tuple([record.id for record in self._records]),
            tuple([record.cluster for record in self._records]),
            self.recorded,
            single_or_none({one.answer is not None for one in candidates}),
            {name: np.array([known[name] for known in outputs], np.float64).reshape(-1, n) for name in names},
            prompt_kinds=find_prompt_kinds([record.input for record in self._records]),
        )
        return whole.keep_drawn(counts)


class ClaimsBatch:
    """A batch of at least one record of claims as objects; see `Batch`."""

    def __init__(self, records: list[ClaimsRecord]) -> None:
        self._records = records

    @property
    def ids(self) -> Sequence[str]:
        """Their ids."""
        return [record.id for record in self._records]

    @property
    def recorded(self) -> int:
        """The number that stands for claims."""
        return CLAIMS

    def records(self) -> list[LabelledRecord]:
        """The records themselves."""
        return list(self._records)

    def table(self, n: int, names: Sequence[str]) -> LabelledBatch | None:
        """Return the records as arrays."""
        del n
        claims = [claim for record in self._records for claim in record.claims]
        if any(name not in (claim.scores or {}) for claim in claims for name in names):
            return None
        return stack_claims(
            np.array([len(record.claims) for record in self._records], dtype=np.int64),
            ids=self.ids,
            clusters=[record.cluster for record in self._records],
            metadata=tuple([record.metadata for record in self._records]),
            scores=[claim.score for claim in claims],
            supported=[claim.supported for claim in claims],
            raw={name: [(claim.scores or {})[name] for claim in claims] for name in names},
            prompt_kinds=find_prompt_kinds([record.input for record in self._records]),
        )


def make_batch(records: list[LabelledRecord], longest: int | None = None) -> Batch:
    """Make a batch of at least one record; all of them are of one kind. See `DatasetChecks` for `longest`."""
    claims = [one for one in records if isinstance(one, ClaimsRecord)]
    if claims:
        return ClaimsBatch(claims)
    return RecordBatch([require_candidates(one) for one in records], longest)


def stack_claims(
    counts: IntArray,
    *,
    ids: Sequence[str],
    clusters: Sequence[str | None],
    metadata: Sequence[Mapping[str, Scalar]],
    scores: Sequence[float] | FloatArray,
    supported: Sequence[bool] | BoolArray,
    raw: Mapping[str, Sequence[float] | FloatArray],
    prompt_kinds: frozenset[PromptKind],
) -> LabelledBatch:
    """Stack the claims of N answers, given answer after answer, in rows that are padded to the longest."""
    held = np.arange(counts.max()) < counts[:, np.newaxis]

    def stack(values: Sequence[float] | FloatArray, padding: float) -> FloatArray:
        rows = np.full(held.shape, padding)
        rows[held] = values
        return rows

    labels = np.zeros(held.shape, dtype=np.bool_)
    labels[held] = supported
    return LabelledBatch(
        CandidateBatch(stack(scores, 1.0), None, None, metadata, drawn=counts),
        labels,
        tuple(ids),
        tuple(clusters),
        raw={name: stack(values, 0.0) for name, values in raw.items()},
        prompt_kinds=prompt_kinds,
        unit="claims",
    )


def missing_output_error(
    records: Sequence[LabelledRecord], names: Sequence[str], n: int, first_line: int
) -> RecordError:
    """Make the error about the first candidate or claim that lacks one of the named raw outputs."""
    line, record, slot, known, missing = next(
        (line, record, slot, outputs, name)
        for line, record in enumerate(records, start=first_line)
        for slot, outputs in enumerate(_list_outputs(record, n))
        for name in names
        if name not in outputs
    )
    what = "candidate" if isinstance(record, PromptRecord) else "claim"
    problem = (
        f"{what} {slot} of record {short_repr(record.id)} has no raw output of {missing!r}; it has "
        f"{', '.join(map(repr, known)) or 'none'}. Bring the outputs of {', '.join(names)} for every "
        f"{what}, or leave the record out"
    )
    return RecordError(IN_MEMORY, line, f"{what}s[{slot}].scores", problem)


def _list_outputs(record: LabelledRecord, n: int) -> list[Mapping[str, float]]:
    """List the raw outputs of the first n candidates, or of all claims."""
    if isinstance(record, PromptRecord):
        return [one.scores or {} for one in record.candidates[:n]]
    return [one.scores or {} for one in record.claims]


def single_or_none(values: set[bool]) -> bool | None:
    """Return the only value; None where there are several."""
    return next(iter(values)) if len(values) == 1 else None
