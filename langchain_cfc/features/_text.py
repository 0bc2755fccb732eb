"""How feature maps write keys, categories and numbers, in their text form and in plain words."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

from langchain_cfc.draws import Scalar

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MOST_LISTED = 20


def written_key(key: str) -> str:
    """A metadata key as the grammar writes it: plain where it is an identifier, else a JSON string."""
    return key if _IDENTIFIER.fullmatch(key) else json.dumps(key, ensure_ascii=False)


def written_category(value: Scalar) -> str:
    """A category as column names write it; texts that look like a number or a boolean keep their quotes."""
    plain = isinstance(value, str) and value not in ("true", "false")
    return written_key(str(value)) if plain else json.dumps(value, ensure_ascii=False)


def number(value: float) -> str:
    """A number for readers, to twelve significant digits: cut-offs that differ must read differently."""
    return f"{value:.12g}"


def listed(items: Iterable[str]) -> str:
    """Names for an error message, the first twenty of them."""
    names = list(items)
    rest = len(names) - _MOST_LISTED
    return ", ".join(names[:_MOST_LISTED]) + (f" and {rest} more" if rest > 0 else "") if names else "none"
