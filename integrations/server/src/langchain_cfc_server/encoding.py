"""Encode data as JSON that every parser can read."""

from __future__ import annotations

import json
from typing import Any


def encode_json(data: Any) -> bytes:
    """Return data as strict JSON in ASCII, on a single line.

    By the escapes, a lone surrogate in an answer is not invalid UTF-8, and a line break in a log does not
    start a new line.

    Raises:
        ValueError: If the data contains NaN or an infinite number.
    """
    return json.dumps(data, allow_nan=False, separators=(",", ":")).encode("ascii")
