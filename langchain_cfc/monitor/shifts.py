"""What moved, which way and how far: a quantity's results beside the calibration prompts, in plain words."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from langchain_cfc.artifact import Watched
from langchain_cfc.monitor.observed import ANSWERED, EMPTY, FLAGGED

_OUTCOMES = {ANSWERED: "answered", EMPTY: "left with an empty set", FLAGGED: "flagged as not certifiable"}


def describe_shift(watched: Watched, expected: Sequence[int], observed: Sequence[int]) -> str | None:
    """Say where results differ most from calibration prompts.

    Args:
        watched: The quantity.
        expected: How many calibration prompts fell into each of its bins.
        observed: How many results did, all since the monitor began.

    Returns:
        One sentence part with both shares; None where there is nothing to compare.
    """
    calibration, results = np.array(expected, dtype=np.float64), np.array(observed, dtype=np.float64)
    if not calibration.sum() or not results.sum():
        return None
    calibration, results = calibration / calibration.sum(), results / results.sum()
    if watched.name == "decision":
        outcome = int(np.argmax(np.abs(results - calibration)))
        shares = _shares(results[outcome], f"are {_OUTCOMES[outcome]}", calibration[outcome])
        return f"{'more' if results[outcome] > calibration[outcome] else 'fewer'}: {shares}"
    # The edge at which the cumulative shares are farthest apart, as Kolmogorov and Smirnov compare them.
    below, expected_below = results.cumsum()[:-1], calibration.cumsum()[:-1]
    place = int(np.argmax(np.abs(below - expected_below)))
    edge = f"{watched.edges[place]:.3g}"
    if below[place] > expected_below[place]:
        return f"lower: {_shares(below[place], f'are below {edge}', expected_below[place])}"
    return f"higher: {_shares(1.0 - below[place], f'are {edge} or more', 1.0 - expected_below[place])}"


def _shares(observed: float, words: str, expected: float) -> str:
    return f"{100 * observed:.0f} % of results {words}, expected {100 * expected:.0f} %"
