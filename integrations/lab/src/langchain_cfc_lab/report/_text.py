"""Formatting of numbers and texts for HTML pages."""

from __future__ import annotations

import re
import unicodedata

from langchain_cfc.support.text import format_percent

# Characters that no page may hold, or that change the order of the text around them.
_HIDDEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ufffe\uffff]"
    "|[\ud800-\udfff]"
)
NO_BREAK = "\N{NO-BREAK SPACE}"
# What the methods of an evaluation are called on the page of an artifact.
METHOD_NAMES = {"conditional": "this artifact", "marginal": "one threshold for all"}


def to_percent(share: float, decimals: int = 0) -> str:
    r"""Format a share in percent, without a line break.

    Examples:
        >>> to_percent(0.825), to_percent(0.8254, 1)
        ('82\xa0%', '82.5\xa0%')
    """
    return format_percent(share, f".{decimals}f").replace(" ", NO_BREAK)


def format_interval(bounds: tuple[float, float], decimals: int = 0) -> str:
    """Format an interval of shares in percent, without a line break.

    Examples:
        >>> format_interval((0.7817, 0.8634)).split(NO_BREAK)
        ['78', 'to', '86', '%']
    """
    low, high = (f"{100 * bound:.{decimals}f}" for bound in bounds)
    return NO_BREAK.join([low, "to", high, "%"])


def escape_invisible(text: str) -> str:
    r"""Replace control, bidirectional and other hidden characters by their code points.

    Examples:
        >>> escape_invisible("a\0b\u202ec")
        'a[U+0000]b[U+202E]c'
    """
    return _HIDDEN.sub(lambda found: f"[U+{ord(found[0]):04X}]", text)


def truncate(text: str, most: int) -> str:
    """Cut a text longer than `most` characters, not between a letter and its accent; append its length.

    Examples:
        >>> truncate("abcdef", 6), truncate("abcdef", 3)
        ('abcdef', 'abc… (6 characters)')
    """
    if len(text) <= most:
        return text
    return f"{text[: find_cut(text, most)]}{describe_length(text)}"


def find_cut(text: str, most: int) -> int:
    """Return the index at which to cut a text to `most` characters, not between a letter and its accent."""
    if len(text) <= most:
        return len(text)
    end = most
    # Accents and parts of emoji belong to the character before them.
    while end > 0 and unicodedata.category(text[end]) in {"Mn", "Me", "Mc", "Cf", "Sk"}:
        end -= 1
    return end or most


def describe_length(text: str) -> str:
    """Return the suffix of a text that was cut, which states its full length."""
    return f"… ({len(text):,} characters)"
