"""The conditional threshold against its definition, computed in other ways, and against laws it obeys."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from langchain_cfc.support.arrays import FloatArray
from langchain_cfc.thresholds import ConditionalThreshold, Thresholds, compute_tau
from langchain_cfc.thresholds._rows import Columns, Rows
from langchain_cfc.thresholds._simplex import QuantileSimplex, Unbounded
from tests.lengths import LONG, mostly_long, repetitions

from .cases import ALPHAS, KINDS, Case, cases
from .oracles import (
    compute_augmented_fit,
    compute_exact_threshold,
    compute_order_statistic,
    find_threshold_by_bisection,
    prove_value,
    read_as_decimal,
    solve_dual_programme,
)

# Asked for is 1e-7; seen is 1e-14, and 4e-11 for scores that differ by less than the oracle's tolerance.
AGREEMENT = 1e-7
# An oracle's value this close to the cap stands for the cap: solvers return it to about 1e-15.
AT_CAP = 1e-9


def solve_case(case: Case) -> Thresholds:
    return ConditionalThreshold(case.alpha, cap=case.cap).fit(case.features, case.scores).solve(case.queries)


def assert_same_thresholds(
    found: FloatArray, expected: FloatArray, tolerance: float, cap: float = math.inf
) -> None:
    """The same prompts are infinite, and the others agree relative to max(1, |value|)."""
    finite = expected < cap - AT_CAP
    np.testing.assert_array_equal(np.isfinite(found), finite)
    np.testing.assert_allclose(found[finite], expected[finite], rtol=tolerance, atol=tolerance)


@mostly_long("kind", KINDS, quick=6)
def test_conditional_threshold_agrees_with_the_dual_linear_programme(kind: str) -> None:
    for case in cases(kind, 45):
        expected = [solve_dual_programme(case.features, case.scores, case.alpha, phi) for phi in case.queries]
        assert_same_thresholds(solve_case(case).values, np.array(expected), AGREEMENT, case.cap)


@mostly_long("kind", KINDS, quick=4)
def test_score_and_augmented_fit_cross_at_the_conditional_threshold(kind: str) -> None:
    # The definition, sup{s : s <= g(s)}: the sign of s - g(s) flips there. Where nothing is certified it has
    # not flipped at the cap. Below the threshold g(s) may equal s, which the solver returns to 1e-10; above
    # it the difference is the step at least.
    step, slack = 1e-6, 1e-8
    for case in cases(kind, 8):
        for phi, value in zip(case.queries, solve_case(case).values, strict=True):
            low = min(float(value), case.cap) - step
            assert low <= compute_augmented_fit(case.features, case.scores, case.alpha, phi, low) + slack
            if math.isfinite(value):
                high = float(value) + step
                assert high > compute_augmented_fit(case.features, case.scores, case.alpha, phi, high) + slack


@mostly_long("kind", KINDS, quick=3)
def test_conditional_threshold_agrees_with_bisection_of_its_definition(kind: str) -> None:
    for case in cases(kind, 1):
        expected = [
            find_threshold_by_bisection(
                case.features, case.scores, case.alpha, phi, highest=case.cap - 1e-6, accuracy=AGREEMENT
            )
            for phi in case.queries[:2]
        ]
        assert_same_thresholds(solve_case(case).values[:2], np.array(expected), 2 * AGREEMENT)


def draw_tiny_case(rng: np.random.Generator) -> Case:
    """At most 7 points in at most 3 features, half of them whole numbers: rational arithmetic stays quick."""
    d = int(rng.integers(1, 4))
    size = int(rng.integers(1, 8))
    whole = rng.random() < 0.5
    features = rng.integers(-2, 3, (size, d)).astype(np.float64) if whole else rng.normal(size=(size, d))
    fresh = rng.integers(-2, 3, (1, d)).astype(np.float64) if whole else rng.normal(size=(1, d))
    scores = (
        rng.integers(0, 5, size) / 4,
        rng.random(size),
        np.where(rng.random(size) < 0.3, 2.0, rng.integers(0, 11, size) / 10),
        rng.integers(0, 4, size) / 10 + rng.choice([0.0, 2.0**-52, 1e-13, 1e-11], size),
    )[rng.integers(4)]
    return Case(features, scores, np.vstack([features[rng.integers(size)], fresh]), ALPHAS[rng.integers(7)])


def test_conditional_threshold_agrees_with_rational_enumeration() -> None:
    rng = np.random.default_rng(20240501)
    counts = {"finite": 0, "infinite": 0}
    for _ in range(repetitions(300, share=0.12)):
        case = draw_tiny_case(rng)
        found = solve_case(case)
        for phi, value, error in zip(case.queries, found.values, found.errors, strict=True):
            exact = compute_exact_threshold(case.features, case.scores, case.alpha, phi)
            if exact is None or exact >= Fraction(case.cap):
                assert math.isinf(value)
                counts["infinite"] += 1
            else:
                assert abs(Fraction(float(value)) - exact) <= Fraction(float(error))
                assert error <= 1e-9
                counts["finite"] += 1
    assert min(counts.values()) > repetitions(100, share=0.12)  # both answers were exercised


def draw_decimal_case(rng: np.random.Generator) -> Case:
    """Few points whose features and scores were written as short decimals: sums of them are rounded."""
    size = int(rng.integers(3, 8))
    t = rng.integers(0, 11, size) / 10
    features = np.vander(t, int(rng.integers(2, 4)), increasing=True)
    scores = (
        rng.integers(0, 21, size) / 20,
        0.1 * rng.integers(0, 11, size),
        features @ (rng.integers(0, 4, features.shape[1]) / 10) + rng.choice([0.0, 0.0, 0.1], size),
    )[rng.integers(3)]
    return Case(
        features, np.minimum(scores, 2.0), features[rng.integers(0, size, 2)], ALPHAS[rng.integers(7)]
    )


def test_conditional_threshold_of_decimals_ignores_their_round_off() -> None:
    # Where minimisers are not unique for the decimals, floats that stand for them make one of them the only
    # one, by chance. What is wanted is the threshold of the decimals. The rational answer for the floats
    # differs now and then.
    rng = np.random.default_rng(20240502)
    jumps = 0
    for _ in range(repetitions(100, share=0.3)):
        case = draw_decimal_case(rng)
        data = case.features, case.scores, case.alpha
        found = solve_case(case)
        for phi, value, error in zip(case.queries, found.values, found.errors, strict=True):
            exact = compute_exact_threshold(*data, phi, reading=read_as_decimal)
            if exact is None or exact >= Fraction(case.cap):
                assert math.isinf(value)
            else:
                assert abs(Fraction(float(value)) - exact) <= Fraction(float(error)) + Fraction(1, 10**15)
            literal = compute_exact_threshold(*data, phi)
            jumps += (literal is None) != (exact is None) or literal != pytest.approx(exact, abs=1e-3)
    assert jumps > 0


@pytest.mark.parametrize(
    "kind", ["continuous", "tied", "atoms", "lattice", "hopeless_prompts", "score_among_features"]
)
def test_conditional_vertex_is_proven_optimal_in_rational_arithmetic(kind: str) -> None:
    # The vertex comes from the solver, the proof does not: signs of residuals, box and face rule are checked
    # without rounding, and the value that follows lies within the error bound of the float.
    proven = 0
    for case in cases(kind, 25):
        columns, _ = Columns.choose(case.features)
        reduced, inside = columns.reduce(case.queries[:2])
        rows, _ = columns.reduce(case.features)
        simplex = QuantileSimplex(Rows.with_unit_weights(rows, case.scores), compute_tau(case.alpha))
        for phi in reduced[inside]:
            fit = simplex.minimise(phi)
            if isinstance(fit, Unbounded):
                continue
            exact = prove_value(
                rows, case.scores, case.alpha, phi, basis=fit.vertex.basis, below=fit.vertex.below
            )
            value, error = fit.compute_value(phi)
            assert abs(Fraction(value) - exact) <= Fraction(error)
            proven += 1
    assert proven > repetitions(20, share=0.1)


@pytest.mark.parametrize("kind", ["nearly_tied_partitions", "scores_on_a_polynomial"])
def test_conditional_vertex_is_proven_however_near_the_ties(kind: str) -> None:
    # About one such case in fifty once ended in a `ThresholdError`.
    for case in cases(kind, 150):
        assert (solve_case(case).errors < 1e-9).all()


def test_conditional_threshold_at_a_prompt_on_the_fit_is_its_score() -> None:
    seen = 0
    for case in cases("continuous", 40):
        rule = ConditionalThreshold(case.alpha, cap=1e3).fit(case.features, case.scores - 0.5)
        found = rule.solve(case.features)
        off = np.abs(found.values - (case.scores - 0.5))
        seen += int((off <= found.errors).sum())
        assert ((off <= found.errors) | (off > 1e-9)).all()
    assert seen > repetitions(100, share=0.05)


PERCENTS = [f"{k / 100}" for k in range(1, 100)]


@pytest.mark.long
def test_conditional_threshold_of_a_constant_is_the_order_statistic() -> None:
    # Every N in 1 ... 60 (in the quick tier every fifth) at every alpha in 0.01 ... 0.99. For constants that
    # have no exact inverse the last bit may differ.
    rng = np.random.default_rng(1)
    constants = [1.0, 49.0, 0.5, 0.1, 1e-9, 7e5]
    for size in range(1, 61, 1 if LONG else 5):
        scores = rng.random(size) if size % 2 else rng.integers(0, 11, size) / 10
        constant = constants[size % len(constants)]
        features = np.full((size, 1), constant)
        found = [
            ConditionalThreshold(alpha).fit(features, scores).threshold([constant]) for alpha in PERCENTS
        ]
        expected = [compute_order_statistic(scores, alpha) for alpha in PERCENTS]
        if constant in {0.5, 1.0}:
            assert found == expected
        else:
            np.testing.assert_array_max_ulp(np.array(found), np.array(expected), 1)


@mostly_long("constant_too", [False, True], quick=1)
def test_conditional_threshold_of_disjoint_groups_is_the_order_statistic(*, constant_too: bool) -> None:
    # Six groups at a time go through all sizes 1 ... 60, in the quick tier every third one. A constant beside
    # the indicators adds nothing to their span; to save time that variant sees a third of the levels, and the
    # quick tests a ninth.
    rng = np.random.default_rng(2)
    for sizes in np.arange(1, 61).reshape(6, 10).T[:: 1 if LONG else 3]:
        codes = rng.permutation(np.repeat(np.arange(6), sizes))
        scores = rng.random(len(codes)) if sizes[0] % 2 else rng.integers(0, 11, len(codes)) / 10
        indicators = np.eye(6)
        if constant_too:
            indicators = np.hstack([np.ones((6, 1)), indicators])
        step = (3 if constant_too else 1) if LONG else 9
        for alpha in PERCENTS[sizes[0] % step :: step]:
            found = ConditionalThreshold(alpha).fit(indicators[codes], scores).thresholds(indicators)
            assert found.tolist() == [
                compute_order_statistic(scores[codes == group], alpha) for group in range(6)
            ]


def test_conditional_threshold_of_nearly_equal_scores_is_within_its_error() -> None:
    # 3 * 0.1 and 0.3 count as tied: either may be returned, and the bound covers the difference.
    rng = np.random.default_rng(12)
    for size in range(1, 60, 1 if LONG else 3):
        tenths = rng.integers(0, 11, size)
        scores = np.where(rng.random(size) < 0.5, tenths / 10, tenths * 0.1)
        found = ConditionalThreshold("0.3").fit(np.ones((size, 1)), scores).solve(np.ones((1, 1)))
        expected = compute_order_statistic(scores, "0.3")
        assert found.values[0] == expected or abs(found.values[0] - expected) <= found.errors[0] < 1e-14


def test_conditional_threshold_that_reaches_its_own_cap_is_infinite() -> None:
    scores = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 1.5]
    rule = ConditionalThreshold("0.1", cap=1.5).fit(np.ones((9, 1)), scores)
    assert rule.threshold([1.0]) == math.inf
    higher_cap = ConditionalThreshold("0.1", cap=1.6).fit(np.ones((9, 1)), scores)
    assert higher_cap.threshold([1.0]) == 1.5


def test_conditional_threshold_exactly_at_the_cap_is_infinite() -> None:
    # With an intercept and hopeless prompts only, beta = (cap, 0, ...) fits all: every threshold is the cap
    # or unbounded.
    below, rng = 0, np.random.default_rng(0)
    for _ in range(repetitions(60, share=0.4)):
        case = KINDS["all_hopeless"](rng)
        assert np.isinf(solve_case(case).values).all()
        unclipped = ConditionalThreshold(case.alpha, cap=10.0).fit(case.features, case.scores)
        below += int(np.sum(unclipped.thresholds(case.queries) < case.cap))
    # Without the error bound these would have been certified: about one in ten, whatever processor rounds.
    assert below > 0


def change_basis(m: FloatArray) -> FloatArray:
    """The features [1, m] in another basis."""
    return np.asarray(np.stack([np.ones(len(m)), m], axis=1) @ np.array([[0.3, 0.7], [0.1, -0.9]]))


def test_conditional_threshold_exactly_at_a_score_is_within_its_error() -> None:
    # The feature is the smallest score and most success scores equal it, so the fit is s = m. A plain
    # comparison fails by round-off now and then, in a basis in which the coefficients are not 0 and 1.
    rng = np.random.default_rng(3)
    missed = 0
    for _ in range(5):
        known, new = rng.random(300), rng.random(100)
        scores = np.where(rng.random(300) < 0.97, known, rng.random(300))
        rule = ConditionalThreshold("0.1").fit(change_basis(known), scores)
        found = rule.solve(change_basis(new))
        assert (np.abs(found.values - new) <= found.errors).all()
        assert found.errors.max() < 1e-12
        missed += int(np.sum(new > found.values))
    assert missed >= 10


SHAPES = ["continuous", "tied", "lattice", "hopeless_prompts", "overlapping_partitions", "high_leverage"]


@mostly_long("kind", SHAPES, quick=3)
def test_conditional_threshold_does_not_depend_on_the_order_of_prompts(kind: str) -> None:
    rng = np.random.default_rng(4)
    for case in cases(kind, 20):
        order = rng.permutation(len(case.scores))
        shuffled = Case(case.features[order], case.scores[order], case.queries, case.alpha, case.cap)
        assert_same_thresholds(solve_case(shuffled).values, solve_case(case).values, 1e-10)


@pytest.mark.parametrize("kind", ["continuous", "tied", "hopeless_prompts", "hat_functions", "extreme_alpha"])
def test_conditional_threshold_scales_and_shifts_with_the_scores(kind: str) -> None:
    # S -> a S + b with a > 0 and the constant in the span: threshold and cap go the same way.
    for case in cases(kind, 20):
        a, b = 3.7, 0.45
        other = Case(case.features, a * case.scores + b, case.queries, case.alpha, a * case.cap + b)
        assert_same_thresholds(solve_case(other).values, a * solve_case(case).values + b, 1e-10)


@pytest.mark.parametrize("kind", ["continuous", "tied", "lattice", "duplicate_columns"])
def test_conditional_threshold_moves_with_a_combination_of_features(kind: str) -> None:
    rng = np.random.default_rng(5)
    for case in cases(kind, 20):
        gamma = rng.normal(size=case.features.shape[1])
        plain = Case(case.features, case.scores, case.queries, case.alpha, 1e6)
        moved = Case(case.features, case.scores + case.features @ gamma, case.queries, case.alpha, 1e6)
        assert_same_thresholds(
            solve_case(moved).values, solve_case(plain).values + case.queries @ gamma, 1e-9
        )


@mostly_long("kind", SHAPES, quick=3)
def test_conditional_threshold_does_not_depend_on_the_basis(kind: str) -> None:
    rng = np.random.default_rng(6)
    for case in cases(kind, 20):
        d = case.features.shape[1]
        change = np.linalg.qr(rng.normal(size=(d, d)))[0] * rng.uniform(0.5, 2.0, d)
        other = Case(case.features @ change, case.scores, case.queries @ change, case.alpha, case.cap)
        assert_same_thresholds(solve_case(other).values, solve_case(case).values, 1e-9)


@mostly_long("kind", KINDS, quick=6)
def test_conditional_threshold_is_the_same_alone_and_in_any_batch(kind: str) -> None:
    for case in cases(kind, 5):
        rule = ConditionalThreshold(case.alpha, cap=case.cap).fit(case.features, case.scores)
        alone = [rule.threshold(phi) for phi in case.queries]
        batch = np.vstack([case.queries[::-1], case.queries, case.queries])
        assert rule.thresholds(batch).tolist() == alone[::-1] + alone + alone


@pytest.mark.parametrize("kind", ["groups", "whole_rank", "group_without_points"])
def test_conditional_threshold_of_groups_never_rises_with_alpha(kind: str) -> None:
    for case in cases(kind, 10):
        rules = (
            ConditionalThreshold(alpha).fit(case.features, case.scores)
            for alpha in PERCENTS[:: 7 if LONG else 20]
        )
        values = np.array([rule.thresholds(case.queries) for rule in rules])
        assert (values[1:] <= values[:-1]).all()


def test_conditional_threshold_of_linear_classes_may_rise_with_alpha() -> None:
    crossings = 0
    for case in cases("continuous", 30):
        rules = (ConditionalThreshold(alpha).fit(case.features, case.scores) for alpha in PERCENTS[::7])
        values = np.array([rule.thresholds(case.queries) for rule in rules])
        crossings += int((values[1:] > values[:-1]).sum())
    assert crossings > 0


def test_conditional_threshold_is_infinite_outside_the_row_space() -> None:
    for case in cases("outside_row_space", 20):
        assert np.isinf(solve_case(case).values).all()
    for case in cases("group_without_points", 20):
        assert solve_case(case).values[-1] == math.inf


def test_conditional_threshold_of_zero_features_is_zero() -> None:
    # phi' beta = 0 for every beta, so s <= g(s) says s <= 0.
    for case in cases("zero_phi", 20):
        assert solve_case(case).values.tolist() == [0.0]
    nothing = ConditionalThreshold("0.1").fit(np.zeros((5, 2)), np.full(5, 0.5))
    assert nothing.thresholds([[0.0, 0.0], [0.0, 1.0]]).tolist() == [0.0, math.inf]


def test_conditional_threshold_may_be_negative() -> None:
    rule = ConditionalThreshold("0.5").fit([[1.0, t] for t in (0.0, 0.5, 1.0)], [0.0, 0.5, 1.0])
    assert rule.threshold([1.0, -0.25]) == pytest.approx(-0.25, abs=1e-12)
