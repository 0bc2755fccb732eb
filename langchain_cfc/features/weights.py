"""Weightings of prompts under which a feature map guarantees coverage, with their names and words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from langchain_cfc.errors import FeatureError
from langchain_cfc.support.arrays import FloatArray

WeightKind: TypeAlias = Literal["constant", "indicator", "hat", "bernstein"]


@dataclass(frozen=True)
class GuaranteedWeight:
    """A function f(X) = of_constant + features(X) @ coefficients, non-negative for every possible prompt.

    Coverage is guaranteed under every such f (the paper's function class F): for an indicator this is
    coverage within a group, for the other kinds coverage with nearby prompts weighted more. A map spans many
    more non-negative functions, and the guarantee covers those as well; these are the ones with a name. Hat
    functions and Bernstein polynomials are non-negative everywhere because the map clips their statistic to
    the fitted range; in floating point, a Bernstein polynomial may fall below zero by 1e-9.

    Attributes:
        name: A short name, such as `1`, `bins(max_score, 5)[0]` or `bernstein(mean_score, 2)[1]`.
        kind: What kind of function it is.
        words: The prompts it weights, in plain English, such as `prompts whose topic is 'capital'`.
        coefficients: (d,) coefficients of the columns of its feature map, or of its term alone.
        of_constant: Coefficient of the constant, which is in the span of the columns. It is 1 for a prompt of
            an unknown category, too, whose columns are all zero.
    """

    name: str
    kind: WeightKind
    words: str
    coefficients: tuple[float, ...]
    of_constant: float = 0.0

    def compute_values(self, features: FloatArray) -> FloatArray:
        """Compute the weight of each prompt.

        Args:
            features: (N, d) features, from the same map.

        Returns:
            (N,) weights, non-negative up to the round-off of Bernstein polynomials.

        Raises:
            FeatureError: If the features have another number of columns.
        """
        if features.shape != (len(features), len(self.coefficients)):
            msg = f"{self.name} takes (N, {len(self.coefficients)}) features, got shape {features.shape}"
            raise FeatureError(msg)
        return np.asarray(features @ np.array(self.coefficients) + self.of_constant, dtype=np.float64)
