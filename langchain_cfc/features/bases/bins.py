"""The term `bins(statistic, count)`: indicators of quantile bins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from langchain_cfc._arrays import FloatArray
from langchain_cfc.draws import Draws
from langchain_cfc.errors import FeatureError
from langchain_cfc.features._text import number
from langchain_cfc.features.bases.term import Term, indicators, own_columns
from langchain_cfc.features.statistics import Statistic
from langchain_cfc.features.weights import GuaranteedWeight


@dataclass(frozen=True)
class Bins(Term[float]):
    """Indicators of the half-open bins [c_i, c_(i+1)) between cut-offs; the outer bins are unbounded.

    The cut-offs are values of the fit split, so that each bin holds prompts of it. Where the statistic takes
    few values, cut-offs coincide and are merged: there are then fewer bins than asked for.

    Attributes:
        statistic: The statistic that is cut.
        count: The number of bins asked for, at least 2.
        learned: The cut-offs c_1 < c_2 < ....
    """

    learns: ClassVar[str] = "cuts"
    sums_to_one: ClassVar[bool] = True
    statistic: Statistic
    count: int

    @property
    def text(self) -> str:
        """Such as `bins(max_score, 5)`."""
        return f"bins({self.statistic.text}, {self.count})"

    @property
    def statistics(self) -> tuple[Statistic, ...]:
        """The statistic that is cut."""
        return (self.statistic,)

    @property
    def names(self) -> tuple[str, ...]:
        """Such as `bins(max_score, 5)[0]`."""
        return tuple(f"{self.text}[{index}]" for index in range(len(self.learned) + 1))

    def learn(self, draws: Draws) -> tuple[float, ...]:
        """The cut-offs; a FeatureError if ties leave fewer than two bins.

        Sorted, the N values of the fit split fall into `count` runs whose sizes differ by at most one; run i
        begins at place floor(i N / count), and the value there is cut-off i. In whole numbers there is no
        rounding to argue about. A cut-off at the smallest value would leave nothing below it and is dropped
        with the duplicates.
        """
        ordered = np.sort(self.statistic.values(draws))
        starts = [index * len(ordered) // self.count for index in range(1, self.count)]
        cuts = sorted({float(ordered[start]) for start in starts} - {float(ordered[0])})
        if not cuts:
            msg = (
                f"{self.text} finds a single bin: {self.statistic.words} is {number(float(ordered[0]))} for "
                f"nearly all {len(ordered)} prompts of the fit split; ask for more bins, take another "
                "statistic, or leave the term out"
            )
            raise FeatureError(msg)
        return tuple(cuts)

    def admit(self, values: Sequence[object]) -> tuple[float, ...]:
        """Increasing numbers, fewer than bins."""
        return self.admit_increasing(values, 1, self.count - 1)

    def transform(self, draws: Draws) -> FloatArray:
        """(N, number of bins) indicators."""
        which = np.searchsorted(np.array(self.learned), self.statistic.values(draws), side="right")
        return indicators(which.astype(np.int64), len(self.names))

    @property
    def weights(self) -> tuple[GuaranteedWeight, ...]:
        """Each bin."""
        inner = [
            f"lies in [{number(lo)}, {number(hi)})"
            for lo, hi in zip(self.learned, self.learned[1:], strict=False)
        ]
        places = [f"is below {number(self.learned[0])}", *inner, f"is at least {number(self.learned[-1])}"]
        return tuple(
            GuaranteedWeight(name, "indicator", f"prompts whose {self.statistic.words} {place}", own)
            for name, place, own in zip(self.names, places, own_columns(len(places)), strict=True)
        )
