"""The paper's efficiency analysis, measured: set sizes of three rules, broken assumptions, and convergence.

`efficiency_world.py` derives the closed forms; `efficiency_recordings.py` applies the analysis to recordings.

*Cells.* In each world that meets the assumptions, three rules are compared for each number of candidates and
each level: the oracle q(T), one threshold for all, and the exact conditional rule of [1, T], learned from
10,000 prompts. E|C| from the integral is compared with the mean of |C| over drawn prompts, whose standard
error is that of a mean over independent prompts. So z is approximately standard normal, and 0.27 % of
independent cells are beyond 3 by chance. Cells with the same world and number of candidates share prompts.

*The learned rule.* Cells with the same world and number of candidates share one calibration set. The paper's
E|C| = M E[G_X(l(X))] is the mean of M G_t at the learned thresholds over 2,048 midpoints.

*Convergence.* q(t) is in the span of [1, T], so the learned threshold is a consistent quantile regression
with errors of order N^(-1/2) (Koenker and Bassett 1978). E|C| is a smooth functional of the threshold, so its
deviation from the oracle's has the same order. The rate is the slope of a least-squares line through log
error against log N. The logarithm of a root mean square of R nearly normal errors has standard deviation
1 / sqrt(2 R), which gives the rate's standard error. The control, one threshold for all, does not converge to
the oracle: its slope is about 0.

*Hidden difficulty.* Let all prompts of the world `rarer` have the same difficulty T in the sense of the
analysis, and let the chance of a correct candidate be a property of X that T does not show. Then F and G are
mixtures, (2) and (4) hold because T is constant, and (1) and (3) hold by calculation. The oracle that
conditions on X, as printed in Proposition 4.3, is still that of `rarer`; the oracle given T is one threshold.

Source: the paper's section "Efficiency Analysis".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Literal, TypeAlias

import numpy as np

from langchain_cfc.errors import InputError
from langchain_cfc.evaluation import ReportData
from langchain_cfc.support.arrays import FloatArray
from langchain_cfc.thresholds import ConditionalThreshold, compute_tau
from langchain_cfc_lab.efficiency_recordings import RecordedEfficiency
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
from langchain_cfc_lab.splits import Progress, check_seed, measure_splits

SizeRule: TypeAlias = Literal["oracle", "marginal", "learned"]
CANDIDATES = (10, 50, 100)
CALIBRATION_SIZE = 10_000
SIZES = (100, 300, 1000, 3000, 10_000, 30_000, 100_000)
# The level and number of candidates used for the inequality checks and for convergence.
ALPHA, N = "0.2", 50
MAX_Z = 3.0  # standard errors
MAX_SIZE_ERROR = 0.01  # relative to the oracle's E|C|, at the largest calibration set
_LEARNED_NODES = 2048
_HIDDEN_NODES = 512


class SizeCell(ReportData):
    """Mean set size of one rule in one world, from the integral and from drawn prompts.

    Attributes:
        world: The world.
        alpha: Error level as decimal text.
        n_candidates: Number of candidates M.
        rule: The threshold rule.
        predicted: M E[G_T(threshold)], computed by a midpoint sum.
        error_bound: Largest error of that sum; None for the learned rule, whose thresholds have no bound.
        simulated: Mean number of candidates in the sets of drawn prompts.
        standard_error: Standard error of `simulated`.
        z: (simulated - predicted) / standard_error.
        coverage: Share of drawn prompts whose set holds a correct candidate.
    """

    world: str
    alpha: str
    n_candidates: int
    rule: SizeRule
    predicted: float
    error_bound: float | None
    simulated: float
    standard_error: float
    z: float
    coverage: float


class InequalityCheck(ReportData):
    """Comparison of the oracle with one threshold in one world, and the two terms of their difference.

    Attributes:
        world: The world.
        words: What is special about it.
        alpha: Error level as decimal text.
        n_candidates: Number of candidates M.
        assumptions: Whether each of the paper's assumptions holds, by number.
        oracle: E|C| of the oracle.
        marginal: E|C| of one threshold.
        error_bound: Largest error of `oracle` and of `marginal`.
        covariance: M Cov(dC_T/du, F_T(threshold)); None if the level is out of reach or C_t has steps.
        curvature: `marginal - oracle - covariance`; None if `covariance` is None.
        differs: Share of prompts whose oracle threshold differs from the one for all.
        holds: Whether the oracle's sets are smaller; None if the difference is within the error bounds.
    """

    world: str
    words: str
    alpha: str
    n_candidates: int
    assumptions: dict[str, bool]
    oracle: float
    marginal: float
    error_bound: float
    covariance: float | None
    curvature: float | None
    differs: float
    holds: bool | None


class ConvergencePoint(ReportData):
    """Results of the learned rule at one number of calibration prompts, over repetitions.

    Attributes:
        n_calibration: Number of calibration prompts N.
        mean_size: Mean of E|C| over calibration sets.
        size_error: Root mean square of E|C| / (the oracle's E|C|) - 1.
        threshold_error: Mean over calibration sets of the maximum over t of |threshold - q(t)|.
        marginal_error: `size_error` of one threshold for all, learned from the same prompts.
    """

    n_calibration: int
    mean_size: float
    size_error: float
    threshold_error: float
    marginal_error: float


class Convergence(ReportData):
    """Speed at which the learned rule approaches the oracle in one world.

    Attributes:
        world: The world.
        alpha: Error level as decimal text.
        n_candidates: Number of candidates M.
        oracle: E|C| of the oracle.
        repetitions: Number of calibration sets of each size.
        points: One for each size, ascending.
        size_rate: Slope of log `size_error` against log N.
        threshold_rate: The same slope for `threshold_error`.
        marginal_rate: The same slope for `marginal_error`, the control.
        standard_error: Standard error of `size_rate` and of `marginal_rate`.
    """

    world: str
    alpha: str
    n_candidates: int
    oracle: float
    repetitions: int
    points: list[ConvergencePoint]
    size_rate: float
    threshold_rate: float
    marginal_rate: float
    standard_error: float


class EfficiencyReport(ReportData):
    """Results of the efficiency analysis in worlds with closed forms.

    Attributes:
        seed: Seed that prompts were drawn with.
        prompts: Number of drawn prompts of each cell.
        cells: Results of three rules in every world, for every number of candidates and level.
        within: Number of cells within three standard errors.
        checks: Comparisons in worlds that meet the assumptions, and in worlds that break some.
        convergence: Convergence in the worlds that meet the assumptions.
        passes: Whether all cells are within three standard errors, and the learned rule's mean E|C| is within
            1 % of the oracle's at the largest calibration set.
        account: What was found, in words.
        recording: The same analysis on records, if it was run.
    """

    seed: int
    prompts: int
    cells: list[SizeCell]
    within: int
    checks: list[InequalityCheck]
    convergence: list[Convergence]
    passes: bool
    account: list[str]
    recording: RecordedEfficiency | None = None


def analyse_efficiency(
    prompts: int = 20_000,
    *,
    repetitions: int = 50,
    seed: int = 1,
    worlds: Sequence[EfficiencyWorld] = WORLDS,
    candidates: Sequence[int] = CANDIDATES,
    sizes: Sequence[int] = SIZES,
    jobs: int = 1,
    progress: Progress | None = None,
) -> EfficiencyReport:
    """Compute the paper's efficiency analysis in worlds with closed forms, and simulate it.

    Args:
        prompts: Number of prompts drawn for each world and number of candidates, at least 2.
        repetitions: Number of calibration sets of each size for convergence, at least 2.
        seed: Seed of the random draws, at least 0.
        worlds: Worlds in which cells and convergence are computed.
        candidates: Numbers of candidates M, each at least 2.
        sizes: Numbers of calibration prompts for convergence, ascending, at least two.
        jobs: Number of processes.
        progress: Function of tasks and their number that yields the tasks, such as a progress bar.

    Returns:
        The report.

    Raises:
        InputError: If a number is too small.
        MissingExtraError: If SciPy is not installed.
    """
    least = {"prompts": prompts, "repetitions": repetitions, "number of sizes": len(sizes)}
    for name, number in {**least, "number of candidates": min(candidates)}.items():
        if number < 2:  # noqa: PLR2004 - for a spread, and for a minimum over candidates
            msg = f"{name} must be at least 2, got {number}"
            raise InputError(msg)
    check_seed(seed)
    settings = [(world, n) for world in worlds for n in candidates]
    measured = measure_splits(partial(_measure_cells, settings, prompts, seed), len(settings), jobs, progress)
    cells = [cell for part in measured for cell in part]
    repeat = partial(_measure_repetition, tuple(worlds), tuple(sizes), seed)
    errors = np.array(measure_splits(repeat, repetitions, jobs, progress))
    convergence = [_summarise_world(world, sizes, errors[:, place]) for place, world in enumerate(worlds)]
    checks = [compare_rules(world) for world in (*worlds, *(world for world, _ in BROKEN_WORLDS))]
    checks.append(_compare_hidden_difficulty())
    within = sum(abs(cell.z) <= MAX_Z for cell in cells)
    close = all(abs(one.points[-1].mean_size / one.oracle - 1.0) <= MAX_SIZE_ERROR for one in convergence)
    return EfficiencyReport(
        seed=seed,
        prompts=prompts,
        cells=cells,
        within=within,
        checks=checks,
        convergence=convergence,
        passes=close and within == len(cells),
        account=_write_account(cells, within, checks, convergence),
    )


def _measure_cells(
    settings: Sequence[tuple[EfficiencyWorld, int]], prompts: int, seed: int, place: int
) -> list[SizeCell]:
    """Compute the cells for one world and number of candidates, at all levels."""
    world, n = settings[place]
    rng = np.random.default_rng([seed, 1, place])
    t, nodes, coarse = rng.random(prompts), make_nodes(), make_nodes(_LEARNED_NODES)
    scores, correct = world.draw_scores(t, n, rng)
    success = np.where(correct, scores, np.inf).min(axis=1)
    learned_on = rng.random(CALIBRATION_SIZE)
    calibration = world.draw_success_scores(learned_on, n, rng)
    # The error of the threshold itself shifts E|C| by less than it shifts the coverage.
    bound = n * world.bound_variation(n) / (2 * NODES)
    cells = []
    for alpha in ALPHAS:
        coverage = float(compute_tau(alpha))
        one = np.array(find_marginal_threshold(world, coverage, n))
        learned = _learn_thresholds(
            alpha, _make_features(learned_on), calibration, _make_features(t), _make_features(coarse)
        )
        thresholds: dict[SizeRule, tuple[FloatArray, FloatArray, float | None]] = {
            "oracle": (world.compute_quantile(coverage, t, n), world.compute_cost(coverage, nodes, n), bound),
            "marginal": (one, world.compute_share(one, nodes, n), bound),
            "learned": (learned[0], world.compute_share(learned[1], coarse, n), None),
        }
        for name, (threshold, shares, error_bound) in thresholds.items():
            sizes = (scores <= np.reshape(threshold, (-1, 1))).sum(axis=1)
            predicted, simulated = n * float(shares.mean()), float(sizes.mean())
            # A mean of P whole numbers has a resolution of 1 / P.
            error = math.hypot(float(sizes.std(ddof=1)) / math.sqrt(prompts), 1.0 / prompts)
            cells.append(
                SizeCell(
                    world=world.name,
                    alpha=alpha,
                    n_candidates=n,
                    rule=name,
                    predicted=predicted,
                    error_bound=error_bound,
                    simulated=simulated,
                    standard_error=error,
                    z=(simulated - predicted) / error,
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
    bound = n * world.bound_variation(n) / (2 * NODES)
    covariance = None
    if world.grades is None and float(world.compute_coverage(np.array(1.0), t, n).min()) > coverage:
        above = world.compute_coverage(one, t, n) - coverage
        covariance = n * float((world.compute_slope(coverage, t, n) * above).mean())
    differs = np.abs(world.compute_quantile(coverage, t, n) - one) > 1e-6  # noqa: PLR2004 - of a threshold
    return InequalityCheck(
        world=world.name,
        words=world.words,
        alpha=alpha,
        n_candidates=n,
        assumptions=check_assumptions(world, n),
        oracle=oracle,
        marginal=marginal,
        error_bound=bound,
        covariance=covariance,
        curvature=None if covariance is None else marginal - oracle - covariance,
        differs=float(differs.mean()),
        holds=None if abs(marginal - oracle) <= 2.0 * bound else marginal > oracle,
    )


def _compare_hidden_difficulty() -> InequalityCheck:
    """Compare the rules in the world `rarer`, with one difficulty for all prompts; see the module."""
    t, levels = make_nodes(_HIDDEN_NODES)[:, None], np.linspace(0.0, 1.0, _HIDDEN_NODES + 1)
    coverage = RARER_WORLD.compute_coverage(levels, t, N).mean(axis=0)
    share = RARER_WORLD.compute_share(levels, t, N).mean(axis=0)
    slopes = np.diff(share) / np.diff(coverage)
    check = compare_rules(RARER_WORLD)
    return check.model_copy(
        update={
            "world": "hidden",
            "words": "the world `rarer`, where T does not show what the oracle knows",
            "assumptions": {
                "1": bool(np.diff(coverage).min() > 0.0),
                "2": True,
                "3": bool(np.diff(slopes).min() >= 0.0),
                "4": True,
            },
            "covariance": None,
            "curvature": None,
        }
    )


def _measure_repetition(
    worlds: Sequence[EfficiencyWorld], sizes: Sequence[int], seed: int, number: int
) -> list[list[tuple[float, float, float]]]:
    """Return learned E|C|, largest threshold error and E|C| of one threshold, for each world and size."""
    nodes, coverage = make_nodes(_LEARNED_NODES), float(compute_tau(ALPHA))
    results = []
    for place, world in enumerate(worlds):
        rng = np.random.default_rng([seed, 2, number, place])
        right = world.compute_quantile(coverage, nodes, N)
        of_world = []
        for size in sizes:
            t = rng.random(size)
            success = world.draw_success_scores(t, N, rng)
            line, asked = _make_features(t), _make_features(nodes)
            (learned,) = _learn_thresholds(ALPHA, line, success, asked)
            (one,) = _learn_thresholds(ALPHA, line[:, :1], success, asked[:, :1])
            of_world.append(
                (
                    N * float(world.compute_share(learned, nodes, N).mean()),
                    float(np.abs(learned - right).max()),
                    N * float(world.compute_share(one, nodes, N).mean()),
                )
            )
        results.append(of_world)
    return results


def _summarise_world(world: EfficiencyWorld, sizes: Sequence[int], measured: FloatArray) -> Convergence:
    """Summarise the (R, sizes, 3) measurements of R repetitions in one world."""
    oracle = N * float(world.compute_cost(float(compute_tau(ALPHA)), make_nodes(), N).mean())
    learned, threshold, one = np.moveaxis(measured, -1, 0)
    errors = {
        "size": np.sqrt(((learned / oracle - 1.0) ** 2).mean(axis=0)),
        "threshold": threshold.mean(axis=0),
        "marginal": np.sqrt(((one / oracle - 1.0) ** 2).mean(axis=0)),
    }
    x = np.log(np.array(sizes, dtype=np.float64))
    x = x - x.mean()
    rates = {name: float(x @ np.log(values) / (x @ x)) for name, values in errors.items()}
    return Convergence(
        world=world.name,
        alpha=ALPHA,
        n_candidates=N,
        oracle=oracle,
        repetitions=len(measured),
        points=[
            ConvergencePoint(
                n_calibration=size,
                mean_size=float(learned[:, place].mean()),
                size_error=float(errors["size"][place]),
                threshold_error=float(errors["threshold"][place]),
                marginal_error=float(errors["marginal"][place]),
            )
            for place, size in enumerate(sizes)
        ],
        size_rate=rates["size"],
        threshold_rate=rates["threshold"],
        marginal_rate=rates["marginal"],
        standard_error=1.0 / math.sqrt(2 * len(measured) * float(x @ x)),
    )


def _write_account(
    cells: Sequence[SizeCell],
    within: int,
    checks: Sequence[InequalityCheck],
    convergence: Sequence[Convergence],
) -> list[str]:
    furthest = max(cells, key=lambda cell: abs(cell.z))
    chance = 100.0 * (1.0 - math.erf(MAX_Z / math.sqrt(2.0)))
    last = [one.points[-1] for one in convergence]
    off = max(abs(one.points[-1].mean_size / one.oracle - 1.0) for one in convergence)
    broken = [check for check in checks if check.holds is False]
    return [
        (
            f"{within} of {len(cells)} cells have E|C| within {MAX_Z:g} standard errors of the integral; the "
            f"furthest, {furthest.world} with M = {furthest.n_candidates} at alpha = {furthest.alpha}, "
            f"{furthest.rule}, is {furthest.z:+.2f} away. Chance alone puts {chance:.2f} % of cells beyond."
        ),
        (
            f"With {last[0].n_calibration:,} calibration prompts the learned rule's E|C| is on average "
            f"within {100 * off:.2f} % of the oracle's. Its error falls as N to the power "
            + ", ".join(f"{one.size_rate:.2f}" for one in convergence)
            + f" (+- {2 * convergence[0].standard_error:.2f}) in {len(convergence)} worlds; one half is the "
            "rate of quantile regression."
        ),
        (
            "The oracle's sets are larger than those of one threshold in the worlds "
            + ", ".join(check.world for check in broken)
            + "."
        ),
    ]
