"""Measure an artifact on labelled prompts it has never seen, next to the marginal rule, as a report."""

from __future__ import annotations

from langchain_cfc.evaluation.measuring import FALSE_ALARM, evaluate, is_contradicted
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
    state_other_parts,
)

__all__ = [
    "FALSE_ALARM",
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
    "is_contradicted",
    "state_other_parts",
]
