"""Find which option of a multiple-choice question a candidate chooses.

Four places are searched, and the first that names an option decides:

1. the whole answer is a letter (`B`, `(B)`, `b.`, `**B**`) or the text of an option;
2. it says what its answer is: `Answer: B`, `the answer is (B)`, `the correct option is B`, `Answer: Paris`;
3. it begins with a letter set off by a sign: `B. Paris`, `(B) Paris`, `B: because ...`;
4. it contains a letter in round brackets: `so it must be (B)`.

If the deciding place names two options, as in `Answer: B ... Answer: C`, or `B. Paris` where Paris is C, the
candidate is wrong. It is also wrong if no place names an option. Texts of options are compared without case,
surrounding punctuation and emphasis. They are not searched for inside other text, where "not Paris but Rome"
would be found to say Paris.
"""

from __future__ import annotations

import re
import string
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from langchain_core.runnables import Runnable, RunnableConfig

from langchain_cfc._internal.normalisation import normalise_answer
from langchain_cfc.errors import CFCError, InputError, LabelerError
from langchain_cfc.execution import Steps
from langchain_cfc.labelers.base import LabelerInput
from langchain_cfc.labelers.matching import TextMatcher
from langchain_cfc.sampling.models import make_optional_call
from langchain_cfc.verifiers.self_consistency import Extractor

Options: TypeAlias = (
    list[str]
    | tuple[str, ...]
    | Runnable[Any, Any]
    | Callable[[Any], Sequence[str]]
    | Callable[[Any], Awaitable[Sequence[str]]]
)

_LETTERS = string.ascii_uppercase
# The letters of the options if no options are given.
DEFAULT_LETTERS = "ABCDE"
_MARKS = r"[\s*_\"'`(\[]*"
_BARE_LETTER = re.compile(rf"{_MARKS}([A-Za-z])[\s*_\"'`)\].,:;!]*")
# No two repetitions of the same signs are adjacent, which would backtrack for very long on a run of them.
_STATEMENT = r"(?i:\b(?:answer|choice|option)[\s*_]*(?:is\b(?:\s*:)?|[:=]))"
_STATED_LETTER = re.compile(
    rf"{_STATEMENT}{_MARKS}(?:(?i:option|choice)\b{_MARKS})?([A-Z]|(?<=\()[a-z](?=\)))(?!\w|['\u2019])"
)
_STATEMENT_PATTERN = re.compile(_STATEMENT)
_LEADING_LETTER = re.compile(r"[\s*_(\[]*([A-Za-z])[*_]*[).:\]]+[*_]*(?:\s+(.*))?", re.DOTALL)
_BRACKETED_LETTER = re.compile(r"(?<!\w)\(([A-Za-z])\)")


class MultipleChoice(TextMatcher):
    """A candidate is correct if it chooses the option that the reference names.

    The reference is the letter of an option, or its text where `options` are given. The top of the module
    describes how a choice is read.

    Args:
        options: The texts of the 1 to 26 options in order, the first being A: a list or tuple for all
            prompts, or a function or Runnable, plain or async, that makes one from the prompt. Without them
            only letters are read.
        letters: The letters of the options if no options are given.
        answer: Function or Runnable, plain or async, from a text to its answer; by default the whole text.

    Raises:
        InputError: If the letters are not distinct capital letters, or the options not distinct texts.
    """

    def __init__(
        self,
        options: Options | None = None,
        *,
        letters: str = DEFAULT_LETTERS,
        answer: Extractor | None = None,
    ) -> None:
        if not letters or len(set(letters)) < len(letters) or set(letters) - set(_LETTERS):
            msg = f"letters is {letters!r}; expected distinct capital letters, such as 'ABCD'"
            raise InputError(msg)
        listed, function = (options, None) if isinstance(options, (list, tuple)) else (None, options)
        self._letters = letters
        self._options = {} if listed is None else _map_options(listed, InputError)
        self._make_options = make_optional_call("options function", function, LabelerError)
        settings = {
            "letters": letters if options is None else "as many as options",
            "options": "none" if options is None else "own" if listed is None else " | ".join(listed),
        }
        super().__init__("multiple-choice", settings, {"answer": answer, "options": function})

    def read_reference(
        self, reference: Any, options: Mapping[str, str] | None = None
    ) -> Callable[[str], bool]:
        """Return a test for the letter that the reference names, among `options` or those of all prompts."""
        known = self._options if options is None else options
        letters = "".join(known.values()) or self._letters
        right = _find_right_letter(reference, letters, known)
        return lambda answer: find_choice(answer, letters, known) == right

    def make_test(self, given: LabelerInput, config: RunnableConfig) -> Steps[Callable[[str], bool]]:
        """Return the test for one prompt, whose options are made first if a function makes them."""
        if self._make_options is None:
            return (yield from super().make_test(given, config))
        options = yield from self._make_options.invoke_one(given["prompt"], config)
        return self.read_reference(given["reference"], _map_options(options, LabelerError))


