"""Records as JSON Lines.

The strict reader (`parse_record`) makes a model of every candidate, so that it can say what is wrong with it.
The fast reader (`decode_lines`) turns many lines into columns of values at once, without an object for any
candidate. It accepts lines only if the strict reader certainly accepts them too, with the same values;
otherwise it returns None, and the strict reader decides.

The fast reader uses pydantic's parser, which accepts less than Python's: no NaN, no lone surrogates, no deep
nesting. But it also keeps only the last of two equal keys. A lost key shows in the number of quotation marks:
every parsed text, keys included, accounts for two of them in the lines.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic_core import from_json

from langchain_cfc.candidates import CandidateBatch, LabelledBatch, encode_answers, find_prompt_kinds
from langchain_cfc.errors import RecordError
from langchain_cfc.records.batches import (
    BATCH_SIZE,
    Batch,
    DatasetChecker,
    make_batch,
    make_empty_dataset_error,
    stack_claims,
)
from langchain_cfc.records.schema import (
    Candidate,
    Claim,
    ClaimsRecord,
    LabelledRecord,
    PromptRecord,
    Provenance,
    validate_fields,
)
from langchain_cfc.records.splits import digest_inputs
from langchain_cfc.support.arrays import IntArray
from langchain_cfc.support.json_text import parse_object, read_lines
from langchain_cfc.support.serialization import canonical_json

_Kind = TypeVar("_Kind", bound=np.generic)

# Largest depth of nesting that the fast reader checks; the strict reader allows more.
_MAX_DEPTH = 20


class _Missing:
    """Placeholder for a missing field, which is not the same as null."""


class UncertainError(Exception):
    """The fast reader cannot be certain; the strict reader has to decide."""


_MISSING = _Missing()
_NULL_TYPES = {_Missing, type(None)}
_NUMBER_TYPES = {int, float}
_SCALAR_TYPES = {str, bool, *_NUMBER_TYPES}
_RECORD_FIELDS = frozenset(PromptRecord.model_fields)
_CLAIMS_RECORD_FIELDS = frozenset(ClaimsRecord.model_fields)
_MISSING_FIELDS = dict.fromkeys(Candidate.model_fields, _MISSING)


def is_provenance(fields: Mapping[str, Any]) -> bool:
    """Whether a parsed line holds a provenance instead of a record."""
    return "format" in fields and "candidates" not in fields and "claims" not in fields


def parse_record(content: bytes, source: str, line: int) -> LabelledRecord:
    """Parse the record on a line; a provenance is refused, since it can only be the first line."""
    fields = parse_object(content, source, line)
    if is_provenance(fields):
        problem = "a provenance can only be the first line; pass files separately, not concatenated"
        raise RecordError(source, line, "format", problem)
    holds_claims = "claims" in fields and "candidates" not in fields
    if holds_claims:
        return validate_fields(ClaimsRecord, fields, source, line)
    return validate_fields(PromptRecord, fields, source, line)


def decode_lines(lines: Sequence[bytes]) -> Batch | None:
    """Decode the records on one or more lines; None if only the strict reader can decide about them."""
    try:
        if b'"claims"' in lines[0]:
            return _decode_claims(lines)
        return _decode_candidates(lines)
    except (UncertainError, TypeError, ValueError, OverflowError):
        # The parser raises ValueErrors; reading a candidate that is no object raises a TypeError.
        return None


def parse_values(texts: Sequence[bytes]) -> list[Any]:
    """Parse JSON texts; UncertainError or ValueError if only the strict reader can decide about them."""
    values = [from_json(text, allow_inf_nan=False) for text in texts]
    require_certain(_count_quotation_marks(texts) == 2 * _count_texts(values))
    return values


def are_valid_metadata(values: Sequence[Any]) -> bool:
    """Whether parsed values are all objects of texts, numbers and booleans, as metadata must be."""
    return set(map(type, values)) <= {dict} and (
        set(map(type, chain.from_iterable(map(dict.values, values)))) <= _SCALAR_TYPES
    )


class _MixedFieldsError(UncertainError):
    """The candidates or claims of lines do not all have the same fields in the same order."""


def _parse_columns(
    lines: Sequence[bytes], column: str, known: frozenset[str], defaults: Mapping[str, Any] | None = None
) -> tuple[list[dict[str, Any]], list[int], dict[str, list[Any]]]:
    """Parse lines into their other fields, their numbers of candidates or claims, and columns of these items.

    If items differ in their fields, `defaults` supplies the missing ones, which is slower; without it, an
    `_MixedFieldsError` is raised.
    """
    records: list[dict[str, Any]] = []
    counts: list[int] = []
    values: list[Any] = []
    fields: list[str] = []
    for line in lines:
        record = from_json(line, allow_inf_nan=False, cache_strings="keys")
        require_certain(type(record) is dict and record.keys() <= known)
        items = record.pop(column, None)
        require_certain(type(items) is list and bool(items) and bool(items[0]))
        if defaults is not None:
            items = [defaults | item for item in items]
        fields = fields or list(items[0])
        # No object has a key twice, so the joined keys are equal only if every item has these fields.
        if list(chain.from_iterable(items)) != fields * len(items):
            raise _MixedFieldsError
        # Keep only the values, so that the memory of the parsed objects can be reused for the next line.
        values.extend(chain.from_iterable(map(dict.values, items)))
        counts.append(len(items))
        records.append(record)
    return records, counts, {name: values[place :: len(fields)] for place, name in enumerate(fields)}


def _decode_candidates(lines: Sequence[bytes]) -> Batch:
    try:
        records, counts, parsed = _parse_columns(lines, "candidates", _RECORD_FIELDS)
    except _MixedFieldsError:
        records, counts, parsed = _parse_columns(lines, "candidates", _RECORD_FIELDS, _MISSING_FIELDS)
    n = counts[0]
    require_certain(counts == [n] * len(lines) and parsed.keys() <= _MISSING_FIELDS.keys())
    missing: list[Any] = [_MISSING] * (n * len(lines))
    columns = {name: parsed.get(name, missing) for name in _MISSING_FIELDS}
    kinds = {name: _count_types(column) for name, column in columns.items()}
    texts = _count_record_texts(records) + _count_candidate_texts(columns, kinds)
    require_certain(_count_quotation_marks(lines) == 2 * texts)
    scores = _to_array(columns.pop("score"), np.float64, n)
    # In this form the comparison refuses NaN as well.
    require_certain(bool(((scores >= 0.0) & (scores <= 1.0)).all()))
    # In most files an extractor made all answers.
    answers = columns["answer"] if kinds["answer"].keys() == {str} else _list_answer_keys(columns)
    labelled = LabelledBatch(
        CandidateBatch(
            scores, *encode_answers(answers, n), [record.get("metadata", {}) for record in records]
        ),
        _to_array(columns["correct"], np.bool_, n),
        tuple([record["id"] for record in records]),
        tuple([record.get("cluster") for record in records]),
        n,
        prompt_kinds=find_prompt_kinds(record["input"] for record in records),
        inputs=digest_inputs(record["input"] for record in records),
    )
    return Batch(
        labelled,
        _to_array((type(answer) is str for answer in columns["answer"]), np.bool_, n),
    )


def _decode_claims(lines: Sequence[bytes]) -> Batch:
    """Decode lines with claims; all claims must have the same fields in the same order."""
    records, counts, columns = _parse_columns(lines, "claims", _CLAIMS_RECORD_FIELDS)
    require_certain(
        columns.keys() <= Claim.model_fields.keys() and {"text", "score", "supported"} <= columns.keys()
    )
    kinds = {name: set(map(type, column)) for name, column in columns.items()}
    require_certain(kinds["text"] == {str} and all(columns["text"]))
    require_certain(kinds["score"] <= _NUMBER_TYPES and kinds["supported"] == {bool})
    # In this form the comparison refuses NaN as well.
    require_certain(all(0.0 <= score <= 1.0 for score in columns["score"]))
    ends = _check_spans(columns, kinds)
    answers = [record.get("answer") for record in records]
    require_certain(set(map(type, answers)) <= {str, type(None)})
    firsts = np.cumsum([0, *counts[:-1]])
    lasts = np.maximum.reduceat(ends, firsts).tolist()
    require_certain(
        all(answer is None or last <= len(answer) for answer, last in zip(answers, lasts, strict=True))
    )
    texts = _count_record_texts(records) + _count_texts(answers)
    texts += (len(columns) + 1) * len(columns["text"])  # the keys, and the texts themselves
    require_certain("no_verdict" not in columns and "no_label" not in columns)
    if "scores" in columns:
        require_certain(kinds["scores"] == {dict})
        texts += _count_output_names(columns["scores"])
    require_certain(_count_quotation_marks(lines) == 2 * texts)
    return stack_claims(
        np.array(counts, dtype=np.int64),
        ids=[record["id"] for record in records],
        clusters=[record.get("cluster") for record in records],
        metadata=tuple([record.get("metadata", {}) for record in records]),
        scores=columns["score"],
        supported=columns["supported"],
        prompt_kinds=find_prompt_kinds(record["input"] for record in records),
        inputs=digest_inputs(record["input"] for record in records),
    )


def _check_spans(columns: Mapping[str, Sequence[Any]], kinds: Mapping[str, set[type]]) -> IntArray:
    """Return the ends of the claims, 0 if unknown; UncertainError for spans that may be invalid."""
    if "start" not in columns and "end" not in columns:
        return np.zeros(len(columns["text"]), dtype=np.int64)
    require_certain(kinds.get("start") == {int} and kinds.get("end") == {int})
    starts, ends = (np.array(columns[name], dtype=np.int64) for name in ("start", "end"))
    require_certain(bool(((starts >= 0) & (starts < ends)).all()))
    return ends


def require_certain(certain: bool) -> None:
    """Raise UncertainError unless a value is certainly valid."""
    if not certain:
        raise UncertainError


def _count_record_texts(records: Sequence[dict[str, Any]]) -> int:
    """Count the texts outside candidates or claims, keys included; UncertainError if one may be invalid."""
    ids = [record.get("id") for record in records]
    require_certain(set(map(type, ids)) == {str} and all(ids))
    clusters = [cluster for record in records if (cluster := record.get("cluster")) is not None]
    require_certain(set(map(type, clusters)) <= {str} and all(clusters))
    inputs = [record.get("input") for record in records]
    require_certain(set(map(type, inputs)) <= {str, list, dict})
    metadata = [record["metadata"] for record in records if "metadata" in record]
    require_certain(are_valid_metadata(metadata))
    references = [record["reference"] for record in records if "reference" in record]
    keys = sum(len(record) + 1 for record in records)  # plus the key of the candidates or claims
    return keys + len(ids) + len(clusters) + sum(map(_count_texts, (inputs, metadata, references)))


def _count_candidate_texts(
    columns: Mapping[str, Sequence[Any]], kinds: Mapping[str, Mapping[type, int]]
) -> int:
    """Count the texts in candidates, keys included; UncertainError for values that may be invalid."""
    require_certain(kinds["text"].keys() <= {str, *_NULL_TYPES})
    require_certain(kinds["message"].keys() <= {dict, *_NULL_TYPES})
    require_certain(kinds["answer"].keys() <= {str, *_NULL_TYPES})
    require_certain(kinds["correct"].keys() == {bool})
    require_certain(kinds["score"].keys() <= _NUMBER_TYPES)
    require_certain(kinds["scores"].keys() <= {dict, *_NULL_TYPES})
    flags = (kinds[name].keys() for name in ("no_answer", "no_verdict", "no_label"))
    require_certain(set().union(*flags) <= _NULL_TYPES)
    keys = sum(len(values) - kinds[name].get(_Missing, 0) for name, values in columns.items())
    texts = keys + kinds["text"].get(str, 0) + kinds["answer"].get(str, 0)
    if dict in kinds["message"] or kinds["text"].keys() != {str}:
        pairs = zip(columns["text"], columns["message"], strict=True)
        require_certain(all((type(text) is str) != (type(message) is dict) for text, message in pairs))
        texts += _count_texts([message for message in columns["message"] if type(message) is dict])
    if dict in kinds["scores"]:
        texts += _count_output_names([known for known in columns["scores"] if type(known) is dict])
    return texts


def _count_output_names(outputs: Sequence[dict[str, Any]]) -> int:
    values = list(chain.from_iterable(map(dict.values, outputs)))
    require_certain(set(map(type, values)) <= _NUMBER_TYPES)
    # One sum shows whether any number is infinite; `float` raises for integers that are too large.
    require_certain(math.isfinite(sum(map(float, values))))
    return len(values)


def _count_texts(values: Sequence[Any]) -> int:
    """Count the texts in parsed values, keys included; UncertainError if infinite or nested too deeply."""
    texts = 0
    for _ in range(_MAX_DEPTH):
        kinds = _count_types(values)
        texts += kinds.get(str, 0)
        if float in kinds:
            require_certain(all(math.isfinite(value) for value in values if type(value) is float))
        if not kinds.keys() & {dict, list}:
            return texts
        objects = [value for value in values if type(value) is dict]
        texts += sum(map(len, objects))
        lists = (value for value in values if type(value) is list)
        values = [*chain.from_iterable(map(dict.values, objects)), *chain.from_iterable(lists)]
    raise UncertainError


def _count_types(values: Sequence[Any]) -> Mapping[type, int]:
    """Count the values of each type."""
    kinds = set(map(type, values))
    # Counting takes as long as everything else, and usually there is only one type.
    return {kinds.pop(): len(values)} if len(kinds) == 1 else Counter(map(type, values))


def _count_quotation_marks(lines: Sequence[bytes]) -> int:
    """Count the quotation marks that begin or end a text."""
    joined = b"\n".join(lines)
    total = np.count_nonzero(np.frombuffer(joined, dtype=np.uint8) == ord('"'))
    if b"\\" in joined:
        # Remove pairs of backslashes first: the second of a pair escapes nothing.
        total -= joined.replace(b"\\\\", b"").count(b'\\"')
    return int(total)


def _list_answer_keys(columns: Mapping[str, Sequence[Any]]) -> Sequence[str]:
    """Return the key of each candidate's answer, as `Candidate.answer_key` does."""
    several = zip(columns["answer"], columns["text"], columns["message"], strict=True)
    return [
        answer if type(answer) is str else text if type(text) is str else canonical_json(message)
        for answer, text, message in several
    ]


