"""Store of a collection: SQLite by default, PostgreSQL if several machines share it."""

from __future__ import annotations

from langchain_cfc._internal.imports import require

# Before the imports below, which need these packages.
require("filelock", "collect", "the store of a collection")
require("sqlalchemy", "collect", "the store of a collection")

from langchain_cfc.collect.store.rows import PAGE_SIZE  # noqa: E402 - see above
from langchain_cfc.collect.store.store import Failure, Store, StoredPrompt, Writer  # noqa: E402 - see above

__all__ = ["PAGE_SIZE", "Failure", "Store", "StoredPrompt", "Writer"]
