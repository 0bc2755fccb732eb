"""JSON objects in which each key stands once, for Python's reader lets the last of two equal keys win."""

from __future__ import annotations

from typing import Any


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of its pairs, as `object_pairs_hook` of a JSON reader.

    Raises:
        ValueError: If a key stands twice in it.
    """
    fields = dict(pairs)
    if len(fields) < len(pairs):
        msg = "a key stands twice in one object"
        raise ValueError(msg)
    return fields
