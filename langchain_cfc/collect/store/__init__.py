"""The store of a collection: SQLite by default, PostgreSQL where several machines share it."""

from __future__ import annotations

from langchain_cfc._internal.optional import require

# Said here, for whatever comes next needs them.
require("filelock", "collect", "the store of a collection")
require("sqlalchemy", "collect", "the store of a collection")

from langchain_cfc.collect.store.results import PAGE, Failure  # noqa: E402 - see above
from langchain_cfc.collect.store.store import (  # noqa: E402 - see above
    Store,
    Work,
    Writer,
)

__all__ = ["PAGE", "Failure", "Store", "Work", "Writer"]
