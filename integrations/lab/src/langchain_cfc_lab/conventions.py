"""The conventions of the paper's published code, by which its tables follow to the printed digit.

They are facts about github.com/FlynnYe/CFC-LLMs at commit 2fc0be6, which has no licence: nothing is copied
from it. Each differs from what this package does elsewhere, and the paper states none of them but the first:

- *Success score.* 1 without a correct candidate, so a set of all candidates counts as covered there when
  thresholds are chosen. Figures are measured by true labels all the same.
- *Rank.* ceil((n + 1) (1 - alpha)) in floats, and n where that is beyond n: no threshold is ever missing. A
  float product just above a whole number gives one rank too many. Ours is exact, and beyond n it flags.
- *Groups.* Edges are numpy's quantiles of the calibration prompts that also calibrate; a value on an edge
  belongs to the group below. The thresholds of groups are their own order statistics, not the conditional
  programme, which gives the same where groups are disjoint and nothing ties.
- *Plain quantile* (Learnt CP). The quantile regression solved by HiGHS as its dual programme

      max S'eta,  Phi'eta = 0,  tau - 1 <= eta <= tau,

  whose multipliers are the coefficients. In a group of n prompts with n tau whole, as in the tables, every
  value between the order statistics n tau and n tau + 1 is a solution, and HiGHS returns one of the two
  ends, by how its pivots fall: the upper one at alpha = 0.1, the lower one at 0.15. So the figures of Learnt
  CP need that solver.
- *Slack* (CFC-PAC). alpha - sqrt(log(1 / 0.9) / N), at least 1e-6, without the ridge of the paper's theorem.
- *TopK.* K with the coverage nearest to the target in floats, the smaller K in a tie; the paper's text says
  the smallest K that reaches the target.
- *GSC.* Bins are numpy's quantiles of the *test* prompts, with both ends inside; the smallest bin of each
  seed, then the mean over seeds. Spreads have the number of seeds as divisor.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from langchain_cfc.decision import AnswerSets
from langchain_cfc.set_rules import parse_set_rule
from langchain_cfc.support.arrays import FloatArray, IntArray
from langchain_cfc.thresholds import Thresholds
from langchain_cfc_lab.methods import Method, MethodOutput, Split
from langchain_cfc_lab.metrics import Groups
from langchain_cfc_lab.published_solver import solve_plain_regression

# Chooses one of n success scores at a level alpha.
Quantile: TypeAlias = Callable[[FloatArray, float], float]
# Returns the (m,) thresholds of a split's test prompts at a level alpha.
ThresholdFunction: TypeAlias = Callable[[Split, float], FloatArray]

DELTA = 0.9
LEAST_ALPHA = 1e-6
# Name of the statistic that holds each prompt's difficulty T.
DIFFICULTY = "meta(difficulty)"
# Name of the statistic that holds each prompt's success score.
SUCCESS = "success"


def select_capped_rank(success: FloatArray, alpha: float) -> float:
    """Return the order statistic of float rank ceil((n + 1) (1 - alpha)), the last one if that is beyond n.

    Examples:
        >>> select_capped_rank(np.array([0.3, 0.1, 0.2]), 0.5), select_capped_rank(np.array([0.3, 0.1]), 0.1)
        (0.2, 0.3)
    """
    rank = math.ceil((len(success) + 1) * (1.0 - alpha))
    return float(np.sort(success)[min(max(rank, 1), len(success)) - 1])


def select_plain_rank(success: FloatArray, alpha: float) -> float:
    """Return the order statistic of float rank ceil(n (1 - alpha)), without a conformal correction.

    Examples:
        >>> select_plain_rank(np.array([0.3, 0.1, 0.2]), 0.5)
        0.2
    """
    return float(np.sort(success)[max(math.ceil(len(success) * (1.0 - alpha)), 1) - 1])


def assign_groups(calibration: FloatArray, values: FloatArray, groups: int) -> IntArray:
    """Return the group of each value, 0 ... groups - 1, by numpy's quantiles of the calibration prompts.

    Examples:
        >>> assign_groups(np.arange(5.0), np.array([-1.0, 2.0, 2.1, 9.0]), 2).tolist()
        [0, 0, 1, 1]
    """
    edges = np.quantile(calibration, np.linspace(0.0, 1.0, groups + 1))
    return np.asarray(np.digitize(values, edges[1:-1], right=True), dtype=np.int64)


def make_test_bins(values: FloatArray, test: IntArray, bins: int) -> Groups:
    """Return equal-frequency bins of the test prompts' (N,) values; a value on an edge is in both bins.

    Examples:
        >>> make_test_bins(np.array([0.0, 1.0, 2.0, 9.0]), np.arange(3), 2).member.tolist()
        [[1.0, 0.0], [1.0, 1.0], [0.0, 1.0], [0.0, 0.0]]
    """
    edges = np.quantile(values[test], np.linspace(0.0, 1.0, bins + 1))
    inside = (values[:, None] >= edges[:-1]) & (values[:, None] <= edges[1:] + 1e-12)
    names = tuple(f"{place + 1} of {bins}" for place in range(bins))
    return Groups("", names, names, inside.astype(np.float64))


def get_success(split: Split) -> FloatArray:
    """Return the (N,) success scores of a split's calibration prompts."""
    return split.pool.draws.precomputed[SUCCESS][split.calibration]


