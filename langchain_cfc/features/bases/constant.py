"""The term `1`: the constant, and with it the promise on average over all prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from langchain_cfc._arrays import FloatArray
from langchain_cfc.draws import Draws
from langchain_cfc.features.bases.term import Term
from langchain_cfc.features.statistics import Statistic
from langchain_cfc.features.weights import GuaranteedWeight


@dataclass(frozen=True)
class Constant(Term[float]):
    """A column of ones. Its weight is the one that every map lists first, so it lists none of its own."""

    learns: ClassVar[str] = ""
    sums_to_one: ClassVar[bool] = True
    text: ClassVar[str] = "1"
    statistics: ClassVar[tuple[Statistic, ...]] = ()
    names: ClassVar[tuple[str, ...]] = ("1",)
    weights: ClassVar[tuple[GuaranteedWeight, ...]] = ()

    def learn(self, draws: Draws) -> tuple[float, ...]:  # noqa: ARG002  (one shape for all terms)
        """Nothing."""
        return ()

    def admit(self, values: Sequence[object]) -> tuple[float, ...]:  # noqa: ARG002  (one shape for all terms)
        """Nothing."""
        return ()

    def transform(self, draws: Draws) -> FloatArray:
        """(N, 1) ones."""
        return np.ones((len(draws), 1))
