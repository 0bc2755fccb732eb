"""Records in batches, however they were read, and how a batch becomes arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from langchain_cfc._arrays import FloatArray, IntArray
from langchain_cfc.draws import Draws, LabelledDraws, kinds_of_prompts
from langchain_cfc.errors import RecordError
from langchain_cfc.records.checks import IN_MEMORY
from langchain_cfc.records.schema import PromptRecord
from langchain_cfc.records.strict_json import shown

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

    def table(self, n: int, names: Sequence[str]) -> LabelledDraws | None:
        """The records as arrays.

        Args:
            n: Use only the first n slots, 1 <= n <= recorded.
            names: Verifiers whose raw outputs are wanted.

        Returns:
            The (N, n) draws with their labels; None where a candidate lacks one of the raw outputs.
        """

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

    def table(self, n: int, names: Sequence[str]) -> LabelledDraws | None:
        """The records as arrays, as `Batch` says."""
        rows = [record.candidates[:n] for record in self._records]
        outputs = [[candidate.scores or {} for candidate in row] for row in rows]
        if any(name not in known for row in outputs for known in row for name in names):
            return None
        draws = Draws.of(
            [[candidate.score for candidate in row] for row in rows],
            [[candidate.answer_key for candidate in row] for row in rows],
            [record.metadata for record in self._records],
        )
        return LabelledDraws(
            draws,
            np.array([[candidate.correct for candidate in row] for row in rows], dtype=np.bool_),
            tuple(record.id for record in self._records),
            tuple(record.cluster for record in self._records),
            self.recorded,
            one_or_none({candidate.answer is not None for row in rows for candidate in row}),
            {name: _floats([[known[name] for known in row] for row in outputs]) for name in names},
            prompt_kinds=kinds_of_prompts(record.input for record in self._records),
        )


def missing_output(
    records: Sequence[PromptRecord], names: Sequence[str], n: int, first_line: int
) -> RecordError:
    """The error about the first candidate that lacks a raw output.

    Args:
        records: Records of which one has such a candidate.
        names: The raw outputs wanted.
        n: Only the first n candidates count.
        first_line: Position of the first of the records in the dataset, counted from 1.

    Returns:
        The error.
    """
    line, record, slot, missing = next(
        (line, record, slot, name)
        for line, record in enumerate(records, start=first_line)
        for slot, candidate in enumerate(record.candidates[:n])
        for name in names
        if name not in (candidate.scores or {})
    )
    known = record.candidates[slot].scores or {}
    problem = (
        f"candidate {slot} of record {shown(record.id)} has no raw output of {missing!r}; it has "
        f"{', '.join(map(repr, known)) or 'none'}. Bring the outputs of {', '.join(names)} for every "
        "candidate, or leave the record out"
    )
    return RecordError(IN_MEMORY, line, f"candidates[{slot}].scores", problem)


def first_slots(answers: IntArray) -> IntArray:
    """Answer codes out of any numbers that are equal for equal answers.

    Args:
        answers: (N, n) number of each candidate's answer.

    Returns:
        (N, n) slot of the first candidate of the same prompt with the same answer.

    >>> first_slots(np.array([[7, 3, 7], [3, 3, 5]])).tolist()
    [[0, 1, 0], [0, 0, 2]]
    """
    size, n = answers.shape
    # Each candidate beside each, of no more prompts at a time than take a few megabytes.
    rows = max(1, _MOST_PAIRS // n**2)
    parts = [answers[start : start + rows] for start in range(0, size, rows)]
    return np.concatenate([(part[:, :, None] == part[:, None, :]).argmax(axis=2) for part in parts])


def one_or_none(values: set[bool]) -> bool | None:
    """The one value; None where there are several."""
    return next(iter(values)) if len(values) == 1 else None


def _floats(rows: list[list[float]]) -> FloatArray:
    return np.array(rows, dtype=np.float64)
