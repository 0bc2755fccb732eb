"""The term `statistic^degree`: powers of a statistic, and the Bernstein polynomials that they span."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import comb
from typing import ClassVar

import numpy as np

from langchain_cfc._arrays import FloatArray
from langchain_cfc.draws import Draws
from langchain_cfc.errors import FeatureError
from langchain_cfc.features._text import number
from langchain_cfc.features.bases.term import Term
from langchain_cfc.features.statistics import Statistic
from langchain_cfc.features.weights import GuaranteedWeight

_LARGEST_ROUNDING = Fraction(1, 10**9)
_LARGEST_COEFFICIENT = 10**100


@dataclass(frozen=True)
class Polynomial(Term[float]):
    """Columns T, T^2, ..., T^k of a statistic T clipped to the range [lo, hi] of the fit split.

    With the constant, which the map adds, `mean_score^2` is the paper's [1, T, T^2]. Powers span no
    indicator: the non-negative functions to be had are smooth bumps such as the Bernstein polynomials on
    [lo, hi]. Without the clipping even these would turn negative beyond the fitted range, and the promise
    would not cover them.

    Attributes:
        statistic: T.
        degree: k, from 1 to 10.
        learned: lo and hi.
    """

    learns: ClassVar[str] = "range"
    sums_to_one: ClassVar[bool] = False
    statistic: Statistic
    degree: int

    @property
    def text(self) -> str:
        """Such as `mean_score^2`, or `mean_score` for degree 1."""
        return self.names[-1]

    @property
    def statistics(self) -> tuple[Statistic, ...]:
        """T."""
        return (self.statistic,)

    @property
    def names(self) -> tuple[str, ...]:
        """Such as `mean_score`, `mean_score^2`."""
        base = self.statistic.text
        return (base, *(f"{base}^{power}" for power in range(2, self.degree + 1)))

    def learn(self, draws: Draws) -> tuple[float, ...]:
        """The smallest and the largest value on the fit split; a FeatureError if powers hardly differ."""
        values = self.statistic.values(draws)
        lo, hi = float(values.min()), float(values.max())
        if lo == hi:
            msg = (
                f"{self.text} needs at least two different values, but {self.statistic.words} is "
                f"{number(lo)} for every prompt of the fit split; take another statistic"
            )
            raise FeatureError(msg)
        return self._resolved(lo, hi)

    def admit(self, values: Sequence[object]) -> tuple[float, ...]:
        """Two increasing numbers whose powers can be told apart."""
        lo, hi = self.admit_increasing(values, 2, 2)
        return self._resolved(lo, hi)

    def transform(self, draws: Draws) -> FloatArray:
        """(N, k) powers."""
        base = np.clip(self.statistic.values(draws), self.learned[0], self.learned[1])
        # Repeated products: unlike `np.power`, they give one prompt the same last bit as many.
        return np.multiply.accumulate(np.repeat(base[:, None], self.degree, axis=1), axis=1)

    @property
    def weights(self) -> tuple[GuaranteedWeight, ...]:
        """The k + 1 Bernstein polynomials of degree k on [lo, hi]."""
        lo, hi = self.learned
        return tuple(
            GuaranteedWeight(
                f"bernstein({self.statistic.text}, {self.degree})[{index}]",
                "bernstein",
                f"prompts weighted smoothly by how near their {self.statistic.words} is to "
                f"{number(lo + (hi - lo) * index / self.degree)} (within [{number(lo)}, {number(hi)}])",
                tuple(float(coefficient) for coefficient in coefficients),
            )
            for index, coefficients in enumerate(bernstein_coefficients(lo, hi, self.degree))
        )

    def _resolved(self, lo: float, hi: float) -> tuple[float, float]:
        """The range, unless round-off in features @ coefficients could reach 1e-9 or a power overflow.

        Powers over a range that is narrow compared with its distance from zero are nearly multiples of each
        other, and Bernstein polynomials are then small differences of huge numbers. Each of the k + 1
        products T^j c_j of at most 2 k roundings is off by at most 2 (k + 1) eps of its size, and their sum
        by k eps more: 4 (k + 1) eps bounds both.
        """
        far = Fraction(max(abs(lo), abs(hi)))
        rows = bernstein_coefficients(lo, hi, self.degree)
        size = max(sum(abs(c) * far**power for power, c in enumerate(row)) for row in rows)
        rounding = 4 * (self.degree + 1) * Fraction(sys.float_info.epsilon) * size
        largest = max(far**self.degree, *(abs(c) for row in rows for c in row))
        if rounding > _LARGEST_ROUNDING or largest > _LARGEST_COEFFICIENT:
            msg = (
                f"{self.text} cannot be computed accurately: on [{lo!r}, {hi!r}] the powers of "
                f"{self.statistic.words} are too much alike, or too large; take a lower degree or "
                f"hat({self.statistic.text}, 5)"
            )
            raise FeatureError(msg)
        return lo, hi


def bernstein_coefficients(lo: float, hi: float, degree: int) -> list[list[Fraction]]:
    """Bernstein polynomials on [lo, hi] as polynomials in T, exactly.

    With u = (T - lo) / (hi - lo), the i-th is C(k, i) u^i (1 - u)^(k - i): non-negative for u in [0, 1],
    largest at u = i / k, and all of them sum to one. Writing u = a + b T and 1 - u = c - b T with a = -lo b,
    c = hi b, b = 1 / (hi - lo) and multiplying out the k factors one by one gives the coefficients.

    Args:
        lo: Lower end of the range.
        hi: Upper end, above `lo`.
        degree: k.

    Returns:
        k + 1 rows of the k + 1 coefficients of 1, T, ..., T^k.
    """
    b = 1 / (Fraction(hi) - Fraction(lo))
    rows = []
    for index in range(degree + 1):
        row = [Fraction(comb(degree, index))]
        factors = [(-Fraction(lo) * b, b)] * index + [(Fraction(hi) * b, -b)] * (degree - index)
        for at_zero, slope in factors:
            shifted = [Fraction(0), *row]
            row = [at_zero * c + slope * d for c, d in zip([*row, Fraction(0)], shifted, strict=True)]
        rows.append(row)
    return rows
