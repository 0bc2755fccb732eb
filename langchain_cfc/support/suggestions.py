"""Suggestions for error messages: the name, file or share that the user probably meant."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from decimal import Decimal
from difflib import get_close_matches
from itertools import islice
from pathlib import Path

# Maximum number of files in a folder that are compared with the missing one.
_MAX_FILES = 10_000
# Endings of kinds of files that are not taken for each other.
_KINDS = {".json", ".jsonl", ".csv", ".tsv", ".parquet", ".db", ".toml"}


def find_nearest(given: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most similar to the given one; None if no name is similar."""
    return next(iter(get_close_matches(given, known, n=1)), None)


def check_is_instance(role: str, part: object, failure: Callable[[str], Exception]) -> None:
    """Raise `failure` if the class of a Runnable is given for a part, such as `SelfConsistency`."""
    if isinstance(part, type) and hasattr(part, "invoke"):
        msg = f"{role} is the class {part.__name__}; expected an instance of it, such as {part.__name__}(...)"
        raise failure(msg)


def suggest_name(given: str, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown name: a similar known one, or an empty text.

    Examples:
        >>> suggest_name("topics", ["topic", "level"]), suggest_name("topics", ["level"])
        ("; did you mean 'topic'?", '')
    """
    nearest = find_nearest(given, known)
    return "" if nearest is None else f"; did you mean {nearest!r}?"


def suggest_share(given: object) -> str:
    """Return the end of a message about an invalid share: the value read as percent or with a decimal comma.

    Examples:
        >>> suggest_share(20), suggest_share("5 %"), suggest_share("0,2"), suggest_share("some")
        ('; did you mean 0.2?', '; did you mean 0.05?', '; did you mean 0.2?', '')
    """
    text = str(given).strip()
    try:
        number = Decimal(text.rstrip("% ").replace(",", "."))
    except ArithmeticError:
        return ""
    if not number.is_finite():
        return ""
    percent = text.endswith("%") or number > 1
    meant = number / 100 if percent else number
    is_other = percent or "," in text
    return f"; did you mean {meant.normalize():f}?" if is_other and 0 < meant < 1 else ""


def suggest_file(missing: str | os.PathLike[str]) -> str:
    """Return the end of a message about a missing file: its missing folder, a similar file, or nothing.

    A file with another ending is of another kind, so it is not suggested.
    """
    path = Path(missing)
    if not path.parent.is_dir():
        return f"; there is no folder {path.parent}"
    with suppress(OSError):
        files = [found for found in islice(path.parent.iterdir(), _MAX_FILES) if found.exists()]
        wanted = path.suffix.lower()
        same_kind = [one for one in files if wanted not in _KINDS or one.suffix.lower() == wanted]
        names = {one.stem: one.name for one in same_kind}
        nearest = find_nearest(path.stem, names)
        if nearest is not None:
            return f"; did you mean {path.with_name(names[nearest])}?"
    return ""
