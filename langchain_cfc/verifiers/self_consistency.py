"""Self-consistency: the share of the candidates that give another answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from itertools import combinations
from typing import Any, TypeAlias

import numpy as np
from langchain_core.runnables import Runnable, RunnableConfig

from langchain_cfc.candidates import score_by_agreement
from langchain_cfc.errors import CFCError, InputError, VerifierError
from langchain_cfc.execution import Call, Steps, map_distinct
from langchain_cfc.no_answers import is_invisible
from langchain_cfc.sampling.models import make_optional_call
from langchain_cfc.support.normalisation import NORMALISATION, normalise_answer
from langchain_cfc.support.text import quote
from langchain_cfc.verifiers.base import (
    BaseVerifier,
    VerifierInput,
    combine_fingerprints,
    to_python_scalar,
)
from langchain_cfc.verifiers.entailment import Entailment, group_by_entailment

__all__ = ["SelfConsistency", "normalise_answer"]

Extractor: TypeAlias = Runnable[Any, Any] | Callable[[str], str] | Callable[[str], Awaitable[str]]
Equivalence: TypeAlias = (
    Runnable[Any, Any] | Callable[[Any, str, str], bool] | Callable[[Any, str, str], Awaitable[bool]]
)


class SelfConsistency(BaseVerifier):
    """Score = 1 - the share of the n candidates that give the same answer, itself included.

    The score lies in [0, 1 - 1/n], and smaller is better: 0 means that all candidates agree. A candidate with
    a blank answer agrees with none and scores 1. This is the vote
    of Wang et al. (2022, "Self-consistency improves chain of thought reasoning in language models"). Answers
    that agree get equal scores, so that no set rule can prefer one of their wordings.

    Two candidates agree if their answers are equal, or if a judge says that they mean the same. There are two
    kinds of judges, with two ways to group:

    - `equivalent` groups answers that are connected by equivalent pairs. Judges can contradict themselves:
      one may call a and b equivalent, and b and c, but not a and c, and then no share is right for all three.
      Connected components are the smallest groups that split no pair joined by the judge, and do not depend
      on draw order. The price is that one false pair joins two groups, and that k distinct answers cost
      k (k - 1) / 2 calls.
    - `entails` puts an answer into the first group whose first answer it entails and is entailed by, in draw
      order. These are the clusters of meaning of semantic entropy (Kuhn et al. 2023, "Semantic uncertainty";
      Farquhar et al. 2024, "Detecting hallucinations in large language models using semantic entropy"). k
      distinct answers in c groups cost at most 2 k c calls.

    Semantic entropy is one number per prompt, whereas a verifier gives one per candidate: here 1 - the share
    of its cluster. Features see the spread of the clusters in these scores: `mean_score` is 1 - the sum of
    the squared shares (the quadratic entropy), `min_score` is 1 - the largest share, and the mean of
    -log(1 - score) is the discrete semantic entropy itself. The features `entropy` and `distinct_answers`
    count answers of different normal form, not clusters.

    Args:
        answer: Function or Runnable, plain or async, from a text to its answer; by default the whole text.
        normalise: The same from an answer to the text that is compared; None compares answers as they are.
        equivalent: Whether two distinct answers mean the same: a Runnable on `{"prompt": ..., "first":
            answer, "second": answer}` or a function `(prompt, first, second)`, plain or async, that returns a
            bool. It is asked once per pair, concurrently.
        entails: Whether one answer entails another: a Runnable on `{"prompt": ..., "premise": answer,
            "hypothesis": answer}`, such as `EntailmentJudge(model)`, or a function `(prompt, premise,
            hypothesis)`, plain or async. It returns a bool, a label (entailment, neutral, contradiction), the
            probability of each label, or what a text-classification pipeline of transformers returns.

    Raises:
        InputError: If both `equivalent` and `entails` are given.
    """

    def __init__(
        self,
        answer: Extractor | None = None,
        *,
        normalise: Extractor | None = normalise_answer,
        equivalent: Equivalence | None = None,
        entails: Entailment | None = None,
    ) -> None:
        if equivalent is not None and entails is not None:
            msg = "equivalent= and entails= are mutually exclusive; give one"
            raise InputError(msg)
        self.name = "self-consistency"
        own = None if normalise is normalise_answer else normalise
        default = "no" if normalise is None else NORMALISATION
        judged = "equal" if entails is None else "entailed both ways"
        self._settings = {
            "answer": "whole text" if answer is None else "extracted",
            "normalised": default if own is None else "own",
            "agreement": judged if equivalent is None else "equivalent",
        }
        self.fingerprint = combine_fingerprints(
            self.name,
            self._settings,
            {"answer": answer, "normalise": own, "equivalent": equivalent, "entails": entails},
        )
        self._extract = make_optional_call("answer extractor", answer, VerifierError)
        self._normalise = make_optional_call("normalisation", own, VerifierError)
        self._has_default_normalisation = normalise is normalise_answer
        self._equivalent = make_optional_call(
            "equivalence", equivalent, VerifierError, "prompt", "first", "second"
        )
        self._entails = make_optional_call(
            "entailment", entails, VerifierError, "prompt", "premise", "hypothesis"
        )

    def __repr__(self) -> str:
        """State what makes candidates agree."""
        return f"SelfConsistency({', '.join(f'{name}: {value}' for name, value in self._settings.items())})"

    def flow(self, given: VerifierInput, config: RunnableConfig) -> Steps[list[float]]:
        """Group the candidates that agree, and score each by the share of its group."""
        # The same code rescores the first candidates of a record if a draw rule keeps only these.
        return score_groups((yield from self.find_groups(given, config)))

    def find_groups(self, given: VerifierInput, config: RunnableConfig) -> Steps[list[int]]:
        """Return for each of n candidates the slot of the first that it agrees with; -1 without an answer."""
        texts = [candidate.text for candidate in given["candidates"]]
        answers = yield from map_distinct(texts, partial(self._find_answers, config))
        distinct = [answer for answer in dict.fromkeys(answers) if not is_invisible(answer)]
        if self._entails is not None:
            groups = yield from group_by_entailment(self._entails, given["prompt"], distinct, config)
        else:
            pairs = yield from self._find_equivalent_pairs(given["prompt"], distinct, config)
            groups = group_connected(distinct, pairs)
        names = [groups.get(answer) for answer in answers]
        return [-1 if name is None else names.index(name) for name in names]

    def _find_answers(self, config: RunnableConfig, texts: list[str]) -> Steps[list[str]]:
        """Return the answer of each text in the form that is compared; what is no answer has none."""
        if "" in texts:
            shown = [text for text in texts if text]
            found = dict(zip(shown, (yield from self._find_answers(config, shown)), strict=True))
            return [found.get(text, "") for text in texts]
        for function in filter(None, [self._extract, self._normalise]):
            texts = yield from extract_answers(function, texts, config, VerifierError)
        return [normalise_answer(one) for one in texts] if self._has_default_normalisation else texts

    def _find_equivalent_pairs(
        self, prompt: Any, answers: Sequence[str], config: RunnableConfig
    ) -> Steps[list[_Pair]]:
        """Ask about each pair of distinct answers, and return those that are equivalent."""
        if self._equivalent is None:
            return []
        pairs = list(combinations(answers, 2))
        questions = [{"prompt": prompt, "first": first, "second": second} for first, second in pairs]
        replies = yield from self._equivalent.invoke_each(questions, config)
        return [pair for pair, reply in zip(pairs, replies, strict=True) if _read_verdict(reply)]


def extract_answers(
    extractor: Call, texts: list[str], config: RunnableConfig, failure: type[CFCError]
) -> Steps[list[str]]:
    """Return the answer of each text; raise `failure` unless all of them are texts."""
    answers = yield from extractor.invoke_in_turn(texts, config)
    for answer in answers:
        if not isinstance(answer, str):
            msg = f"an answer is a {type(answer).__name__}; expected text, empty if there is no answer"
            raise failure(msg)
    return answers


def score_groups(groups: Sequence[int]) -> list[float]:
    """Return 1 - the share of each candidate's group, given the group of each of n candidates.

    A candidate without an answer, in group -1, agrees with none and scores 1.

    Examples:
        >>> score_groups([0, 1, 0, -1])
        [0.5, 0.75, 0.5, 1.0]
    """
    scores: list[float] = score_by_agreement(np.array([groups], dtype=np.int64))[0].tolist()
    return scores


_Pair: TypeAlias = tuple[str, str]


def group_connected(answers: Sequence[str], joined: Iterable[_Pair]) -> dict[str, str]:
    """Map each distinct answer to a name of its connected component, given the joined pairs."""
    names = {answer: answer for answer in answers}
    for first, second in joined:
        kept, gone = names[first], names[second]
        names = {answer: kept if name == gone else name for answer, name in names.items()}
    return names


def _read_verdict(reply: Any) -> bool:
    value = to_python_scalar(reply)
    if isinstance(value, bool):
        return value
    msg = (
        f"equivalent= returned {quote(repr(reply))}; expected True or False: let the function parse the "
        "judge's reply"
    )
    raise VerifierError(msg)
