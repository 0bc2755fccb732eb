"""Store of a collection: SQLite by default, PostgreSQL if several machines share it."""

from __future__ import annotations

from langchain_cfc_collect.stages import StoredPrompt
from langchain_cfc_collect.store.rows import PAGE_SIZE
from langchain_cfc_collect.store.store import Failure, Store, Writer

__all__ = ["PAGE_SIZE", "Failure", "Store", "StoredPrompt", "Writer"]
