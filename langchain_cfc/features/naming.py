"""Errors about a row that say which record it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from langchain_cfc.errors import FeatureError


@contextmanager
def naming(ids: Sequence[str]) -> Iterator[None]:
    """Give the id of a record to errors that speak of its row.

    Args:
        ids: The ids of the rows that are fitted or transformed meanwhile.

    Raises:
        FeatureError: With `record <id>` in place of `prompt <row>`.
    """
    try:
        yield
    except FeatureError as error:
        if error.row is None:
            raise
        name = f"record {ids[error.row]!r}"
        raise error.naming(name) from error
