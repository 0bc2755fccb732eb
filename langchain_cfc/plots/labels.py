"""What groups of prompts are called under an axis: short, and never two alike."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from functools import partial

from langchain_cfc.features import in_short

SMALL = 9.0  # points; size of labels of ticks and of the key
ALL_PROMPTS = "all prompts"
LONGEST = 32  # characters of one label
_DECIMAL = re.compile(r"\d+\.\d+(?:e[-+]?\d+)?")
_NO_NAME_OF_A_PROPERTY = re.compile(r"""['"\d\[(]""")


def plain(text: str) -> str:
    """A text on one line, without characters that cannot be printed or stand in XML."""
    return " ".join("".join(sign if sign.isprintable() else " " for sign in text).split())


def group_labels(words: Sequence[str]) -> tuple[str, list[str]]:
    """Short labels for groups, and what they have in common.

    Args:
        words: What each group is, in words, such as `prompts whose mean score is below 0.1234`.

    Returns:
        What the axis is called, and a label for each group; labels of different words differ.

    >>> group_labels(["prompts whose score gap is below 0.12341", "prompts whose score gap lies in [0.1, 1)"])
    ('score gap', ['below 0.123', '[0.1, 1)'])
    """
    rounded = _rounded([plain(text) for text in words])
    texts = [in_short(text, digits=None).removesuffix(" (soft)") for text in rounded]
    shared, labels = _apart(texts)
    labels = [_trimmed(label) for label in labels]
    often = Counter(labels)
    if max(often.values(), default=1) > 1:
        labels = [
            f"{label} ({place})" if often[label] > 1 else label for place, label in enumerate(labels, start=1)
        ]
    return shared or "group" * (len(labels) > 1), labels


def wrapped(text: str, room: float) -> str:
    """A text on lines that fit into so many points; longer words stay whole."""
    lines: list[str] = []
    for word in text.split():
        if lines and text_width(f"{lines[-1]} {word}") <= room:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return "\n".join(lines)


def text_width(text: str) -> float:
    """An upper bound on the width in points of the widest line of a label.

    Made without a font, for matplotlib's own: to measure one would warn of every sign that it lacks, although
    a page may have others.
    """
    return SMALL * max((sum(map(_ems, line)) for line in text.split("\n")), default=0.0)


def _ems(sign: str) -> float:
    if unicodedata.east_asian_width(sign) in "WF" or sign in "mwMW%@&…—":
        return 1.0
    return 0.64 if sign.islower() or sign.isdigit() else 0.5 if sign in " .,:;'\"()[]/-|!" else 0.9


def _rounded(texts: list[str]) -> list[str]:
    """Numbers to three significant digits, or to as many as keep different ones different."""
    numbers = {found for text in texts for found in _DECIMAL.findall(text)}
    for digits in (3, 4, 6, 9):
        if len({_digits(found, digits) for found in numbers}) == len({float(found) for found in numbers}):
            return [_DECIMAL.sub(partial(_shortened, digits=digits), text) for text in texts]
    return texts


def _shortened(found: re.Match[str], digits: int) -> str:
    return _digits(found[0], digits)


def _digits(decimal: str, digits: int) -> str:
    return f"{float(decimal):.{digits}g}"


def _apart(texts: list[str]) -> tuple[str, list[str]]:
    """What all groups begin with, as far as it names a property, and what each goes on with."""
    split = [text.split(" ") for text in texts if text != ALL_PROMPTS]
    count = 0
    if len(split) > 1:
        for column in zip(*split, strict=False):
            ends = any(count + 1 == len(row) for row in split)
            if ends or len(set(column)) > 1 or _NO_NAME_OF_A_PROPERTY.search(column[0]):
                break
            count += 1
    if not count:
        return "", texts
    shared = " ".join(split[0][:count])
    return shared.removesuffix(" is").removesuffix(":"), [
        text.removeprefix(f"{shared} ").removeprefix("is ").removeprefix("lies in ") for text in texts
    ]


def _trimmed(label: str) -> str:
    if len(label) <= LONGEST:
        return label
    head = (LONGEST - 1) * 2 // 3
    return f"{label[:head].rstrip()}…{label[head + 1 - LONGEST :].lstrip()}"
