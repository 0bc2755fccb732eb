"""A report: one HTML page that says what is promised, what happened and what to do next."""

from __future__ import annotations

from langchain_cfc.report.hardest import (
    MOST_PROMPTS,
    HardAnswer,
    HardestPrompts,
    HardPrompt,
    hardest_prompts,
)
from langchain_cfc.report.page import check_report, page, write_report
from langchain_cfc.report.recommendations import Recommendation, Situation, Sources, recommendations

__all__ = [
    "MOST_PROMPTS",
    "HardAnswer",
    "HardPrompt",
    "HardestPrompts",
    "Recommendation",
    "Situation",
    "Sources",
    "check_report",
    "hardest_prompts",
    "page",
    "recommendations",
    "write_report",
]
