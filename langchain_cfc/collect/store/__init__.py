"""The store of a collection: SQLite by default, PostgreSQL where several machines share it."""

from __future__ import annotations

from langchain_cfc.collect.store.store import PAGE, Failure, Store, Work
from langchain_cfc.collect.store.writer import Writer

__all__ = ["PAGE", "Failure", "Store", "Work", "Writer"]
