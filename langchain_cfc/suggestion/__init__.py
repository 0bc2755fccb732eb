"""Choosing feature map, set rule and verifiers on prompts that never calibrate."""

from __future__ import annotations

from langchain_cfc.suggestion.options import DEFAULT_MAPS, Option
from langchain_cfc.suggestion.prompts import tabulated
from langchain_cfc.suggestion.report import JudgedOption, RunnerUp, Suggestion, Unusable
from langchain_cfc.suggestion.suggest import suggest

__all__ = [
    "DEFAULT_MAPS",
    "JudgedOption",
    "Option",
    "RunnerUp",
    "Suggestion",
    "Unusable",
    "suggest",
    "tabulated",
]
