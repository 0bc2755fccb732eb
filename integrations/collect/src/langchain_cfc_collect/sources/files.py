"""`Rows`: the rows of dataset files and of other sources, read a few at a time."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, time
from decimal import Decimal
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from langchain_cfc.errors import InputError, RecordError
from langchain_cfc.support.csv_files import check_names, read_csv
from langchain_cfc.support.json_text import (
    check_regular_file,
    parse_object,
    parse_value,
    read_lines,
    short_repr,
)
from langchain_cfc.support.plugins import is_plugin_source, load_plugin
from langchain_cfc.support.text import pluralize


def to_plain(value: Any) -> Any:
    """Unwrap NumPy and Arrow scalars and arrays at any depth, and turn tuples into lists.

    Decimals become numbers where that is exact, and otherwise text; dates and times become text in ISO 8601.

    Other values stay as they are, such as endless nesting and times that Python cannot express; `check_json`
    refuses them later.
    """
    try:
        return _unwrap(value)
    except (OverflowError, RecursionError, ValueError):
        return value


def _unwrap(value: Any) -> Any:
    if isinstance(value, np.generic | np.ndarray):
        # An array of objects may hold anything, so convert its items too.
        return _unwrap(value.tolist())
    # Check this before mappings: an Arrow struct is a mapping even if it is null.
    if hasattr(value, "as_py"):
        return _unwrap(value.as_py())
    if isinstance(value, Mapping):
        return {key: _unwrap(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_unwrap(item) for item in value]
    if isinstance(value, Decimal) and value.is_finite():
        number = int(value) if value == value.to_integral_value() else float(value)
        return number if Decimal(repr(number)) == value else str(value)
    # A datetime is a date.
    return value.isoformat() if isinstance(value, date | time) else value


Row: TypeAlias = tuple[int, Mapping[str, Any]]

# Source name in errors about rows that do not come from a file.
IN_MEMORY = "rows"
_MOST_SHOWN = 3


@dataclass(frozen=True)
class BadRow:
    """Row that cannot be used, with its number and the problem."""

    number: int  # number of the row in the source, counted from 1
    field: str  # the part of the `Example` concerned, such as `reference[2]`; empty for the whole row
    problem: str  # what was found and what was expected

    def __str__(self) -> str:
        return (
            f"{self.number}: {self.field}: {self.problem}" if self.field else f"{self.number}: {self.problem}"
        )


@dataclass(frozen=True)
class Rows:
    """Rows of one source; every iteration reads the source again.

    Attributes:
        name: Name of the source in errors.
        unit: What row numbers count: the lines of a file (a row has the number of its first line), or rows.
        read: Starts reading: yields the number of a row and its values by column, or a bad row. Its
            exceptions end the reading, however bad rows are handled.
    """

    name: str
    unit: Literal["line", "row"]
    read: Callable[[], Iterator[Row | BadRow]]

    def __iter__(self) -> Iterator[Row | BadRow]:
        """Read from the start."""
        return self.read()

    def describe_bad(self, bad: Sequence[BadRow]) -> str:
        """Describe rows that were set aside, with the first of them."""
        listed = "; ".join(map(str, bad[:_MOST_SHOWN]))
        more = f"; and {len(bad) - _MOST_SHOWN} more" if len(bad) > _MOST_SHOWN else ""
        return f"{pluralize(len(bad), 'row')} of {self.name} set aside: {self.unit} {listed}{more}"

    @classmethod
    def from_iterable(cls, rows: Iterable[Mapping[str, Any]]) -> Rows:
        """Number rows in memory, or of a pandas DataFrame, from 1; raises `InputError` for a mapping."""
        if is_frame(rows):
            frame: Any = rows
            # Missing cells are NaN, also in columns of text.
            rows = frame.astype(object).where(frame.notna(), None).to_dict("records")
        if isinstance(rows, Mapping) or not isinstance(rows, Iterable):
            msg = f"found {short_repr(rows)}; expected rows"
            raise InputError(msg)
        return cls(IN_MEMORY, "row", partial(_number_rows, rows))


def is_frame(value: object) -> bool:
    """Whether a value is a pandas DataFrame, or as good as one."""
    return hasattr(value, "columns") and hasattr(value, "notna")


def _number_rows(values: Iterable[Any]) -> Iterator[Row | BadRow]:
    for number, value in enumerate(values, start=1):
        if isinstance(value, Mapping):
            yield number, {str(name): cell for name, cell in value.items()}
        else:
            yield BadRow(number, "", f"found {short_repr(value)}; expected an object of values by column")


GROUP = "langchain_cfc.sources"


def open_rows(source: Any) -> Rows:
    """Open a dataset file, a source of another distribution by its scheme, or rows in memory.

    Schemes are entry points of the group `langchain_cfc.sources`. Each is a function that takes the text
    after the colon and returns `Rows`.

    Args:
        source: A file as `read_rows` takes it, or `SCHEME:REST`. The name of an existing file means the file.
            Anything else as `Rows.from_iterable` takes it; `Rows` as they are.

    Returns:
        The rows of the source.

    Raises:
        RecordError: If the file or the scheme does not exist, or the source refuses the rest.
        InputError: If the entry point cannot be loaded, exists twice, or returns anything else; or if the
            source is none of these.
    """
    if isinstance(source, Rows):
        return source
    if not isinstance(source, str | os.PathLike):
        return Rows.from_iterable(source)
    return load_plugin(GROUP, "source", Rows, str(source)) if is_plugin_source(source) else read_rows(source)


# Number of Parquet rows read at a time, small enough for rows that hold whole documents.
_BATCH_ROWS = 64
# Largest JSON list: it is read at once, and takes several times as much memory as its text.
_MAX_LIST_BYTES = 256 * 1024 * 1024
# More memory than a few rows need. A small file may unpack to gigabytes: a value stored once may be used
# millions of times, and compressed pages may repeat a single byte (a file of 46 kB took 868 MB to read).
_MIB = 1 << 20
MAX_BATCH_BYTES = 256 * _MIB
# A large column with a higher compression ratio is not unpacked at all.
_MAX_COMPRESSION_RATIO = 2000
_LARGE_COLUMN_BYTES = 64 * _MIB
# Without a buffer, or with pre-buffering, a whole row group (possibly the whole file) would be in memory.
_PARQUET_OPTIONS = {"buffer_size": 64 * 1024, "pre_buffer": False, "page_checksum_verification": True}


def read_rows(path: str | os.PathLike[str]) -> Rows:
    """Open a dataset file, whose format follows from its name.

    - `.jsonl` or `.ndjson`: one JSON object per line; lines of white space are skipped.
    - `.json`: one list of JSON objects, or columns as pandas writes them, read at once; an object may hold
      them under `results` or `data`.
    - `.csv` or `.tsv`: cells separated by commas, semicolons, tabs or vertical bars, whichever is most
      frequent in the header, or by what a first line `sep=;` says. Every cell is text. A row over several
      lines has the number of its first line. Blank rows and columns without a name are left out.
    - `.parquet`: needs the extra `collect`. Cells are Arrow scalars, which `Columns` makes plain values.

    Text is UTF-8, or UTF-16 with a byte order mark. Text files may be
    compressed with gzip, with or without `.gz` at the end of their names.

    Args:
        path: The file.

    Returns:
        The rows, read only while iterating. A line that is not a JSON object, or a CSV row that does not fit
        the header, is a bad row. A file that is damaged as a whole raises `RecordError`. So does CSV with a
        misplaced quotation mark, because it is not certain where the rows after it begin.

    Raises:
        RecordError: If the file does not exist or is not a regular file, or its name has another ending.
    """
    path = Path(path)
    check_regular_file(path)
    ending = (Path(path.stem).suffix if path.suffix.lower() == ".gz" else path.suffix).lower()
    if ending not in _FORMATS:
        problem = f"found the ending {ending!r}; expected one of {', '.join(_FORMATS)}"
        raise RecordError(str(path), 0, "", problem)
    unit, read = _FORMATS[ending]
    return Rows(str(path), unit, partial(read, path))


def _read_json_lines(path: Path) -> Iterator[Row | BadRow]:
    source = str(path)
    for line, raw in read_lines(path):
        content = raw.rstrip()
        if not content:
            continue
        try:
            yield line, parse_object(content, source, line)
        except RecordError as error:
            yield BadRow(line, "", error.problem)


def _read_json_list(path: Path) -> Iterator[Row | BadRow]:
    rows = _read_json(path)
    while isinstance(rows, Mapping) and (inner := rows.get("results", rows.get("data"))) is not None:
        rows = inner
    if isinstance(rows, Mapping):
        rows = _turn_columns(rows, str(path))
    if not isinstance(rows, list):
        raise RecordError(str(path), 0, "", f"found {short_repr(rows)}; expected one list of objects")
    yield from _number_rows(rows)


def _turn_columns(columns: Mapping[str, Any], source: str) -> list[dict[str, Any]]:
    """Return the rows of a mapping of columns, each a list or, as pandas writes it, a mapping by row."""
    cells = {
        name: list(one.values()) if isinstance(one, Mapping) else one
        for name, one in columns.items()
        if isinstance(one, Mapping | list)
    }
    is_splits = all(isinstance(cell, Mapping) for one in cells.values() for cell in one)
    names = {tuple(one) for one in columns.values() if isinstance(one, Mapping)}
    if is_splits or len(names) > 1 or len({len(one) for one in cells.values()}) > 1:
        problem = f"found {short_repr(columns)}; expected one list of objects, or columns of the same rows"
        raise RecordError(source, 0, "", problem)
    return [dict(zip(cells, row, strict=True)) for row in zip(*cells.values(), strict=True)]


def _read_json(path: Path) -> Any:
    """Read a whole JSON file, an empty list from an empty one."""
    source = str(path)
    # The value may span any number of lines, and a single line may hold all of it.
    parts: list[bytes] = []
    size = 0
    for _, raw in read_lines(path, _MAX_LIST_BYTES):
        size += len(raw)
        if size > _MAX_LIST_BYTES:
            problem = f"more than {_MAX_LIST_BYTES >> 20} MiB, which are read at once; write .jsonl instead"
            raise RecordError(source, 0, "", problem)
        parts.append(raw)
    content = b"".join(parts)
    expected = "one list of objects; name it .jsonl if each line is an object"
    return parse_value(content, source, 0, expected) if content.strip() else []


def _read_csv(path: Path) -> Iterator[Row | BadRow]:
    for line, cells in read_csv(path):
        yield BadRow(line, "", cells) if isinstance(cells, str) else (line, cells)


def _read_parquet(path: Path) -> Iterator[Row | BadRow]:
    from pyarrow import parquet  # type: ignore[import-untyped]  # late: it takes a second

    source = str(path)
    try:
        with parquet.ParquetFile(path, **_PARQUET_OPTIONS) as file:
            names = file.schema_arrow.names
            check_names(names, source, 0)
            # Cells stay Arrow scalars until they are needed, so unused columns cost next to nothing.
            cells = (zip(*batch.columns, strict=True) for batch in _read_batches(file, source))
            for number, row in enumerate(chain.from_iterable(cells), start=1):
                yield number, dict(zip(names, row, strict=True))
    except RecordError:
        raise
    except (OSError, ValueError, NotImplementedError) as error:
        problem = f"damaged, or not Parquet that can be read: {error}"
        raise RecordError(source, 0, "", problem) from error


def _read_batches(file: Any, source: str) -> Iterator[Any]:
    """Yield batches of a few rows; refuse a file that unpacks to far too much."""
    _check_compression(file.metadata, source)
    row = 1
    for batch in file.iter_batches(batch_size=_BATCH_ROWS):
        if batch.nbytes > MAX_BATCH_BYTES:
            problem = (
                f"unpacks to {batch.nbytes // _MIB} MiB in {len(batch)} rows; expected at most "
                f"{MAX_BATCH_BYTES // _MIB} MiB"
            )
            raise RecordError(source, row, "", problem)
        row += len(batch)
        yield batch


def _check_compression(metadata: Any, source: str) -> None:
    for group in range(metadata.num_row_groups):
        for number in range(metadata.num_columns):
            column = metadata.row_group(group).column(number)
            unpacked, packed = column.total_uncompressed_size, column.total_compressed_size
            if unpacked > _LARGE_COLUMN_BYTES and unpacked > _MAX_COMPRESSION_RATIO * packed:
                problem = (
                    f"the column {column.path_in_schema} unpacks from {packed / 1024:,.0f} KiB to "
                    f"{unpacked / _MIB:,.0f} MiB; expected at most {_MAX_COMPRESSION_RATIO} times as much"
                )
                raise RecordError(source, 0, "", problem)


_FORMATS: dict[str, tuple[Literal["line", "row"], Callable[[Path], Iterator[Row | BadRow]]]] = {
    ".jsonl": ("line", _read_json_lines),
    ".json": ("row", _read_json_list),
    ".csv": ("line", _read_csv),
    ".tsv": ("line", _read_csv),
    ".parquet": ("row", _read_parquet),
    ".ndjson": ("line", _read_json_lines),
}
