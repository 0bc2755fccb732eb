"""Use evaluators of openevals as verifiers and labelers of langchain-cfc.

`judge_verifier` and `judge_labeler` make them from a prompt and a chat model, `verifier` and `labeler` from
evaluators that call no chat model. All four can be used as factories in `collect.toml`.
"""

from __future__ import annotations

from langchain_cfc_openevals.judge import JudgeSettings
from langchain_cfc_openevals.labeler import EvaluatorLabeler, judge_labeler, labeler
from langchain_cfc_openevals.verifier import EvaluatorVerifier, judge_verifier, verifier

__all__ = [
    "EvaluatorLabeler",
    "EvaluatorVerifier",
    "JudgeSettings",
    "judge_labeler",
    "judge_verifier",
    "labeler",
    "verifier",
]
