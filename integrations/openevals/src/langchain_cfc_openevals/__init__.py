"""Use judges of openevals as verifiers and labelers of langchain-cfc.

`make_judge_verifier` and `make_judge_labeler` make them from a prompt and a chat model, in Python and as
factories in `collect.toml`. `from_evaluator` and `JudgeLabels` of langchain-cfc take any other evaluator.
"""

from __future__ import annotations

from langchain_cfc_openevals.judge import JudgeSettings, make_judge_labeler, make_judge_verifier

__all__ = ["JudgeSettings", "make_judge_labeler", "make_judge_verifier"]
