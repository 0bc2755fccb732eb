"""Whether two ways of answering agree."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks.problems import CAP, FloatArray
from benchmarks.results import Agreement

BEYOND = 1e-6  # more than this is a wrong answer, not round-off


def capped(values: Sequence[float | None] | FloatArray) -> FloatArray:
    """Thresholds as an array: `inf` from the cap on, where nothing is certified; NaN for no answer."""
    numbers = np.array([np.nan if value is None else value for value in values], dtype=float)
    return np.where(numbers >= CAP - 1e-7, np.inf, numbers)  # peers know the cap only by its neighbours


def agreement(ours: FloatArray, peer: Sequence[float | None] | FloatArray) -> Agreement:
    """Compare as many answers as both gave.

    Args:
        ours: Thresholds, NaN where we refused.
        peer: Answers for the same prompts, more or fewer.
    """
    theirs, mine = capped(peer)[: len(ours)], capped(ours)[: len(peer)]
    unanswered = int(np.isnan(theirs).sum())
    both = ~np.isnan(theirs) & ~np.isnan(mine)
    mine, theirs = mine[both], theirs[both]
    finite = np.isfinite(mine) & np.isfinite(theirs)
    differences = np.abs(mine[finite] - theirs[finite])
    mismatches = int((np.isfinite(mine) != np.isfinite(theirs)).sum())
    return Agreement(
        compared=len(mine),
        largest=float(differences.max(initial=0.0)),
        beyond=int((differences > BEYOND).sum()) + mismatches,
        infinities=mismatches,
        unanswered=unanswered,
    )


def outside(answers: Sequence[float | None], low: FloatArray, high: FloatArray) -> int:
    """How many answers lie beyond both ends of the optimal face."""
    values, low, high = capped(answers), capped(low), capped(high)
    answered = ~np.isnan(values) & ~np.isnan(low) & ~np.isnan(high)
    wrong = (values < low - BEYOND) | (values > high + BEYOND)
    return int((wrong & answered).sum())