def _to_array(values: Iterable[Any], kind: type[_Kind], n: int) -> NDArray[_Kind]:
    """Return an (N, n) array of N * n values."""
    return np.fromiter(values, dtype=kind).reshape(-1, n)


_Line: TypeAlias = tuple[int, bytes]

# If a batch cannot be decoded, parts of this size are tried before the strict reader takes them.
_PART_LINES = 16


@dataclass(frozen=True)
class JsonLinesFile:
    """A JSON Lines file, plain or gzip: an optional line of provenance, then one record per line."""

    path: Path
    max_line_bytes: int

    def read_header(self) -> tuple[int, Provenance | None]:
        """Return the number of the first line that is not blank, and the provenance if it holds one."""
        source = str(self.path)
        for line, content in self._read_lines():
            fields = parse_object(content, source, line)
            if not is_provenance(fields):
                return line, None
            # The model has a default, for records of this release; a file may come from another release.
            if "version" not in fields:
                raise RecordError(source, line, "version", "missing; expected 1")
            return line, validate_fields(Provenance, fields, source, line)
        raise make_empty_dataset_error(source)

    def records(self, checks: DatasetChecker) -> Iterator[LabelledRecord]:
        """Yield the records one by one."""
        for line, content in self._read_record_lines():
            yield self._parse_line(line, content, checks)

    def read_batches(self, checks: DatasetChecker) -> Iterator[Batch]:
        """Yield the same records in batches; an error may lose up to `BATCH_SIZE` good lines before it."""
        lines = self._read_record_lines()
        failure: RecordError | None = None
        while failure is None:
            window: list[_Line] = []
            try:
                # Not `window.extend`: what it keeps if an error interrupts it is undefined.
                for line in islice(lines, BATCH_SIZE):
                    window.append(line)  # noqa: PERF402
            except RecordError as error:
                failure = error
            # A bad line in the window precedes the line that could not be read, so it is reported first.
            judged = list(self._decode_or_parse(window, checks)) if window else []
            if failure is not None:
                raise failure
            if not window:
                return
            yield from judged

    def _decode_or_parse(self, lines: Sequence[_Line], checks: DatasetChecker) -> Iterator[Batch]:
        """Yield batches of lines, decoded if they are certainly valid, otherwise parsed strictly."""
        numbers, contents = zip(*lines, strict=True)
        batch = decode_lines(contents)
        if batch is not None and checks.try_add(batch.ids, batch.recorded, str(self.path), numbers):
            yield batch
        elif len(lines) > _PART_LINES:
            for start in range(0, len(lines), _PART_LINES):
                yield from self._decode_or_parse(lines[start : start + _PART_LINES], checks)
        else:
            records = [self._parse_line(line, content, checks) for line, content in lines]
            yield make_batch(records, checks.max_candidates)

    def _parse_line(self, line: int, content: bytes, checks: DatasetChecker) -> LabelledRecord:
        record = parse_record(content, str(self.path), line)
        checks.add(record, str(self.path), line)
        return record

    def _read_record_lines(self) -> Iterator[_Line]:
        """Yield all lines except the provenance, if the first line holds one."""
        lines = self._read_lines()
        first = next(lines, None)
        if first is not None and is_provenance(parse_object(first[1], str(self.path), first[0])):
            first = next(lines, None)
        if first is None:
            raise make_empty_dataset_error(str(self.path))
        yield first
        yield from lines

    def _read_lines(self) -> Iterator[_Line]:
        """Return an iterator over numbers and contents of the lines that are not blank."""
        lines = read_lines(self.path, self.max_line_bytes)
        return ((line, content) for line, raw in lines if (content := raw.rstrip()))
