"""Records in batches, however they were read, and how a batch becomes arrays."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from operator import itemgetter
from typing import Protocol

import numpy as np

from langchain_cfc._internal.arrays import FloatArray, IntArray
from langchain_cfc.candidates import CandidateBatch, LabelledBatch, find_prompt_kinds
from langchain_cfc.errors import RecordError
from langchain_cfc.records._json import short_repr
from langchain_cfc.records.schema import PromptRecord, Provenance

# What errors call records that come from no file, or from several.
IN_MEMORY = "records"


class DatasetChecks:
    """One number of candidates, and no id twice, however many files the records come from.

    Keeps the ids and where each was seen, nothing else of a record.
    """

    def __init__(self) -> None:
        self._n: int | None = None
        self._n_from = ""
        # By id the record's position; by position its line; where each source begins. A million records have
        # a million places, for which objects would take more than all of their scores.
        self._positions: dict[str, int] = {}
        self._lines = array("Q")
        self._sources: list[tuple[int, str]] = []

    def expect(self, n: int, origin: str) -> None:
        """Fix the number of candidates; errors say that `origin` did."""
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

    def accepts(self, ids: Sequence[str], n: int, source: str, lines: Sequence[int]) -> bool:
        """Check several more records of n candidates each at once."""
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
        """Source and line of the record at a position."""
        after = bisect_right(self._sources, position, key=itemgetter(0))
        return self._sources[after - 1][1], self._lines[position]


def check_records(
    records: Iterable[PromptRecord], provenance: Provenance | None = None, source: str = IN_MEMORY
) -> Iterator[PromptRecord]:
    """Pass on the records of one dataset, checking that there are any and that they fit each other."""
    checks = DatasetChecks()
    if provenance is not None:
        checks.expect(provenance.n, "the provenance")
    line = 0
    for line, record in enumerate(records, start=1):
        if not isinstance(record, PromptRecord):
            problem = (
                f"found {short_repr(record)}; expected a PromptRecord (files are opened by read_records)"
            )
            raise RecordError(source, line, "", problem)
        checks.add(record, source, line)
        yield record
    if line == 0:
        raise no_records_error(source)


def no_records_error(source: str) -> RecordError:
    """The error of a source without a single record."""
    return RecordError(source, 0, "", "no records; expected at least one prompt with its candidates")


# So many records become arrays at a time; their texts are all that is held besides the arrays. More of them
# would not stay in the processor's cache.
BATCH = 64
_MOST_PAIRS = 2**22


class Batch(Protocol):
    """Some records of one dataset, each known to be good and to have the same number of candidates."""

    @property
    def ids(self) -> Sequence[str]:
        """Their ids, at least one."""

    @property
    def recorded(self) -> int:
        """Their number of candidates."""

    def table(self, n: int, names: Sequence[str]) -> LabelledBatch | None:
        """The records as arrays."""

    def records(self) -> list[PromptRecord]:
        """The records themselves."""


class RecordBatch:
    """A batch of records that are there as such.

    Args:
        records: At least one record; all have the same number of candidates.
    """

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
        """The records as arrays, as `Batch` says."""
        rows = [record.candidates[:n] for record in self._records]
        outputs = [[candidate.scores or {} for candidate in row] for row in rows]
        if any(name not in known for row in outputs for known in row for name in names):
            return None
        draws = CandidateBatch.of(
            [[candidate.score for candidate in row] for row in rows],
            [[candidate.answer_key for candidate in row] for row in rows],
            [record.metadata for record in self._records],
        )
        return LabelledBatch(
            draws,
            np.array([[candidate.correct for candidate in row] for row in rows], dtype=np.bool_),
            tuple(record.id for record in self._records),
            tuple(record.cluster for record in self._records),
            self.recorded,
            single_or_none({candidate.answer is not None for row in rows for candidate in row}),
            {name: _floats([[known[name] for known in row] for row in outputs]) for name in names},
            prompt_kinds=find_prompt_kinds(record.input for record in self._records),
        )


def missing_output_error(
    records: Sequence[PromptRecord], names: Sequence[str], n: int, first_line: int
) -> RecordError:
    """The error about the first candidate that lacks a raw output."""
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


def first_equal_slots(answers: IntArray) -> IntArray:
    """Answer codes out of any numbers that are equal for equal answers.

    >>> first_equal_slots(np.array([[7, 3, 7], [3, 3, 5]])).tolist()
    [[0, 1, 0], [0, 0, 2]]
    """
    size, n = answers.shape
    # Each candidate beside each, of no more prompts at a time than take a few megabytes.
    rows = max(1, _MOST_PAIRS // n**2)
    parts = [answers[start : start + rows] for start in range(0, size, rows)]
    return np.concatenate([(part[:, :, None] == part[:, None, :]).argmax(axis=2) for part in parts])


def single_or_none(values: set[bool]) -> bool | None:
    """The one value; None where there are several."""
    return next(iter(values)) if len(values) == 1 else None


def _floats(rows: list[list[float]]) -> FloatArray:
    return np.array(rows, dtype=np.float64)
