"""Wealth of bets against a mean, for tests of a share that are valid at every time.

Bets against a true hypothesis, at fair odds and placed before each outcome is seen, ever turn a stake of 1
into 1/level or more with probability at most level (Ville 1939).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from fractions import Fraction

import numpy as np

from langchain_cfc.certificates.bounds import LARGEST_SIZE
from langchain_cfc.support.arrays import FloatArray

# Bets against a mean, as shares of the smallest bet that could lose everything.
MEAN_BETS = (np.arange(8) + 0.5) / 8


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
