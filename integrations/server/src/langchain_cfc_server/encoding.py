"""Data as JSON that every parser reads."""

from __future__ import annotations

import json
from typing import Any


def encode_json(data: Any) -> bytes:
    """Strict JSON in ASCII, on one line.

    Escapes keep a lone surrogate in an answer from being invalid UTF-8, and control characters in a log from
    being lines of their own.

    Raises:
        ValueError: If it holds a number that JSON does not know.
    """
    return json.dumps(data, allow_nan=False, separators=(",", ":")).encode("ascii")
