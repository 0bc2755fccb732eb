"""E-processes (test martingales): wealth of bets against hypotheses, for anytime-valid tests.

Bets against a true hypothesis, at fair odds and placed before each outcome is seen, ever turn a stake of 1
into 1/level or more with probability at most level (Ville 1939). So such tests may be looked at after every
outcome. Wealth is spread over a few experts, each with its own bet. After every outcome a little of it is
spread evenly again (fixed share: Herbster and Warmuth 1998), so that a change is found even after a long time
without one. Spreading moves wealth between experts and creates none, so the bets stay fair.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from langchain_cfc.support.arrays import BoolArray, FloatArray

if TYPE_CHECKING:
    from typing_extensions import Self

# Share of the wealth that is spread evenly after each outcome.
FIXED_SHARE = 1e-3


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

    def update(self, payoffs: FloatArray, now: float, seen: BoolArray | None = None) -> EProcess:
        """Return the wealth after one outcome.

        `payoffs` (..., k) is what each expert's bet pays for a stake of 1: above 0, with mean at most 1 under
        the hypothesis, given all that came before. Tests that are not `seen` (...) had no outcome and stay.
        """
        paid = self.shares * payoffs
        total = paid.sum(axis=-1)
        shares = (1.0 - FIXED_SHARE) * paid / total[..., np.newaxis] + FIXED_SHARE / payoffs.shape[-1]
        log = self.log + np.log(total)
        outcomes = self.outcomes + 1.0
        if seen is not None:
            shares = np.where(seen[..., np.newaxis], shares, self.shares)
            log = np.where(seen, log, self.log)
            outcomes = np.where(seen, outcomes, self.outcomes)
        return EProcess(shares=shares, outcomes=outcomes, **self._update_path(log, now))


@dataclass(frozen=True)
class MixtureEProcess(WealthPath):
    """The mean of the wealth of several tests over time: one test of all their hypotheses together.

    A mean of e-values is an e-value under any dependence between them, and essentially the only symmetric way
    to merge them (Vovk and Wang 2021, "E-values: Calibration, combination and applications"). It is at least
    max / m, so an alarm at a mean of 1 / level never comes later than one by Bonferroni, where one of m tests
    must reach m / level, and it comes earlier if several tests move.
    """

    @classmethod
    def start(cls, shape: Sequence[int] = (), now: float = 0.0) -> MixtureEProcess:
        """Start with a mean of 1 for each stream of an array of this shape."""
        return cls(**cls._start_path(shape, now))

    def update(self, wealth: EProcess, now: float) -> MixtureEProcess:
        """Return the mean of the wealth of (..., m) tests after an outcome; unchanged where m is 0."""
        tests = wealth.log.shape[-1]
        if tests == 0:
            return self
        log = np.logaddexp.reduce(wealth.log, axis=-1) - np.log(tests)
        return MixtureEProcess(**self._update_path(log, now))
