"""Does what was seen contradict the promise?

Given its calibration set, a rule's true coverage lies below tau about half of the time, so "coverage below
target" is no alarm. The promise is on average over calibration sets as well, and the count to compare with
is beta-binomial: the threshold is the k-th of N exchangeable success scores, k = ceil((N + 1) tau), so the
true coverage is Beta(k, N + 1 - k) (Vovk 2012), and of m test prompts a BetaBinomial(m, k, N + 1 - k) number
is covered. Exact for the marginal rule and for disjoint groups with continuous scores; ties and flags only
raise the count; for soft weightings the sums of weights stand in for the numbers of prompts, an
approximation.
"""

from __future__ import annotations

import math

import numpy as np

from langchain_cfc._extras import require
from langchain_cfc.thresholds import Level, conformal_rank, exact_tau

FALSE_ALARM = 0.025


def kept_too_rarely(
    alpha: Level, calibration: float, test: float, kept: float, tests: int, *, randomised: bool = False
) -> bool:
    """Whether the promise was kept on so few test prompts that it is contradicted.

    Args:
        alpha: Error level.
        calibration: Number of calibration prompts, or sum of their weights.
        test: Number of test prompts, or sum of their weights.
        kept: Share of them on which the promise was kept, in [0, 1].
        tests: Number of groups looked at together; the false-alarm rate of 2.5 % is divided among them
            (Bonferroni).
        randomised: Whether thresholds are randomised: between the ranks k - 1 and k, so that the smaller one
            is a bound.

    Returns:
        Whether a count this low has probability below 2.5 % / `tests` under the promise.

    Raises:
        MissingExtraError: If SciPy is not installed.

    >>> kept_too_rarely(0.1, 1000, 500, 0.88, 1), kept_too_rarely(0.1, 1000, 500, 0.85, 1)
    (False, True)
    """
    size, trials = math.floor(calibration), math.floor(test)
    rank = conformal_rank(size, exact_tau(alpha)) - randomised
    if not 0 < rank <= size or trials == 0:
        # In a group nothing can be certified then: all of it is flagged, which keeps the promise. A soft
        # weighting as light as that is not checked: thresholds of other prompts reach into it.
        return False
    count = math.ceil(kept * trials - 1e-9)  # 0.56 * 100 is 56.00000000000001
    return _beta_binomial_cdf(count, trials, rank, size + 1 - rank) < FALSE_ALARM / tests


def _beta_binomial_cdf(count: int, trials: int, a: int, b: int) -> float:
    """P(X <= count) for X ~ BetaBinomial(trials, a, b); importing `scipy.stats` for it takes a second."""
    betaln = require("scipy.special", "calibrate", "checking the promise").betaln
    k = np.arange(count + 1)
    log_binomial = -betaln(1 + trials - k, 1 + k) - math.log(1 + trials)
    return float(np.exp(log_binomial + betaln(k + a, trials - k + b) - betaln(a, b)).sum())
