"""Confidence intervals for shares."""

from __future__ import annotations

from langchain_cfc._extras import require


def clopper_pearson(successes: float, size: float, confidence: float = 0.95) -> tuple[float, float]:
    """The exact two-sided binomial interval of Clopper and Pearson (1934).

    Args:
        successes: Number of successes, 0 <= successes <= size; fractional for weighted shares, where it is
            an approximation.
        size: Number of trials; (0, 1) comes back where it is 0.
        confidence: Confidence level in (0, 1).

    Returns:
        Lower and upper bound.

    Raises:
        MissingExtraError: If SciPy is not installed.

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
