"""`ParquetFile`: records read one by one, or in batches of columns."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from langchain_cfc._extras import require
from langchain_cfc.errors import RecordError
from langchain_cfc.records.batches import Batch, RecordBatch
from langchain_cfc.records.checks import DatasetChecks, no_records
from langchain_cfc.records.lines import json_object
from langchain_cfc.records.parquet.rows import decoded_rows, strict_rows
from langchain_cfc.records.parquet.schema import PROVENANCE, check_columns, conformed, parquet_schema
from langchain_cfc.records.parquet.unpacking import unpacked_batches
from langchain_cfc.records.problems import validated
from langchain_cfc.records.schema import (
    PromptRecord,
    Provenance,
)

_MAGIC = b"PAR1"
# Rows become arrays so many at a time, and where they are in doubt so many are tried again.
_ROWS = 256
_PART = 64


def is_parquet(path: Path) -> bool:
    """Whether a file begins as Parquet does; one that cannot be opened does not."""
    try:
        with path.open("rb") as file:
            return file.read(len(_MAGIC)) == _MAGIC
    except OSError:
        return False


@dataclass(frozen=True)
class ParquetFile:
    """A file with a record in every row.

    Attributes:
        path: The file.
    """

    path: Path

    def header(self) -> tuple[int, Provenance | None]:
        """Zero, for the whole file, and the provenance if the file holds one.

        Raises:
            RecordError: If the file is damaged, holds no records, or other columns.
        """
        source = str(self.path)
        with self._opened() as file:
            if file.metadata.num_rows == 0:
                raise no_records(source)
            text = (file.schema_arrow.metadata or {}).get(PROVENANCE)
        if text is None:
            return 0, None
        return 0, validated(Provenance, json_object(text, source, 0), source, 0)

    def records(self, checks: DatasetChecks) -> Iterator[PromptRecord]:
        """Read the records one by one.

        Args:
            checks: What they must hold together with those of other files.

        Yields:
            The records.

        Raises:
            RecordError: At the first row that cannot be used; its line is the number of the row.
        """
        for row, rows in self._rows():
            for start in range(0, len(rows), _PART):
                yield from self._strict(row + start, rows.slice(start, _PART), checks)

    def batches(self, checks: DatasetChecks) -> Iterator[Batch]:
        """Read the same records in batches.

        Args:
            checks: See `records`.

        Yields:
            The batches.

        Raises:
            RecordError: As `records` does.
        """
        for row, rows in self._rows():
            yield from self._judged(row, rows, checks)

    def _judged(self, row: int, rows: Any, checks: DatasetChecks) -> Iterator[Batch]:
        """The batches of some rows, decoded where that is certain to be right."""
        source = str(self.path)
        batch = decoded_rows(rows, source, row)
        numbers = range(row, row + len(rows))
        if batch is not None and checks.accepts(batch.ids, batch.recorded, source, numbers):
            yield batch
        elif len(rows) > _PART:
            for start in range(0, len(rows), _PART):
                yield from self._judged(row + start, rows.slice(start, _PART), checks)
        else:
            yield RecordBatch(list(self._strict(row, rows, checks)))

    def _strict(self, row: int, rows: Any, checks: DatasetChecks) -> Iterator[PromptRecord]:
        for number, record in enumerate(strict_rows(rows, str(self.path), row), start=row):
            checks.add(record, str(self.path), number)
            yield record

    def _rows(self) -> Iterator[tuple[int, Any]]:
        """Batches of rows in the schema's types, each with the number of its first row, counted from 1."""
        row = 1
        with self._opened() as file:
            for batch in unpacked_batches(file, str(self.path), _ROWS):
                batch.validate(full=True)
                yield row, conformed(batch)
                row += len(batch)
        if row == 1:
            raise no_records(str(self.path))

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        parquet = require("pyarrow.parquet", "collect", "reading Parquet")
        source = str(self.path)
        try:
            with parquet.ParquetFile(self.path, page_checksum_verification=True) as file:
                check_columns(file.schema_arrow, parquet_schema(), source, "")
                yield file
        except RecordError:
            raise
        except (OSError, ValueError, NotImplementedError) as error:  # pyarrow's errors are among them
            problem = f"damaged, or not Parquet that can be read: {error}"
            raise RecordError(source, 0, "", problem) from error
