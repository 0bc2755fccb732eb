"""Checks across the records of a dataset: equal numbers of candidates, unique ids."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from langchain_cfc.errors import RecordError
from langchain_cfc.records.schema import (
    ClaimsRecord,
    LabelledRecord,
    PlainRecord,
    PromptRecord,
    Provenance,
    RecordT,
    validate_fields,
)
from langchain_cfc.support.json_text import short_repr

# Stands in for the number of candidates if records hold claims, whose number differs between answers.
_CLAIMS = 0
# Source in errors about records that come from no file, or from several.
_IN_MEMORY = "records"


def check_dataset(
    records: Iterable[tuple[str, int, RecordT]], provenance: Provenance | None, origin: str
) -> Iterator[RecordT]:
    """Yield records after checking that all have the same number of candidates and different ids.

    Args:
        records: Records of any number of files, each with its file and line for errors; only ids are kept.
        provenance: Fixes the number of candidates, or claims, and the draw rule; None if it is not known.
        origin: What errors name as the reason.
    """
    n: int | None = None
    is_shortened = provenance is not None and provenance.draws is not None
    if provenance is not None:
        n = _CLAIMS if provenance.unit == "claims" else provenance.n
    ids: set[str] = set()
    for source, line, record in records:
        found = len(record.candidates) if isinstance(record, (PromptRecord, PlainRecord)) else _CLAIMS
        if n is None:
            n, origin = found, f"{source}, line {line}"
        elif found != n and not (is_shortened and _CLAIMS < found < n):
            at_most = "at most " if is_shortened else ""
            problem = f"found {_name(found)}; expected {at_most}{_name(n)} for every prompt, by {origin}"
            raise RecordError(source, line, "candidates" if found else "claims", problem)
        if record.id in ids:
            problem = f"{short_repr(record.id)} is the id of an earlier record too; expected unique ids"
            raise RecordError(source, line, "id", problem)
        ids.add(record.id)
        yield record


def _name(count: int) -> str:
    return "claims" if count == _CLAIMS else f"{count} candidates"


def check_records(
    records: Iterable[LabelledRecord], provenance: Provenance | None = None
) -> Iterator[LabelledRecord]:
    """Yield records, or mappings as records, after the checks of a dataset; refuse an empty one."""
    return check_dataset(_number_records(records), provenance, "the provenance")


def _number_records(records: Iterable[LabelledRecord]) -> Iterator[tuple[str, int, LabelledRecord]]:
    line = 0
    for line, record in enumerate(records, start=1):
        made = record
        if isinstance(record, Mapping):
            kind: type[LabelledRecord] = ClaimsRecord if "claims" in record else PromptRecord
            made = validate_fields(kind, dict(record), _IN_MEMORY, line)
        elif not isinstance(record, (PromptRecord, ClaimsRecord)):
            problem = f"found {short_repr(record)}; expected a PromptRecord, or a mapping of its fields"
            raise RecordError(_IN_MEMORY, line, "", problem)
        yield _IN_MEMORY, line, made
    if line == 0:
        raise make_empty_dataset_error(_IN_MEMORY)


def make_empty_dataset_error(source: str) -> RecordError:
    """Make the error for a source without records."""
    return RecordError(source, 0, "", "no records; expected at least one prompt with its candidates")
