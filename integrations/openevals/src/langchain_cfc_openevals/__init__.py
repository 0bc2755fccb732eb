"""Use evaluators of openevals as verifiers and labelers of langchain-cfc.

`make_judge_verifier` and `make_judge_labeler` make them from a prompt and a chat model, `make_verifier` and
`make_labeler` from evaluators that call no chat model. All four can be used as factories in `collect.toml`.
"""

from __future__ import annotations

from langchain_cfc_openevals.judge import JudgeSettings
from langchain_cfc_openevals.labeler import EvaluatorLabeler, make_judge_labeler, make_labeler
from langchain_cfc_openevals.verifier import EvaluatorVerifier, make_judge_verifier, make_verifier

__all__ = [
    "EvaluatorLabeler",
    "EvaluatorVerifier",
    "JudgeSettings",
    "make_judge_labeler",
    "make_judge_verifier",
    "make_labeler",
    "make_verifier",
]
