"""Evaluation: what was promised against what happened, on prompts that calibration never saw."""

from __future__ import annotations

from langchain_cfc.evaluation.evaluate import evaluate
from langchain_cfc.evaluation.report import AnswersReport, EvaluationReport, GroupReport, MethodReport

__all__ = ["AnswersReport", "EvaluationReport", "GroupReport", "MethodReport", "evaluate"]
