"""`compute_auroc`: how well scores separate correct from wrong candidates, with an interval.

Candidates of one prompt are not independent: an easy prompt has many correct ones, and all of its scores may
be low. The variance is therefore that of Obuchowski (1997, "Nonparametric analysis of clustered ROC curve
data", Biometrics 53), in which prompts are the independent units.

Each correct candidate x has a placement V(x), the share of all wrong candidates that it beats (ties count
half), and each wrong one y has V(y), the share of all correct candidates that beat it. Both kinds have the
AUROC A as their mean. With m correct and w wrong candidates, d_i the sum of (V - A) / m over the correct
candidates of prompt i, and e_i the sum of (V - A) / w over its wrong ones,

    var(A) = I_c / (I_c - 1) sum_i d_i^2 + I_w / (I_w - 1) sum_i e_i^2 + 2 I / (I - 1) sum_i d_i e_i,

where I_c and I_w count the prompts with a correct and with a wrong candidate, and I counts all prompts. The
interval is computed on the logit scale, which keeps it within [0, 1], and widened as
`_compute_observed_share` asks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from langchain_cfc.errors import InputError
from langchain_cfc.support.arrays import BoolArray, FloatArray, IntArray


@dataclass(frozen=True)
class Discrimination:
    """AUROC of scores: how well they separate correct candidates from wrong ones, with an interval."""

    # Probability that a correct candidate has a smaller score than a wrong one, ties counting half: 1 is
    # perfect, 0.5 is chance, and smaller values mean that the scores have the wrong orientation.
    auroc: float
    low: float  # Lower end of its two-sided interval, approximate for few prompts
    high: float  # Upper end of its interval


def compute_auroc(scores: FloatArray, correct: BoolArray, confidence: float = 0.95) -> Discrimination | None:
    """Compute the AUROC of scores, pooled over the candidates of all prompts.

    Args:
        scores: (N, n) finite scores in any unit, smaller is better.
        correct: (N, n) whether each candidate is correct.
        confidence: Confidence level of the interval, in (0, 1).

    Returns:
        AUROC and interval; None if all candidates are correct or all are wrong. The running time is
        dominated by sorting the scores.

    Raises:
        InputError: If shapes differ, a score is not finite, a label is not a boolean, or the confidence is
            out of range.

    Examples:
        >>> scores, correct = np.array([[0.1, 0.4], [0.4, 0.8]]), np.array([[True, False], [True, False]])
        >>> compute_auroc(scores, correct).auroc
        0.875
    """
    _check_scores(scores, correct, confidence)
    right = int(correct.sum())
    wrong = correct.size - right
    if right == 0 or wrong == 0:
        return None
    # Twice the number of pairs won or lost: integers, so the AUROC does not depend on the order of summation.
    wrong_below, right_below = _count_twice_below(scores, correct)
    beaten, beating = 2 * wrong - wrong_below[correct], right_below[~correct]
    auroc = int(beaten.sum()) / (2 * right * wrong)
    size = len(scores)
    right_sums = _sum_by_prompt(correct, beaten / (2 * wrong) - auroc)
    wrong_sums = _sum_by_prompt(~correct, beating / (2 * right) - auroc)
    with_right, with_wrong = (int(np.any(kind, axis=1).sum()) for kind in (correct, ~correct))
    variance = _compute_variance(right_sums, wrong_sums, with_right, with_wrong)
    low, high = _compute_logit_interval(auroc, variance, NormalDist().inv_cdf(0.5 + confidence / 2.0))
    observed = _compute_observed_share(min(with_right, with_wrong, size // 2), confidence)
    low, high = min(low, observed * auroc), max(high, 1.0 - observed * (1.0 - auroc))
    return Discrimination(auroc, low, high)


def _check_scores(scores: FloatArray, correct: BoolArray, confidence: float) -> None:
    if scores.ndim != 2 or scores.shape != correct.shape or correct.dtype != np.bool_:  # noqa: PLR2004 - rows and columns
        msg = (
            "expected (N, n) scores and as many boolean labels, got shapes "
            f"{scores.shape} and {correct.shape}, labels of type {correct.dtype}"
        )
        raise InputError(msg)
    if not np.isfinite(scores).all():
        row, slot = (int(i) for i in np.argwhere(~np.isfinite(scores))[0])
        msg = f"score of candidate {slot} of prompt {row} is {scores[row, slot]}; expected a finite number"
        raise InputError(msg)
    if not 0.0 < confidence < 1.0:
        msg = f"confidence must lie strictly between 0 and 1, got {confidence}"
        raise InputError(msg)


def _count_twice_below(scores: FloatArray, correct: BoolArray) -> tuple[IntArray, IntArray]:
    """Return for each score twice the number of wrong scores below it plus the number equal; and of right."""
    order = np.argsort(scores, axis=None)
    ascending, wrong = scores.ravel()[order], ~correct.ravel()[order]
    is_new = np.append(True, ascending[1:] > ascending[:-1])
    starts = np.append(np.flatnonzero(is_new), len(order))
    wrong_before = np.append(0, np.cumsum(wrong))[starts]
    counts = np.empty((2, len(order)), dtype=np.int64)
    for of_kind, before in zip(counts, (wrong_before, starts - wrong_before), strict=True):
        of_kind[order] = (before[:-1] + before[1:])[np.cumsum(is_new) - 1]
    of_wrong, of_right = counts.reshape(2, *scores.shape)
    return of_wrong, of_right


def _sum_by_prompt(members: BoolArray, deviations: FloatArray) -> FloatArray:
    """Sum the members' deviations by prompt, and divide by the total number of members."""
    sums = np.bincount(np.nonzero(members)[0], weights=deviations, minlength=len(members))
    return np.asarray(sums / len(deviations), dtype=np.float64)


def _compute_variance(right: FloatArray, wrong: FloatArray, with_right: int, with_wrong: int) -> float:
    """Compute Obuchowski's variance; infinite if one prompt holds all correct or all wrong candidates."""
    size = len(right)
    if min(with_right, with_wrong) == 1:
        return math.inf
    own = with_right / (with_right - 1) * (right @ right) + with_wrong / (with_wrong - 1) * (wrong @ wrong)
    # Non-negative in exact arithmetic, because no factor of a square is smaller than that of the product.
    return max(0.0, float(own + 2.0 * size / (size - 1) * (right @ wrong)))


def _compute_logit_interval(auroc: float, variance: float, quantile: float) -> tuple[float, float]:
    if auroc in {0.0, 1.0}:
        return auroc, auroc
    centre = math.log(auroc / (1.0 - auroc))
    half = quantile * math.sqrt(variance) / (auroc * (1.0 - auroc))
    low, high = (0.5 + 0.5 * math.tanh(0.5 * value) for value in (centre - half, centre + half))
    return low, high


def _compute_observed_share(pairs: int, confidence: float) -> float:
    """Compute a lower bound on the share of pairs that behave like those observed, for zero variance.

    Take disjoint pairs of prompts, a correct candidate from one and a wrong one from the other. An order that
    none of these independent pairs shows may still occur in a share u of all pairs, where (1 - u)^pairs is
    half of 1 - confidence (Clopper and Pearson's bound for no success). That moves the AUROC down to
    (1 - u) A or up to u + (1 - u) A. The result is 1 - u. Without it, perfect separation and all-equal scores
    would count as certain, and one candidate out of order would give a wider interval than none.
    """
    return float(((1.0 - confidence) / 2.0) ** (1.0 / pairs)) if pairs else 0.0
