"""`fit_adaptive_alpha`: fit the error level that is stated for each prompt, on the fit split.

A prompt can be certified at an error level a(x) only if at least a share 1 - a(x) of the prompts like it has
a correct candidate. So with q(x), the estimated probability that one is drawn,

    a(x) = max(alpha, 1 - q(x) + margin), rounded up to a grid of levels,

where q(x) is a logistic regression on the mean score. Rounding lets prompts share the linear programme of a
threshold. The function is fixed before calibration prompts are seen, which is all that the theorem needs: a
poor estimate costs usefulness (lower stated coverage than necessary, or flagged prompts), never validity.

The threshold is computed from N calibration prompts, and is finite for a prompt as long as the share of
unreachable ones among those that weigh on it is at most a(x). A fit with d columns follows that share with
the leverage phi' (Phi' Phi)^-1 phi, which is d / N on average over the prompts, so it lies a standard error
of sqrt(q (1 - q) d / N) from 1 - q(x). The margin is this standard error with the mean of q (1 - q). Fewer
prompts are flagged than a normal law says, because levels are rounded up, and a fit between reachable scores
and the cap is still finite.

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
from dataclasses import dataclass, replace

import numpy as np

from langchain_cfc.calibration.fit import require_fit_split
from langchain_cfc.calibration.logistic import expit, fit_logistic
from langchain_cfc.candidates import LabelledBatch
from langchain_cfc.features import AdaptiveAlpha, FeatureMap, name_records_in_errors
from langchain_cfc.set_rules import SetRule
from langchain_cfc.support.arrays import BoolArray, FloatArray
from langchain_cfc.thresholds import format_alpha

# Distance between offered levels, and the largest of them.
LEVEL_STEP, MAX_LEVEL = 0.05, 0.95
# Largest number of hat functions of the level; they sum to one, as do other columns.
KNOTS = 3
# Penalty of the regression's slope, in prompts.
SLOPE_PENALTY = 0.5


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
        estimate = _ReachabilityModel.fit(AdaptiveAlpha.read_mean_scores(fit_split.draws), is_reachable)
    margin = estimate.compute_standard_error(dimension, size) if share is None else 0.0
    levels = replace(estimate.make_levels(_list_offered_levels(alphas), margin), share=share)
    return replace(feature_map, adaptive_alpha=levels)


def _list_offered_levels(alphas: Sequence[str]) -> list[str]:
    """List the offered levels, ascending: those given, and multiples of `LEVEL_STEP` above the smallest."""
    steps = [format_alpha(LEVEL_STEP * step) for step in range(1, round(MAX_LEVEL / LEVEL_STEP) + 1)]
    offered = {*alphas, *(one for one in steps if float(one) > float(alphas[0]))}
    return sorted(offered, key=float)


@dataclass(frozen=True)
class _ReachabilityModel:
    """The estimated probability that a prompt is reachable, as a function of its mean score."""

    centre: float
    scale: float
    intercept: float
    slope: float
    mean_scores: FloatArray  # (M,) of the prompts that it was fitted to

    @classmethod
    def fit(cls, scores: FloatArray, reachable: BoolArray) -> _ReachabilityModel:
        """Fit the model to the (M,) mean scores of the fit split, and whether each prompt is reachable."""
        centre, scale = float(scores.mean()), float(scores.std())
        standardised = (scores - centre) / scale if scale > 0.0 else np.zeros(len(scores))
        # Add half a prompt of each kind at the mean, so that the estimate is never 0 or 1.
        x = np.column_stack([np.ones(len(scores) + 2), np.append(standardised, [0.0, 0.0])])
        weights = np.append(np.ones(len(scores)), [0.5, 0.5])
        theta = fit_logistic(x, np.append(reachable, [False, True]), weights, SLOPE_PENALTY)
        return cls(centre, scale, float(theta[0]), float(theta[1]), scores)

    def predict(self, mean_scores: FloatArray) -> FloatArray:
        """Return the probability at each mean score."""
        place = (mean_scores - self.centre) / self.scale if self.scale > 0.0 else np.zeros(len(mean_scores))
        return expit(self.intercept + self.slope * place)

    def compute_standard_error(self, dimension: int, size: int) -> float:
        """Compute the standard error of a fit with `dimension` columns to `size` prompts like these."""
        q = self.predict(self.mean_scores)
        return round(math.sqrt(float(np.mean(q * (1.0 - q))) * dimension / size), 3)

    def make_levels(self, grid: Sequence[str], margin: float) -> AdaptiveAlpha:
        """Make the step function of the mean score; outside the range seen the end levels continue."""
        offered = np.array([float(one) for one in grid])
        # The level passes g where q = 1 + margin - g, which a monotone q reaches once.
        passed = 1.0 + margin - offered[:-1]
        passed = passed[(passed > 0.0) & (passed < 1.0)]
        cuts = np.empty(0)
        if self.slope * self.scale != 0.0:
            log_odds = np.log(passed) - np.log1p(-passed)
            cuts = np.sort(self.centre + self.scale * (log_odds - self.intercept) / self.slope)
        low, high = self.mean_scores.min(), self.mean_scores.max()
        ends = np.unique([low, *cuts[(cuts > low) & (cuts < high)], high])
        # Between two cuts the level is that of their middle.
        middles = (ends[:-1] + ends[1:]) / 2.0 if len(ends) > 1 else ends
        needed = 1.0 - self.predict(middles) + margin
        places = np.minimum(np.searchsorted(offered, needed), len(grid) - 1)
        changes = np.flatnonzero(np.diff(places)) + 1
        of_prompts = places[[0, *changes]][np.searchsorted(ends[changes], self.mean_scores, side="right")]
        above = of_prompts[of_prompts > places.min()]
        middle = places.min() if len(above) == 0 else np.quantile(above, 0.5, method="lower")
        return AdaptiveAlpha(
            cuts=tuple(ends[changes].tolist()),
            alphas=tuple(grid[place] for place in places[[0, *changes]]),
            knots=tuple(grid[place] for place in sorted({places.min(), middle, places.max()})),
            margin=margin,
        )
