"""Exact coverage by randomisation: the definition by other solvers, laws without chance, and Monte Carlo.

The laws of coverage hold for any calibration data, given which prompts there are. So they are tested on one
data set as an identity, every prompt being the new one in turn and the uniforms integrated out exactly; and
through fresh calibration sets as laws of frequencies, with false alarms below 1e-6.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import cvxpy
import numpy as np
import pytest
from scipy import stats

from langchain_cfc.errors import InputError, OutsideCertifiedRegionError
from langchain_cfc.support.arrays import FloatArray
from langchain_cfc.thresholds import ConditionalThreshold
from langchain_cfc.thresholds._randomized import compute_factors
from langchain_cfc.thresholds._simplex import Fit
from langchain_cfc.thresholds._windows import PlainWindows
from tests.lengths import LONG, mostly_long, repetitions
from tests.thresholds.test_windows import make_queries

from .cases import KINDS, cases
from .oracles import NUDGE, minimise_by_highs
from .test_windows import KINDS as LARGE
from .test_windows import SIZE, Kind, assert_same_where_known

FALSE_ALARM = 1e-6
# Above every fit of the random cases, so that thresholds are seen as they are.
HIGH = 1e6


def compute_dual_level(alpha: str, uniform: float) -> float:
    """U = tau - 1 + u."""
    return uniform - float(alpha)


def compute_column_sizes(features: FloatArray, phi: FloatArray) -> FloatArray:
    """Sizes of the columns; absolute tolerances of a solver want entries of order one."""
    sizes = np.maximum(np.abs(features).max(axis=0), np.abs(phi))
    return np.where(sizes > 0.0, sizes, 1.0)


def solve_with_fixed_dual(
    features: FloatArray, scores: FloatArray, alpha: str, phi: FloatArray, part: float
) -> float:
    """HiGHS with the prompt's dual variable fixed at `part`: maximise S' eta, X' eta = -part phi, box."""
    tau, sizes = float(1 - Fraction(alpha)), compute_column_sizes(features, phi)
    x, f = features / sizes, phi / sizes
    result = minimise_by_highs(-scores, A_eq=x.T, b_eq=-(part - NUDGE) * f, bounds=(tau - 1.0, tau))
    if result.status == 2:
        return math.copysign(math.inf, part - NUDGE)
    assert result.status == 0, result.message
    return float(-result.eqlin.marginals @ f)


def compute_own_dual(
    features: FloatArray, scores: FloatArray, alpha: str, phi: FloatArray, score: float
) -> float:
    """The definition: the prompt's dual variable in the regression on the data and itself, at some score."""
    tau, sizes = float(1 - Fraction(alpha)), compute_column_sizes(features, phi)
    x, y = np.vstack([features, phi]) / sizes, np.append(scores, score)
    result = minimise_by_highs(-y, A_eq=x.T, b_eq=np.zeros(x.shape[1]), bounds=(tau - 1.0, tau))
    assert result.status == 0, result.message
    return float(result.x[-1])


def compute_randomised_order_statistic(scores: FloatArray, alpha: str, uniform: float | Fraction) -> float:
    """Rank floor((N + 1) tau), or one more, in rationals; infinite below rank 1 and beyond rank N."""
    rank = math.ceil((len(scores) + 1) * (1 - Fraction(alpha)) - 1 + Fraction(uniform))
    return float(np.array([-np.inf, *np.sort(scores), np.inf])[rank])


# The definition.


@mostly_long("kind", sorted(KINDS), quick=4)
def test_randomised_threshold_agrees_with_the_fixed_dual_programme(kind: str) -> None:
    rng = np.random.default_rng(len(kind))
    compared = 0
    for case in cases(kind, 8):
        rule = ConditionalThreshold(case.alpha, cap=HIGH).fit(case.features, case.scores)
        for phi in case.queries:
            # Anywhere, below zero, and where the ends of faces are for scores and features on a grid.
            for uniform in (rng.random(), float(case.alpha) * rng.random(), rng.integers(1, 8) / 8):
                part = compute_dual_level(case.alpha, uniform)
                expected = solve_with_fixed_dual(case.features, case.scores, case.alpha, phi, part)
                found = rule.solve([phi], uniforms=[uniform]).require_known()[0]
                if abs(expected) < HIGH:
                    compared += 1
                assert found == pytest.approx(expected, rel=1e-6, abs=1e-6)
    assert compared > 0 or kind == "outside_row_space"


