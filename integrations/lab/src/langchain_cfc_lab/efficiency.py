"""The paper's efficiency analysis, measured: set sizes of three rules, and broken assumptions.

`efficiency_world.py` derives the closed forms.

*Cells.* In each world that meets the assumptions, three rules are compared at each level: the oracle q(T),
one threshold for all, and the exact conditional rule of [1, T], learned from 10,000 prompts. E|C| from the
integral is compared with the mean of |C| over drawn prompts, whose standard error is that of a mean over
independent prompts. So z is approximately standard normal, and 0.27 % of independent cells are beyond 3 by
chance. Cells of one world share prompts and the calibration set. The learned rule's E|C| is the mean of
M G_t at the learned thresholds over 2,048 midpoints.

q(t) is in the span of [1, T], so the learned threshold is a consistent quantile regression with errors of
order N^(-1/2) (Koenker and Bassett 1978), and so is its E|C|, a smooth functional of the threshold.

*Hidden difficulty.* Let all prompts of the world `rarer` have the same difficulty T in the sense of the
analysis, and let the chance of a correct candidate be a property of X that T does not show. Then F and G are
mixtures, (2) and (4) hold because T is constant, and (1) and (3) hold by calculation. The oracle that
conditions on X, as printed in Proposition 4.3, is still that of `rarer`; the oracle given T is one threshold.

Source: the paper's section "Efficiency Analysis".
"""

from __future__ import annotations

import math
from typing import Literal, TypeAlias

import numpy as np
from pydantic import computed_field

from langchain_cfc.errors import InputError
from langchain_cfc.evaluation import ReportData
from langchain_cfc.support.arrays import FloatArray
from langchain_cfc.thresholds import ConditionalThreshold, compute_tau
from langchain_cfc_lab.efficiency_world import (
    BROKEN_WORLDS,
    NODES,
    RARER_WORLD,
    UNREACHABLE_SCORE,
    WORLDS,
    EfficiencyWorld,
    check_assumptions,
    find_marginal_threshold,
    make_nodes,
)
from langchain_cfc_lab.paper import ALPHAS
from langchain_cfc_lab.splits import check_seed

SizeRule: TypeAlias = Literal["oracle", "marginal", "learned"]
CALIBRATION_SIZE = 10_000
# The level used for the inequality checks, and the number of candidates M.
ALPHA, N = "0.2", 50
MAX_Z = 3.0  # standard errors
_LEARNED_NODES = 2048
_HIDDEN_NODES = 512


class SizeCell(ReportData):
    """Mean set size of one rule in one world, from the integral and from drawn prompts.

    Attributes:
        world: The world.
        alpha: Error level as decimal text.
        rule: The threshold rule.
        predicted: M E[G_T(threshold)], computed by a midpoint sum.
        simulated: Mean number of candidates in the sets of drawn prompts.
        standard_error: Standard error of `simulated`.
        coverage: Share of drawn prompts whose set holds a correct candidate.
    """

    world: str
    alpha: str
    rule: SizeRule
    predicted: float
    simulated: float
    standard_error: float
    coverage: float

    @property
    def z(self) -> float:
        """Distance of the simulated size from the predicted one, in standard errors."""
        return (self.simulated - self.predicted) / self.standard_error


class InequalityCheck(ReportData):
    """Comparison of the oracle with one threshold in one world, and the two terms of their difference.

    Attributes:
        world: The world.
        words: What is special about it.
        assumptions: Whether each of the paper's assumptions holds, by number.
        oracle: E|C| of the oracle.
        marginal: E|C| of one threshold.
        covariance: M Cov(dC_T/du, F_T(threshold)); None if the level is out of reach.
        differs: Share of prompts whose oracle threshold differs from the one for all.
        holds: Whether the oracle's sets are smaller; None if the difference is within the error bounds.
    """

    world: str
    words: str
    assumptions: dict[str, bool]
    oracle: float
    marginal: float
    covariance: float | None
    differs: float
    holds: bool | None

    @computed_field  # type: ignore[prop-decorator] # mypy knows no decorated properties
    @property
    def curvature(self) -> float | None:
        """E[C_T(F_T(l)) - tangent at u0], times M: the difference of the sizes without the covariance."""
        return None if self.covariance is None else self.marginal - self.oracle - self.covariance


