"""Comparing methods on the same prompts, split again and again."""

from __future__ import annotations

from langchain_cfc.comparison.catalogue import methods_named
from langchain_cfc.comparison.compare import compare
from langchain_cfc.comparison.methods import Method
from langchain_cfc.comparison.metrics import FIGURES
from langchain_cfc.comparison.report import (
    ComparisonReport,
    GroupComparison,
    LevelComparison,
    MethodComparison,
    Spread,
)

__all__ = [
    "FIGURES",
    "ComparisonReport",
    "GroupComparison",
    "LevelComparison",
    "Method",
    "MethodComparison",
    "Spread",
    "compare",
    "methods_named",
]
