"""One records file of JSON Lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TypeAlias

from langchain_cfc.errors import RecordError
from langchain_cfc.records.batches import BATCH, Batch, RecordBatch
from langchain_cfc.records.checks import DatasetChecks, no_records
from langchain_cfc.records.decoding import decoded, is_provenance, strict_record
from langchain_cfc.records.lines import json_object, numbered_lines
from langchain_cfc.records.problems import validated
from langchain_cfc.records.schema import PromptRecord, Provenance

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
        """Number of the first line, and the provenance if that is what it holds.

        Raises:
            RecordError: If the line cannot be read, or there is none.
        """
        source = str(self.path)
        for line, content in self._lines():
            fields = json_object(content, source, line)
            if not is_provenance(fields):
                return line, None
            # Optional in Python, where whoever writes it is this release; a file may come from another.
            if "version" not in fields:
                raise RecordError(source, line, "version", "missing; expected 1")
            return line, validated(Provenance, fields, source, line)
        raise no_records(source)

    def records(self, checks: DatasetChecks) -> Iterator[PromptRecord]:
        """Read the records one by one.

        Args:
            checks: What they must hold together with those of other files.

        Yields:
            The records.

        Raises:
            RecordError: At the first line that cannot be used.
        """
        for line, content in self._lines_of_records():
            yield self._record(line, content, checks)

    def batches(self, checks: DatasetChecks) -> Iterator[Batch]:
        """Read the same records in batches.

        Args:
            checks: See `records`.

        Yields:
            The batches.

        Raises:
            RecordError: At the first line that cannot be used; no more than a window of lines before it is
                lost.
        """
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
            judged = list(self._judged(window, checks)) if window else []
            if failure is not None:
                raise failure
            if not window:
                return
            yield from judged

    def _judged(self, lines: Sequence[_Line], checks: DatasetChecks) -> Iterator[Batch]:
        """The batches of some lines, decoded where that is certain to be right."""
        numbers, contents = zip(*lines, strict=True)
        batch = decoded(contents)
        if batch is not None and checks.accepts(batch.ids, batch.recorded, str(self.path), numbers):
            yield batch
        elif len(lines) > _PART:
            for start in range(0, len(lines), _PART):
                yield from self._judged(lines[start : start + _PART], checks)
        else:
            yield RecordBatch([self._record(line, content, checks) for line, content in lines])

    def _record(self, line: int, content: bytes, checks: DatasetChecks) -> PromptRecord:
        record = strict_record(content, str(self.path), line)
        checks.add(record, str(self.path), line)
        return record

    def _lines_of_records(self) -> Iterator[_Line]:
        """All lines but a first one that holds the provenance."""
        lines = self._lines()
        first = next(lines, None)
        if first is not None and is_provenance(json_object(first[1], str(self.path), first[0])):
            first = next(lines, None)
        if first is None:
            raise no_records(str(self.path))
        yield first
        yield from lines

    def _lines(self) -> Iterator[_Line]:
        """Numbers and contents of the lines that are not of white space."""
        lines = numbered_lines(self.path, self.max_line_bytes)
        return ((line, content) for line, raw in lines if (content := raw.rstrip()))
