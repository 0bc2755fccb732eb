"""Levels and ranks in exact arithmetic.

A level is decimal: 0.1 means one tenth, not the binary number next to it. Ranks such as ceil((N + 1) tau)
jump by one when (N + 1) tau is an integer, and binary floats miss that (10 * (1 - 0.7) is
3.0000000000000004), so they are computed in fractions made from the decimal string.

Ranks come in two kinds. `conformal_rank` keeps the promise on average over calibration sets; `confident_rank`
keeps it for the one calibration set at hand, with confidence 1 - delta.
"""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from typing import TypeAlias

import numpy as np

from langchain_cfc._arrays import FloatArray
from langchain_cfc.errors import InputError

# Ranks of more decimals could not be told apart in the floats that the solver computes with.
DECIMALS = 12
# What each count visited adds to the bound on the relative round-off of a binomial tail: see `_tails`.
ROUND_OFF = 2.0**-42
Level: TypeAlias = str | float | Decimal


def alpha_text(alpha: Level) -> str:
    """The canonical decimal text of an error level.

    Args:
        alpha: Error level, 0 < alpha < 1. A float means the nearest decimal of 12 digits, so that `1 - 0.8`
            means 0.2; text and `Decimal` mean exactly what they say.

    Returns:
        Plain decimal text without exponent or trailing zeros, such as `0.1`.

    Raises:
        InputError: If it is no number strictly between 0 and 1, if a float rounds to 0 or 1, or if text or a
            `Decimal` has more than 12 decimals.

    >>> alpha_text(0.10), alpha_text("0.050"), alpha_text(1e-3), alpha_text(1 - 0.8)
    ('0.1', '0.05', '0.001', '0.2')
    """
    return _decimal_text(alpha, "alpha")


def delta_text(delta: Level) -> str:
    """The canonical decimal text of a failure probability.

    Args:
        delta: Probability that a promise with confidence 1 - delta is not kept, 0 < delta < 1.

    Returns:
        Plain decimal text as from `alpha_text`.

    Raises:
        InputError: If it is no number strictly between 0 and 1.
    """
    return _decimal_text(delta, "delta")


def _decimal_text(level: Level, name: str) -> str:
    try:
        number = Decimal(str(level))
    except ArithmeticError:
        number = Decimal("NaN")
    if isinstance(level, bool) or not number.is_finite() or not 0 < number < 1:
        msg = f"{name} must be a decimal number strictly between 0 and 1, such as 0.1 or '0.1'; got {level!r}"
        raise InputError(msg)
    if isinstance(level, float):
        # Arithmetic such as 1 - 0.8 is off by round-off only. The float's exact value says what is nearest.
        number = Decimal(level).quantize(Decimal(1).scaleb(-DECIMALS))
    # An exponent may ask for zeros without end, which are not written out to be counted.
    tiny = number.is_zero() or number.adjusted() < -DECIMALS
    text = str(level) if tiny or number == 1 else f"{number:f}".rstrip("0")
    if tiny or number == 1 or len(text) > len("0.") + DECIMALS:
        msg = f"{name} may have {DECIMALS} decimals at most, got {text[:40]}"
        raise InputError(msg)
    return text


def exact_tau(alpha: Level) -> Fraction:
    """The target coverage tau = 1 - alpha as a fraction.

    >>> exact_tau(0.3)
    Fraction(7, 10)
    """
    return 1 - Fraction(alpha_text(alpha))


def conformal_rank(size: int, tau: Fraction) -> int:
    """The rank ceil((N + 1) tau) of split conformal prediction, from 1; N + 1 means "no score suffices".

    Args:
        size: Number of calibration scores N >= 0.
        tau: Target coverage in (0, 1).

    Returns:
        The rank, 1 ... N + 1.

    >>> conformal_rank(9, exact_tau(0.1)), conformal_rank(9, exact_tau(0.3))
    (9, 7)
    """
    return math.ceil((size + 1) * tau)


def confident_rank(size: int, tau: Fraction, delta: Level | Fraction) -> int:
    """The rank whose coverage, given the calibration set, is at least tau with confidence 1 - delta.

    For N independent continuous scores the coverage of the order statistic of rank k, given the calibration
    set, is Beta(k, N + 1 - k), whatever the scores' distribution. The rank is the smallest k with
    P(Beta(k, N + 1 - k) < tau) = P(Bin(N, tau) >= k) <= delta, but never below `conformal_rank`: the promise
    on average is kept as well. Only a delta above 1 / e makes a difference there, since a log-concave law
    such as Beta's lies at or below its mean with probability at least 1 / e (Grunbaum 1960).

    Binomial tails are computed in floats. One that comes within the bound on its round-off of delta, a share
    of less than 1e-8 up to N = 10^6, counts as above it, so that the rank may be one too large, never too
    small.

    Source: Wilks (1941), tolerance limits; Vovk (2012), "Conditional validity of inductive conformal
    predictors".

    Args:
        size: Number of calibration scores N >= 0.
        tau: Target coverage in (0, 1).
        delta: Failure probability, 0 < delta < 1, over calibration sets: a decimal, or a fraction where one
            is divided among groups.

    Returns:
        The rank, 1 ... N + 1; N + 1 means "no score suffices".

    Raises:
        InputError: If delta is no number strictly between 0 and 1.

    >>> [confident_rank(size, exact_tau(0.1), 0.1) for size in (21, 22, 200, 1000, 9000)]
    [22, 22, 186, 913, 8137]
    """
    allowed = delta if isinstance(delta, Fraction) else Fraction(delta_text(delta))
    if not 0 < allowed < 1:
        msg = f"delta must lie strictly between 0 and 1; got {allowed}"
        raise InputError(msg)
    first, tails = _tails(size, tau, allowed)
    above = tails * (1.0 + ROUND_OFF * len(tails)) > float(allowed)
    return max(conformal_rank(size, tau), first + int(np.count_nonzero(above)))


def _tails(size: int, tau: Fraction, delta: Fraction) -> tuple[int, FloatArray]:
    """P(Bin(N, tau) >= k) for a run of k that holds the first at which it is at most delta.

    Counts further than w from N tau are left out: each side has probability at most exp(-2 w^2 / N)
    (Hoeffding 1963), which w makes smaller than delta times half of the floats' resolution. So only about
    sqrt(N) counts are visited.

    Logarithms of the n probabilities kept, up to a common factor, are summed from the mode outwards: fewer
    than n additions, with sums of at most 745 in size, since `exp` leaves nothing of smaller probabilities.
    That makes them accurate to 750 n 2^-53. A tail is a sum of positive numbers, added from the top, over the
    sum of all of them, hence accurate to about twice that, and to less than 2^-42 n with all else counted.

    Returns:
        The first k, and the tails from there on.
    """
    reach = math.ceil(math.sqrt(size / 2 * (54 * math.log(2) - math.log(delta)))) + 1
    mode = math.floor((size + 1) * tau)
    first, last = max(0, mode - reach), min(size, mode + reach)
    counts = np.arange(first, last)
    steps = np.log((size - counts) / (counts + 1) * float(tau / (1 - tau)))
    below, beyond = steps[: mode - first], steps[mode - first :]
    logs = np.concatenate([-np.cumsum(below[::-1])[::-1], [0.0], np.cumsum(beyond)])
    tails = np.cumsum(np.exp(logs)[::-1])[::-1]
    return first, tails / tails[0]