@pytest.mark.parametrize("kind", ["continuous", "polynomials", "hat_functions", "heavy_tails"])
def test_dual_variable_of_the_prompt_passes_u_at_the_randomised_threshold(kind: str) -> None:
    """The definition itself: eta_s < U for scores below the threshold, and for none above."""
    rng, missed = np.random.default_rng(2), 0
    for case in cases(kind, 15):
        data = case.features, case.scores, case.alpha
        rule = ConditionalThreshold(case.alpha, cap=HIGH).fit(case.features, case.scores)
        for phi in case.queries[:2]:
            uniform = float(rng.random())
            found = rule.solve([phi], uniforms=[uniform]).require_known()[0]
            if math.isinf(found):
                far = compute_own_dual(*data, phi, math.copysign(100.0 * (1.0 + case.scores.max()), found))
                assert (
                    far <= compute_dual_level(case.alpha, uniform)
                    if found > 0.0
                    else far >= compute_dual_level(case.alpha, uniform)
                )
                continue
            step = 1e-6 * (1.0 + abs(found))
            below, above = (
                compute_own_dual(*data, phi, found - step),
                compute_own_dual(*data, phi, found + step),
            )
            assert below - 1e-8 <= compute_dual_level(case.alpha, uniform) <= above + 1e-8
            # The negative control: the deterministic threshold is not where U is passed.
            fixed = rule.threshold(phi)
            if fixed > found + 10 * step and math.isfinite(fixed):
                missed += (
                    compute_own_dual(*data, phi, fixed - step)
                    > compute_dual_level(case.alpha, uniform) + 1e-8
                )
    assert missed > repetitions(5, share=0.2)


def test_randomised_threshold_in_groups_is_the_randomised_order_statistic() -> None:
    rng = np.random.default_rng(3)
    seen = set()
    for alpha in ("0.1", "0.25", "0.4", "0.5", "0.75", "0.8"):
        for _ in range(repetitions(25, share=0.16)):
            sizes = rng.integers(1, 12, 3)
            codes = np.repeat(np.arange(3), sizes)
            scores = rng.random(len(codes)) if rng.random() < 0.5 else rng.integers(0, 5, len(codes)) / 4
            rule = ConditionalThreshold(alpha).fit(np.eye(4)[codes], scores)
            # Eighths meet the ends of faces exactly, on both sides of zero.
            for uniform in (*rng.random(4), *np.arange(1, 8) / 8, float(alpha)):
                found = rule.solve(np.eye(4), uniforms=np.full(4, uniform)).values
                own = [scores[codes == group] for group in range(4)]  # the last group is empty
                expected = [
                    compute_randomised_order_statistic(values, alpha, float(uniform)) for values in own
                ]
                if uniform == float(alpha):  # U = 0, but for what the float misses of the decimal
                    exact = [
                        compute_randomised_order_statistic(values, alpha, Fraction(alpha)) for values in own
                    ]
                    expected = [*exact[:3], -math.inf]
                assert found.tolist() == expected
                seen |= {math.inf, -math.inf} & set(expected[:3])
    assert seen == {math.inf, -math.inf}


def test_randomised_threshold_without_the_mirrored_rule_is_one_rank_off() -> None:
    """The negative control of the mirrored rule: as it is, the solver takes the other end of the face."""
    scores = np.array([0.1, 0.2, 0.3, 0.4, 0.5])
    rule = ConditionalThreshold("0.75").fit(np.ones((5, 1)), scores)
    (part,) = compute_factors(np.array([0.5]), np.array([0.75]), Fraction(1, 4)) * np.ones(1)
    assert part < 0.0
    unmirrored, mirrored = (
        windows.find(part * np.ones(1)) for windows in (rule.fitted.windows, rule.fitted.negative)
    )
    assert isinstance(unmirrored, Fit)
    assert isinstance(mirrored, Fit)
    # The rank is 6/4 - 1/2.
    assert (
        rule.solve([[1.0]], uniforms=[0.5]).require_known()[0] == mirrored.compute_value(np.ones(1))[0] == 0.1
    )
    assert unmirrored.compute_value(np.ones(1))[0] == 0.2