class EfficiencyReport(ReportData):
    """Results of the efficiency analysis in worlds with closed forms.

    Attributes:
        seed: Seed that prompts were drawn with.
        cells: Results of three rules in every world, for every level.
        within: Number of cells within three standard errors.
        checks: Comparisons in worlds that meet the assumptions, and in worlds that break some.
        account: What was found, in words.
    """

    seed: int
    cells: list[SizeCell]
    within: int
    checks: list[InequalityCheck]
    account: list[str]


def analyse_efficiency(prompts: int = 20_000, *, seed: int = 1) -> EfficiencyReport:
    """Compute the paper's efficiency analysis in worlds with closed forms, and simulate it.

    Args:
        prompts: Number of prompts drawn for each world, at least 2.
        seed: Seed of the random draws, at least 0.

    Returns:
        The report.

    Raises:
        InputError: If a number is too small.
    """
    if prompts < 2:  # noqa: PLR2004 - for a spread
        msg = f"prompts must be at least 2, got {prompts}"
        raise InputError(msg)
    check_seed(seed)
    cells = [cell for place in range(len(WORLDS)) for cell in _measure_cells(prompts, seed, place)]
    worlds = (*WORLDS, *(world for world, _ in BROKEN_WORLDS))
    checks = [*map(compare_rules, worlds), _compare_hidden_difficulty()]
    within = sum(abs(cell.z) <= MAX_Z for cell in cells)
    oracle, learned = (
        np.array([cell.predicted for cell in cells if cell.rule == rule]) for rule in ("oracle", "learned")
    )
    furthest = max(cells, key=lambda cell: abs(cell.z))
    larger = ", ".join(check.world for check in checks if check.holds is False)
    chance = 100.0 * (1.0 - math.erf(MAX_Z / math.sqrt(2.0)))
    return EfficiencyReport(
        seed=seed,
        cells=cells,
        within=within,
        checks=checks,
        account=[
            (
                f"{within} of {len(cells)} cells have E|C| within {MAX_Z:g} standard errors of the integral; "
                f"the furthest, {furthest.world} at alpha = {furthest.alpha}, {furthest.rule}, is "
                f"{furthest.z:+.2f} away. Chance alone puts {chance:.2f} % of cells beyond."
            ),
            (
                f"With {CALIBRATION_SIZE:,} calibration prompts the learned rule's E|C| is within "
                f"{100 * np.abs(learned / oracle - 1.0).max():.1f} % of the oracle's at every level."
            ),
            f"The oracle's sets are larger than those of one threshold in the worlds {larger}.",
        ],
    )


def _measure_cells(prompts: int, seed: int, place: int) -> list[SizeCell]:
    """Compute the cells of one world, at all levels."""
    world = WORLDS[place]
    rng = np.random.default_rng([seed, 1, place])
    t, nodes, coarse = rng.random(prompts), make_nodes(), make_nodes(_LEARNED_NODES)
    scores, correct = world.draw_scores(t, N, rng)
    success = np.where(correct, scores, np.inf).min(axis=1)
    learned_on = rng.random(CALIBRATION_SIZE)
    calibration = world.draw_success_scores(learned_on, N, rng)
    cells = []
    for alpha in ALPHAS:
        coverage = float(compute_tau(alpha))
        one = np.array(find_marginal_threshold(world, coverage, N))
        learned = _learn_thresholds(
            alpha, _make_features(learned_on), calibration, _make_features(t), _make_features(coarse)
        )
        thresholds: dict[SizeRule, tuple[FloatArray, FloatArray]] = {
            "oracle": (world.compute_quantile(coverage, t, N), world.compute_cost(coverage, nodes, N)),
            "marginal": (one, world.compute_share(one, nodes, N)),
            "learned": (learned[0], world.compute_share(learned[1], coarse, N)),
        }
        for rule, (threshold, shares) in thresholds.items():
            sizes = (scores <= np.reshape(threshold, (-1, 1))).sum(axis=1)
            cells.append(
                SizeCell(
                    world=world.name,
                    alpha=alpha,
                    rule=rule,
                    predicted=N * float(shares.mean()),
                    simulated=float(sizes.mean()),
                    # A mean of P whole numbers has a resolution of 1 / P.
                    standard_error=math.hypot(float(sizes.std(ddof=1)) / math.sqrt(prompts), 1.0 / prompts),
                    coverage=float((success <= threshold).mean()),
                )
            )
    return cells


