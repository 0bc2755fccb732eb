"""The term `hard(statistic, ..., fraction)`: prompts that stand out in any statistic, and the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import ClassVar

import numpy as np

from langchain_cfc._arrays import FloatArray
from langchain_cfc.draws import Draws
from langchain_cfc.errors import FeatureError
from langchain_cfc.features._text import listed, number
from langchain_cfc.features.bases.term import Term, indicators, own_columns
from langchain_cfc.features.statistics import Statistic
from langchain_cfc.features.weights import GuaranteedWeight


@dataclass(frozen=True)
class Hard(Term[float]):
    """The two groups of the paper's TriviaQA experiment, `hard(entropy, max_score, 0.925)`.

    Each statistic is replaced by its rank: how many of the N fit prompts have at most this value. A prompt is
    hard where the largest of its ranks reaches R, the q-quantile of these largest ranks over the fit split
    (as `numpy.quantile` places it, among N values at (N - 1) q). Ranks never decrease in the value, so "rank
    of s_j reaches R" means that s_j is at least the R-th smallest value of s_j on the fit split, c_j:

        hard  <=>  max_j rank_j >= R  <=>  s_1 >= c_1 or s_2 >= c_2 or ...

    The cut-offs c_j are all there is to store, and no rank is ever divided or rounded. Tied prompts share the
    largest rank among them; they are hard together or easy together, so that ties at a cut-off make the hard
    group larger.

    Attributes:
        parts: The statistics s_j.
        fraction: q as decimal text, between 0 and 1.
        learned: The cut-offs c_j.
    """

    learns: ClassVar[str] = "cuts"
    sums_to_one: ClassVar[bool] = True
    parts: tuple[Statistic, ...]
    fraction: str

    @property
    def text(self) -> str:
        """Such as `hard(entropy, max_score, 0.925)`."""
        return f"hard({', '.join(part.text for part in self.parts)}, {self.fraction})"

    @property
    def statistics(self) -> tuple[Statistic, ...]:
        """The statistics s_j."""
        return self.parts

    @property
    def names(self) -> tuple[str, ...]:
        """Such as `hard(entropy, 0.9)=easy`, `hard(entropy, 0.9)=hard`."""
        return f"{self.text}=easy", f"{self.text}=hard"

    def learn(self, draws: Draws) -> tuple[float, ...]:
        """The cut-offs; a FeatureError if ties leave no easy prompt."""
        values = [part.values(draws) for part in self.parts]
        ordered = [np.sort(column) for column in values]
        ranks = [np.searchsorted(o, v, side="right") for o, v in zip(ordered, values, strict=True)]
        largest = np.sort(np.max(ranks, axis=0))
        # Between two order statistics a quantile has no fit prompt; reaching it is reaching the upper one.
        reach = int(largest[ceil((len(largest) - 1) * Fraction(self.fraction))])
        if reach == int(largest[0]):
            msg = (
                f"{self.text} calls every prompt of the fit split hard, because of ties; take statistics "
                f"with more different values than {listed(part.text for part in self.parts)}, or a larger "
                "fraction"
            )
            raise FeatureError(msg)
        return tuple(float(column[reach - 1]) for column in ordered)

    def admit(self, values: Sequence[object]) -> tuple[float, ...]:
        """One number per statistic."""
        return self.admit_numbers(values, len(self.parts), len(self.parts))

    def transform(self, draws: Draws) -> FloatArray:
        """(N, 2) indicators of easy and hard."""
        reached = [part.values(draws) >= cut for part, cut in zip(self.parts, self.learned, strict=True)]
        return indicators(np.any(reached, axis=0).astype(np.int64), 2)

    @property
    def weights(self) -> tuple[GuaranteedWeight, ...]:
        """Easy prompts and hard prompts."""
        pairs = [(part.words, number(cut)) for part, cut in zip(self.parts, self.learned, strict=True)]
        easy = " and ".join(f"whose {words} is below {cut}" for words, cut in pairs)
        hard = " or ".join(f"whose {words} is at least {cut}" for words, cut in pairs)
        return tuple(
            GuaranteedWeight(name, "indicator", f"prompts {words}", own)
            for name, words, own in zip(self.names, (easy, hard), own_columns(2), strict=True)
        )
