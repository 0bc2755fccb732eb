"""Regular expressions: one that finds the answer in a candidate, or a reference that is one.

Python's `re` cannot be stopped. A pattern with nested repetitions, such as `(a+)+b`, may take time that
doubles with each further character, whatever a candidate happens to say, and nothing here bounds it. Patterns
are trusted like code: use none that others wrote, and test yours on long texts that do not match.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Any

from langchain_core.runnables import RunnableConfig

from langchain_cfc.calls import Steps
from langchain_cfc.errors import InputError, LabelerError
from langchain_cfc.labelers.base import LabelerInput
from langchain_cfc.labelers.matching import Matching, Reading, text_aliases

_GROUP = "answer"


class PatternMatch(Matching):
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
        texts = text_aliases(given["reference"])
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
