"""What must hold across the records of one dataset."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from operator import itemgetter

from langchain_cfc.errors import RecordError
from langchain_cfc.records.schema import PromptRecord, Provenance
from langchain_cfc.records.strict_json import shown

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
        """Check one more record.

        Args:
            record: The record.
            source: Where it comes from.
            line: Its line there, counted from 1.

        Raises:
            RecordError: If its number of candidates is not that of the others, or its id was seen before.
        """
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
            known, its_line = self._place(first)
            problem = f"{shown(record.id)} is the id of {known}, line {its_line} too; expected ids to differ"
            raise RecordError(source, line, "id", problem)
        self._note(source, [line])

    def accepts(self, ids: Sequence[str], n: int, source: str, lines: Sequence[int]) -> bool:
        """Check several more records of n candidates each at once.

        Args:
            ids: Their ids.
            n: Their number of candidates.
            source: Where they come from.
            lines: Their lines there.

        Returns:
            Whether all of them fit; if not, none of them was taken, and `add` knows why.
        """
        here = dict(zip(ids, count(len(self._positions)), strict=False))
        new = len(here) == len(ids) and self._positions.keys().isdisjoint(here)
        if not new or self._n not in {None, n}:
            return False
        if self._n is None:
            self.expect(n, f"{source}, line {lines[0]}")
        self._positions.update(here)
        self._note(source, lines)
        return True

    def _note(self, source: str, lines: Sequence[int]) -> None:
        if not self._sources or self._sources[-1][1] != source:
            self._sources.append((len(self._lines), source))
        self._lines.extend(lines)

    def _place(self, position: int) -> tuple[str, int]:
        """Source and line of the record at a position."""
        after = bisect_right(self._sources, position, key=itemgetter(0))
        return self._sources[after - 1][1], self._lines[position]


def checked(
    records: Iterable[PromptRecord], provenance: Provenance | None = None, source: str = IN_MEMORY
) -> Iterator[PromptRecord]:
    """Pass on the records of one dataset, checking that there are any and that they fit each other.

    Args:
        records: The records.
        provenance: Where they come from, if known; its n is then their number of candidates.
        source: What errors call them; their line is their position, counted from 1.

    Yields:
        The records.

    Raises:
        RecordError: At the first record that does not fit those before it, or if there is none.
    """
    checks = DatasetChecks()
    if provenance is not None:
        checks.expect(provenance.n, "the provenance")
    line = 0
    for line, record in enumerate(records, start=1):
        if not isinstance(record, PromptRecord):
            problem = f"found {shown(record)}; expected a PromptRecord (files are opened by read_records)"
            raise RecordError(source, line, "", problem)
        checks.add(record, source, line)
        yield record
    if line == 0:
        raise no_records(source)


def no_records(source: str) -> RecordError:
    """The error of a source without a single record."""
    return RecordError(source, 0, "", "no records; expected at least one prompt with its candidates")
