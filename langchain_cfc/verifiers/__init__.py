"""Verifiers give every candidate a score in [0, 1]; smaller is better."""

from __future__ import annotations

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