def find_choice(text: str, letters: str, options: Mapping[str, str]) -> str | None:
    """Return the letter that an answer chooses; None if no option is named, or two at the same place.

    `options` maps the normalised text of each option to its letter, and may be empty.

    Examples:
        >>> find_choice("The answer is (b), because Lima is on the coast.", "ABC", {})
        'B'
    """
    for find in (_find_bare, _find_stated, _find_leading, _find_bracketed):
        named = {letter for letter in find(text, options) if letter and letter in letters}
        if named:
            return named.pop() if len(named) == 1 else None
    return None


def extract_choice(text: str) -> str:
    """Return the letter from A to E that a text chooses, as an answer extractor; empty if it chooses none.

    Examples:
        >>> extract_choice("B. Paris, of course"), extract_choice("either (A) or (B)")
        ('B', '')
    """
    return find_choice(text, DEFAULT_LETTERS, {}) or ""


def _find_bare(text: str, options: Mapping[str, str]) -> Iterator[str | None]:
    if matched := _BARE_LETTER.fullmatch(text):
        yield matched[1].upper()
    yield options.get(normalise_answer(text))


def _find_stated(text: str, options: Mapping[str, str]) -> Iterator[str | None]:
    yield from (letter.upper() for letter in _STATED_LETTER.findall(text))
    # A stated answer ends with its line, or where the next statement begins.
    rests = (rest for line in text.splitlines() for rest in _STATEMENT_PATTERN.split(line)[1:])
    yield from (options.get(normalise_answer(rest)) for rest in rests)


def _find_leading(text: str, options: Mapping[str, str]) -> Iterator[str | None]:
    if matched := _LEADING_LETTER.fullmatch(text):
        yield matched[1].upper()
        yield options.get(normalise_answer(matched[2] or ""))


def _find_bracketed(text: str, options: Mapping[str, str]) -> Iterator[str | None]:
    del options
    yield from (letter.upper() for letter in _BRACKETED_LETTER.findall(text))


def _map_options(options: Any, failure: type[CFCError]) -> dict[str, str]:
    texts = list(options) if isinstance(options, (list, tuple)) else []
    if not 1 <= len(texts) <= len(_LETTERS) or not all(isinstance(text, str) for text in texts):
        msg = f"the options are {options!r:.80}; expected a list of 1 to {len(_LETTERS)} texts"
        raise failure(msg)
    named = {normalise_answer(text): letter for text, letter in zip(texts, _LETTERS, strict=False)}
    if len(named) < len(texts) or "" in named:
        msg = f"one of the options {options!r:.80} is empty, or two differ only in case and signs"
        raise failure(msg)
    return named


def _find_right_letter(reference: Any, letters: str, options: Mapping[str, str]) -> str:
    named: set[str] = set()
    if isinstance(reference, str):
        letter, option = reference.strip().upper(), options.get(normalise_answer(reference))
        named = ({letter} if letter and letter in set(letters) else set()) | ({option} if option else set())
    if len(named) == 1:
        return named.pop()
    found = "names two options" if named else "names no option"
    msg = f"the reference {reference!r:.80} {found}: give one of the letters {letters}, or an option's text"
    raise LabelerError(msg)
