"""Evaluation: what was promised against what happened, on prompts that calibration never saw."""

from __future__ import annotations

from langchain_cfc.evaluation.evaluate import evaluate, held_out
from langchain_cfc.evaluation.report import EvaluationReport, GroupReport, MethodReport

__all__ = ["EvaluationReport", "GroupReport", "MethodReport", "evaluate", "held_out"]