def _make_features(t: FloatArray) -> FloatArray:
    return np.column_stack([np.ones_like(t), t])


def _learn_thresholds(
    alpha: str, features: FloatArray, success: FloatArray, *asked: FloatArray
) -> list[FloatArray]:
    """Fit the conditional rule, and return its thresholds, clipped to [0, 1], for each array in `asked`."""
    rule = ConditionalThreshold(alpha, UNREACHABLE_SCORE, window=None).fit(features, success)
    return [np.clip(rule.thresholds(each), 0.0, 1.0) for each in asked]


def compare_rules(world: EfficiencyWorld, alpha: str = ALPHA, n: int = N) -> InequalityCheck:
    """Compare the oracle with one threshold in a world, using the integrals of the analysis.

    Args:
        world: The world.
        alpha: Error level as decimal text.
        n: Number of candidates M, at least 2.

    Returns:
        Both sizes, the two terms of their difference, and which assumptions hold.
    """
    coverage, t = float(compute_tau(alpha)), make_nodes()
    one = np.array(find_marginal_threshold(world, coverage, n))
    oracle = n * float(world.compute_cost(coverage, t, n).mean())
    marginal = n * float(world.compute_share(one, t, n).mean())
    covariance = None
    if float(world.compute_coverage(np.array(1.0), t, n).min()) > coverage:
        above = world.compute_coverage(one, t, n) - coverage
        covariance = n * float((world.compute_slope(coverage, t, n) * above).mean())
    differs = np.abs(world.compute_quantile(coverage, t, n) - one) > 1e-6  # noqa: PLR2004 - of a threshold
    # The error of the threshold itself shifts E|C| by less than it shifts the coverage.
    bound = n * world.bound_variation(n) / (2 * NODES)
    return InequalityCheck(
        world=world.name,
        words=world.words,
        assumptions=check_assumptions(world, n),
        oracle=oracle,
        marginal=marginal,
        covariance=covariance,
        differs=float(differs.mean()),
        holds=None if abs(marginal - oracle) <= 2.0 * bound else marginal > oracle,
    )


def _compare_hidden_difficulty() -> InequalityCheck:
    """Compare the rules in the world `rarer`, with one difficulty for all prompts; see the module."""
    t, levels = make_nodes(_HIDDEN_NODES)[:, None], np.linspace(0.0, 1.0, _HIDDEN_NODES + 1)
    coverage = RARER_WORLD.compute_coverage(levels, t, N).mean(axis=0)
    slopes = np.diff(RARER_WORLD.compute_share(levels, t, N).mean(axis=0)) / np.diff(coverage)
    continuous, convex = bool(np.diff(coverage).min() > 0.0), bool(np.diff(slopes).min() >= 0.0)
    return compare_rules(RARER_WORLD).model_copy(
        update={
            "world": "hidden",
            "words": "the world `rarer`, where T does not show what the oracle knows",
            "assumptions": {"1": continuous, "2": True, "3": convex, "4": True},
            "covariance": None,
        }
    )
