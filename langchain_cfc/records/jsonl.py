"""One records file of JSON Lines.

Lines of JSON to columns of values, many at a time and without an object for any candidate.

The strict reader makes a model of every candidate, to be able to say what is wrong with it. What is decoded
here is accepted only where it is certain that the strict reader accepts it, with the same values. Where that
is not certain, `decode_lines` returns None and the strict reader settles it.

The parser, pydantic's own, takes less than Python's does: no NaN, no lone surrogates, no deep nesting. One
liberty it takes as well, that the last of two equal keys wins. That loses quotation marks, so they are
counted: every text that was parsed, keys included, stands between two of those in the lines.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count, islice
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic_core import from_json

from langchain_cfc._internal.arrays import FloatArray
from langchain_cfc.candidates import (
    CandidateBatch,
    LabelledBatch,
    PromptKind,
    Scalar,
    find_prompt_kinds,
    measure_answer,
)
from langchain_cfc.errors import RecordError
from langchain_cfc.records._json import parse_object, read_lines
from langchain_cfc.records.batches import (
    BATCH,
    Batch,
    DatasetChecks,
    RecordBatch,
    first_equal_slots,
    no_records_error,
    single_or_none,
)
from langchain_cfc.records.schema import Candidate, PromptRecord, Provenance, canonical_json, validate_fields

_Kind = TypeVar("_Kind", bound=np.generic)

# Levels of lists and objects that are looked into; the strict reader allows more.
_DEEPEST = 20


class _Absent:
    """What stands for a field that is not there, which is not the same as null."""


class DoubtError(Exception):
    """Only the strict reader can tell."""


_ABSENT = _Absent()
_NOTHING = {_Absent, type(None)}
_NUMBERS = {int, float}
_SCALARS = {str, bool, *_NUMBERS}
_FIELDS = frozenset(PromptRecord.model_fields)
_NO_FIELDS = dict.fromkeys(Candidate.model_fields, _ABSENT)


def is_provenance(fields: Mapping[str, Any]) -> bool:
    """Whether a parsed line says where records come from, in place of being one."""
    return "format" in fields and "candidates" not in fields


def parse_record(content: bytes, source: str, line: int) -> PromptRecord:
    """The record of a line that may not hold a provenance any more."""
    fields = parse_object(content, source, line)
    if is_provenance(fields):
        problem = "a provenance can only be the first line; give files one by one instead of joined"
        raise RecordError(source, line, "format", problem)
    return validate_fields(PromptRecord, fields, source, line)


@dataclass(frozen=True)
class DecodedBatch:
    """A batch of records as parsed; see `Batch`.

    Attributes:
        lines: What the lines of N records hold.
        ids: N ids.
        clusters: N clusters, None where there is none.
        metadata: N mappings.
        scores: (N, recorded) scores.
        candidates: By name of each other field, its N * recorded values, candidate after candidate.
        answered: Types of the answers.
        prompt_kinds: Kinds of the inputs.
    """

    lines: Sequence[bytes]
    ids: Sequence[str]
    clusters: Sequence[str | None]
    metadata: Sequence[Mapping[str, Scalar]]
    scores: FloatArray
    candidates: Mapping[str, Sequence[Any]]
    answered: frozenset[type]
    prompt_kinds: frozenset[PromptKind]

    @property
    def recorded(self) -> int:
        """Their number of candidates."""
        return int(self.scores.shape[1])

    def records(self) -> list[PromptRecord]:
        """The records themselves, which only errors need."""
        return [parse_record(content, "", 0) for content in self.lines]

    def table(self, n: int, names: Sequence[str]) -> LabelledBatch | None:
        """The records as arrays, as `Batch` says."""
        used = {name: self._first_slots(values, n) for name, values in self.candidates.items()}
        raw: dict[str, FloatArray] = {}
        for name in names:
            outputs = [
                known.get(name, _ABSENT) if type(known) is dict else _ABSENT for known in used["scores"]
            ]
            if _Absent in set(map(type, outputs)):
                return None
            raw[name] = _to_array(outputs, np.float64, n)
        # Mostly an extractor made all answers.
        keys = used["answer"] if self.answered == {str} else _answer_keys(used)
        first: dict[str, int] = {}
        equal = _to_array(map(first.setdefault, keys, count()), np.int64, n)
        draws = CandidateBatch(
            self.scores if n == self.recorded else self.scores[:, :n].copy(),
            first_equal_slots(equal),
            _to_array(map(answer_length, keys), np.int64, n),
            self.metadata,
        )
        return LabelledBatch(
            draws,
            _to_array(used["correct"], np.bool_, n),
            tuple(self.ids),
            tuple(self.clusters),
            self.recorded,
            single_or_none({kind is str for kind in self._answered_of(used)}),
            raw,
            prompt_kinds=self.prompt_kinds,
        )

    def _answered_of(self, used: Mapping[str, Sequence[Any]]) -> frozenset[type]:
        """Types of the answers among those used."""
        return self.answered if len(self.answered) == 1 else frozenset(map(type, used["answer"]))

    def _first_slots(self, values: Sequence[Any], n: int) -> Sequence[Any]:
        if n == self.recorded:
            return values
        return [one for start in range(0, len(values), self.recorded) for one in values[start : start + n]]


def decode_lines(lines: Sequence[bytes]) -> DecodedBatch | None:
    """Decode the records of some lines."""
    try:
        return _decode(lines, uneven=False) or _decode(lines, uneven=True)
    except (DoubtError, TypeError, ValueError, OverflowError):
        # The parser's errors are ValueErrors; a candidate that is no object is a TypeError where it is read.
        return None


def parse_values(texts: Sequence[bytes]) -> list[Any]:
    """Parse JSON values."""
    values = [from_json(text, allow_inf_nan=False) for text in texts]
    _require(_count_quotation_marks(texts) == 2 * _texts(values))
    return values


def are_metadata(values: Sequence[Any]) -> bool:
    """Whether parsed values are objects of texts, numbers and booleans, as metadata must be."""
    return set(map(type, values)) <= {dict} and (
        set(map(type, chain.from_iterable(map(dict.values, values)))) <= _SCALARS
    )


def _decode(lines: Sequence[bytes], *, uneven: bool) -> DecodedBatch | None:
    """The batch; None where candidates have different fields and are not known to be uneven."""
    records: list[dict[str, Any]] = []
    values: list[Any] = []
    layout: list[str] = []
    fields: list[str] = []
    keys = n = 0
    for line in lines:
        record = from_json(line, allow_inf_nan=False, cache_strings="keys")
        _require(type(record) is dict and record.keys() <= _FIELDS)
        candidates = record.pop("candidates", None)
        _require(type(candidates) is list and bool(candidates))
        if uneven:
            candidates = [_NO_FIELDS | candidate for candidate in candidates]
        if not records:
            n, fields = len(candidates), list(candidates[0])
            _require(bool(fields) and _NO_FIELDS.keys() >= set(fields))
            layout = fields * n
        _require(len(candidates) == n)
        # No object holds a key twice, so that together each of n has all fields only if each has them alone.
        if list(chain.from_iterable(candidates)) != layout:
            _require(not uneven)
            return None
        # What was parsed of a candidate goes at once, so that its memory serves the next; its values stay.
        values.extend(chain.from_iterable(map(dict.values, candidates)))
        keys += 1 + len(record)
        records.append(record)
    nowhere = [_ABSENT] * (len(values) // len(fields))
    columns = dict.fromkeys(_NO_FIELDS, nowhere)
    columns.update({name: values[place :: len(fields)] for place, name in enumerate(fields)})
    kinds = {name: _count_types(column) for name, column in columns.items()}
    texts = keys + _count_record_texts(records) + _count_candidate_texts(columns, kinds)
    _require(_count_quotation_marks(lines) == 2 * texts)
    scores = _to_array(columns.pop("score"), np.float64, n)
    # Written so that NaN fails it as well.
    _require(bool(((scores >= 0.0) & (scores <= 1.0)).all()))
    return DecodedBatch(
        lines,
        [record["id"] for record in records],
        [record.get("cluster") for record in records],
        [record.get("metadata", {}) for record in records],
        scores,
        columns,
        frozenset(kinds["answer"]),
        find_prompt_kinds(record["input"] for record in records),
    )


def _require(certain: bool) -> None:
    if not certain:
        raise DoubtError


def _count_record_texts(records: Sequence[dict[str, Any]]) -> int:
    """How many texts there are beside the records' own keys and candidates; doubts what may not be there."""
    ids = [record.get("id") for record in records]
    _require(set(map(type, ids)) == {str} and all(ids))
    clusters = [cluster for record in records if (cluster := record.get("cluster")) is not None]
    _require(set(map(type, clusters)) <= {str} and all(clusters))
    inputs = [record.get("input") for record in records]
    _require(set(map(type, inputs)) <= {str, list, dict})
    metadata = [record["metadata"] for record in records if "metadata" in record]
    _require(are_metadata(metadata))
    references = [record["reference"] for record in records if "reference" in record]
    return len(ids) + len(clusters) + _texts(inputs) + _texts(metadata) + _texts(references)


