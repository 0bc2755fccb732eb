"""What must hold across the records of one dataset."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from langchain_cfc.errors import RecordError
from langchain_cfc.records.schema import PromptRecord, Provenance
from langchain_cfc.records.strict_json import shown

# What errors call records that come from no file, or from several.
IN_MEMORY = "records"


class DatasetChecks:
    """One number of candidates, and no id twice, however many files the records come from.

    Keeps the ids and where each was first seen, nothing else of a record.
    """

    def __init__(self) -> None:
        self._n: int | None = None
        self._n_from = ""
        self._first_seen: dict[str, tuple[str, int]] = {}

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
        here = (source, line)
        first = self._first_seen.setdefault(record.id, here)
        # Identity, since a file given twice has every record at an equal place.
        if first is not here:
            problem = (
                f"{shown(record.id)} is the id of {first[0]}, line {first[1]} too; expected ids to differ"
            )
            raise RecordError(source, line, "id", problem)


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
