"""Certificates with confidence about one frozen artifact, from held-out labelled prompts."""

from __future__ import annotations

from langchain_cfc.certificates.batches import BatchFigures, replay_batches
from langchain_cfc.certificates.coverage import certify, compute_outcomes
from langchain_cfc.certificates.cuts import certify_mean_score
from langchain_cfc.certificates.shown_claims import certify_shown_claims

__all__ = [
    "BatchFigures",
    "certify",
    "certify_mean_score",
    "certify_shown_claims",
    "compute_outcomes",
    "replay_batches",
]
