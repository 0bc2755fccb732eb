"""`GuaranteedWeight`: one reweighting of prompts under which the promise holds."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from langchain_cfc._arrays import FloatArray
from langchain_cfc.errors import FeatureError

_DECIMAL = re.compile(r"\d+\.\d+(?:e[-+]?\d+)?")
_SOFT = re.compile(r"prompts weighted.* how near their (.*) is to (.*?)(?: \(.*)?", re.DOTALL)

WeightKind: TypeAlias = Literal["constant", "indicator", "hat", "bernstein"]


@dataclass(frozen=True)
class GuaranteedWeight:
    """A function f(X) = features(X) @ coefficients that is non-negative for every possible prompt.

    Coverage is promised under every such f (the paper's function class F): for an indicator this is coverage
    within a group, for the other kinds coverage where nearby prompts count more. A map spans
    many more non-negative functions, and the promise covers those as well; these are the ones that have a
    name. Hat functions and Bernstein polynomials are non-negative everywhere because the map clips their
    statistic to the range seen when it was fitted; in floating point, a Bernstein polynomial may fall below
    zero by 1e-9.

    Attributes:
        name: A short name, such as `1`, `bins(max_score, 5)[0]` or `bernstein(mean_score, 2)[1]`.
        kind: What kind of function it is.
        words: The prompts it speaks of, in plain English, such as `prompts whose topic is 'capital'`.
        coefficients: (d,) the function in the columns of its feature map.
        of_constant: How often it holds the constant.
        constant: (d,) the constant in the same columns, where it holds any of it.
    """

    name: str
    kind: WeightKind
    words: str
    coefficients: tuple[float, ...]
    of_constant: float = 0.0
    constant: tuple[float, ...] = ()

    def values(self, features: FloatArray) -> FloatArray:
        """The weight of each prompt.

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
        values = np.asarray(features @ np.array(self.coefficients), dtype=np.float64)
        if self.of_constant:
            # The constant may be the sum of a group's columns, all zero where its category is unknown.
            missing = ~features[:, np.array(self.constant) != 0.0].any(axis=1)
            values[missing] += self.of_constant
        return values


def in_short(words: str, digits: int | None = 4) -> str:
    """What a weighting speaks of, short enough for a table.

    Args:
        words: Its words.
        digits: Significant digits that decimal numbers are cut to; None leaves them as they are.

    Returns:
        The same without what goes without saying.

    >>> in_short("prompts whose topic is 'sums'"), in_short("prompts whose mean score is below 0.123456")
    ("topic is 'sums'", 'mean score is below 0.1235')
    """
    if digits is not None:
        words = _DECIMAL.sub(lambda found: f"{float(found[0]):.{digits}g}", words)
    soft = _SOFT.fullmatch(words)
    if soft:
        return f"{soft[1]} near {soft[2]} (soft)"
    return words.removeprefix("prompts ").removeprefix("whose ")
