"""The statistics of a plan: attainable coverage at fewer candidates, and the size at which a rank settles."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from fractions import Fraction

import numpy as np

from langchain_cfc._arrays import BoolArray
from langchain_cfc._extras import require
from langchain_cfc.certificates.bounds import clopper_pearson
from langchain_cfc.thresholds import conformal_rank

# Worse than +-5 points at no share, so that the search for a pilot size ends here.
_LARGEST_PILOT = 500


def pass_at(correct: BoolArray, k: int) -> Fraction:
    """Attainable coverage with k candidates, estimated without bias from m >= k recorded ones.

    A prompt with c correct candidates among m is missed by a random k of them with probability
    C(m - c, k) / C(m, k); the estimate is one minus the mean of that ("pass@k", Chen et al. 2021, "Evaluating
    large language models trained on code", equation 1). It is exact, so that comparing it with a target is.

    Args:
        correct: (N, m) whether each candidate is correct, N >= 1.
        k: Number of candidates, 1 <= k <= m.

    Returns:
        A share in [0, 1].

    >>> correct = np.array([[True, False, False], [False, False, False]])
    >>> [str(pass_at(correct, k)) for k in (1, 2, 3)]
    ['1/6', '1/3', '1/2']
    """
    size, drawn = correct.shape
    prompts_with = np.bincount(correct.sum(axis=1), minlength=drawn + 1).tolist()
    missed = sum(prompts * math.comb(drawn - right, k) for right, prompts in enumerate(prompts_with))
    return 1 - Fraction(missed, size * math.comb(drawn, k))


def fewest_candidates(correct: BoolArray, tau: Fraction) -> int | None:
    """The smallest number of candidates whose estimated attainable coverage exceeds a target.

    Args:
        correct: (N, m) whether each candidate is correct, N >= 1.
        tau: Target coverage.

    Returns:
        A number in 1 ... m, or None if even m candidates do not exceed it.
    """
    numbers = range(1, correct.shape[1] + 1)
    place = bisect_right(numbers, tau, key=lambda k: pass_at(correct, k))
    return numbers[place] if place < len(numbers) else None


def chance_below(size: int, tau: Fraction, coverage: float) -> float:
    """The probability that the calibrated threshold covers less than a given share of prompts.

    Given the calibration set, the order statistic of rank k = ceil((N + 1) tau) covers a share
    B ~ Beta(k, N + 1 - k) of all prompts (Vovk 2012, "Conditional validity of inductive conformal
    predictors", for continuous scores; with ties it covers at least as much). B < x means that at least k of
    N calibration prompts fall into a set of probability x, which is the binomial tail computed here.

    Args:
        size: Number N of calibration prompts.
        tau: Target coverage in (0, 1).
        coverage: The share x; taking the attainable coverage for it gives the probability that the threshold
            stays below the cap.

    Returns:
        P(Binomial(N, x) >= k); 0 where N is so small that k = N + 1.

    >>> round(chance_below(100, Fraction(9, 10), 0.87), 4)
    0.1477
    """
    rank = conformal_rank(size, tau)
    if rank > size:
        return 0.0
    tail = require("scipy.special", "calibrate", "a plan").betainc
    return float(tail(rank, size + 1 - rank, min(1.0, max(0.0, coverage))))


def settled_size(tau: Fraction, coverage: Fraction, delta: float) -> int:
    """The number of calibration prompts from which on the threshold settles on one side of a coverage.

    Below the target, such as tau - slack, coverage is then nearly always larger; above it, as the attainable
    coverage is, the threshold nearly always stays below the cap. This is not the smallest number that will
    do: the rank is rounded up, and the lucky sizes this makes (17 for 0.87 at tau = 0.9, where 19 to 97 fall
    short and 169 still does) help nobody, since the hash split decides the size.

    Args:
        tau: Target coverage in (0, 1).
        coverage: Another share of prompts than tau; the time taken grows with 1 / (coverage - tau)^2.
        delta: How often the threshold may end on the other side, over calibration sets, in (0, 1).

    Returns:
        The smallest N such that it does so with probability at most delta for N prompts and more.

    >>> [settled_size(Fraction("0.9"), Fraction(coverage), 0.1) for coverage in ("0.87", "0.93", "1")]
    [170, 199, 9]
    """
    gap, share = float(abs(coverage - tau)), float(coverage)
    # Hoeffding (1963): N draws of probability `coverage` deviate by more than gap - 1/N from it with
    # probability at most exp(-2 N (gap - 1/N)^2), so that no N above this one can fail.
    size = math.ceil(math.log(1.0 / delta) / (2.0 * gap**2) + 2.0 / gap)

    def settled(size: int) -> bool:
        below = chance_below(size, tau, share)
        return (below if coverage < tau else 1.0 - below) <= delta

    while size > 0 and settled(size):
        size -= 1
    return size + 1


def pilot_size_for(attainable: float, *, half_width: float = 0.05) -> int:
    """The pilot size at which the 95 % Clopper-Pearson interval of an estimate is +-5 points wide.

    Args:
        attainable: The estimate, in [0, 1]; assumed to stay as it is.
        half_width: Half the width of the interval, at least 0.05.

    Returns:
        Number of pilot prompts.

    >>> pilot_size_for(1.0), pilot_size_for(0.9), pilot_size_for(0.5)
    (36, 158, 402)
    """

    def narrow(size: int) -> bool:
        low, high = clopper_pearson(attainable * size, size)
        return high - low <= 2.0 * half_width

    return 1 + bisect_left(range(1, _LARGEST_PILOT + 1), True, key=narrow)
