"""Labelers that compare texts with the reference, and exact match after a published normalisation.

`NormalisedMatch` is the exact match of question answering benchmarks. Both of its normalisations are for
English answers, and are those of the evaluation scripts of two datasets:

- `squad` (Rajpurkar et al. 2016, evaluation script of SQuAD v1.1): lower case; every ASCII punctuation sign
  is deleted; the words a, an and the become a space; white space is collapsed and trimmed.
- `triviaqa` (Joshi et al. 2017, evaluation script of TriviaQA v1.0): the same, but punctuation becomes a
  space instead of being deleted, and the signs ‘, ’ and ´ count as punctuation as well.

So "U.S.A." becomes "usa" in the first and "u s" in the second, where the single a is taken for an article.
Neither removes accents, or any non-ASCII sign except those three. Signs of numbers are lost: `squad` turns
"-5" into "5", and "3.14" into "314"; compare numbers with `NumericMatch`.
"""

from __future__ import annotations

import re
import string
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

from langchain_core.runnables import RunnableConfig

from langchain_cfc.errors import InputError, LabelerError
from langchain_cfc.execution import Steps, map_distinct
from langchain_cfc.labelers.base import BaseLabeler, LabelerInput
from langchain_cfc.sampling.models import make_optional_call
from langchain_cfc.verifiers.base import combine_fingerprints
from langchain_cfc.verifiers.self_consistency import Extractor, extract_answers


class TextMatcher(BaseLabeler):
    """Base class of labelers that compare each distinct text, or its extracted answer, with the reference.

    `settings` are plain values that change the labels; `parts` maps roles to what the user passed (None if
    left out); the part `answer` is the extractor.
    """

    def __init__(self, name: str, settings: Mapping[str, Any], parts: Mapping[str, Any]) -> None:
        self.name = name
        answer = parts.get("answer")
        self._settings = {"answer": "whole text" if answer is None else "extracted", **settings}
        self.fingerprint = combine_fingerprints(name, self._settings, parts)
        self._extract = make_optional_call("answer extractor", answer, LabelerError)

    def __repr__(self) -> str:
        """State what makes a candidate correct."""
        settings = ", ".join(f"{name}: {value}" for name, value in self._settings.items())
        return f"{type(self).__name__}({settings})"

    @abstractmethod
    def read_reference(self, reference: Any) -> Callable[[str], bool]:
        """Return a test for correct answers; raise a `LabelerError` if the reference is unusable."""

    def make_test(self, given: LabelerInput, config: RunnableConfig) -> Steps[Callable[[str], bool]]:
        """Return the test for one prompt; overridden if it depends on more than the reference."""
        del config
        yield from ()  # nothing is called
        return self.read_reference(given["reference"])

    def flow(self, given: LabelerInput, config: RunnableConfig) -> Steps[list[bool]]:
        """Test each distinct text once."""
        is_correct = yield from self.make_test(given, config)

        def test(texts: list[str]) -> Steps[list[bool]]:
            if self._extract is not None:
                texts = yield from extract_answers(self._extract, texts, config, LabelerError)
            return list(map(is_correct, texts))

        return (yield from map_distinct([candidate.text for candidate in given["candidates"]], test))


def list_aliases(reference: Any) -> list[Any]:
    """Return the values of a reference, any of which is correct; raise a `LabelerError` if there are none."""
    listed = list(reference) if isinstance(reference, (list, tuple)) else [reference]
    if not listed or any(one is None for one in listed):
        msg = (
            f"the reference is {reference!r:.80}, so no candidate can be correct: give the record a reference"
        )
        raise LabelerError(msg)
    return listed


def list_text_aliases(reference: Any) -> list[str]:
    """Return the texts of a reference; raise a `LabelerError` if it is neither a text nor a list of texts."""
    listed = list_aliases(reference)
    for one in listed:
        if not isinstance(one, str):
            msg = f"the reference {reference!r:.80} holds a {type(one).__name__}; expected text or texts"
            raise LabelerError(msg)
    return listed


Convention = Literal["squad", "triviaqa"]

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_PUNCTUATION: dict[Convention, dict[int, str]] = {
    "squad": str.maketrans(dict.fromkeys(string.punctuation, "")),
    "triviaqa": str.maketrans(dict.fromkeys(string.punctuation + "\u2018\u2019\u00b4", " ")),
}


def compute_normal_form(text: str, convention: Convention = "squad") -> str:
    """Return an answer as normalised for one of the two datasets, see the top of the module.

    Args:
        text: An answer.
        convention: `squad` or `triviaqa`.

    Returns:
        The normal form; it may be empty.

    Examples:
        >>> compute_normal_form("The  Rock-'n'-Roll  Hall!")
        'rocknroll hall'
        >>> compute_normal_form("The  Rock-'n'-Roll  Hall!", "triviaqa")
        'rock n roll hall'
    """
    bare = text.lower().translate(_PUNCTUATION[convention])
    return " ".join(_ARTICLES.sub(" ", bare).split())


class NormalisedMatch(TextMatcher):
    """A candidate is correct if its normal form equals, or contains, that of an alias in the reference.

    The reference is a text, or a list of texts of which any is right. A text with an empty normal form, such
    as "The" or "!!!", matches nothing. This is the only difference from the published scripts, in which it
    equals an empty output.

    Args:
        convention: `squad` or `triviaqa`, see the top of the module.
        anywhere: Whether an alias may occur anywhere in the candidate, as whole words, for models that answer
            in sentences. "Lima, not Cusco" then contains Cusco too.
        answer: Function or Runnable, plain or async, from a text to its answer; by default the whole text.

    Raises:
        InputError: If the convention is neither.
    """

    def __init__(
        self, convention: Convention = "squad", *, anywhere: bool = False, answer: Extractor | None = None
    ) -> None:
        if convention not in get_args(Convention):
            msg = f"convention is {convention!r}; expected one of {', '.join(get_args(Convention))}"
            raise InputError(msg)
        where = {"compared": "anywhere"} if anywhere else {}
        super().__init__("normalised-match", {"convention": convention, **where}, {"answer": answer})
        self._convention: Convention = convention
        self._anywhere = anywhere

    def read_reference(self, reference: Any) -> Callable[[str], bool]:
        """Return a test that compares with the normal forms of the aliases."""
        forms = {compute_normal_form(alias, self._convention) for alias in list_text_aliases(reference)} - {
            ""
        }
        if not forms:
            msg = (
                f"the reference {reference!r:.80} is empty without articles and punctuation: use "
                "PatternMatch or MultipleChoice"
            )
            raise LabelerError(msg)

        def is_expected(answer: str) -> bool:
            form = compute_normal_form(answer, self._convention)
            return any(f" {one} " in f" {form} " for one in forms) if self._anywhere else form in forms

        return is_expected
