"""Verifiers give every candidate a score in [0, 1]; smaller is better.

Importing this package loads nothing; each name is loaded when it is first used.
"""

from __future__ import annotations

from langchain_cfc.support.imports import make_lazy

# Type checkers know this name; importing it from `typing` would cost as much as the rest of this module.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from langchain_cfc.verifiers.base import BaseVerifier, Verifier, VerifierEnsemble, VerifierInput
    from langchain_cfc.verifiers.claim_support import ClaimAgreement, ContextSupport
    from langchain_cfc.verifiers.entailment import EntailmentJudge
    from langchain_cfc.verifiers.evaluators import EvaluatorVerifier, from_evaluator
    from langchain_cfc.verifiers.model_judge import ModelJudge
    from langchain_cfc.verifiers.prompts import messages_to_text
    from langchain_cfc.verifiers.self_consistency import SelfConsistency, normalise_answer
    from langchain_cfc.verifiers.sequence_probability import SequenceProbability

__all__ = [
    "BaseVerifier",
    "ClaimAgreement",
    "ContextSupport",
    "EntailmentJudge",
    "EvaluatorVerifier",
    "ModelJudge",
    "SelfConsistency",
    "SequenceProbability",
    "Verifier",
    "VerifierEnsemble",
    "VerifierInput",
    "from_evaluator",
    "messages_to_text",
    "normalise_answer",
]

_NAMES = {
    "prompts": ("messages_to_text",),
    "base": ("BaseVerifier", "Verifier", "VerifierEnsemble", "VerifierInput"),
    "claim_support": ("ClaimAgreement", "ContextSupport"),
    "entailment": ("EntailmentJudge",),
    "evaluators": ("EvaluatorVerifier", "from_evaluator"),
    "model_judge": ("ModelJudge",),
    "self_consistency": ("SelfConsistency", "normalise_answer"),
    "sequence_probability": ("SequenceProbability",),
}

__getattr__, __dir__ = make_lazy(globals(), _NAMES)