def _count_candidate_texts(
    columns: Mapping[str, Sequence[Any]], kinds: Mapping[str, Mapping[type, int]]
) -> int:
    """How many texts there are in candidates, their keys included; doubts what may not be there."""
    _require(kinds["text"].keys() <= {str, *_NOTHING})
    _require(kinds["message"].keys() <= {dict, *_NOTHING})
    _require(kinds["answer"].keys() <= {str, *_NOTHING})
    _require(kinds["correct"].keys() == {bool})
    _require(kinds["score"].keys() <= _NUMBERS)
    _require(kinds["scores"].keys() <= {dict, *_NOTHING})
    keys = sum(len(values) - kinds[name].get(_Absent, 0) for name, values in columns.items())
    texts = keys + kinds["text"].get(str, 0) + kinds["answer"].get(str, 0)
    if dict in kinds["message"] or kinds["text"].keys() != {str}:
        pairs = zip(columns["text"], columns["message"], strict=True)
        _require(all((type(text) is str) != (type(message) is dict) for text, message in pairs))
        texts += _texts([message for message in columns["message"] if type(message) is dict])
    if dict in kinds["scores"]:
        texts += _count_output_names([known for known in columns["scores"] if type(known) is dict])
    return texts


def _count_output_names(outputs: Sequence[dict[str, Any]]) -> int:
    values = list(chain.from_iterable(map(dict.values, outputs)))
    _require(set(map(type, values)) <= _NUMBERS)
    # One sum shows whether any number is infinite; of integers too large for a float it might not.
    _require(math.isfinite(sum(map(float, values))))
    return len(values)


