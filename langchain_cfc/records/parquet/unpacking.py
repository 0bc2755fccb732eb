"""Batches of a Parquet file that unpacks to far more than it holds, or a typed error.

Values that stand in a dictionary once may be meant millions of times, and compressed pages may be of one byte
over and over: a file of 46 kB has been made that took 868 MB to read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from langchain_cfc.errors import RecordError

_MIB = 1 << 20
# More than a few hundred records take in memory.
MOST_BATCH_BYTES = 256 * _MIB
# A column that says it is so much larger than its compressed pages is not unpacked at all.
_MOST_RATIO = 2000
_LARGE = 64 * _MIB


def unpacked_batches(file: Any, source: str, rows: int) -> Iterator[Any]:
    """Read a file batch by batch, and refuse one that takes far more memory than records need.

    Args:
        file: An open `pyarrow.parquet.ParquetFile`.
        source: Its name, for errors.
        rows: Most rows of a batch, a few hundred: so many are unpacked before their size is known.

    Yields:
        Record batches of Arrow.

    Raises:
        RecordError: If a batch takes more than 256 MiB, or a column is compressed beyond reason.
    """
    _check_compression(file.metadata, source)
    row = 1
    for batch in file.iter_batches(batch_size=rows):
        if batch.nbytes > MOST_BATCH_BYTES:
            problem = (
                f"unpacks to {batch.nbytes // _MIB} MiB in {len(batch)} rows; expected at most "
                f"{MOST_BATCH_BYTES // _MIB} MiB"
            )
            raise RecordError(source, row, "", problem)
        row += len(batch)
        yield batch


def _check_compression(metadata: Any, source: str) -> None:
    for group in range(metadata.num_row_groups):
        for number in range(metadata.num_columns):
            column = metadata.row_group(group).column(number)
            unpacked, packed = column.total_uncompressed_size, column.total_compressed_size
            if unpacked > _LARGE and unpacked > _MOST_RATIO * packed:
                problem = (
                    f"the column {column.path_in_schema} unpacks from {packed / 1024:,.0f} KiB to "
                    f"{unpacked / _MIB:,.0f} MiB; expected at most {_MOST_RATIO} times as much"
                )
                raise RecordError(source, 0, "", problem)
