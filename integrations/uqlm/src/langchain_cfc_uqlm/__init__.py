"""Use the scorers of uqlm as verifiers of langchain-cfc."""

from __future__ import annotations

from langchain_cfc_uqlm.verifier import ScorerVerifier, from_scorer

__all__ = ["ScorerVerifier", "from_scorer"]
