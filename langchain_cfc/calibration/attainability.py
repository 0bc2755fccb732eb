"""What the records allow, whatever the threshold: attainable coverage, smallest error level and size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from langchain_cfc._arrays import BoolArray, FloatArray
from langchain_cfc.artifact import AttainableGroup
from langchain_cfc.features import GuaranteedWeight
from langchain_cfc.thresholds import Level, conformal_rank, exact_tau


def attainable_groups(
    weightings: Sequence[GuaranteedWeight],
    features: FloatArray,
    reachable: BoolArray,
    weights: FloatArray | None = None,
) -> list[AttainableGroup]:
    """Attainable coverage under every guaranteed weighting.

    Args:
        weightings: The weightings.
        features: (N, d) features of the calibration prompts.
        reachable: (N,) whether a prompt's success score is below the cap.
        weights: (N,) how much each prompt counts, one being a prompt; each as one by default.

    Returns:
        One entry per weighting, in their order.
    """
    groups = []
    for weight in weightings:
        values = weight.values(features) * (1.0 if weights is None else weights)
        size, reached = float(values.sum()), float(values[reachable].sum())
        groups.append(
            AttainableGroup(
                name=weight.name,
                words=weight.words,
                size=size,
                attainable=min(1.0, reached / size) if size > 0.0 else 0.0,
                smallest_alpha=max(0.0, 1.0 - reached / (size + 1.0)),
            )
        )
    return groups


def target_is_attainable(alpha: Level, size: float, reachable: float) -> bool:
    """Whether the marginal order statistic lies below the cap.

    Args:
        alpha: Error level.
        size: Number N of calibration prompts, or the sum of their weights.
        reachable: Number of those with a success score below the cap, or the sum of theirs.

    Returns:
        Whether (N + 1) tau <= reachable, in exact arithmetic.
    """
    return (Fraction(size) + 1) * exact_tau(alpha) <= Fraction(reachable)


def smallest_alpha(size: float, reachable: float) -> float:
    """The smallest error level with an order statistic below the cap, rounded up to four decimals.

    Args:
        size: Number N of calibration prompts, or the sum of their weights.
        reachable: Number of those with a success score below the cap, or the sum of theirs.

    Returns:
        1 - reachable / (N + 1).
    """
    return math.ceil(10_000 * (1 - Fraction(reachable) / (Fraction(size) + 1))) / 10_000


def smallest_size(alpha: Level, attainable: float | Fraction) -> int | None:
    """The smallest number of calibration prompts at which a target can be met.

    Args:
        alpha: Error level.
        attainable: Share of prompts with a success score below the cap, in [0, 1]; a float is read by its
            shortest decimal form, which for a share such as 20 / 21 is not exact.

    Returns:
        The smallest N with ceil((N + 1) tau) <= floor(attainable N), or None if there is none (attainable
        coverage <= tau).

    >>> smallest_size(0.1, 1.0), smallest_size(0.1, 0.95), smallest_size(0.1, 0.9)
    (9, 19, None)
    """
    tau, share = exact_tau(alpha), Fraction(str(attainable))
    if share <= tau:
        return None
    # From (tau + 2) / (share - tau) on rounding cannot matter any more; below, each size is tried.
    last = math.ceil((tau + 2) / (share - tau))
    first = max(1, math.floor(tau / (share - tau)) - 1)
    return next(
        size for size in range(first, last + 1) if conformal_rank(size, tau) <= math.floor(share * size)
    )