@mostly_long(
    "kind", ["continuous", "tied", "lattice", "hopeless_prompts", "groups", "high_leverage"], quick=3
)
@pytest.mark.parametrize("ridge", [0.0, 0.01])
def test_randomised_threshold_never_falls_in_u_and_ends_at_the_default(kind: str, ridge: float) -> None:
    steps = repetitions(40, share=0.25)
    grid = np.array([1e-12, *np.arange(1, steps) / steps, 1.0 - 2.0**-53])
    for case in cases(kind, 10):
        rule = ConditionalThreshold(case.alpha, cap=case.cap, ridge=ridge).fit(case.features, case.scores)
        for phi in case.queries:
            found = rule.solve(np.tile(phi, (len(grid), 1)), uniforms=grid)
            for before, after, error in zip(found.values, found.values[1:], found.errors[1:], strict=False):
                assert before <= after + 2.0 * error + 1e-12
            assert found.values[-1] == pytest.approx(rule.threshold(phi), rel=1e-9, abs=1e-9)


def solve_ridge_by_clarabel(features: FloatArray, scores: FloatArray, phi: FloatArray, part: float) -> float:
    """Clarabel on the regression with linear term part phi, tau = 0.7, lambda = 0.05."""
    cp: Any = cvxpy
    beta, size = cp.Variable(len(phi)), len(scores)
    over, under = cp.Variable(size, nonneg=True), cp.Variable(size, nonneg=True)
    loss = 0.7 * cp.sum(over) + 0.3 * cp.sum(under) - part * (phi @ beta)
    penalty = (size + 1) * 0.05 / 2.0 * cp.sum_squares(beta)
    problem = cp.Problem(cp.Minimize(loss + penalty), [features @ beta + over - under == scores])
    problem.solve(solver=cp.CLARABEL, tol_gap_abs=1e-13, tol_gap_rel=1e-13, tol_feas=1e-13, max_iter=500)
    assert problem.status == "optimal"
    return float(phi @ beta.value)


def test_randomised_ridge_threshold_agrees_with_a_conic_solver() -> None:
    rng = np.random.default_rng(14)
    below_zero = others = 0
    tried = repetitions(30, share=0.4)
    for _ in range(tried):
        size = int(rng.integers(15, 60))
        features = np.column_stack([np.ones(size), rng.normal(size=(size, 3))])
        scores, phi, uniform = rng.random(size), np.append(1.0, rng.normal(size=3)), float(rng.random())
        rule = ConditionalThreshold("0.3", cap=HIGH, ridge=0.05).fit(features, scores)
        found = rule.solve([phi], uniforms=[uniform]).require_known()[0]
        expected = solve_ridge_by_clarabel(features, scores, phi, compute_dual_level("0.3", uniform))
        assert found == pytest.approx(expected, abs=1e-7)
        others += abs(found - rule.threshold(phi)) > 1e-6
        below_zero += compute_dual_level("0.3", uniform) < 0.0
    assert 0.1 * tried < below_zero < 0.9 * tried
    assert others > tried * 2 / 3  # the negative control: thresholds of the whole term would not agree


# Windows, states.


@mostly_long("kind", LARGE, quick=3)
@mostly_long("alpha", ["0.4", "0.1"], quick=1)
def test_randomised_window_gives_the_threshold_of_the_full_data_or_none(kind: Kind, alpha: str) -> None:
    rng = np.random.default_rng(4)
    features, scores = kind(rng, SIZE)
    queries = make_queries(kind, rng, features)[:: 1 if LONG else 6]
    uniforms = np.where(rng.random(len(queries)) < 0.5, float(alpha), 1.0) * rng.random(len(queries))
    everything = ConditionalThreshold(alpha, window=None).fit(features, scores)
    expected = everything.solve(queries, uniforms=uniforms)
    negative = 0
    for keep in (64, 1024):
        rule = ConditionalThreshold(alpha, window=keep).fit(features, scores)
        found = rule.solve(queries, uniforms=uniforms)
        assert np.isposinf(found.values[found.outside]).all()
        assert_same_where_known(found, expected)
        infinite = np.isinf(found.values) & ~found.outside
        assert (found.values[infinite] == expected.values[infinite]).all()
        negative += int((~found.outside & (uniforms < float(alpha))).sum())
    assert negative > repetitions(60, share=0.15)


