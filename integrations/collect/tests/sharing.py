"""Helpers that many tests of collections share."""

from __future__ import annotations

import sqlite3
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from langchain_cfc_collect import Store, calls, collecting
from langchain_cfc_collect.run import CollectionOptions

from langchain_cfc.candidates import LabelledBatch
from langchain_cfc.records import Example, tabulate

if TYPE_CHECKING:  # it takes a second
    from langchain_openai import ChatOpenAI


def make_numbered_examples(size: int, reference: str | None = None) -> list[Example]:
    """Prompts p0, p1, ...; a reference may hold {} in place of the number."""
    return [
        Example(
            id=f"p{number}",
            input=f"question {number}",
            reference=None if reference is None else reference.format(number),
        )
        for number in range(size)
    ]


def make_silent_options(**options: Any) -> CollectionOptions:
    """Options of a collection that shows neither progress nor notices, unless given otherwise."""
    silent: dict[str, Any] = {"on_progress": lambda _: None, "on_notice": lambda _: None}
    return CollectionOptions(**{**silent, **options})


def make_recorded_model(url: str, **settings: Any) -> ChatOpenAI:
    """A client of a server that replays recorded answers."""
    from langchain_openai import ChatOpenAI

    fixed: dict[str, Any] = {"model": "recorded", "api_key": "none", "max_retries": 0, "logprobs": True}
    return ChatOpenAI(**{**fixed, "base_url": url, **settings})


def shorten_retry_waits() -> AbstractContextManager[Any]:
    """Wait for hundredths of a second between two attempts, instead of seconds."""
    return mock.patch.object(calls, "_INITIAL_WAIT", 0.02)


def skip_trial() -> AbstractContextManager[Any]:
    """Submit batches without a live trial of the first prompt, so that counts of requests are round."""
    return mock.patch.object(collecting, "try_first", mock.AsyncMock())


def execute_sql(path: Path, *statements: str) -> None:
    """Execute statements on a file of SQLite, and commit."""
    with closing(sqlite3.connect(path)) as file:
        for statement in statements:
            file.execute(statement)
        file.commit()


def tabulate_store(store: Store) -> LabelledBatch:
    """The finished prompts of a store as arrays."""
    return tabulate(store.read_all(), provenance=store.read_provenance(), shortened=True, claims=True)
