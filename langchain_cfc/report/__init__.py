"""A report: one HTML page that says what is promised, what happened and what to do next."""

from __future__ import annotations

from langchain_cfc.report.hardest import (
    MOST_PROMPTS,
    HardAnswer,
    HardestPrompts,
    HardPrompt,
    hardest_prompts,
)
from langchain_cfc.report.next_steps import Situation, Sources, Step, next_steps
from langchain_cfc.report.page import page
from langchain_cfc.report.writing import check_report, write_report

__all__ = [
    "MOST_PROMPTS",
    "HardAnswer",
    "HardPrompt",
    "HardestPrompts",
    "Situation",
    "Sources",
    "Step",
    "check_report",
    "hardest_prompts",
    "next_steps",
    "page",
    "write_report",
]
