"""JSON without the liberties that readers usually take.

Python's reader lets the last of two equal keys win, takes NaN for a number, turns 1e999 into infinity and
half a surrogate pair into a string that cannot be written again: each puts into a record what nobody wrote
there. `parse_json` passes them on as values that `check_json`, or the type of a field, refuses, so that the
error can say where they are.
"""

from __future__ import annotations

import json
import math
import reprlib
from typing import Any, TypeVar

_Value = TypeVar("_Value")

# Far beyond any prompt or tool call, far below where Python's own recursion ends.
_DEEPEST = 100
_WIDEST_SHOWN = 60

_repr = reprlib.Repr()
_repr.maxstring = _repr.maxlong = _repr.maxother = _WIDEST_SHOWN
_repr.maxlevel = 2
_repr.maxlist = _repr.maxtuple = _repr.maxdict = 3


class NotJsonError(ValueError):
    """Something that cannot be written as JSON and read back as the same.

    Attributes:
        found: What it is.
        path: Keys and positions that lead there from the value checked.
    """

    def __init__(self, found: str, path: tuple[str | int, ...] = ()) -> None:
        self.found = found
        self.path = path
        super().__init__(f"found {found}; expected JSON")


class RepeatedKey:
    """What is parsed in place of an object in which a key stands twice; no field accepts it."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        keys = [key for key, _ in pairs]
        self._key = next(key for position, key in enumerate(keys) if key in keys[:position])

    def __repr__(self) -> str:
        return f"the key {self._key!r} twice in one object"


def parse_json(text: str) -> Any:
    """Parse one JSON value.

    Args:
        text: The value and nothing else.

    Returns:
        The value; a `RepeatedKey` where an object has a key twice, NaN or infinity where a number is none.

    Raises:
        ValueError: If this is not JSON (a `json.JSONDecodeError`), or has an integer of thousands of digits.
        RecursionError: If it is nested too deeply to be parsed.
    """
    return _DECODER.decode(text)


def check_json(value: _Value) -> _Value:
    """Refuse what is not JSON, or only by a reader's liberty.

    Args:
        value: What should consist of None, booleans, integers, finite floats, texts, lists and objects.

    Returns:
        The value itself.

    Raises:
        NotJsonError: For the first value inside that is anything else.
    """
    _check(value, ())
    return value


def shown(value: object) -> str:
    """A value for an error message, however large it is: at most 60 characters."""
    text = _repr.repr(value)
    return text if len(text) <= _WIDEST_SHOWN else f"{text[: _WIDEST_SHOWN - 3]}..."


def _check(value: object, path: tuple[str | int, ...]) -> None:
    if isinstance(value, str):
        _check_text(value, path)
    elif isinstance(value, dict | list):
        _check_items(value, path)
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise NotJsonError(shown(value), path)
    elif value is not None and not isinstance(value, int):
        raise NotJsonError(shown(value), path)


def _check_text(text: str, path: tuple[str | int, ...]) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        found = f"half of a surrogate pair at character {error.start + 1} of {shown(text)}"
        raise NotJsonError(found, path) from None


def _check_items(items: dict[Any, Any] | list[Any], path: tuple[str | int, ...]) -> None:
    if len(path) == _DEEPEST:
        found = f"more than {_DEEPEST} nested levels"
        raise NotJsonError(found)
    if isinstance(items, dict):
        for key in items:
            if not isinstance(key, str):
                raise NotJsonError(shown(key), path)
            _check_text(key, path)
    for step, item in items.items() if isinstance(items, dict) else enumerate(items):
        _check(item, (*path, step))


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any] | RepeatedKey:
    fields = dict(pairs)
    return fields if len(fields) == len(pairs) else RepeatedKey(pairs)


_DECODER = json.JSONDecoder(object_pairs_hook=_object)
