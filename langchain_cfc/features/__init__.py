"""Features: what the threshold of a prompt may depend on, and the reweightings that the promise covers.

`statistics` turns the draws of a prompt into numbers, `bases` turns numbers into columns, `grammar` reads the
text in which a user names them, `map` puts them together, and `weights` says what the columns guarantee.
"""

from __future__ import annotations

from langchain_cfc.features.map import FeatureMap, naming
from langchain_cfc.features.parser import parse_statistic
from langchain_cfc.features.statistics import Statistic, measured
from langchain_cfc.features.terms import GuaranteedWeight, in_short

__all__ = ["FeatureMap", "GuaranteedWeight", "Statistic", "in_short", "measured", "naming", "parse_statistic"]
