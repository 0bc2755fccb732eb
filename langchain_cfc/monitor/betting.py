"""Tests that may be looked at as often as one likes: capital that grows only where a promise is broken.

Whoever bets against a true hypothesis, at fair odds and before seeing each outcome, turns a stake of 1 into
1/level or more at any time at all with probability at most level (Ville 1939). Capital here is spread over a
few experts, each with a bet of its own; after every outcome a little of it is spread anew (fixed share:
Herbster and Warmuth 1998), so that a change after a long quiet time is found as well. Spreading moves capital
and makes none, so that it stays fair.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from langchain_cfc._arrays import BoolArray, FloatArray

# Of the capital, how much is spread anew after each outcome.
SHARED = 1e-3
# How strongly experts bet on ranks; at 1 a single rank could take everything.
_STRENGTHS = (0.25, 0.75)
# The first expert keeps its capital, so that no loss is lasting.
RANK_EXPERTS = 1 + 4 * len(_STRENGTHS)
# How far below the promised rate experts believe that it lies, as shares of it.
_DISTANCES = (0.03, 0.1, 0.25, 0.6)
RATE_EXPERTS = 1 + len(_DISTANCES)


@dataclass(frozen=True)
class Capital:
    """The capital of some tests, and how each is spread over its experts. Logarithms are natural.

    Attributes:
        shares: (..., k) share of each expert; they add up to 1.
        log: (...) logarithm of the capital, 0 in the beginning.
        lowest: (...) its smallest value so far.
        lowest_at: (...) when that was.
        peak: (...) its largest value so far. Evidence that was there once is not taken back.
        since: (...) when it was lowest before that peak: where what the peak shows seems to begin.
        outcomes: (...) number of outcomes that were bet on.
    """

    shares: FloatArray
    log: FloatArray
    lowest: FloatArray
    lowest_at: FloatArray
    peak: FloatArray
    since: FloatArray
    outcomes: FloatArray

    @classmethod
    def stakes(cls, tests: Sequence[int], experts: int, now: float = 0.0) -> Capital:
        """A stake of 1 for each test, spread evenly.

        Args:
            tests: Shape of the array of tests.
            experts: Number k of experts.
            now: The time, in any unit.
        """
        shape = tuple(tests)
        log, begun = np.zeros(shape), np.full(shape, now)
        return cls(np.full((*shape, experts), 1.0 / experts), log, log, begun, log, begun, log)

    def after(self, factors: FloatArray, now: float, seen: BoolArray | None = None) -> Capital:
        """The capital after one outcome.

        Args:
            factors: (..., k) what each expert's bet pays for a stake of 1; above 0, of mean at most 1 under
                the hypothesis, whatever came before.
            now: The time.
            seen: (...) for which tests there was an outcome; the others stay as they are. All by default.
        """
        paid = self.shares * factors
        total = paid.sum(axis=-1)
        shares = (1.0 - SHARED) * paid / total[..., np.newaxis] + SHARED / factors.shape[-1]
        log = self.log + np.log(total)
        outcomes = self.outcomes + 1.0
        if seen is not None:
            shares = np.where(seen[..., np.newaxis], shares, self.shares)
            log = np.where(seen, log, self.log)
            outcomes = np.where(seen, outcomes, self.outcomes)
        lower, higher = log < self.lowest, log > self.peak
        lowest_at = np.where(lower, now, self.lowest_at)
        return Capital(
            shares=shares,
            log=log,
            lowest=np.minimum(self.lowest, log),
            lowest_at=lowest_at,
            peak=np.maximum(self.peak, log),
            since=np.where(higher, lowest_at, self.since),
            outcomes=outcomes,
        )

    def to_data(self) -> dict[str, list[float]]:
        """All numbers as lists, to be stored; to the bit."""
        return {one.name: getattr(self, one.name).tolist() for one in fields(self)}

    @classmethod
    def from_data(cls, data: Mapping[str, list[float]]) -> Capital:
        """What `to_data` was made of."""
        return cls(**{one.name: np.array(data[one.name], dtype=np.float64) for one in fields(cls)})


@dataclass(frozen=True)
class MeanCapital:
    """The mean of the capital of some tests over time: one test of all their hypotheses together.

    A mean of e-values is an e-value under any dependence between them, and essentially the only symmetric way
    to merge them (Vovk and Wang 2021, "E-values: Calibration, combination and applications"). It is at least
    max / m, so that an alarm at a mean of 1 / level never comes later than one by Bonferroni, where one of m
    tests reaches m / level, and comes earlier where several tests move. Logarithms are natural.

    Attributes:
        log: Logarithm of the mean, 0 in the beginning.
        lowest: Its smallest value so far.
        lowest_at: When that was.
        peak: Its largest value so far. Evidence that was there once is not taken back.
        since: When it was lowest before that peak: where what the peak shows seems to begin.
    """

    log: FloatArray
    lowest: FloatArray
    lowest_at: FloatArray
    peak: FloatArray
    since: FloatArray

    @classmethod
    def stakes(cls, shape: Sequence[int] = (), now: float = 0.0) -> MeanCapital:
        """Begin with a mean of 1.

        Args:
            shape: Shape of independent streams; one stream if left out.
            now: The time, in any unit.
        """
        log, begun = np.zeros(tuple(shape)), np.full(tuple(shape), now)
        return cls(log, log, begun, log, begun)

    def after(self, capital: Capital, now: float) -> MeanCapital:
        """Return the mean after one more outcome.

        Args:
            capital: Of (..., m) tests, after that outcome; the mean stays as it is where m is 0.
            now: The time.
        """
        tests = capital.log.shape[-1]
        if tests == 0:
            return self
        log = np.logaddexp.reduce(capital.log, axis=-1) - np.log(tests)
        lower, higher = log < self.lowest, log > self.peak
        lowest_at = np.where(lower, now, self.lowest_at)
        return MeanCapital(
            log=log,
            lowest=np.minimum(self.lowest, log),
            lowest_at=lowest_at,
            peak=np.maximum(self.peak, log),
            since=np.where(higher, lowest_at, self.since),
        )

    def to_data(self) -> dict[str, Any]:
        """All numbers, to be stored; to the bit."""
        return {one.name: getattr(self, one.name).tolist() for one in fields(self)}

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> MeanCapital:
        """What `to_data` was made of."""
        return cls(**{one.name: np.array(data[one.name], dtype=np.float64) for one in fields(cls)})


def rank_factors(ranks: FloatArray) -> FloatArray:
    """What bets on ranks pay that are uniform as long as nothing changes.

    Experts bet that ranks become larger or smaller (the first Legendre polynomial), and more extreme or more
    central (the second), weakly and strongly; the first bets nothing.

    Args:
        ranks: (...) numbers in [0, 1].

    Returns:
        (..., `RANK_EXPERTS`) factors above 0, each of mean 1 over uniform ranks.
    """
    place = 2.0 * ranks - 1.0
    spread = 1.5 * place * place - 0.5
    bets = [
        1.0 + sign * strength * shape
        for shape in (place, spread)
        for sign in (1.0, -1.0)
        for strength in _STRENGTHS
    ]
    return np.stack([np.ones_like(place), *bets], axis=-1)


def rate_factors(kept: BoolArray, promised: FloatArray) -> FloatArray:
    """What bets pay that a promise is kept more rarely than stated.

    Each expert believes in another rate, and is paid the likelihood ratio: of mean 1 where the promise is
    kept at the stated rate, and less where it is kept more often.

    Args:
        kept: (...) whether it was kept this time.
        promised: (...) the stated rate, in (0, 1).

    Returns:
        (..., `RATE_EXPERTS`) factors above 0; the first expert bets nothing.
    """
    stated = np.asarray(promised, dtype=np.float64)[..., np.newaxis]
    believed = stated * (1.0 - np.array((0.0, *_DISTANCES)))
    odds: FloatArray = np.where(
        np.asarray(kept)[..., np.newaxis], believed / stated, (1.0 - believed) / (1.0 - stated)
    )
    return odds
