"""Checks across the records of a dataset: equal numbers of candidates, unique ids."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from langchain_cfc.errors import RecordError
from langchain_cfc.records.schema import (
    ClaimsRecord,
    LabelledRecord,
    PromptRecord,
    Provenance,
    validate_fields,
)
from langchain_cfc.support.json_text import short_repr

# Stands in for the number of candidates if records hold claims, whose number differs between answers.
_CLAIMS = 0
# Source in errors about records that come from no file, or from several.
_IN_MEMORY = "records"


class DatasetChecker:
    """Checks that all records have the same number of candidates and different ids, across files.

    Keeps the ids, nothing else of a record. A provenance fixes the number of
    candidates, or claims, and the draw rule; errors name `origin` as the reason.
    """

    def __init__(self, provenance: Provenance | None = None, origin: str = "the provenance") -> None:
        self._max_candidates: int | None = None
        self._n: int | None = None
        self._n_origin = origin
        if provenance is not None:
            self._n = _CLAIMS if provenance.unit == "claims" else provenance.n
            self._max_candidates = None if provenance.draws is None else provenance.n
        self._ids: set[str] = set()

    def add(self, record: LabelledRecord, source: str, line: int) -> None:
        """Check one more record."""
        n = len(record.candidates) if isinstance(record, PromptRecord) else _CLAIMS
        if self._n is None:
            self._n, self._n_origin = n, f"{source}, line {line}"
        elif n != self._n and _CLAIMS in {n, self._n}:
            found, expected = ("claims", "candidates") if n == _CLAIMS else ("candidates", "claims")
            problem = f"found {found}; expected {expected} for every prompt, by {self._n_origin}"
            if n == _CLAIMS:
                problem += ' (a header of claims says "unit": "claims")'
            raise RecordError(source, line, found, problem)
        elif n != self._n and (self._max_candidates is None or n > self._max_candidates):
            at_most = "" if self._max_candidates is None else "at most "
            problem = f"found {n}; expected {at_most}{self._n} for every prompt, by {self._n_origin}"
            raise RecordError(source, line, "candidates", problem)
        if record.id in self._ids:
            problem = f"{short_repr(record.id)} is the id of an earlier record too; expected unique ids"
            raise RecordError(source, line, "id", problem)
        self._ids.add(record.id)


def check_records(
    records: Iterable[LabelledRecord], provenance: Provenance | None = None
) -> Iterator[LabelledRecord]:
    """Yield records after checking that they form one dataset; refuse an empty dataset."""
    checks = DatasetChecker(provenance)
    line = 0
    for line, record in enumerate(records, start=1):
        made = record
        if isinstance(record, Mapping):
            kind: type[LabelledRecord] = ClaimsRecord if "claims" in record else PromptRecord
            made = validate_fields(kind, dict(record), _IN_MEMORY, line)
        elif not isinstance(record, (PromptRecord, ClaimsRecord)):
            problem = f"found {short_repr(record)}; expected a PromptRecord, or a mapping of its fields"
            raise RecordError(_IN_MEMORY, line, "", problem)
        checks.add(made, _IN_MEMORY, line)
        yield made
    if line == 0:
        raise make_empty_dataset_error(_IN_MEMORY)


def make_empty_dataset_error(source: str) -> RecordError:
    """Make the error for a source without records."""
    return RecordError(source, 0, "", "no records; expected at least one prompt with its candidates")