def get_difficulty(split: Split) -> tuple[FloatArray, FloatArray]:
    """Return the (N,) difficulties of the calibration prompts and the (m,) of the test prompts."""
    values = split.pool.draws.precomputed[DIFFICULTY]
    return values[split.calibration], values[split.test]


def compute_one_threshold(split: Split, alpha: float) -> FloatArray:
    """Return ICP's threshold for every test prompt."""
    return np.full(len(split.test), select_capped_rank(get_success(split), alpha))


def compute_group_thresholds(
    split: Split, alpha: float, groups: int = 10, select: Quantile = select_capped_rank
) -> FloatArray:
    """Return CFC's thresholds with indicators of equal-frequency groups of the difficulty."""
    calibration, test = get_difficulty(split)
    group, success = assign_groups(calibration, calibration, groups), get_success(split)
    values = [select(success[group == one], alpha) for one in range(groups)]
    return np.array(values)[assign_groups(calibration, test, groups)]


def compute_regression_on_quarters(split: Split, alpha: float) -> FloatArray:
    """Return Learnt CP's thresholds with indicators of quarters of the difficulty."""
    calibration, test = get_difficulty(split)
    indicators = np.eye(4)
    beta = solve_plain_regression(
        indicators[assign_groups(calibration, calibration, 4)], get_success(split), alpha
    )
    return np.clip(beta, 0.0, 1.0)[assign_groups(calibration, test, 4)]


@dataclass(frozen=True)
class PublishedThreshold(Method):
    """A method of the paper whose sets hold what a threshold of the published code reaches.

    Attributes:
        compute: The thresholds.
        truncates: Whether a set ends at its best candidate, in the order drawn.
        has_slack: Whether the level is made stricter by CFC-PAC's slack.
    """

    compute: ThresholdFunction
    truncates: bool = False
    has_slack: bool = False

    def make_sets(self, split: Split, alpha: str) -> MethodOutput:
        """See `Method.make_sets`."""
        level = float(alpha)
        if self.has_slack:
            slack = math.sqrt(math.log(1.0 / DELTA) / len(split.calibration))
            level = max(level - slack, LEAST_ALPHA)
        values = split.get_or_make((self.compute, level), lambda: self.compute(split, level))
        served = "best_prefix" if self.truncates else "all"
        thresholds = Thresholds(values, np.zeros(len(values)), np.zeros(len(values), dtype=np.bool_))
        sets = AnswerSets.from_levels(
            split.test_candidates, split.compute_test_levels(served), thresholds, parse_set_rule(served)
        )
        return MethodOutput(sets, values, split.draw_counts)


@dataclass(frozen=True)
class PublishedTopK(Method):
    """The K candidates of lowest score, K from a grid by its coverage on the calibration prompts."""

    grid: tuple[int, ...]

    def make_sets(self, split: Split, alpha: str) -> MethodOutput:
        """See `Method.make_sets`."""
        pool, target = split.pool, 1.0 - float(alpha)
        ranks = split.get_or_make(("ranks",), lambda: _rank_candidates(split))
        first = np.where(pool.correct, ranks, np.inf).min(axis=1)[split.calibration]
        chosen = min(self.grid, key=lambda k: (abs(float((first < k).mean()) - target), k))
        accepted = ranks[split.test] < chosen
        sets = AnswerSets(split.test_candidates, accepted, np.zeros(len(accepted), dtype=np.bool_))
        return MethodOutput(sets, None, split.draw_counts)


def _rank_candidates(split: Split) -> FloatArray:
    """Return (N, n) ranks from 0 by score, the earlier candidate first in a tie; infinite for padding."""
    draws = split.pool.draws
    order = np.argsort(np.where(draws.is_drawn, draws.scores, np.inf), axis=1, kind="stable")
    ranks = np.empty(order.shape)
    np.put_along_axis(
        ranks, order, np.broadcast_to(np.arange(draws.n, dtype=np.float64), order.shape), axis=1
    )
    return np.where(draws.is_drawn, ranks, np.inf)
