"""Features: what the threshold of a prompt may depend on, and the reweightings that the guarantee covers.

`statistics` computes numbers from the candidates of a prompt. `terms` turns them into columns, and lists the
weightings (`weights`) that these guarantee. `parser` parses feature text, and `map` combines its terms.
"""

from __future__ import annotations

from langchain_cfc.features.adaptive import AdaptiveAlpha
from langchain_cfc.features.map import FeatureMap, name_records_in_errors
from langchain_cfc.features.naming import (
    describe_group,
    get_direction,
    name_group,
    place_question,
    separates_difficulty,
)
from langchain_cfc.features.statistics import Statistic, count_answers, precompute_statistics
from langchain_cfc.features.weights import GuaranteedWeight

__all__ = [
    "AdaptiveAlpha",
    "FeatureMap",
    "GuaranteedWeight",
    "Statistic",
    "count_answers",
    "describe_group",
    "get_direction",
    "name_group",
    "name_records_in_errors",
    "place_question",
    "precompute_statistics",
    "separates_difficulty",
]
