"""Records as JSON Lines: an optional line of provenance, then one record per line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from langchain_cfc.errors import RecordError
from langchain_cfc.records.dataset import make_empty_dataset_error
from langchain_cfc.records.schema import (
    NO_CANDIDATES,
    ClaimsRecord,
    LabelledRecord,
    PromptRecord,
    Provenance,
    RecordT,
    count_texts,
    validate_fields,
)
from langchain_cfc.support.json_text import parse_object, read_lines


def read_header(path: Path) -> tuple[int, Provenance | None]:
    """Return the number of the first line that is not blank, and the provenance if it holds one."""
    source = str(path)
    for line, content in _read_lines(path):
        fields = parse_object(content, source, line)
        if not _is_provenance(fields):
            return line, None
        return line, validate_fields(Provenance, fields, source, line)
    raise make_empty_dataset_error(source)


def read_json_lines(path: Path, model: type[RecordT]) -> Iterator[tuple[str, int, RecordT | LabelledRecord]]:
    """Yield each record with its file and the number of its line; the file may be packed by gzip.

    The first is tried as `model` and each other as the model of the one before it, which is the fastest way.
    """
    source, is_first, is_empty = str(path), True, True
    likely: type[RecordT | LabelledRecord] = model
    for line, content in _read_lines(path):
        record = _read_valid(content, likely) or _read_record(content, source, line)
        if record is not None:
            yield source, line, record
            is_empty, likely = False, type(record)
        elif not is_first:
            problem = "a provenance can only be the first line; pass files separately, not concatenated"
            raise RecordError(source, line, "format", problem)
        is_first = False
    if is_empty:
        raise make_empty_dataset_error(source)


def _read_valid(content: bytes, model: type[RecordT]) -> RecordT | None:
    """Return the record of a line; None if it has a fault or might have one, or is of another model.

    Pydantic keeps the last of two equal keys. A lost key takes its quotation marks with it, so that the
    record has fewer texts than its line has pairs of marks.
    """
    try:
        record = model.model_validate_json(content)
    except ValidationError:
        return None
    marks = content.count(b'"')
    if b"\\" in content:
        marks -= content.replace(b"\\\\", b"").count(b'\\"')
    return record if marks == 2 * count_texts(record) else None


def _read_record(content: bytes, source: str, line: int) -> LabelledRecord | None:
    """Return the record of a line, or raise the error that says what is wrong; None for a provenance."""
    fields = parse_object(content, source, line)
    if _is_provenance(fields):
        return None
    holds_claims = "claims" in fields and "candidates" not in fields
    model: type[LabelledRecord] = ClaimsRecord if holds_claims else PromptRecord
    return validate_fields(model, fields, source, line)


def _read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield numbers and contents of the lines that are not blank."""
    for line, raw in read_lines(path):
        if content := raw.rstrip():
            if line == 1 and not content.lstrip().startswith(b"{"):  # a table, or another format
                raise RecordError(str(path), line, "candidates", NO_CANDIDATES)
            yield line, content


def _is_provenance(fields: Mapping[str, Any]) -> bool:
    return "format" in fields and "candidates" not in fields and "claims" not in fields
