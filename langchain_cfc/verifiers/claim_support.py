"""Whether a claim is supported: by further answers of the same model, or by a retrieved context.

Both verifiers ask a judge of entailment, as `SelfConsistency(entails=...)` does: a model of natural language
inference, or a chat model by `EntailmentJudge`. They take whole answers as candidates as well as claims.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain_core.runnables import RunnableConfig

from langchain_cfc.errors import VerifierError
from langchain_cfc.execution import Call, Steps, Target
from langchain_cfc.sampling import make_silent_call
from langchain_cfc.verifiers.base import BaseVerifier, VerifierInput, combined_fingerprint
from langchain_cfc.verifiers.entailment import Entailment, EntailmentInput, estimate_entailment


class ClaimAgreement(BaseVerifier):
    """Score = 1 - the mean probability with which the other answers to the prompt entail the claim.

    A claim that the model makes again and again scores low, one that it made once scores 1. It needs further
    answers: collect and serve claims with n of at least 2, of which the first is split. For k distinct claims
    and n answers it asks the judge k (n - 1) times.

    Source: Manakul, Liusie and Gales (2023), "SelfCheckGPT: zero-resource black-box hallucination detection
    for generative large language models", with natural language inference.

    Args:
        entails: A Runnable on `{"prompt", "premise", "hypothesis"}`, or a function of the three, plain or
            async; see `read_entailment` for what it may return. A probability of entailment is used as it is.
    """

    def __init__(self, entails: Entailment) -> None:
        self.name = "claim-agreement"
        self.fingerprint = combined_fingerprint(self.name, {}, {"entails": entails})
        self._judge = _make_judge(entails)

    def __repr__(self) -> str:
        """State what it does in the form of a call."""
        return "ClaimAgreement(entails=...)"

    def flow(self, given: VerifierInput, config: RunnableConfig) -> Steps[list[float]]:
        """Ask whether each other answer entails each distinct claim."""
        others = [one.text for one in given.get("answers", [])[1:]]
        if not others:
            msg = (
                "ClaimAgreement compares claims with further answers, and there are none: it is for claims "
                'that are collected and served with n of at least 2 (output="claims")'
            )
            raise VerifierError(msg)
        support = yield from _ask(self._judge, given, others, config)
        return [1.0 - sum(row) / len(row) for row in support]


class ContextSupport(BaseVerifier):
    """Score = 1 - the largest probability with which a passage of the context entails the claim.

    Args:
        entails: As in `ClaimAgreement`.
        context: Makes the passages of a prompt, such as what was retrieved for it: a function or Runnable
            from the prompt to a text or a list of texts. It has to find what the chain has seen.
    """

    separate_scores = True

    def __init__(self, entails: Entailment, context: Target) -> None:
        self.name = "context-support"
        self.fingerprint = combined_fingerprint(self.name, {}, {"entails": entails, "context": context})
        self._judge = _make_judge(entails)
        self._context = make_silent_call("context", context, VerifierError)

    def __repr__(self) -> str:
        """State what it does in the form of a call."""
        return "ContextSupport(entails=..., context=...)"

    def flow(self, given: VerifierInput, config: RunnableConfig) -> Steps[list[float]]:
        """Ask whether each passage entails each distinct claim; without any passage none is supported."""
        found = yield from self._context.invoke_one(given["prompt"], config)
        passages = [found] if isinstance(found, str) else found
        if not isinstance(passages, Sequence) or not all(isinstance(one, str) for one in passages):
            msg = f"context= returned {found!r:.80}; expected a text or a list of texts"
            raise VerifierError(msg)
        support = yield from _ask(self._judge, given, list(passages), config)
        return [1.0 - max(row, default=0.0) for row in support]


def _make_judge(entails: Entailment) -> Call:
    return make_silent_call("entailment", entails, VerifierError, keys=("prompt", "premise", "hypothesis"))


def _ask(
    judge: Call, given: VerifierInput, premises: Sequence[str], config: RunnableConfig
) -> Steps[list[list[float]]]:
    """Return for each candidate the probability that each premise entails it; no pair is asked twice."""
    texts = [one.text for one in given["candidates"]]
    pairs = [(premise, text) for text in dict.fromkeys(texts) for premise in dict.fromkeys(premises)]
    asked: list[Any] = [
        EntailmentInput(prompt=given["prompt"], premise=premise, hypothesis=text) for premise, text in pairs
    ]
    replies = (yield from judge.invoke_each(asked, config)) if asked else []
    known = {pair: estimate_entailment(reply) for pair, reply in zip(pairs, replies, strict=True)}
    return [[known[premise, text] for premise in premises] for text in texts]
