"""Exact bounds for shares, on which every certificate rests.

They hold for every sample size. Round-off only makes the one-sided ones wider: they are found by evaluating
the binomial tail itself, enlarged by more than its round-off. SciPy's inverse of the tail is off by up to
2e-8 of delta at ten million trials, so it serves only for intervals that people read.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache

from langchain_cfc.support.imports import require

# Relative margin. Compared with sums of 60 digits, SciPy's tail was off by at most 3e-13 up to 1e8 trials;
# older versions compute it in other ways.
_ROUND_OFF = 1e-9

# The largest size for which the tail was compared.
LARGEST_SIZE = 10**8


def clopper_pearson(successes: float, size: float, confidence: float = 0.95) -> tuple[float, float]:
    """Return the exact two-sided binomial interval of Clopper and Pearson (1934).

    For fractional numbers of successes and trials, from weighted shares, it is an approximation.

    Examples:
        >>> [round(bound, 4) for bound in clopper_pearson(8, 10)]
        [0.4439, 0.9748]
    """
    if size <= 0.0:
        return 0.0, 1.0
    inverse = require("scipy.special", "calibrate", "a confidence interval").betaincinv
    tail = (1.0 - confidence) / 2.0
    low = 0.0 if successes <= 0.0 else float(inverse(successes, size - successes + 1.0, tail))
    high = 1.0 if successes >= size else float(inverse(successes + 1.0, size - successes, 1.0 - tail))
    return low, high


def lower_bound(successes: int, size: int, delta: float) -> float:
    """Return a lower bound on a probability; it fails with probability at most delta.

    Of `size` independent trials with success probability p, `successes` succeed. The bound is the p at which
    this many successes or more have probability delta: the one-sided bound of Clopper and Pearson (1934, "The
    use of confidence or fiducial limits illustrated in the case of the binomial", Biometrika 26).

    Examples:
        >>> round(lower_bound(95, 100, 0.05), 4)
        0.8977
    """
    failing = upper_bound(size - successes, size, delta)
    return math.nextafter(1.0 - failing, 0.0)  # the difference is rounded


def upper_bound(successes: int, size: int, delta: float) -> float:
    """Return an upper bound on a probability; it fails with probability at most delta.

    The bound is the p at which this many successes or fewer have probability delta: the one-sided bound of
    Clopper and Pearson (1934), and the smallest rate that `binomial_p_value` rejects at level delta.

    Examples:
        >>> round(upper_bound(0, 59, 0.05), 4), round(upper_bound(5, 100, 0.05), 4)
        (0.0495, 0.1023)
    """
    if successes == size:
        return 1.0

    def is_rejected(rate: float) -> bool:
        return binomial_p_value(successes, size, rate) <= delta

    return _bisect_bound(1.0, 0.0, is_rejected)


def binomial_p_value(count: int, size: int, rate: float | Fraction) -> float:
    """Return the exact p-value of the hypothesis "the event has a probability above `rate`".

    It is P(Binomial(size, rate) <= count): if the hypothesis holds, `count` events or fewer have at most this
    probability. Equality errs towards not rejecting. A float rate is read as its shortest decimal form.

    Source: the binomial test, here by the regularised incomplete beta function (NIST Digital Library of
    Mathematical Functions, 8.17.5).

    Examples:
        >>> round(binomial_p_value(1, 100, 0.05), 4)
        0.0371
    """
    return 1.0 if count == size else _compute_tail(count, size, _to_fraction(rate))


@lru_cache(maxsize=512)  # tests at equal levels ask for the same sizes
def find_size(wrong: int, rate: Fraction, level: float) -> int:
    """Return the smallest number of trials at which so many events pass a test at a level, or 10**8."""
    sizes = range(wrong + 1, LARGEST_SIZE)
    passing = bisect_left(sizes, True, key=lambda size: binomial_p_value(wrong, size, rate) <= level)
    return sizes.start + passing


def required_size(share: float | Fraction, rate: float | Fraction, delta: float) -> int | None:
    """Return how many trials show that an event is rarer than `rate`, if it happens in a given share of them.

    The result is the smallest m such that with m trials, and with any larger number, floor(share m) events
    have `binomial_p_value` <= delta; None if the share is not below the rate, or so little below it that
    10**8 trials are too few. Smaller numbers may suffice by luck: every time floor(share m) steps up, so does
    the p-value (share 0.04, rate 0.1, delta 0.05: 46 trials with 1 event do, 50 with 2 do not, the answer is
    76). The share is an assumption; a fresh sample may show a larger one. The derivation is in the code.

    Examples:
        >>> required_size(0.0, 0.05, 0.05), required_size(0.02, 0.05, 0.05), required_size(0.0499, 0.05, 0.05)
        (59, 153, 12855993)
    """
    share, rate = _to_fraction(share), _to_fraction(rate)
    if share >= rate:
        return None

    def rejects(size: int) -> bool:
        return binomial_p_value(math.floor(share * size), size, rate) <= delta

    # The p-value with share m events, usually no whole number, is G(m) = P(X > rate), X ~ Beta(share m + 1,
    # (1 - share) m). It is at least the p-value with floor(share m), and decreases in m, so that it can be
    # bisected. Proof: the density of X is exp(m h(x)) / (1 - x) up to a factor, h(x) = share ln x +
    # (1 - share) ln(1 - x), so G'(m) = Cov(1[X > rate], h(X)). Measure x on either side of the maximum
    # of h by the fall t = h(share) - h(x): left of it at l(t), right at r(t), and by substitution the
    # densities of t have the ratio right : left = (share / l - 1) / (1 - share / r). Its logarithm grows
    # where (1 - l) / (share - l)^2 >= (1 - r) / (r - share)^2, that is, 1 - r <= (1 - share)^2 / (1 - l). It
    # holds: at the mirror point 1 - (1 - share)^2 / (1 - l) h has fallen by less than at l, since with
    # w = (1 - l) / (1 - share) the difference is 0 at w = 1 and grows with w (w + 1 / w >= 2). So t is
    # stochastically larger to the right, more so beyond rate >= share, and the covariance is negative.
    enough = 1 + bisect_left(
        range(1, LARGEST_SIZE + 1), True, key=lambda size: _compute_tail(share * size, size, rate) <= delta
    )
    if enough > LARGEST_SIZE:
        return None
    # Within a step of floor(share m) the p-value decreases, so it is worst where the step begins. The first
    # step from above that begins too high is near: at the latest where share m is a whole number.
    count = math.floor(share * enough)
    while (start := math.ceil(count / share) if count else 0) and rejects(start):
        enough, count = start, count - 1
    return start + 1 + bisect_left(range(start + 1, enough), True, key=rejects)


def _compute_tail(count: int | Fraction, size: int, rate: Fraction) -> float:
    """Return P(Binomial(size, rate) <= count), never too small; the count, below size, may be fractional."""
    tail = require("scipy.special", "calibrate", "a certificate").betaincc
    # The tail decreases in the rate.
    return _enlarge(tail(float(count + 1), float(size - count), _round_down(rate)))


@lru_cache(maxsize=128)  # a sequence of tests asks for one rate many times
def _round_down(rate: Fraction) -> float:
    below = float(rate)
    return math.nextafter(below, 0.0) if below > rate else below


def _enlarge(share: float) -> float:
    return min(1.0, float(share) * (1.0 + _ROUND_OFF))


def _bisect_bound(holding: float, failing: float, holds: Callable[[float], bool]) -> float:
    """Find by bisection the last float from `holding` towards `failing` at which a bound still holds."""
    while min(holding, failing) < (middle := (holding + failing) / 2.0) < max(holding, failing):
        if holds(middle):
            holding = middle
        else:
            failing = middle
    return holding


def _to_fraction(value: float | Fraction) -> Fraction:
    """Read a float as its shortest decimal form."""
    return value if isinstance(value, Fraction) else Fraction(str(value))
