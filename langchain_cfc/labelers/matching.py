"""What labelers that compare texts share: each distinct text is read once, and held against the reference.

Exact match after a published normalisation, as question answering measures it.

Both normalisations are of English answers, and are what the evaluation scripts of the two datasets do:

- `squad` (Rajpurkar et al. 2016, evaluation script of SQuAD v1.1): lower case; every ASCII punctuation sign
  is deleted; the words a, an and the become a space; white space is collapsed and trimmed.
- `triviaqa` (Joshi et al. 2017, evaluation script of TriviaQA v1.0): the same, but punctuation becomes a
  space instead of being deleted, and the signs ‘, ’ and ´ count as punctuation as well.

So "U.S.A." is "usa" to the first and "u s" to the second, for the a that stands alone then is an article.
Neither removes accents, or any other sign outside of ASCII. Signs of numbers are lost: to `squad` "-5" is
"5", and "3.14" is "314"; compare numbers with `NumericMatch`.
"""

from __future__ import annotations

import re
import string
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Literal, TypeAlias, get_args

from langchain_core.runnables import Runnable, RunnableConfig

from langchain_cfc.errors import InputError, LabelerError
from langchain_cfc.execution import Steps
from langchain_cfc.labelers.base import BaseLabeler, LabelerInput, make_labeler_call
from langchain_cfc.verifiers.base import combined_fingerprint, distinct_texts

Reading: TypeAlias = Runnable[Any, Any] | Callable[[str], str] | Callable[[str], Awaitable[str]]


class TextMatcher(BaseLabeler):
    """Compares each distinct text, or what an extractor makes of it, with the reference.

    Args:
        name: What it is called in traces and in its fingerprint.
        settings: Whatever changes its labels, each as one plain value.
        parts: By role, what the user gave it; None where it was left out. `answer` is the extractor.
    """

    def __init__(self, name: str, settings: Mapping[str, Any], parts: Mapping[str, Any]) -> None:
        self.name = name
        answer = parts.get("answer")
        self._settings = {"answer": "whole text" if answer is None else "extracted", **settings}
        given = {role: part for role, part in parts.items() if part is not None}
        self.fingerprint = combined_fingerprint(name, self._settings, given)
        self._extract = None if answer is None else make_labeler_call("answer extractor", answer)

    def __repr__(self) -> str:
        """What makes a candidate correct."""
        said = ", ".join(f"{name}: {value}" for name, value in self._settings.items())
        return f"{type(self).__name__}({said})"

    def _matched(
        self, given: LabelerInput, config: RunnableConfig, is_correct: Callable[[str], bool]
    ) -> Steps[list[bool]]:
        """One comparison per distinct text."""
        texts = distinct_texts(given["candidates"])
        answers = texts if self._extract is None else (yield from self._extract.all(texts, config))
        by_text = {text: is_correct(_checked(one)) for text, one in zip(texts, answers, strict=True)}
        return [by_text[candidate.text] for candidate in given["candidates"]]


def _checked(answer: Any) -> str:
    if isinstance(answer, str):
        return answer
    msg = f"an answer is a {type(answer).__name__}; expected text, an empty one where there is no answer"
    raise LabelerError(msg)


def list_aliases(reference: Any) -> list[Any]:
    """The values of a reference, any of which makes a candidate correct.

    Args:
        reference: One value, or a list of them.

    Returns:
        At least one value.

    Raises:
        LabelerError: If there is none.
    """
    listed = list(reference) if isinstance(reference, (list, tuple)) else [reference]
    if not listed or any(one is None for one in listed):
        msg = f"the reference is {reference!r:.80}, so nothing can be called correct: give the record one"
        raise LabelerError(msg)
    return listed


def list_text_aliases(reference: Any) -> list[str]:
    """The texts of a reference.

    Args:
        reference: A text, or a list of texts.

    Raises:
        LabelerError: If it is anything else.
    """
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
    """An answer as one of the two datasets compares it, see the top of the module.

    Args:
        text: An answer.
        convention: Whose.

    Returns:
        What is compared; it may be empty.

    >>> compute_normal_form("The  Rock-'n'-Roll  Hall!")
    'rocknroll hall'
    >>> compute_normal_form("The  Rock-'n'-Roll  Hall!", "triviaqa")
    'rock n roll hall'
    """
    bare = text.lower().translate(_PUNCTUATION[convention])
    return " ".join(_ARTICLES.sub(" ", bare).split())


class NormalisedMatch(TextMatcher):
    """A candidate is correct if its normal form is that of an alias in the reference.

    The reference is a text, or a list of texts any of which is right. What has an empty normal form, such as
    "The" or "!!!", matches nothing; there alone this departs from the published scripts, to which it would
    equal an empty output.

    Args:
        convention: `squad` or `triviaqa`, see the top of the module.
        answer: Text to answer, a function or Runnable, plain or async; the whole text if left out.

    Raises:
        InputError: If the convention is neither.
    """

    def __init__(self, convention: Convention = "squad", *, answer: Reading | None = None) -> None:
        if convention not in get_args(Convention):
            msg = f"convention is {convention!r}; expected one of {', '.join(get_args(Convention))}"
            raise InputError(msg)
        super().__init__("normalised-match", {"convention": convention}, {"answer": answer})
        self._convention: Convention = convention

    def labelled(self, given: LabelerInput, config: RunnableConfig) -> Steps[list[bool]]:
        """One comparison per distinct text."""
        forms = self._forms(given["reference"])
        return (yield from self._matched(given, config, partial(self._is_in, forms)))

    def _is_in(self, forms: set[str], answer: str) -> bool:
        return compute_normal_form(answer, self._convention) in forms

    def _forms(self, reference: Any) -> set[str]:
        forms = {compute_normal_form(alias, self._convention) for alias in list_text_aliases(reference)} - {
            ""
        }
        if not forms:
            msg = (
                f"nothing is left of the reference {reference!r:.80} once articles and punctuation are gone: "
                "compare it with PatternMatch or MultipleChoice"
            )
            raise LabelerError(msg)
        return forms
