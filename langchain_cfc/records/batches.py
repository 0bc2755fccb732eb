"""Checks across the records of a dataset, and batches of records that become arrays."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import count, islice
from operator import itemgetter
from typing import Protocol

import numpy as np

from langchain_cfc.candidates import CandidateBatch, LabelledBatch, encode_answers, find_prompt_kinds
from langchain_cfc.errors import RecordError
from langchain_cfc.records._json import short_repr
from langchain_cfc.records.schema import PromptRecord, Provenance

# Records that are checked and become arrays at a time; more would not stay in the processor's cache.
BATCH = 64
# Source in errors about records that come from no file, or from several.
IN_MEMORY = "records"


class DatasetChecks:
    """Checks that all records have the same number of candidates and different ids, across files.

    Keeps the ids and where each was seen, nothing else of a record.
    """

    def __init__(self) -> None:
        self._n: int | None = None
        self._n_from = ""
        # By id the record's position, by position its line, and where each source begins. For a million
        # records objects would take more memory than all of their scores.
        self._positions: dict[str, int] = {}
        self._lines = array("Q")
        self._sources: list[tuple[int, str]] = []

    def expect(self, n: int, origin: str) -> None:
        """Fix the number of candidates; errors name `origin` as the reason."""
        self._n, self._n_from = n, origin

    def add(self, record: PromptRecord, source: str, line: int) -> None:
        """Check one more record."""
        if self._n is None:
            self.expect(len(record.candidates), f"{source}, line {line}")
        elif len(record.candidates) != self._n:
            problem = (
                f"found {len(record.candidates)}; expected {self._n} for every prompt, by {self._n_from}"
            )
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
    records: Iterable[PromptRecord], provenance: Provenance | None = None
) -> Iterator[PromptRecord]:
    """Yield the records of one dataset after checking that they fit each other; refuse an empty dataset."""
    checks = _start_checks(provenance)
    line = 0
    for line, record in enumerate(records, start=1):
        _add(checks, record, line)
        yield record
    if line == 0:
        raise no_records_error(IN_MEMORY)


def check_in_batches(
    records: Iterable[PromptRecord], provenance: Provenance | None = None
) -> Iterator[list[PromptRecord]]:
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
        yield batch
    if first == 1:
        raise no_records_error(IN_MEMORY)


def _start_checks(provenance: Provenance | None) -> DatasetChecks:
    checks = DatasetChecks()
    if provenance is not None:
        checks.expect(provenance.n, "the provenance")
    return checks


def _try_add_all(checks: DatasetChecks, batch: Sequence[PromptRecord], lines: Sequence[int]) -> bool:
    """Add records that are valid together; return False, and add none, if one has to be refused."""
    if set(map(type, batch)) != {PromptRecord}:
        return False
    sizes = {len(record.candidates) for record in batch}
    return len(sizes) == 1 and checks.try_add([record.id for record in batch], sizes.pop(), IN_MEMORY, lines)


def _add(checks: DatasetChecks, record: object, line: int) -> None:
    """Add a record, or refuse it."""
    if not isinstance(record, PromptRecord):
        problem = f"found {short_repr(record)}; expected a PromptRecord (files are opened by read_records)"
        raise RecordError(IN_MEMORY, line, "", problem)
    checks.add(record, IN_MEMORY, line)


def no_records_error(source: str) -> RecordError:
    """Make the error of a source without records."""
    return RecordError(source, 0, "", "no records; expected at least one prompt with its candidates")


class Batch(Protocol):
    """Valid records of one dataset with the same number of candidates each."""

    @property
    def ids(self) -> Sequence[str]:
        """Their ids, at least one."""

    @property
    def recorded(self) -> int:
        """Their number of candidates."""

    def table(self, n: int, names: Sequence[str]) -> LabelledBatch | None:
        """Return the first n slots as arrays; None where a candidate lacks one of the named raw outputs."""

    def records(self) -> list[PromptRecord]:
        """The records themselves."""


class RecordBatch:
    """A batch of at least one record as objects; see `Batch`."""

    def __init__(self, records: list[PromptRecord]) -> None:
        self._records = records

    @property
    def ids(self) -> Sequence[str]:
        """Their ids."""
        return [record.id for record in self._records]

    @property
    def recorded(self) -> int:
        """Their number of candidates."""
        return len(self._records[0].candidates)

    def records(self) -> list[PromptRecord]:
        """The records themselves."""
        return self._records

    def table(self, n: int, names: Sequence[str]) -> LabelledBatch | None:
        """Return the records as arrays."""
        candidates = [candidate for record in self._records for candidate in record.candidates[:n]]
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
        return LabelledBatch(
            draws,
            np.array([one.correct for one in candidates], np.bool_).reshape(-1, n),
            tuple([record.id for record in self._records]),
            tuple([record.cluster for record in self._records]),
            self.recorded,
            single_or_none({one.answer is not None for one in candidates}),
            {name: np.array([known[name] for known in outputs], np.float64).reshape(-1, n) for name in names},
            prompt_kinds=find_prompt_kinds([record.input for record in self._records]),
        )


def missing_output_error(
    records: Sequence[PromptRecord], names: Sequence[str], n: int, first_line: int
) -> RecordError:
    """Make the error about the first candidate that lacks one of the named raw outputs."""
    line, record, slot, missing = next(
        (line, record, slot, name)
        for line, record in enumerate(records, start=first_line)
        for slot, candidate in enumerate(record.candidates[:n])
        for name in names
        if name not in (candidate.scores or {})
    )
    known = record.candidates[slot].scores or {}
    problem = (
        f"candidate {slot} of record {short_repr(record.id)} has no raw output of {missing!r}; it has "
        f"{', '.join(map(repr, known)) or 'none'}. Bring the outputs of {', '.join(names)} for every "
        "candidate, or leave the record out"
    )
    return RecordError(IN_MEMORY, line, f"candidates[{slot}].scores", problem)


def single_or_none(values: set[bool]) -> bool | None:
    """Return the only value; None where there are several."""
    return next(iter(values)) if len(values) == 1 else None
