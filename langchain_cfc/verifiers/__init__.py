"""Verifiers: a score in [0, 1] for every candidate, smaller is better."""

from __future__ import annotations

from langchain_cfc.verifiers.base import Verifier, VerifierInput, checked_scores, pairwise, verifier_target
from langchain_cfc.verifiers.sequence_probability import SequenceProbability

__all__ = [
    "SequenceProbability",
    "Verifier",
    "VerifierInput",
    "checked_scores",
    "pairwise",
    "verifier_target",
]
