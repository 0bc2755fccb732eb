"""Experiments on labelled prompts: comparisons over many splits, suggestions, plans, the paper's tables."""

from __future__ import annotations

from langchain_cfc_lab.bot_plan import BotPlan, BotRatePlan, BotStep, plan_bot
from langchain_cfc_lab.bot_promises import BotPromiseFigures, compare_bot_promises
from langchain_cfc_lab.compare import compare
from langchain_cfc_lab.comparison_report import (
    ComparisonReport,
    GroupComparison,
    LevelComparison,
    MethodComparison,
    Spread,
)
from langchain_cfc_lab.draw_choice import (
    DrawSuggestion,
    JudgedDrawRule,
    list_draw_rules,
    suggest_draws,
)
from langchain_cfc_lab.methods import Method, get_methods
from langchain_cfc_lab.metrics import FIGURES
from langchain_cfc_lab.paper import SyntheticReport, reproduce_synthetic
from langchain_cfc_lab.plan import (
    AttainableAt,
    GroupPlan,
    Plan,
    plan_calibration,
)
from langchain_cfc_lab.published import Cell, FigureSeries, PublishedCell, list_published_cells
from langchain_cfc_lab.studies import STUDIES, StudyName, StudyReport, reproduce_study
from langchain_cfc_lab.suggest import Suggestion, suggest
from langchain_cfc_lab.trials import DEFAULT_MAPS, JudgedOption, Option

__all__ = [
    "DEFAULT_MAPS",
    "FIGURES",
    "STUDIES",
    "AttainableAt",
    "BotPlan",
    "BotPromiseFigures",
    "BotRatePlan",
    "BotStep",
    "Cell",
    "ComparisonReport",
    "DrawSuggestion",
    "FigureSeries",
    "GroupComparison",
    "GroupPlan",
    "JudgedDrawRule",
    "JudgedOption",
    "LevelComparison",
    "Method",
    "MethodComparison",
    "Option",
    "Plan",
    "PublishedCell",
    "Spread",
    "StudyName",
    "StudyReport",
    "Suggestion",
    "SyntheticReport",
    "compare",
    "compare_bot_promises",
    "get_methods",
    "list_draw_rules",
    "list_published_cells",
    "plan_bot",
    "plan_calibration",
    "reproduce_study",
    "reproduce_synthetic",
    "suggest",
    "suggest_draws",
]
