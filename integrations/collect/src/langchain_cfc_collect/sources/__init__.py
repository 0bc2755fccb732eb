"""Read the rows of an evaluation dataset, and turn them into examples.

A source is a file (JSON Lines, a JSON list, CSV, Parquet), a plugin source (`SCHEME:REST`) of another
distribution, or any iterable of mappings, such as a Hugging Face dataset. `Columns` says what its columns
mean; `read_examples` combines the two.
"""

from __future__ import annotations

from langchain_cfc_collect.sources.columns import BadRowPolicy, Columns, Examples, read_examples
from langchain_cfc_collect.sources.files import BadRow, Row, Rows, open_rows, read_rows

__all__ = [
    "BadRow",
    "BadRowPolicy",
    "Columns",
    "Examples",
    "Row",
    "Rows",
    "open_rows",
    "read_examples",
    "read_rows",
]
