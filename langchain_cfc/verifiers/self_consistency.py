"""Self-consistency: the share of the candidates that give another answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from langchain_core.runnables import Runnable, RunnableConfig

from langchain_cfc.execution import Steps
from langchain_cfc.no_answers import is_invisible
from langchain_cfc.sampling.candidates import Description
from langchain_cfc.sampling.models import without_streaming_and_cache
from langchain_cfc.support.normalisation import NORMALISATION, normalise_answer
from langchain_cfc.verifiers.base import BaseVerifier, VerifierInput, combine_fingerprints
from langchain_cfc.verifiers.entailment import Entailment, group_by_entailment, make_judge

__all__ = ["SelfConsistency", "normalise_answer"]

Extractor: TypeAlias = Runnable[Any, Any] | Callable[[str], str] | Callable[[str], Awaitable[str]]


class SelfConsistency(BaseVerifier):
    """Score = 1 - the share of the n candidates that give the same answer, itself included.

    The score lies in [0, 1 - 1/n], and smaller is better: 0 means that all candidates agree. A candidate with
    a blank answer agrees with none and scores 1. This is the vote
    of Wang et al. (2022, "Self-consistency improves chain of thought reasoning in language models"). Answers
    that agree get equal scores, so that no set rule can prefer one of their wordings.

    Two candidates agree if their answers have the same normal form, see `normalise_answer`. With `entails`,
    an answer joins the first group whose first answer it entails and is entailed by, in draw order. These are
    the clusters of meaning of semantic entropy (Kuhn et al. 2023, "Semantic uncertainty"; Farquhar et al.
    2024, "Detecting hallucinations in large language models using semantic entropy"). k distinct answers in c
    groups cost at most 2 k c calls.

    Semantic entropy is one number per prompt, whereas a verifier gives one per candidate: here 1 - the share
    of its cluster. Features see the spread of the clusters in these scores: `mean_score` is 1 - the sum of
    the squared shares (the quadratic entropy), `min_score` is 1 - the largest share, and the mean of
    -log(1 - score) is the discrete semantic entropy itself. The features `entropy` and `distinct_answers`
    count answers of different normal form, not clusters.

    Args:
        answer: Function or Runnable, plain or async, from a text to its answer; by default the whole text.
        entails: Whether one answer entails another: a Runnable on `{"prompt": ..., "premise": answer,
            "hypothesis": answer}`, such as `EntailmentJudge(model)`, or a function `(prompt, premise,
            hypothesis)`, plain or async. It returns True or False, or the probability of entailment.
    """

    def __init__(self, answer: Extractor | None = None, *, entails: Entailment | None = None) -> None:
        self.name = "self-consistency"
        settings = {
            "answer": "whole text" if answer is None else "extracted",
            "normalised": NORMALISATION,
            "agreement": "equal" if entails is None else "entailed both ways",
        }
        parts = {"answer": answer, "entails": entails}
        self.fingerprint = combine_fingerprints(self.name, settings, parts)
        silent = without_streaming_and_cache(answer, fresh=False) if isinstance(answer, Runnable) else answer
        self._answers = Description(silent, None)
        self._entails = None if entails is None else make_judge(entails)

    def flow(self, given: VerifierInput, config: RunnableConfig) -> Steps[list[float]]:
        """Group the candidates that agree, and score each by the share of its group."""
        extracted = yield from self._answers.extract_answers(given["candidates"], config)
        answers = list(map(normalise_answer, extracted))
        distinct = [answer for answer in dict.fromkeys(answers) if not is_invisible(answer)]
        groups = dict(zip(distinct, distinct, strict=True))
        if self._entails is not None:
            groups = yield from group_by_entailment(self._entails, given["prompt"], distinct, config)
        names = [groups.get(answer) for answer in answers]
        n, sizes = len(names), Counter(names)
        # A candidate without an answer is in no group.
        return [1.0 if name is None else (n - sizes[name]) / n for name in names]
