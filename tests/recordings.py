"""The recording that ships with the package, read once by each process of the tests."""

from __future__ import annotations

from functools import cache

from langchain_cfc import PromptRecord
from langchain_cfc.demo import load_recording


def list_facts() -> list[PromptRecord]:
    """Return all of its records, in a new list."""
    return list(_read_facts())


@cache
def _read_facts() -> tuple[PromptRecord, ...]:
    return tuple(load_recording())
