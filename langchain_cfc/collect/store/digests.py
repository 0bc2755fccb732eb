"""Digests of what a store holds of a prompt, by which damage is noticed before anything is made of it.

A digest is BLAKE2b of canonical JSON, 8 bytes as 16 hexadecimal digits: against bits that flip and pages that
get lost, not against forgery.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

_BYTES = 8
_MODULUS = 1 << (8 * _BYTES)
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def digest(*values: Any) -> str:
    """Return the digest of plain data.

    Args:
        *values: Text, numbers, booleans, None, and sequences of those; lists and tuples are the same.

    Raises:
        ValueError: If a text holds half a surrogate pair.
        TypeError: If a value is of another type.
    """
    return blake2b(_ENCODER.encode(values).encode(), digest_size=_BYTES).hexdigest()


def prompt_digest(row: Mapping[str, Any]) -> str:
    """Return the digest of a prompt as the dataset has it, from its row."""
    return digest(*(row[name] for name in ("position", "id", "input", "reference", "metadata", "cluster")))


def draw_checksum(position: int, slot: int, text: str, data: str | None, packed: bytes | None) -> str:
    """Return the digest of one candidate, which is there before the others of its prompt."""
    return digest(position, slot, text, data, None if packed is None else packed.hex())


def draws_digest(position: int, texts: Sequence[str], data: Sequence[str | None]) -> str:
    """Return the digest of n candidates in the order of their slots."""
    return digest(position, texts, data)


def scores_digest(position: int, scores: Sequence[float], outputs: Sequence[str | None]) -> str:
    """Return the digest of n scores and raw outputs."""
    # SQLite has no negative zero.
    return digest(position, [score + 0.0 for score in scores], outputs)


def labels_digest(
    position: int, correct: Sequence[bool], answers: Sequence[str | None], described: str | None
) -> str:
    """Return the digest of n labels and answers, and of what the metadata function says."""
    return digest(position, [bool(label) for label in correct], answers, described)


def digest_sum(digests: Iterable[str]) -> int:
    """Return the sum of digests, which is that of a set whatever its order, below 2^64."""
    return sum(int(one, 16) for one in digests) % _MODULUS
