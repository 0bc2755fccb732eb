"""A labeler that matches candidates by a field of their JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import partial
from typing import Any

from langchain_cfc.errors import InputError, LabelerError
from langchain_cfc.labelers.matching import TextMatcher
from langchain_cfc.support.json_text import build_object

_FENCE = "```"
_JSON_ERRORS = (ValueError, ArithmeticError, RecursionError)


class JsonField(TextMatcher):
    """A candidate is correct if the value at a path of its JSON equals the reference.

    The text of a structured candidate (`DrawnCandidate.data`) is its JSON, so that both are read alike. The
    JSON may be enclosed in one Markdown fence. Numbers are compared as numbers, exactly and by the decimals
    that were written: 5 is 5.0, and 0.1 is not 0.1000001. Texts, booleans and null equal only values of the
    same type ("5" is not 5, and true is not 1); lists and objects are equal if they hold equal values. A
    candidate is wrong if it is not JSON (NaN is not), holds a key twice in one object, or lacks the path.

    Args:
        *path: Keys of objects, and positions in lists counted from 0; empty for the whole value.

    Raises:
        InputError: If the path holds anything but texts and whole numbers of at least 0.

    Examples:
        >>> from langchain_cfc.sampling import DrawnCandidate
        >>> drawn = [DrawnCandidate('{"total": {"value": 12.50}}'), DrawnCandidate('{"total": "12.50"}')]
        >>> asked = {"prompt": "What is the total?", "reference": 12.5, "candidates": drawn}
        >>> JsonField("total", "value").invoke(asked)
        [True, False]
    """

    def __init__(self, *path: str | int) -> None:
        for step in path:
            if not _is_step(step):
                msg = f"the path holds {step!r}; expected keys and indices counted from 0"
                raise InputError(msg)
        self._path = path
        super().__init__("json-field", {"path": json.dumps(path)})

    def read_reference(self, reference: Any) -> Callable[[str], bool]:
        """Return a test that compares the value at the path with the reference."""
        return partial(self._is_equal, _read_reference_json(reference))

    def _is_equal(self, expected: Any, answer: str) -> bool:
        try:
            value = _parse_json(_remove_fence(answer))
        except _JSON_ERRORS:
            return False
        for step in self._path:
            inside: Mapping[Any, Any] = value if isinstance(value, dict) else {}
            if isinstance(step, int) and isinstance(value, list):
                inside = dict(enumerate(value))
            if step not in inside:
                return False
            value = inside[step]
        return _equals(value, expected)


def _remove_fence(text: str) -> str:
    opening, _, rest = text.strip().partition("\n")
    is_fenced = opening.strip() in {_FENCE, f"{_FENCE}json"} and rest.endswith(_FENCE)
    return rest.removesuffix(_FENCE) if is_fenced else text


def _is_step(step: Any) -> bool:
    if isinstance(step, bool):
        return False
    return isinstance(step, str) or (isinstance(step, int) and step >= 0)


def _read_reference_json(reference: Any) -> Any:
    """Parse the reference in the same way as candidates."""
    if reference is None:
        msg = "the record has no reference to compare values of candidates with"
        raise LabelerError(msg)
    try:
        return _parse_json(json.dumps(reference, allow_nan=False))
    except (*_JSON_ERRORS, TypeError) as error:
        msg = f"the reference {reference!r:.80} is not JSON: {error}"
        raise LabelerError(msg) from error


def _parse_json(text: str) -> Any:
    return json.loads(
        text,
        # A Decimal does not round, and does not write out all digits of 1e999999.
        parse_float=Decimal,
        parse_int=Decimal,
        parse_constant=_refuse_constant,
        object_pairs_hook=build_object,
    )


def _refuse_constant(constant: str) -> None:
    raise ValueError(constant)


def _equals(found: Any, expected: Any) -> bool:
    if type(found) is not type(expected):
        return False
    if isinstance(found, list):
        return len(found) == len(expected) and all(map(_equals, found, expected))
    if isinstance(found, dict):
        return found.keys() == expected.keys() and all(_equals(found[key], expected[key]) for key in found)
    return bool(found == expected)