def test_randomised_ridge_window_gives_the_threshold_of_the_full_data() -> None:
    rng = np.random.default_rng(5)
    features, scores = LARGE[1](rng, SIZE)
    near = repetitions(40, share=0.4)
    queries = np.vstack([features[:near], 3.0 * features[: near // 4]])
    uniforms = np.where(np.arange(len(queries)) % 2 == 0, 0.1, 1.0) * rng.random(len(queries))
    settings: dict[str, Any] = {"ridge": 1e-3}
    everything = ConditionalThreshold("0.1", window=None, **settings).fit(features, scores)
    expected = everything.solve(queries, uniforms=uniforms)
    for keep in (64, 1024):
        rule = ConditionalThreshold("0.1", window=keep, **settings).fit(features, scores)
        found = rule.solve(queries, uniforms=uniforms)
        assert not found.outside[:near].any()
        assert_same_where_known(found, expected)


def test_half_of_a_negative_weight_gives_no_lower_bound() -> None:
    """What bounds the fit from below for a positive term, outside the region, lies above it here."""
    rng = np.random.default_rng(6)
    features, scores = LARGE[1](rng, SIZE)  # one prompt in 14 has no correct candidate
    rule = ConditionalThreshold("0.4", cap=HIGH, window=16).fit(features, scores)
    everything = ConditionalThreshold("0.4", cap=HIGH, window=None).fit(features, scores)
    believing = PlainWindows(rule.fitted.near, rule.fitted.tau)
    wrong = 0
    for phi in np.vstack([factor * features[:40] for factor in (5.0, 10.0, 20.0)]):
        reduced = rule.fitted.reduce_one(phi)
        assert reduced is not None
        (part,) = compute_factors(np.array([0.01]), np.array([float(rule.alpha)]), rule.fitted.tau)
        if rule.fitted.negative.find(part * reduced) is not None:
            continue
        exact, bound = (
            everything.solve([phi], uniforms=[0.01]).values[0],
            believing.bound_below(part * reduced, reduced),
        )
        between = (exact + bound) / 2.0
        if bound > exact + 1e-6 and 1.0 < between < np.inf:
            wrong += 1
            # With a cap in between it would pass for infinite.
            assert replace(rule, cap=between).solve([phi], uniforms=[0.01]).outside[0]
    assert wrong > 40
    with pytest.raises(OutsideCertifiedRegionError):
        rule.solve([phi], uniforms=[0.01]).require_known()


@pytest.mark.long
def test_randomised_threshold_does_not_depend_on_earlier_calls() -> None:
    rng = np.random.default_rng(7)
    for kind in LARGE:
        features, scores = kind(rng, SIZE)
        rule = ConditionalThreshold("0.3", window=300)
        fitted = rule.fit(features, scores)
        queries = make_queries(kind, rng, features)
        uniforms = rng.random(len(queries))
        plain = fitted.solve(queries)
        together = fitted.solve(queries, uniforms=uniforms)
        backwards = rule.restore(fitted.get_state_data())
        for row in range(len(queries) - 1, -1, -1):
            alone = backwards.solve(queries[row : row + 1], uniforms=uniforms[row : row + 1])
            assert alone.values[0] == together.values[row]
            assert alone.outside[0] == together.outside[row]
        assert backwards.solve(queries).values.tobytes() == plain.values.tobytes()


def test_randomised_threshold_outside_the_span_is_plus_or_minus_infinity() -> None:
    features = np.eye(3)[[0, 0, 0, 0, 1, 1, 1, 1]]
    plain = ConditionalThreshold("0.25").fit(features, np.linspace(0.1, 0.8, 8))
    uniforms = [0.1, 0.25, 0.3, 0.9]
    found = plain.solve(np.tile([0.0, 0.0, 1.0], (4, 1)), uniforms=uniforms)
    assert found.values.tolist() == [-np.inf, -np.inf, np.inf, np.inf]
    assert not found.outside.any()
    ridge = ConditionalThreshold("0.25", ridge=0.1).fit(features, np.linspace(0.1, 0.8, 8))
    assert ridge.solve(np.tile([0.0, 0.0, 1.0], (4, 1)), uniforms=uniforms).values.tolist() == [np.inf] * 4


@pytest.mark.parametrize(
    "uniforms", [[0.5], [0.5, 0.0], [0.5, 1.0], [0.5, float("nan")], [[0.5, 0.5]], ["a", "b"]]
)
def test_solve_refuses_invalid_uniforms(uniforms: Any) -> None:
    rule = ConditionalThreshold("0.5").fit(np.ones((4, 1)), [0.1, 0.2, 0.3, 0.4])
    with pytest.raises(InputError, match="uniforms"):
        rule.solve([[1.0], [1.0]], uniforms=uniforms)
    with pytest.raises(InputError, match="uniforms"):
        rule.solve([[1.0]], uniforms=[1.5])


# Laws without chance: every prompt of one data set in turn is the new one.


def find_kept_share(kept: Callable[[float], bool]) -> float:
    """The share of uniforms for which a prompt is kept: it is kept from some uniform on.

    OptimalFit to 1e-11, well above the round-off within which a uniform is at the end of a face.
    """
    low, high = 0.0, 1.0
    for _ in range(36):
        middle = (low + high) / 2.0
        low, high = (low, middle) if kept(middle) else (middle, high)
    return 1.0 - high


def compute_kept_shares(
    features: FloatArray,
    scores: FloatArray,
    alpha: str,
    *,
    ties: bool = True,
) -> FloatArray:
    """(N,) shares of uniforms for which each prompt is kept, ties with the threshold kept or not."""
    rule = ConditionalThreshold(alpha, cap=HIGH)
    found = np.empty(len(scores))
    for new in range(len(scores)):
        others = np.arange(len(scores)) != new
        fitted = rule.fit(features[others], scores[others])

        def kept(uniform: float, fitted: Any = fitted, new: int = new) -> bool:
            solved = fitted.solve(features[new : new + 1], uniforms=[uniform])
            above, error = solved.values[0] - scores[new], solved.errors[0]
            return bool(above >= -error if ties else above > error)

        found[new] = find_kept_share(kept)
    return found


CONTINUOUS = ["continuous", "groups of continuous scores", "polynomials", "hat_functions"]


def draw_small_sample(kind: str, rng: np.random.Generator) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Features, scores and non-negative functions in the span, for 13 prompts."""
    t = rng.random(13)
    if kind == "groups of continuous scores":
        features = np.eye(3)[np.repeat(np.arange(3), (6, 4, 3))]
        return features, rng.random(13), features
    if kind == "polynomials":
        return np.vander(t, 3, increasing=True), t * rng.random(13), np.stack([t**2, (1 - t) ** 2], axis=1)
    if kind == "hat_functions":
        hats = np.stack([np.interp(t, [0.0, 0.5, 1.0], row) for row in np.eye(3)], axis=1)
        return hats, rng.random(13), hats
    features = np.column_stack([np.ones(13), rng.normal(size=(13, 2))])
    return features, rng.random(13), features[:, :1]


@mostly_long("kind", CONTINUOUS, quick=2)
@mostly_long("alpha", ["0.1", "0.35", "0.6"], quick=2)
def test_randomised_coverage_is_exact_for_every_function_in_the_span(kind: str, alpha: str) -> None:
    """sum_i f_i (P(kept i) - tau) = 0, for columns of any sign, up to the bisection."""
    rng = np.random.default_rng(9)
    for _ in range(repetitions(2, share=0.5)):
        features, scores, _ = draw_small_sample(kind, rng)
        kept = compute_kept_shares(features, scores, alpha)
        np.testing.assert_allclose(features.T @ (kept - float(1 - Fraction(alpha))), 0.0, atol=1e-9)
        # The negative control: the deterministic rule keeps more.
        assert np.sum(kept < 1.0 - 1e-9) > 0


@mostly_long("kind", CONTINUOUS, quick=1)
def test_randomised_coverage_with_ties_brackets_the_target(kind: str) -> None:
    rng, gained = np.random.default_rng(11), 0.0
    for alpha in ("0.1", "0.35", "0.6")[: repetitions(3, share=0.4)]:
        features, scores, functions = draw_small_sample(kind, rng)
        # An atom, as prompts without a correct candidate are, and a grid.
        scores = np.where(rng.random(13) < 0.3, 2.0, np.round(scores * 4.0) / 4.0)
        closed, opened = (compute_kept_shares(features, scores, alpha, ties=ties) for ties in (True, False))
        target = float(1 - Fraction(alpha)) * functions.sum(axis=0)
        assert (closed @ functions >= target - 1e-9).all()
        assert (opened @ functions <= target + 1e-9).all()
        gained += float((closed @ functions - target).max())
    assert gained > 1e-3  # ties do cost equality


# Laws of frequencies: a fresh calibration set for every prompt.


def draw_groups(rng: np.random.Generator, size: int) -> tuple[FloatArray, FloatArray, FloatArray]:
    codes = rng.integers(0, 3, size + 1)
    features = np.eye(3)[codes]
    return features, rng.random(size + 1) ** (1 + codes), np.column_stack([np.ones(size + 1), features])


def draw_quadratic(rng: np.random.Generator, size: int) -> tuple[FloatArray, FloatArray, FloatArray]:
    t = rng.random(size + 1)
    weights = np.stack([np.ones(size + 1), t**2, (1.0 - t) ** 2, 2.0 * t * (1.0 - t)], axis=1)
    return np.vander(t, 3, increasing=True), (0.2 + 0.6 * t) * rng.random(size + 1), weights


World = Callable[[np.random.Generator, int], tuple[FloatArray, FloatArray, FloatArray]]
Draw = Callable[[np.random.Generator], Sequence[float] | None]


def draw_uniform(rng: np.random.Generator) -> Sequence[float]:
    return [float(rng.random())]


def draw_nothing(rng: np.random.Generator) -> None:  # noqa: ARG001 - the deterministic rule
    return None


def draw_one_half(rng: np.random.Generator) -> Sequence[float]:  # noqa: ARG001 - for whom this is random enough
    return [0.5]


def differs_from_tau(world: World, size: int, draw: Draw, alpha: str = "0.1") -> bool:
    """Exact two-sided binomial tests of P_f(kept) = tau, Bonferroni over the weightings 0 <= f <= 1.

    For each repetition a fresh calibration set of independent prompts and one new prompt, which is taken for
    f with probability f: those taken are prompts drawn under f, and independent. So the number kept is
    Binomial(taken, tau) if the law holds. Of N = 8 prompts 2,500 repetitions, the long form, tell 5 points
    from none.
    """
    rng = np.random.default_rng(12)
    taken = np.zeros((2, 4), dtype=np.int64)
    for _ in range(repetitions(2_500, share=0.4)):
        features, scores, weights = world(rng, size)
        rule = ConditionalThreshold(alpha).fit(features[1:], scores[1:])
        found = rule.solve(features[:1], uniforms=draw(rng))
        kept = scores[0] <= found.values[0] + found.errors[0]
        taken += np.outer([1, int(kept)], rng.random(4) < weights[0])
    tau = float(1 - Fraction(alpha))
    p_values = [stats.binomtest(int(k), int(n), tau).pvalue for n, k in taken.T]
    return min(p_values) * len(p_values) < FALSE_ALARM


OTHER_CASES = [(draw_groups, 8, "0.1"), (draw_quadratic, 20, "0.1"), (draw_quadratic, 8, "0.5")]


@pytest.mark.long
@pytest.mark.parametrize(
    ("world", "size", "alpha"),
    [(draw_quadratic, 8, "0.1"), *(pytest.param(*one, marks=pytest.mark.long) for one in OTHER_CASES)],
)
def test_randomised_coverage_is_tau_under_every_weighting(world: World, size: int, alpha: str) -> None:
    assert not differs_from_tau(world, size, draw_uniform, alpha)


@pytest.mark.long
@pytest.mark.parametrize(("world", "size", "alpha"), [(draw_quadratic, 8, "0.1"), *OTHER_CASES])
def test_coverage_without_randomisation_is_above_tau(world: World, size: int, alpha: str) -> None:
    assert differs_from_tau(world, size, draw_nothing, alpha)


@pytest.mark.long
@pytest.mark.parametrize("world", [pytest.param(draw_groups, marks=pytest.mark.long), draw_quadratic])
def test_uniform_that_is_always_one_half_breaks_exact_coverage(world: World) -> None:
    assert differs_from_tau(world, 8, draw_one_half)


def test_solver_for_negative_terms_is_built_only_when_needed() -> None:
    rule = ConditionalThreshold("0.1").fit(np.ones((20, 1)), np.arange(20) / 20)
    rule.threshold([1.0])
    negative = rule.fitted.negative
    assert "_base" not in vars(negative)
    rule.solve([[1.0]], uniforms=[0.01])
    assert "_base" in vars(negative)
