"""The term `hat(statistic, count)`: piecewise linear hat functions, bins without edges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from langchain_cfc._arrays import FloatArray
from langchain_cfc.draws import Draws
from langchain_cfc.errors import FeatureError
from langchain_cfc.features._text import number
from langchain_cfc.features.bases.term import Term, own_columns
from langchain_cfc.features.statistics import Statistic
from langchain_cfc.features.weights import GuaranteedWeight


@dataclass(frozen=True)
class Hat(Term[float]):
    """One column per knot: 1 at the knot, falling linearly to 0 at its neighbours (linear B-splines).

    The statistic is clipped to the range of the knots, so that columns are non-negative and sum to one for
    every prompt. Unlike powers they are local: the promise holds near each knot, and the threshold moves
    continuously in between.

    Attributes:
        statistic: The statistic.
        count: The number of knots asked for, at least 2.
        learned: The knots, increasing.
    """

    learns: ClassVar[str] = "knots"
    sums_to_one: ClassVar[bool] = True
    statistic: Statistic
    count: int

    @property
    def text(self) -> str:
        """Such as `hat(mean_score, 5)`."""
        return f"hat({self.statistic.text}, {self.count})"

    @property
    def statistics(self) -> tuple[Statistic, ...]:
        """The statistic."""
        return (self.statistic,)

    @property
    def names(self) -> tuple[str, ...]:
        """Such as `hat(mean_score, 5)[2]`."""
        return tuple(f"{self.text}[{index}]" for index in range(len(self.learned)))

    def learn(self, draws: Draws) -> tuple[float, ...]:
        """The knots; a FeatureError if ties leave fewer than two.

        They are the values of the fit split at `count` equally spaced probabilities from 0 (its smallest) to
        1 (its largest), duplicates merged: place floor(i (N - 1) / (count - 1)) of its N sorted values.
        """
        ordered = np.sort(self.statistic.values(draws))
        places = [index * (len(ordered) - 1) // (self.count - 1) for index in range(self.count)]
        knots = sorted({float(ordered[place]) for place in places})
        if len(knots) == 1:
            msg = (
                f"{self.text} needs at least two different values, but {self.statistic.words} is "
                f"{number(knots[0])} for every prompt of the fit split; take another statistic"
            )
            raise FeatureError(msg)
        return tuple(knots)

    def admit(self, values: Sequence[object]) -> tuple[float, ...]:
        """Increasing numbers, at most as many as knots."""
        return self.admit_increasing(values, 2, self.count)

    def transform(self, draws: Draws) -> FloatArray:
        """(N, number of knots) hat functions; at most two of a row are positive."""
        knots = np.array(self.learned)
        # Not np.clip, which takes as long as all else here where there is one prompt.
        values = np.minimum(np.maximum(self.statistic.values(draws), knots[0]), knots[-1])
        right = np.minimum(np.maximum(np.searchsorted(knots, values, side="right"), 1), len(knots) - 1)
        share = (values - knots[right - 1]) / (knots[right] - knots[right - 1])
        columns = np.zeros((len(values), len(knots)))
        rows = np.arange(len(values))
        columns[rows, right - 1] = 1.0 - share
        columns[rows, right] = share
        return columns

    @property
    def weights(self) -> tuple[GuaranteedWeight, ...]:
        """Each hat function."""
        return tuple(
            GuaranteedWeight(name, "hat", f"prompts weighted by {self._nearness(index)}", own)
            for index, (name, own) in enumerate(zip(self.names, own_columns(len(self.learned)), strict=True))
        )

    def _nearness(self, index: int) -> str:
        knots = [number(knot) for knot in self.learned]
        beyond = {0: " or less", len(knots) - 1: " or more"}.get(index, "")
        ends = " and ".join(knots[max(index - 1, 0) : index] + knots[index + 1 : index + 2])
        centre = f"{knots[index]}{beyond}"
        return f"how near their {self.statistic.words} is to {centre} (falling to zero at {ends})"
