"""`fit_adaptive_alpha`: fit the error level that is stated for each prompt, on the fit split.

A prompt can be certified at an error level a(x) only if at least a share 1 - a(x) of the prompts like it has
a correct candidate. So with q(x), the estimated probability that one is drawn,

    a(x) = max(alpha, 1 - q(x) + margin), rounded up to a grid of levels,

where q(x) is a logistic regression on the rank of the mean score. (Many prompts may have nearly the same
mean score, where all candidates differ or none is likely. A curve in the score itself cannot follow them, and
one in its ranks can.) Rounding keeps the stated levels few. The function is fixed before calibration prompts
are seen, which is all that the theorem needs: a poor estimate costs usefulness (lower stated coverage than
necessary, or flagged prompts), never validity.

The threshold is computed from N calibration prompts, and is finite for a prompt as long as the share of
unreachable ones among those that weigh on it is at most a(x). A fit with d columns follows that share with
the leverage phi' (Phi' Phi)^-1 phi, which is d / N on average over the prompts, so it lies a standard error
of sqrt(q (1 - q) d / N) from the true one. The estimate 1 - q(x), with two coefficients from the M other
prompts of the fit split, has one of sqrt(q (1 - q) 2 / M). The margin is the standard error of the
difference, with the mean of q (1 - q). Fewer prompts are flagged than a normal law says, because levels are
rounded up, and a fit between reachable scores and the cap is still finite.

For claims no prompt is out of reach, because all claims may be dropped, but a strict level may drop nearly
all of an answer. There q(x) is the probability that a given share of its m claims can be kept: with c(x) the
confidence of rank ceil(share m), the event S(x) < c(x), that at most k of the claims at least as confident
are unsupported. Among alike prompts, a threshold t at level 1 - q(x) has P(S <= t) = q = P(S < c), so it lies
near c, and about the share is kept. Claims can always be dropped, so the margin is 0. Cherian, Gibbs and
Candes (2024) fit levels to the same end, by quantile regression on the smallest levels at which the share of
each answer survives.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from langchain_cfc.calibration.fit import require_fit_split
from langchain_cfc.candidates import LabelledBatch
from langchain_cfc.features import AdaptiveAlpha, FeatureMap, name_records_in_errors
from langchain_cfc.features.statistics import MEAN_SCORE
from langchain_cfc.set_rules import SetRule
from langchain_cfc.support.arrays import FloatArray, IntArray
from langchain_cfc.thresholds import format_alpha

# Distance between offered levels, and the largest of them.
LEVEL_STEP, MAX_LEVEL = 0.05, 0.95
# Largest number of hat functions of the level; they sum to one, as do other columns.
KNOTS = 3
# Penalty of the regression's slope, in prompts.
SLOPE_PENALTY = 0.5
# Largest gradient per prompt at which its objective counts as minimal, and the most steps and halvings.
_GRADIENT_TOLERANCE, _MAX_NEWTON_STEPS, _MAX_HALVINGS = 1e-12, 100, 30


def fit_adaptive_alpha(
    feature_map: FeatureMap,
    fit_split: LabelledBatch,
    set_rule: SetRule,
    alphas: Sequence[str],
    *,
    share: str | None,
    size: int,
) -> FeatureMap:
    """Add adaptive levels to a fitted feature map.

    Args:
        feature_map: The fitted map, without adaptive levels.
        fit_split: The prompts of the fit split, none of which may calibrate.
        set_rule: The set rule, which gives success scores.
        alphas: Error levels as decimal text, ascending; prompts get at least the smallest.
        share: With claims, the share of an answer's claims to keep, as decimal text; None for answers.
        size: Number of calibration prompts, at least 1.

    Returns:
        The map with `adaptive_alpha`.

    Raises:
        CalibrationError: If the fit split is empty.
    """
    require_fit_split(fit_split, "adaptive levels are fitted on")
    success_scores = set_rule.compute_success_scores(fit_split)
    is_reachable = success_scores < set_rule.compute_reach(fit_split.draws, share)
    with name_records_in_errors(fit_split.ids):
        dimension = feature_map.transform(fit_split.draws).shape[1] + KNOTS - 1
        mean_scores = MEAN_SCORE.compute_values(fit_split.draws)
    values, kinds, counts = np.unique(mean_scores, return_inverse=True, return_counts=True)
    q = _estimate_reachable(counts, np.bincount(kinds[is_reachable], minlength=len(values)))
    variance = float(np.average(q * (1.0 - q), weights=counts))
    margin = math.sqrt(variance * (dimension / size + 2 / len(fit_split))) if share is None else 0.0
    offered = _list_offered_levels(alphas)
    needed = 1.0 - q + margin
    places = np.minimum(np.searchsorted([float(one) for one in offered], needed), len(offered) - 1)
    changes = np.flatnonzero(np.diff(places)) + 1
    above = places[kinds][places[kinds] > places.min()]
    middle = places.min() if len(above) == 0 else np.quantile(above, 0.5, method="lower")
    levels = AdaptiveAlpha(
        # A mean score between two of these prompts' has the level of the smaller one.
        cuts=tuple(values[changes].tolist()),
        alphas=tuple(offered[place] for place in places[[0, *changes]]),
        knots=tuple(offered[place] for place in sorted({places.min(), middle, places.max()})),
        margin=round(margin, 3),
        share=share,
    )
    return replace(feature_map, adaptive_alpha=levels)


def _list_offered_levels(alphas: Sequence[str]) -> list[str]:
    """List the offered levels, ascending: those given, and multiples of `LEVEL_STEP` above the smallest."""
    steps = [format_alpha(LEVEL_STEP * step) for step in range(1, round(MAX_LEVEL / LEVEL_STEP) + 1)]
    offered = {*alphas, *(one for one in steps if float(one) > float(alphas[0]))}
    return sorted(offered, key=float)


def _estimate_reachable(counts: IntArray, reachable: IntArray) -> FloatArray:
    """Estimate the probability that a prompt is reachable at each of k mean scores, ascending.

    Args:
        counts: (k,) number of prompts with each mean score, at least 1.
        reachable: (k,) how many of them are reachable.

    Returns:
        (k,) probabilities between 0 and 1, exclusive.
    """
    ranks = np.cumsum(counts) - counts / 2.0 - counts.sum() / 2.0
    scale = math.sqrt(float(np.average(ranks**2, weights=counts)))
    x = np.column_stack([np.ones(len(ranks)), ranks / scale if scale > 0.0 else ranks])
    # Add half a prompt of each kind in the middle, so that the estimate is never 0 or 1.
    shares, weights = np.append(reachable / counts, 0.5), np.append(counts, 1.0)
    return _expit(x @ _fit_logistic(np.vstack([x, [1.0, 0.0]]), shares, weights))


def _fit_logistic(x: FloatArray, shares: FloatArray, weights: FloatArray) -> FloatArray:
    """Fit a logistic regression of shares on a constant and one input, with a ridge penalty on its slope.

    With log-odds z_i = b + c x_i, shares y_i and weights v_i, it minimises sum_i v_i [log(1 + exp(z_i)) - y_i
    z_i] + penalty / 2 c^2. The intercept is free, which keeps the mean probability equal to the mean share.

    Args:
        x: (k, 2) the constant and the input.
        shares: (k,) shares, not all 0 and not all 1.
        weights: (k,) weights above 0.

    Returns:
        (2,) the intercept and the slope.
    """
    size, penalties = float(weights.sum()), np.array([0.0, SLOPE_PENALTY])

    def objective(theta: FloatArray) -> float:
        z = x @ theta
        losses = np.logaddexp(0.0, z) - shares * z
        return float(weights @ losses + penalties @ theta**2 / 2.0) / size

    # Damped Newton steps: the objective is strictly convex, so a short enough step always lowers it. Near the
    # minimum round-off hides the fall, and the gradient decides.
    theta = np.zeros(2)
    for _ in range(_MAX_NEWTON_STEPS):
        p = _expit(x @ theta)
        gradient = (x.T @ (weights * (p - shares)) + penalties * theta) / size
        if float(np.abs(gradient).max()) <= _GRADIENT_TOLERANCE:
            break
        hessian = ((x.T * (weights * p * (1.0 - p))) @ x + np.diag(penalties)) / size
        step, before = np.linalg.solve(hessian, gradient), objective(theta)
        lengths = (2.0**-halvings for halvings in range(_MAX_HALVINGS))
        theta = theta - step * next((one for one in lengths if objective(theta - one * step) < before), 1.0)
    return theta


def _expit(values: FloatArray) -> FloatArray:
    """Return the logistic function 1 / (1 + exp(-v)) of each value."""
    return np.asarray(0.5 + 0.5 * np.tanh(0.5 * values))
