"""Which option of a multiple-choice question a candidate chooses.

Four places are looked at, and the first that names an option decides:

1. the whole answer is a letter (`B`, `(B)`, `b.`, `**B**`) or the text of an option;
2. it says what its answer is: `Answer: B`, `the answer is (B)`, `the correct option is B`, `Answer: Paris`;
3. it begins with a letter set off by a sign: `B. Paris`, `(B) Paris`, `B: because ...`;
4. somewhere in it stands a letter in round brackets: `so it must be (B)`.

A place that names two options, such as `Answer: B ... Answer: C`, or `B. Paris` where Paris is C, names none,
and the candidate is wrong. So is one that names none anywhere. Texts of options are compared without case,
surrounding punctuation and emphasis. Options that a candidate discusses in any other words are not looked
for: "not Paris but Rome" would be found to say Paris.
"""

from __future__ import annotations

import re
import string
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

from langchain_core.runnables import Runnable, RunnableConfig

from langchain_cfc.errors import CFCError, InputError, LabelerError
from langchain_cfc.execution import Steps
from langchain_cfc.labelers.base import LabelerInput, make_labeler_call
from langchain_cfc.labelers.matching import Reading, TextMatcher
from langchain_cfc.verifiers.self_consistency import normalise_answer

Options: TypeAlias = (
    list[str]
    | tuple[str, ...]
    | Runnable[Any, Any]
    | Callable[[Any], Sequence[str]]
    | Callable[[Any], Awaitable[Sequence[str]]]
)

_LETTERS = string.ascii_uppercase
_MARKS = r"[\s*_\"'`(\[]*"
_BARE = re.compile(rf"{_MARKS}([A-Za-z])[\s*_\"'`)\].,:;!]*")
# No two repetitions of the same signs stand side by side: on a long run of them that would take for ever.
_SAID = r"(?i:\b(?:answer|choice|option)[\s*_]*(?:is\b(?:\s*:)?|[:=]))"
_STATED_LETTER = re.compile(
    rf"{_SAID}{_MARKS}(?:(?i:option|choice)\b{_MARKS})?([A-Z]|(?<=\()[a-z](?=\)))(?!\w|['\u2019])"
)
_STATING = re.compile(_SAID)
_LEADING = re.compile(r"[\s*_(\[]*([A-Za-z])[*_]*[).:\]]+[*_]*(?:\s+(.*))?", re.DOTALL)
_BRACKETED = re.compile(r"(?<!\w)\(([A-Za-z])\)")


class MultipleChoice(TextMatcher):
    """A candidate is correct if it chooses the option that the reference names.

    The reference is the letter of an option, or its text where `options` are given. How a choice is read is
    said at the top of the module.

    Args:
        options: The texts of the 1 to 26 options in order, the first being A: a list or tuple for all
            prompts, or a function or Runnable, plain or async, that makes one of the prompt. Without them
            only letters are read.
        letters: The letters that there are where no options are given.
        answer: Text to answer, a function or Runnable, plain or async; the whole text if left out.

    Raises:
        InputError: If the letters are not distinct capital letters, or the options not distinct texts.
    """

    def __init__(
        self, options: Options | None = None, *, letters: str = "ABCDE", answer: Reading | None = None
    ) -> None:
        if not letters or len(set(letters)) < len(letters) or set(letters) - set(_LETTERS):
            msg = f"letters is {letters!r}; expected distinct capital letters, such as 'ABCD'"
            raise InputError(msg)
        listed = options if isinstance(options, (list, tuple)) else None
        asked = None if isinstance(options, (list, tuple)) else options
        self._letters = letters
        self._options = {} if listed is None else _named(listed, InputError)
        self._ask = None if asked is None else make_labeler_call("options function", asked)
        settings = {
            "letters": letters if options is None else "as many as options",
            "options": "none" if options is None else "own" if listed is None else " | ".join(listed),
        }
        super().__init__("multiple-choice", settings, {"answer": answer, "options": asked})

    def labelled(self, given: LabelerInput, config: RunnableConfig) -> Steps[list[bool]]:
        """One choice per distinct text."""
        options: Mapping[str, str] = self._options
        if self._ask is not None:
            options = _named((yield from self._ask.one(given["prompt"], config)), LabelerError)
        letters = "".join(options.values()) or self._letters
        right = _right(given["reference"], letters, options)
        return (yield from self._matched(given, config, partial(_is, right, letters, options)))


def find_choice(text: str, letters: str, options: Mapping[str, str]) -> str | None:
    """The letter that an answer chooses.

    Args:
        text: An answer.
        letters: The capital letters that there are.
        options: From the normalised text of each option to its letter; may be empty.

    Returns:
        The letter; None where no option is named, or two at the same place.

    >>> find_choice("The answer is (b), because Lima is on the coast.", "ABC", {})
    'B'
    """
    for found in (_bare, _stated, _leading, _bracketed):
        named = {letter for letter in found(text, options) if letter in letters}
        if named:
            return named.pop() if len(named) == 1 else None
    return None


def _is(right: str, letters: str, options: Mapping[str, str], answer: str) -> bool:
    return find_choice(answer, letters, options) == right


def _bare(text: str, options: Mapping[str, str]) -> set[str]:
    matched = _BARE.fullmatch(text)
    option = options.get(normalise_answer(text))
    return ({matched[1].upper()} if matched else set()) | ({option} if option else set())


def _stated(text: str, options: Mapping[str, str]) -> set[str]:
    # What follows a statement ends with the line, or where the next one begins.
    said = (
        options.get(normalise_answer(rest)) for line in text.splitlines() for rest in _STATING.split(line)[1:]
    )
    return {letter.upper() for letter in _STATED_LETTER.findall(text)} | {one for one in said if one}


def _leading(text: str, options: Mapping[str, str]) -> set[str]:
    matched = _LEADING.fullmatch(text)
    if matched is None:
        return set()
    option = options.get(normalise_answer(matched[2] or ""))
    return {matched[1].upper()} | ({option} if option else set())


def _bracketed(text: str, options: Mapping[str, str]) -> set[str]:
    del options
    return {letter.upper() for letter in _BRACKETED.findall(text)}


def _named(options: Any, failure: type[CFCError]) -> dict[str, str]:
    """From the normalised text of each option to its letter."""
    texts = list(options) if isinstance(options, (list, tuple)) else []
    if not 1 <= len(texts) <= len(_LETTERS) or not all(isinstance(text, str) for text in texts):
        msg = f"the options are {options!r:.80}; expected a list of 1 to {len(_LETTERS)} texts"
        raise failure(msg)
    named = {normalise_answer(text): letter for text, letter in zip(texts, _LETTERS, strict=False)}
    if len(named) < len(texts) or "" in named:
        msg = f"of the options {options!r:.80} one is empty, or two differ in nothing but case and signs"
        raise failure(msg)
    return named


def _right(reference: Any, letters: str, options: Mapping[str, str]) -> str:
    """The letter that the reference names."""
    named: set[str] = set()
    if isinstance(reference, str):
        letter, option = reference.strip().upper(), options.get(normalise_answer(reference))
        named = ({letter} if letter and letter in set(letters) else set()) | ({option} if option else set())
    if len(named) == 1:
        return named.pop()
    found = "names two options" if named else "names no option"
    msg = f"the reference {reference!r:.80} {found}: give one of the letters {letters}, or an option's text"
    raise LabelerError(msg)
