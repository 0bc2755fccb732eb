"""Measure an artifact on labelled prompts it has never seen, next to the marginal rule, as a report."""

from __future__ import annotations

from langchain_cfc.evaluation.measuring import evaluate
from langchain_cfc.evaluation.report import (
    AnswersReport,
    ClaimsFigures,
    EvaluationReport,
    GroupFigures,
    GroupReport,
    LevelReport,
    MethodFigures,
    MethodReport,
    ReportData,
)

__all__ = [
    "AnswersReport",
    "ClaimsFigures",
    "EvaluationReport",
    "GroupFigures",
    "GroupReport",
    "LevelReport",
    "MethodFigures",
    "MethodReport",
    "ReportData",
    "evaluate",
]
