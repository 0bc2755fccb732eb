"""Self-consistency: how many of the other candidates say the same."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import combinations
from typing import Any, TypeAlias

from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.utils import is_async_callable

from langchain_cfc.errors import InputError, VerifierError
from langchain_cfc.execution import Call, Steps, Target
from langchain_cfc.sampling import without_streaming_and_cache
from langchain_cfc.verifiers.base import (
    BaseVerifier,
    VerifierInput,
    combined_fingerprint,
    distinct_texts,
    to_python_scalar,
)

Reading: TypeAlias = Runnable[Any, Any] | Callable[[str], str] | Callable[[str], Awaitable[str]]
Equivalence: TypeAlias = (
    Runnable[Any, Any] | Callable[[Any, str, str], bool] | Callable[[Any, str, str], Awaitable[bool]]
)

# Quotes and marks of emphasis, on either side; what ends a sentence, or opens one in Spanish.
_AROUND = "\"'`*_\u2018\u2019\u201a\u201c\u201d\u201e\u00ab\u00bb\u2039\u203a"
_BEFORE = _AROUND + "\u00a1\u00bf "
_AFTER = _AROUND + ".,;:!?\u3001\u3002 "


def normalise_answer(text: str) -> str:
    """An answer without what seldom changes its meaning.

    Compatibility forms are unified (Unicode NFKC) and letters casefolded, white space is collapsed. Quotes
    and marks of emphasis are stripped from both ends, and what ends a sentence from the end. Other signs
    stay: `-5` is not `5`, `50%` not `50` and `[0, 1)` not `(0, 1]`. NFKC also makes `x²` the same as `x2`.

    Args:
        text: An answer.

    Returns:
        The same for answers that differ in nothing else; it may be empty.

    >>> normalise_answer(' "New  York." ')
    'new york'
    """
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    return " ".join(folded.split()).lstrip(_BEFORE).rstrip(_AFTER)


class SelfConsistency(BaseVerifier):
    """Score = 1 - the share of the n candidates that give the same answer, itself among them.

    The score lies in [0, 1 - 1/n], and smaller is better: 0 means that all candidates agree. This is the vote
    of Wang et al. (2022, "Self-consistency improves chain of thought reasoning in language models"). Answers
    that agree get equal scores, so that no set rule can prefer one of their wordings.

    Two candidates agree if their answers are equal, or connected by answers that `equivalent` takes for
    equivalent. Judges contradict themselves: one may hold a and b, b and c, but not a and c for equivalent,
    and then no share is right for all three. Connected components are the smallest groups that split no pair
    which the judge joined, and unlike a search by one representative per group they do not depend on the
    order of the draws. The price is that one false pair joins two groups.

    Args:
        answer: Text to answer, a function or Runnable, plain or async; the whole text if left out.
        normalise: Answer to what is compared, plain or async; None compares answers as they are.
        equivalent: Whether two distinct answers mean the same: a Runnable on `{"prompt": ..., "first":
            answer, "second": answer}` or a function `(prompt, first, second)`, plain or async, that returns a
            bool. It is asked once per pair, concurrently: k distinct answers cost k (k - 1) / 2 calls.
        both_ways: Ask for (second, first) as well, and join only what is equivalent either way, as for
            entailment: Kuhn et al. (2023, "Semantic uncertainty") join answers that entail each other. Twice
            the calls.

    Raises:
        InputError: If `both_ways` is set without `equivalent`.
    """

    def __init__(
        self,
        answer: Reading | None = None,
        *,
        normalise: Reading | None = normalise_answer,
        equivalent: Equivalence | None = None,
        both_ways: bool = False,
    ) -> None:
        if both_ways and equivalent is None:
            msg = "both_ways= says how to ask equivalent=, which is not given"
            raise InputError(msg)
        self.name = "self-consistency"
        own = None if normalise is normalise_answer else normalise
        self._settings = {
            "answer": "whole text" if answer is None else "extracted",
            "normalised": ("no" if normalise is None else "nfkc, casefold, trimmed")
            if own is None
            else "own",
            "agreement": "equal" if equivalent is None else "both ways" if both_ways else "equivalent",
        }
        parts = {"answer": answer, "normalise": own, "equivalent": equivalent}
        given = {role: part for role, part in parts.items() if part is not None}
        self.fingerprint = combined_fingerprint(self.name, self._settings, given)
        self._extract = None if answer is None else _reading("answer extractor", answer)
        self._normalise = None if own is None else _reading("normalisation", own)
        self._plainly = normalise is normalise_answer
        self._equivalent = (
            None if equivalent is None else Call("equivalence", _of_three(equivalent), VerifierError)
        )
        self._both_ways = both_ways

    def __repr__(self) -> str:
        """What makes candidates agree."""
        return f"SelfConsistency({', '.join(f'{name}: {value}' for name, value in self._settings.items())})"

    def scored(self, given: VerifierInput, config: RunnableConfig) -> Steps[list[float]]:
        """One share per group of candidates that agree."""
        texts = distinct_texts(given["candidates"])
        by_text = dict(zip(texts, (yield from self._answers(texts, config)), strict=True))
        answers = [by_text[candidate.text] for candidate in given["candidates"]]
        distinct = list(dict.fromkeys(answers))
        groups = group_connected(distinct, (yield from self._joined(given["prompt"], distinct, config)))
        sizes = Counter(groups[answer] for answer in answers)
        return [(len(answers) - sizes[groups[answer]]) / len(answers) for answer in answers]

    def _answers(self, texts: Sequence[str], config: RunnableConfig) -> Steps[list[str]]:
        """What is compared, for each text."""
        found = list(texts)
        for call in (self._extract, self._normalise):
            if call is not None:
                found = [_checked(one) for one in (yield from call.all(found, config))]
        return [normalise_answer(one) for one in found] if self._plainly else found

    def _joined(self, prompt: Any, answers: Sequence[str], config: RunnableConfig) -> Steps[list[_Pair]]:
        """The pairs of distinct answers that are equivalent."""
        if self._equivalent is None:
            return []
        pairs = list(combinations(answers, 2))
        asked = [*pairs, *((second, first) for first, second in pairs)] if self._both_ways else pairs
        questions = [{"prompt": prompt, "first": first, "second": second} for first, second in asked]
        found = yield from self._equivalent.each(questions, config)
        said = dict(zip(asked, map(_verdict, found), strict=True))
        return [pair for pair in pairs if said[pair] and said.get(pair[::-1], True)]


_Pair: TypeAlias = tuple[str, str]


def group_connected(answers: Sequence[str], joined: Iterable[_Pair]) -> dict[str, str]:
    """The connected components of answers, each named by one of its members.

    Args:
        answers: Distinct answers.
        joined: Pairs of them that belong together.

    Returns:
        The name of the component of each answer.
    """
    names = {answer: answer for answer in answers}
    for first, second in joined:
        kept, gone = names[first], names[second]
        names = {answer: kept if name == gone else name for answer, name in names.items()}
    return names


def _reading(part: str, target: Reading) -> Call:
    return Call(
        part,
        without_streaming_and_cache(target, fresh=False) if isinstance(target, Runnable) else target,
        VerifierError,
    )


def _of_three(function: Equivalence) -> Target:
    """A function of prompt and two answers as one of a mapping that holds them by name."""
    if isinstance(function, Runnable):
        return without_streaming_and_cache(function, fresh=False)
    # No closure, for those cannot be pickled.
    return partial(_acalled if is_async_callable(function) else _called, function)


def _called(function: Callable[..., Any], pair: Mapping[str, Any]) -> Any:
    return function(pair["prompt"], pair["first"], pair["second"])


async def _acalled(function: Callable[..., Any], pair: Mapping[str, Any]) -> Any:
    return await function(pair["prompt"], pair["first"], pair["second"])


def _checked(answer: Any) -> str:
    if isinstance(answer, str):
        return answer
    msg = f"an answer is a {type(answer).__name__}; expected text, an empty one where there is no answer"
    raise VerifierError(msg)


def _verdict(found: Any) -> bool:
    value = to_python_scalar(found)
    if isinstance(value, bool):
        return value
    msg = f"equivalent= returned {found!r:.80}; expected True or False, so let it read the judge's words"
    raise VerifierError(msg)
