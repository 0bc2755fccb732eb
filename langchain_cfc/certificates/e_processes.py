"""E-processes (test martingales): wealth of bets against hypotheses, for anytime-valid tests.

Bets against a true hypothesis, at fair odds and placed before each outcome is seen, ever turn a stake of 1
into 1/level or more with probability at most level (Ville 1939). So such tests may be looked at after every
outcome. Wealth is spread over a few experts, each with its own bet. After every outcome a little of it may be
spread evenly again (fixed share: Herbster and Warmuth 1998), so that a change is found even after a long time
without one. Spreading moves wealth between experts and creates none, so the bets stay fair.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from langchain_cfc.certificates.bounds import LARGEST_SIZE
from langchain_cfc.support.arrays import BoolArray, FloatArray

if TYPE_CHECKING:
    from typing_extensions import Self

# Share of the wealth that is spread evenly after each outcome by tests that look for changes.
FIXED_SHARE = 1e-3
# Bets against a mean, as shares of the smallest bet that could lose everything.
MEAN_BETS = (np.arange(8) + 0.5) / 8


@dataclass(frozen=True)
class WealthPath:
    """Wealth over time with its extremes, for each test of an array. Logarithms are natural."""

    log: FloatArray  # (...) logarithm of the wealth, 0 at the start
    lowest: FloatArray  # (...) its smallest value so far
    lowest_at: FloatArray  # (...) time of the smallest value
    peak: FloatArray  # (...) its largest value so far; evidence is not taken back
    since: FloatArray  # (...) time of the lowest value before the peak, when its cause seems to begin

    @staticmethod
    def _start_path(shape: Sequence[int], now: float) -> dict[str, FloatArray]:
        log, begun = np.zeros(tuple(shape)), np.full(tuple(shape), now)
        return {"log": log, "lowest": log, "lowest_at": begun, "peak": log, "since": begun}

    def _update_path(self, log: FloatArray, now: float) -> dict[str, FloatArray]:
        lowest_at = np.where(log < self.lowest, now, self.lowest_at)
        return {
            "log": log,
            "lowest": np.minimum(self.lowest, log),
            "lowest_at": lowest_at,
            "peak": np.maximum(self.peak, log),
            "since": np.where(log > self.peak, lowest_at, self.since),
        }

    def to_data(self) -> dict[str, Any]:
        """Return all numbers as lists, exact to the bit."""
        return {one.name: getattr(self, one.name).tolist() for one in fields(self)}

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Self:
        """Restore the object from the result of `to_data`."""
        return cls(**{one.name: np.array(data[one.name], dtype=np.float64) for one in fields(cls)})


@dataclass(frozen=True)
class EProcess(WealthPath):
    """The wealth of several tests, each spread over its k experts."""

    shares: FloatArray  # (..., k) share of each expert; they add up to 1
    outcomes: FloatArray  # (...) number of outcomes that were bet on

    @classmethod
    def start(cls, tests: Sequence[int], experts: int, now: float = 0.0) -> EProcess:
        """Start each test of an array of shape `tests` with wealth 1, spread evenly over its experts."""
        shares = np.full((*tests, experts), 1.0 / experts)
        return cls(shares=shares, outcomes=np.zeros(tuple(tests)), **cls._start_path(tests, now))

    def update(
        self,
        payoffs: FloatArray,
        now: float,
        seen: BoolArray | None = None,
        *,
        fixed_share: float = FIXED_SHARE,
    ) -> EProcess:
        """Return the wealth after one outcome.

        `payoffs` (..., k) is what each expert's bet pays for a stake of 1: above 0, with mean at most 1 under
        the hypothesis, given all that came before. Tests that are not `seen` (...) had no outcome and stay.
        """
        paid = self.shares * payoffs
        total = paid.sum(axis=-1)
        shares = (1.0 - fixed_share) * paid / total[..., np.newaxis] + fixed_share / payoffs.shape[-1]
        log = self.log + np.log(total)
        outcomes = self.outcomes + 1.0
        if seen is not None:
            shares = np.where(seen[..., np.newaxis], shares, self.shares)
            log = np.where(seen, log, self.log)
            outcomes = np.where(seen, outcomes, self.outcomes)
        return EProcess(shares=shares, outcomes=outcomes, **self._update_path(log, now))


def compute_mean_wealth_path(outcomes: FloatArray, mean: float) -> FloatArray:
    """Compute the wealth of `MEAN_BETS` against a mean of outcomes in [0, 1] that is at least `mean`.

    Args:
        outcomes: (m,) outcomes in the order in which they are bet on.
        mean: The mean under the hypothesis, in (0, 1).

    Returns:
        (m + 1,) logarithms of the wealth before each outcome and after the last, the mean over all bets.
    """
    paid = np.log1p((mean - outcomes)[:, np.newaxis] * (MEAN_BETS / (1.0 - mean))).cumsum(axis=0)
    return np.concatenate([[0.0], np.logaddexp.reduce(paid, axis=1) - np.log(len(MEAN_BETS))])


def compute_mean_wealth(counts: Mapping[str, int], mean: float) -> float:
    """Compute the last wealth of `compute_mean_wealth_path`, which does not depend on the order.

    Args:
        counts: Number of outcomes by value, a fraction such as `1/3`.
        mean: The mean under the hypothesis, in (0, 1).

    Returns:
        The logarithm of the wealth.
    """
    values = np.array([float(Fraction(value)) for value in counts])
    paid = np.array([*counts.values()]) @ np.log1p(np.outer(mean - values, MEAN_BETS / (1.0 - mean)))
    return float(np.logaddexp.reduce(paid) - np.log(len(MEAN_BETS)))


def required_outcomes(mean: float, level: float) -> int:
    """Return how many outcomes of 0 show at a level that their mean is below `mean`.

    Examples:
        >>> required_outcomes(0.1, 0.04)
        46
    """
    return bisect_left(range(LARGEST_SIZE), -np.log(level), key=lambda m: compute_mean_wealth({"0": m}, mean))