def _texts(values: Sequence[Any]) -> int:
    """How many texts there are in parsed values, keys included; doubts what is infinite or deep."""
    texts = 0
    for _ in range(_DEEPEST):
        kinds = _count_types(values)
        texts += kinds.get(str, 0)
        if float in kinds:
            _require(all(math.isfinite(value) for value in values if type(value) is float))
        if not kinds.keys() & {dict, list}:
            return texts
        objects = [value for value in values if type(value) is dict]
        texts += sum(map(len, objects))
        lists = (value for value in values if type(value) is list)
        values = [*chain.from_iterable(map(dict.values, objects)), *chain.from_iterable(lists)]
    raise DoubtError


def _count_types(values: Sequence[Any]) -> Mapping[type, int]:
    """How many values there are of each type."""
    kinds = set(map(type, values))
    # Counting takes as long as all the rest, and mostly there is nothing to count.
    return {kinds.pop(): len(values)} if len(kinds) == 1 else Counter(map(type, values))


def _count_quotation_marks(lines: Sequence[bytes]) -> int:
    """How many there are that begin or end a text."""
    joined = b"\n".join(lines)
    total = np.count_nonzero(np.frombuffer(joined, dtype=np.uint8) == ord('"'))
    if b"\\" in joined:
        # Pairs of backslashes first, for the second of a pair escapes nothing.
        total -= joined.replace(b"\\\\", b"").count(b'\\"')
    return int(total)


