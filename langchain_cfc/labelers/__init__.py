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
        compare_labels,
        true_coverage,
        true_coverage_at_worst,
    )
    from langchain_cfc.labelers.base import BaseLabeler, Labeler, LabelerInput, Labelling, Reads
    from langchain_cfc.labelers.human import HumanLabels
    from langchain_cfc.labelers.judge import JudgeLabels
    from langchain_cfc.labelers.matching import NormalisedMatch, normal_form
    from langchain_cfc.labelers.multiple_choice import MultipleChoice
    from langchain_cfc.labelers.numeric import NumericMatch, final_number
    from langchain_cfc.labelers.patterns import JsonField, PatternMatch

__all__ = [
    "Agreement",
    "BaseLabeler",
    "HumanLabels",
    "JsonField",
    "JudgeLabels",
    "Kappa",
    "Labeler",
    "LabelerInput",
    "Labelling",
    "MultipleChoice",
    "NormalisedMatch",
    "NumericMatch",
    "PatternMatch",
    "Reads",
    "compare_labels",
    "final_number",
    "normal_form",
    "true_coverage",
    "true_coverage_at_worst",
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
    "Labelling": "base",
    "MultipleChoice": "multiple_choice",
    "NormalisedMatch": "matching",
    "NumericMatch": "numeric",
    "PatternMatch": "patterns",
    "Reads": "base",
    "compare_labels": "agreement",
    "final_number": "numeric",
    "normal_form": "matching",
    "true_coverage": "agreement",
    "true_coverage_at_worst": "agreement",
}

__getattr__, __dir__ = make_lazy(globals(), _HOMES)
