"""Verifiers of claims: support by further answers of the same model, or by a retrieved context.

Both verifiers ask an entailment judge, as `SelfConsistency(entails=...)` does: a natural language inference
model, or a chat model in an `EntailmentJudge`. Candidates may be claims or whole answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from langchain_core.documents import Document
from langchain_core.runnables import RunnableConfig

from langchain_cfc.errors import VerifierError
from langchain_cfc.execution import Call, Steps, Target
from langchain_cfc.sampling import make_silent_call
from langchain_cfc.verifiers.base import BaseVerifier, VerifierInput, combine_fingerprints
from langchain_cfc.verifiers.entailment import Entailment, estimate_pairs, make_judge


class ClaimAgreement(BaseVerifier):
    """Score = 1 - the mean probability with which the other answers to the prompt entail the claim.

    A claim that the model makes again and again scores low; one that no other answer supports scores 1. This
    needs further answers: collect and serve claims with n of at least 2, of which the first answer is split.
    For k distinct claims and n answers, the judge is called at most k (n - 1) times.

    Source: Manakul, Liusie and Gales (2023), "SelfCheckGPT: zero-resource black-box hallucination detection
    for generative large language models", with natural language inference.

    Args:
        entails: A Runnable on `{"prompt", "premise", "hypothesis"}`, or a function of the three, plain or
            async, that returns True or False, or the probability of entailment; None without a verdict.
    """

    def __init__(self, entails: Entailment) -> None:
        self.name = "claim-agreement"
        self.fingerprint = combine_fingerprints(self.name, {}, {"entails": entails})
        self._judge = make_judge(entails)

    def flow(self, given: VerifierInput, config: RunnableConfig) -> Steps[list[float | None]]:
        """Ask whether each other answer entails each distinct claim."""
        others = [one.text for one in given.get("answers", [])[1:]]
        if not others:
            msg = (
                "ClaimAgreement compares claims with further answers, but there are none: collect and serve "
                'claims (output="claims") with n of at least 2'
            )
            raise VerifierError(msg)
        support = yield from _estimate_support(self._judge, given, others, config)
        return [None if row is None else 1.0 - sum(row) / len(row) for row in support]


class ContextSupport(BaseVerifier):
    """Score = 1 - the largest probability with which a passage of the context entails the claim.

    Args:
        entails: As in `ClaimAgreement`.
        context: Function or Runnable, such as a retriever, from a prompt to its passages: one or several
            texts or documents. It has to return what the chain has seen.
    """

    separate_scores = True

    def __init__(self, entails: Entailment, context: Target) -> None:
        self.name = "context-support"
        self.fingerprint = combine_fingerprints(self.name, {}, {"entails": entails, "context": context})
        self._judge = make_judge(entails)
        self._context = make_silent_call("context", context, VerifierError)

    def flow(self, given: VerifierInput, config: RunnableConfig) -> Steps[list[float | None]]:
        """Ask whether each passage entails each distinct claim; without any passage none is supported."""
        found = yield from self._context.invoke_one(given["prompt"], config)
        is_one = isinstance(found, (str, Document, Mapping)) or not isinstance(found, Iterable)
        listed = [found] if is_one else list(found)
        passages = [one.page_content if isinstance(one, Document) else one for one in listed]
        if not all(isinstance(one, str) for one in passages):
            msg = f"context= returned {found!r:.80}; expected texts or documents"
            raise VerifierError(msg)
        support = yield from _estimate_support(self._judge, given, passages, config)
        return [None if row is None else 1.0 - max(row, default=0.0) for row in support]


def _estimate_support(
    judge: Call, given: VerifierInput, premises: Sequence[str], config: RunnableConfig
) -> Steps[list[list[float] | None]]:
    """Return for each candidate the probability that each premise entails it; ask about each pair once.

    A pair without a verdict counts as no entailment; None for a candidate without any verdict.
    """
    texts = [one.text for one in given["candidates"]]
    pairs = [(premise, text) for text in dict.fromkeys(texts) for premise in dict.fromkeys(premises)]
    found = yield from estimate_pairs(judge, given["prompt"], pairs, config)
    known = dict(zip(pairs, found, strict=True))
    rows = [[known[premise, text] for premise in premises] for text in texts]
    return [None if set(row) == {None} else [one or 0.0 for one in row] for row in rows]