def _answer_keys(columns: Mapping[str, Sequence[Any]]) -> Sequence[str]:
    """What tells each candidate's answer, as `Candidate.answer_key` does."""
    several = zip(columns["answer"], columns["text"], columns["message"], strict=True)
    return [
        answer if type(answer) is str else text if type(text) is str else canonical_json(message)
        for answer, text, message in several
    ]


def _to_array(values: Iterable[Any], kind: type[_Kind], n: int) -> NDArray[_Kind]:
    """(N, n) array of N * n values."""
    return np.fromiter(values, dtype=kind).reshape(-1, n)


_Line: TypeAlias = tuple[int, bytes]

# Where a batch is in doubt, parts of this size are tried before the strict reader takes them.
_PART = 16


@dataclass(frozen=True)
class JsonLinesFile:
    """A file with a record on every line, after the provenance if there is one.

    Attributes:
        path: The file, plain or compressed by gzip.
        max_line_bytes: Longest line to accept.
    """

    path: Path
    max_line_bytes: int

    def header(self) -> tuple[int, Provenance | None]:
        """Number of the first line, and the provenance if that is what it holds."""
        source = str(self.path)
        for line, content in self._lines():
            fields = parse_object(content, source, line)
            if not is_provenance(fields):
                return line, None
            # Optional in Python, where whoever writes it is this release; a file may come from another.
            if "version" not in fields:
                raise RecordError(source, line, "version", "missing; expected 1")
            return line, validate_fields(Provenance, fields, source, line)
        raise no_records_error(source)

    def records(self, checks: DatasetChecks) -> Iterator[PromptRecord]:
        """Read the records one by one."""
        for line, content in self._lines_of_records():
            yield self._parse_line(line, content, checks)

    def batches(self, checks: DatasetChecks) -> Iterator[Batch]:
        """Read the same records in batches."""
        lines = self._lines_of_records()
        failure: RecordError | None = None
        while failure is None:
            window: list[_Line] = []
            try:
                # Not `window.extend`, for what it keeps when the file is damaged is nowhere written.
                for line in islice(lines, BATCH):
                    window.append(line)  # noqa: PERF402
            except RecordError as error:
                failure = error
            # A bad line comes before the failure to read the next.
            judged = list(self._decode_or_parse(window, checks)) if window else []
            if failure is not None:
                raise failure
            if not window:
                return
            yield from judged

    def _decode_or_parse(self, lines: Sequence[_Line], checks: DatasetChecks) -> Iterator[Batch]:
        """The batches of some lines, decoded where that is certain to be right."""
        numbers, contents = zip(*lines, strict=True)
        batch = decode_lines(contents)
        if batch is not None and checks.accepts(batch.ids, batch.recorded, str(self.path), numbers):
            yield batch
        elif len(lines) > _PART:
            for start in range(0, len(lines), _PART):
                yield from self._decode_or_parse(lines[start : start + _PART], checks)
        else:
            yield RecordBatch([self._parse_line(line, content, checks) for line, content in lines])

    def _parse_line(self, line: int, content: bytes, checks: DatasetChecks) -> PromptRecord:
        record = parse_record(content, str(self.path), line)
        checks.add(record, str(self.path), line)
        return record

    def _lines_of_records(self) -> Iterator[_Line]:
        """All lines but a first one that holds the provenance."""
        lines = self._lines()
        first = next(lines, None)
        if first is not None and is_provenance(parse_object(first[1], str(self.path), first[0])):
            first = next(lines, None)
        if first is None:
            raise no_records_error(str(self.path))
        yield first
        yield from lines

    def _lines(self) -> Iterator[_Line]:
        """Numbers and contents of the lines that are not of white space."""
        lines = read_lines(self.path, self.max_line_bytes)
        return ((line, content) for line, raw in lines if (content := raw.rstrip()))
