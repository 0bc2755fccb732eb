"""Regular expressions: one that finds the answer in a candidate, or a reference that is one.

Python's `re` cannot be stopped. A pattern with nested repetitions, such as `(a+)+b`, may take time that
doubles with each further character, whatever a candidate happens to say, and nothing here bounds it. Patterns
are trusted like code: use none that others wrote, and test yours on long texts that do not match.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from decimal import Decimal
from functools import partial
from typing import Any

from langchain_core.runnables import RunnableConfig

from langchain_cfc.errors import InputError, LabelerError
from langchain_cfc.execution import Steps
from langchain_cfc.labelers.base import LabelerInput, reject_duplicate_keys
from langchain_cfc.labelers.matching import Reading, TextMatcher, list_text_aliases

_GROUP = "answer"


class PatternMatch(TextMatcher):
    """A candidate is correct if what a pattern finds in it equals the reference, or it matches the reference.

    With a `pattern`, its first match is searched in the candidate. What counts is the group named `answer`,
    or the whole match where there is no such group; a candidate is correct if that equals a text of the
    reference exactly, up to white space at both ends. Without a match, or where the group took no part in it,
    it is wrong.

    Without a `pattern`, the reference is one, or a list of several, and a candidate is correct if one of them
    matches all of it, up to white space at both ends.

    Args:
        pattern: A regular expression, with flags inside, as in `(?i)answer: (?P<answer>.+)`, or compiled. See
            the top of the module for the time that it may take.
        answer: Text to answer, a function or Runnable, plain or async; the whole text if left out.

    Raises:
        InputError: If the pattern is no regular expression on text.
    """

    def __init__(
        self, pattern: str | re.Pattern[str] | None = None, *, answer: Reading | None = None
    ) -> None:
        self._pattern = None if pattern is None else _compiled(pattern)
        settings = (
            {"pattern": "the reference"}
            if self._pattern is None
            else {"pattern": self._pattern.pattern, "flags": int(self._pattern.flags)}
        )
        super().__init__("pattern-match", settings, {"answer": answer})

    def labelled(self, given: LabelerInput, config: RunnableConfig) -> Steps[list[bool]]:
        """One match per distinct text."""
        texts = list_text_aliases(given["reference"])
        if self._pattern is None:
            return (yield from self._matched(given, config, partial(_matches, _patterns(texts))))
        expected = {text.strip() for text in texts}
        return (yield from self._matched(given, config, partial(_finds, self._pattern, expected)))


def _finds(pattern: re.Pattern[str], expected: set[str], answer: str) -> bool:
    found = pattern.search(answer)
    if found is None:
        return False
    said = found[_GROUP] if _GROUP in pattern.groupindex else found[0]
    return said is not None and said.strip() in expected


def _matches(patterns: list[re.Pattern[str]], answer: str) -> bool:
    return any(pattern.fullmatch(answer.strip()) for pattern in patterns)


def _patterns(references: list[str]) -> list[re.Pattern[str]]:
    try:
        return [re.compile(one) for one in references]
    except re.error as error:
        msg = f"the reference {error.pattern!r:.80} is no regular expression: {error}"
        raise LabelerError(msg) from error


def _compiled(pattern: Any) -> re.Pattern[str]:
    try:
        compiled = re.compile(pattern)
    except (re.error, TypeError) as error:
        msg = f"pattern {pattern!r:.80} is no regular expression: {error}"
        raise InputError(msg) from error
    if isinstance(compiled.pattern, str):
        return compiled
    msg = f"pattern {pattern!r:.80} matches bytes; expected one that matches text"
    raise InputError(msg)


_FENCE = "```"
_UNREADABLE = (ValueError, ArithmeticError, RecursionError)


class JsonField(TextMatcher):
    """A candidate is correct if the value at a path of its JSON equals the reference.

    A structured candidate (`Draw.data`) has its JSON for a text, so that both are read alike. The text may
    stand in one fence of Markdown. Numbers are compared as numbers, exactly and by the decimals that were
    written: 5 is 5.0, and 0.1 is not 0.1000001. Texts, booleans and null equal only their like ("5" is not 5,
    and true is not 1), lists and objects what holds equal values. A candidate is wrong if it is no JSON (NaN
    is none), holds a key twice in one object, or lacks the path.

    Args:
        *path: Keys of objects, and positions in lists counted from 0; none for the whole value.
        answer: Text to JSON text, a function or Runnable, plain or async; the whole text if left out.

    Raises:
        InputError: If the path holds anything but texts and whole numbers of at least 0.

    >>> from langchain_cfc.sampling import DrawnCandidate
    >>> drawn = [DrawnCandidate('{"total": {"value": 12.50}}'), DrawnCandidate('{"total": "12.50"}')]
    >>> asked = {"prompt": "What is the total?", "reference": 12.5, "candidates": drawn}
    >>> JsonField("total", "value").invoke(asked)
    [True, False]
    """

    def __init__(self, *path: str | int, answer: Reading | None = None) -> None:
        for step in path:
            if not _is_step(step):
                msg = f"the path holds {step!r}; expected keys, and positions counted from 0"
                raise InputError(msg)
        self._path = path
        super().__init__("json-field", {"path": json.dumps(path)}, {"answer": answer})

    def labelled(self, given: LabelerInput, config: RunnableConfig) -> Steps[list[bool]]:
        """One comparison per distinct text."""
        expected = _expected(given["reference"])
        return (yield from self._matched(given, config, partial(self._holds, expected)))

    def _holds(self, expected: Any, answer: str) -> bool:
        try:
            found = _parsed(_unfenced(answer))
        except _UNREADABLE:
            return False
        for step in self._path:
            inside: Mapping[Any, Any] = found if isinstance(found, dict) else {}
            if isinstance(step, int) and isinstance(found, list):
                inside = dict(enumerate(found))
            if step not in inside:
                return False
            found = inside[step]
        return _equal(found, expected)


def _unfenced(text: str) -> str:
    opening, _, rest = text.strip().partition("\n")
    is_fenced = opening.strip() in {_FENCE, f"{_FENCE}json"} and rest.endswith(_FENCE)
    return rest.removesuffix(_FENCE) if is_fenced else text


def _is_step(step: Any) -> bool:
    if isinstance(step, bool):
        return False
    return isinstance(step, str) or (isinstance(step, int) and step >= 0)


def _expected(reference: Any) -> Any:
    """The reference, read like what is compared with it."""
    if reference is None:
        msg = "the record has no reference, and no value of a candidate can be compared with none"
        raise LabelerError(msg)
    try:
        return _parsed(json.dumps(reference, allow_nan=False))
    except (*_UNREADABLE, TypeError) as error:
        msg = f"the reference {reference!r:.80} is no JSON: {error}"
        raise LabelerError(msg) from error


def _parsed(text: str) -> Any:
    return json.loads(
        text,
        # Neither rounds, nor takes time to write out what 1e999999 stands for.
        parse_float=Decimal,
        parse_int=Decimal,
        parse_constant=_refused,
        object_pairs_hook=reject_duplicate_keys,
    )


def _refused(constant: str) -> None:
    raise ValueError(constant)


def _equal(found: Any, expected: Any) -> bool:
    if type(found) is not type(expected):
        return False
    if isinstance(found, list):
        return len(found) == len(expected) and all(map(_equal, found, expected))
    if isinstance(found, dict):
        return found.keys() == expected.keys() and all(_equal(found[key], expected[key]) for key in found)
    return bool(found == expected)
