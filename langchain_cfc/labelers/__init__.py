"""Labelers decide offline whether each candidate is correct, given the reference of the record."""

from __future__ import annotations

from langchain_cfc.labelers.base import BaseLabeler, CandidateLabeling, Labeler, LabelerInput
from langchain_cfc.labelers.judge import JudgeLabels
from langchain_cfc.labelers.matching import ClosedSet, NormalisedMatch
from langchain_cfc.labelers.multiple_choice import MultipleChoice, extract_choice
from langchain_cfc.labelers.numeric import NumericMatch, extract_number, find_final_number
from langchain_cfc.labelers.verdicts import VerdictExtractor

__all__ = [
    "BaseLabeler",
    "CandidateLabeling",
    "ClosedSet",
    "JudgeLabels",
    "Labeler",
    "LabelerInput",
    "MultipleChoice",
    "NormalisedMatch",
    "NumericMatch",
    "VerdictExtractor",
    "extract_choice",
    "extract_number",
    "find_final_number",
]
