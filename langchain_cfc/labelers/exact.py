"""Exact match after a published normalisation, as question answering measures it.

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
from functools import partial
from typing import Any, Literal, get_args

from langchain_core.runnables import RunnableConfig

from langchain_cfc.calls import Steps
from langchain_cfc.errors import InputError, LabelerError
from langchain_cfc.labelers.base import LabelerInput
from langchain_cfc.labelers.matching import Matching, Reading, text_aliases

Convention = Literal["squad", "triviaqa"]

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_PUNCTUATION: dict[Convention, dict[int, str]] = {
    "squad": str.maketrans(dict.fromkeys(string.punctuation, "")),
    "triviaqa": str.maketrans(dict.fromkeys(string.punctuation + "\u2018\u2019\u00b4", " ")),
}


def normal_form(text: str, convention: Convention = "squad") -> str:
    """An answer as one of the two datasets compares it, see the top of the module.

    Args:
        text: An answer.
        convention: Whose.

    Returns:
        What is compared; it may be empty.

    >>> normal_form("The  Rock-'n'-Roll  Hall!"), normal_form("The  Rock-'n'-Roll  Hall!", "triviaqa")
    ('rocknroll hall', 'rock n roll hall')
    """
    bare = text.lower().translate(_PUNCTUATION[convention])
    return " ".join(_ARTICLES.sub(" ", bare).split())


class NormalisedMatch(Matching):
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
        return normal_form(answer, self._convention) in forms

    def _forms(self, reference: Any) -> set[str]:
        forms = {normal_form(alias, self._convention) for alias in text_aliases(reference)} - {""}
        if not forms:
            msg = (
                f"nothing is left of the reference {reference!r:.80} once articles and punctuation are gone: "
                "compare it with PatternMatch or MultipleChoice"
            )
            raise LabelerError(msg)
        return forms
