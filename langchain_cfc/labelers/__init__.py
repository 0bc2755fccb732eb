"""Labelers: offline, whether each candidate is correct, given the reference of the record.

Importing this package loads nothing; each name below is loaded when it is first used.
"""

from __future__ import annotations

from langchain_cfc._internal.lazy import make_lazy

# Type checkers know this name; to import it would cost as much as all the rest here.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from langchain_cfc.labelers.agreement import (
        Agreement,
        Kappa,
        bound_true_coverage,
        bound_true_coverage_at_worst,
        compare_labels,
    )
    from langchain_cfc.labelers.base import BaseLabeler, CandidateLabeling, Labeler, LabelerInput, Reads
    from langchain_cfc.labelers.human import HumanLabels
    from langchain_cfc.labelers.judge import JudgeLabels
    from langchain_cfc.labelers.matching import NormalisedMatch, compute_normal_form
    from langchain_cfc.labelers.multiple_choice import MultipleChoice
    from langchain_cfc.labelers.numeric import NumericMatch, find_final_number
    from langchain_cfc.labelers.patterns import JsonField, PatternMatch

__all__ = [
    "Agreement",
    "BaseLabeler",
    "CandidateLabeling",
    "HumanLabels",
    "JsonField",
    "JudgeLabels",
    "Kappa",
    "Labeler",
    "LabelerInput",
    "MultipleChoice",
    "NormalisedMatch",
    "NumericMatch",
    "PatternMatch",
    "Reads",
    "bound_true_coverage",
    "bound_true_coverage_at_worst",
    "compare_labels",
    "compute_normal_form",
    "find_final_number",
]

_HOMES = {
    "Agreement": "agreement",
    "BaseLabeler": "base",
    "HumanLabels": "human",
    "JsonField": "patterns",
    "JudgeLabels": "judge",
    "Kappa": "agreement",
    "Labeler": "base",
    "LabelerInput": "base",
    "CandidateLabeling": "base",
    "MultipleChoice": "multiple_choice",
    "NormalisedMatch": "matching",
    "NumericMatch": "numeric",
    "PatternMatch": "patterns",
    "Reads": "base",
    "compare_labels": "agreement",
    "find_final_number": "numeric",
    "compute_normal_form": "matching",
    "bound_true_coverage": "agreement",
    "bound_true_coverage_at_worst": "agreement",
}

__getattr__, __dir__ = make_lazy(globals(), _HOMES)
