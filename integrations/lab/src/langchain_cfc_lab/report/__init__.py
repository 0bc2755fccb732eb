"""Reports: one HTML page that says what is promised, what happened and what to do next."""

from __future__ import annotations

from langchain_cfc_lab.report.frame import check_report
from langchain_cfc_lab.report.hardest import (
    MOST_PROMPTS,
    HardAnswer,
    HardestPrompts,
    HardPrompt,
    find_hardest_prompts,
)
from langchain_cfc_lab.report.page import render_report, write_report
from langchain_cfc_lab.report.recommendations import Findings, Recommendation, Sources, recommend

__all__ = [
    "MOST_PROMPTS",
    "Findings",
    "HardAnswer",
    "HardPrompt",
    "HardestPrompts",
    "Recommendation",
    "Sources",
    "check_report",
    "find_hardest_prompts",
    "recommend",
    "render_report",
    "write_report",
]
