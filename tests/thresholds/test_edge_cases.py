"""One test for every edge of the conditional threshold, named after it, with numbers to check by hand.

Randomised agreement with other solvers on the same shapes is in `test_conditional` and `test_windows`.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from langchain_cfc.set_rules import select_candidates
from langchain_cfc.support.arrays import FloatArray
from langchain_cfc.thresholds import ConditionalThreshold

from .oracles import compute_exact_threshold, compute_order_statistic, solve_dual_programme


def fit_constant(scores: list[float], alpha: str = "0.1", cap: float = 2.0) -> ConditionalThreshold:
    """The rule with the constant as its only feature."""
    return ConditionalThreshold(alpha, cap=cap).fit(np.ones((len(scores), 1)), scores)


def draw_sloped_prompts(size: int, seed: int = 0) -> tuple[FloatArray, FloatArray]:
    rng = np.random.default_rng(seed)
    t = rng.random(size)
    return np.stack([np.ones(size), t], axis=1), 0.5 * t + 0.5 * rng.random(size)


def test_edge_case_ties() -> None:
    assert fit_constant([0.3] * 12 + [0.7] * 7).threshold([1.0]) == 0.7
    assert fit_constant([0.3] * 18 + [0.7]).threshold([1.0]) == 0.3


def test_edge_case_atoms() -> None:
    # Rank ceil(20 * 0.9) = 18 of 19: within the atom at 0.5, at its first and at its last score, beyond it.
    for low, atom in ((10, 9), (17, 1), (0, 18)):
        scores = [0.1] * low + [0.5] * atom + [0.9] * (19 - low - atom)
        assert fit_constant(scores).threshold([1.0]) == 0.5
    assert fit_constant([0.1] * 9 + [0.5] * 8 + [0.9] * 2).threshold([1.0]) == 0.9


def test_edge_case_rank_that_is_a_whole_number() -> None:
    # (9 + 1) * 0.9 = 9 exactly: the maximum, not infinity. And 10 * (1 - 0.3) = 7, whatever floats say of it.
    scores = [k / 10 for k in range(1, 10)]
    assert fit_constant(scores).threshold([1.0]) == 0.9
    assert fit_constant(scores, "0.3").threshold([1.0]) == 0.7
    assert fit_constant(scores[:8]).threshold([1.0]) == math.inf


def test_edge_case_fewer_prompts_than_features() -> None:
    features = np.array([[1.0, 0.2, 0.7], [1.0, 0.9, 0.1]])
    rule = ConditionalThreshold("0.6").fit(features, [0.3, 0.8])
    assert rule.threshold([0.0, 0.0, 0.0]) == 0.0
    assert rule.threshold([1.0, 0.0, 0.0]) == math.inf  # outside the span of two prompts
    # Within it a prompt of a third of the first one's weight: 0.4 / 3 lies in the box of a row, 0.4 does not.
    assert rule.threshold(features[0] / 3) == pytest.approx(0.1, abs=1e-15)


def test_edge_case_rank_deficient_features() -> None:
    # The groups of two partitions, each of which sums to the constant.
    rng = np.random.default_rng(1)
    first, second = rng.integers(0, 2, 200), rng.integers(0, 3, 200)
    features = np.hstack([np.ones((200, 1)), np.eye(2)[first], np.eye(3)[second]])
    independent = features[:, [1, 2, 3, 4]]
    scores = rng.random(200)
    redundant = ConditionalThreshold("0.2").fit(features, scores).thresholds(features[:20])
    plain = ConditionalThreshold("0.2").fit(independent, scores).thresholds(independent[:20])
    np.testing.assert_allclose(redundant, plain, atol=1e-12)


def test_edge_case_duplicate_columns() -> None:
    features, scores = draw_sloped_prompts(100)
    doubled = np.hstack([features, features[:, 1:], -3.0 * features[:, 1:]])
    once = ConditionalThreshold("0.2").fit(features, scores).thresholds(features[:20])
    np.testing.assert_array_equal(
        ConditionalThreshold("0.2").fit(doubled, scores).thresholds(doubled[:20]), once
    )


def test_edge_case_badly_scaled_columns() -> None:
    features, scores = draw_sloped_prompts(100)
    units = np.array([2.0**40, 2.0**-40])  # powers of two change no digit
    once = ConditionalThreshold("0.2").fit(features, scores).thresholds(features[:20])
    scaled = ConditionalThreshold("0.2").fit(features * units, scores).thresholds(features[:20] * units)
    np.testing.assert_array_equal(scaled, once)
    decimal = np.array([1e12, 1e-12])
    scaled = ConditionalThreshold("0.2").fit(features * decimal, scores).thresholds(features[:20] * decimal)
    np.testing.assert_allclose(scaled, once, atol=1e-12)


def test_edge_case_high_leverage() -> None:
    # A prompt far out on the slope pulls the fit to itself: finite near the data, infinite beyond some point.
    features, scores = draw_sloped_prompts(60)
    rule = ConditionalThreshold("0.1", cap=1e3).fit(features, scores)
    found = rule.thresholds([[1.0, t] for t in (0.5, 2.0, 4.0, 30.0)])
    expected = [
        solve_dual_programme(features, scores, "0.1", np.array([1.0, t])) for t in (0.5, 2.0, 4.0, 30.0)
    ]
    np.testing.assert_allclose(found, expected, atol=1e-7)
    assert math.isfinite(found[0])
    assert found[-1] == math.inf


def test_edge_case_unbounded_regression() -> None:
    # Eight scores cannot bound a rank of 9; nor can a group of three one of 3.6.
    assert fit_constant([0.1] * 8).threshold([1.0]) == math.inf
    groups = np.eye(2)[[0] * 30 + [1] * 3]
    rule = ConditionalThreshold("0.1").fit(groups, np.linspace(0.0, 1.0, 33))
    assert rule.threshold([0.0, 1.0]) == math.inf
    assert math.isfinite(rule.threshold([1.0, 0.0]))


def test_edge_case_different_caps() -> None:
    # In groups a cap only marks ranks as out of reach: finite thresholds are the same under each. Along a
    # slope hopeless prompts pull the fit, a huge cap far more than a small one.
    rng = np.random.default_rng(2)
    groups, scores = np.eye(3)[rng.integers(0, 3, 300)], rng.random(300)
    features, slope_scores = draw_sloped_prompts(300, seed=3)
    hopeless = rng.random(300) < 0.3 * features[:, 1] ** 3
    by_cap: list[FloatArray] = []
    slopes: list[FloatArray] = []
    for cap in (1.0 + 1e-6, 2.0, 1e4):
        rule = ConditionalThreshold("0.1", cap=cap)
        by_cap.append(rule.fit(groups, np.where(hopeless, cap, scores)).thresholds(np.eye(3)))
        slopes.append(rule.fit(features, np.where(hopeless, cap, slope_scores)).thresholds(features[:50]))
    assert by_cap[0].tolist() == by_cap[1].tolist() == by_cap[2].tolist()
    assert np.abs(np.minimum(slopes[0], 1.0) - np.minimum(slopes[2], 1.0)).max() > 0.05


@pytest.mark.parametrize("cap", [1.1, 1.0 + 1e-9, 2.0])
def test_edge_case_threshold_exactly_at_the_cap(cap: float) -> None:
    # The fit runs through hopeless prompts only: its exact value is the cap, its float may fall below.
    rng = np.random.default_rng(4)
    t = rng.random(40)
    features = np.stack([np.ones(40), t, np.sqrt(t)], axis=1)
    scores = np.where(rng.random(40) < 0.6, cap, rng.random(40))
    found = ConditionalThreshold("0.2", cap=cap).fit(features, scores).solve(features)
    exact = np.array([solve_dual_programme(features, scores, "0.2", phi) for phi in features])
    at_cap = np.abs(exact - cap) < 1e-9
    assert at_cap.sum() > 5
    assert np.isinf(found.values[at_cap]).all()


def test_edge_case_threshold_exactly_at_a_candidate_score() -> None:
    # Scores on a line: the threshold of every prompt on it is its score, and the candidate must be accepted.
    t = np.linspace(0.0, 1.0, 41)
    features = np.stack([0.3 + 0.1 * t, 0.7 - 0.9 * t], axis=1)
    scores = features @ np.array([0.7, 0.2]) + 0.2
    features = np.column_stack([features, np.full(41, 0.2)])
    found = ConditionalThreshold("0.2").fit(features, scores).solve(features)
    assert select_candidates(scores[:, np.newaxis], found).all()
    assert found.errors.max() < 1e-12


def test_edge_case_more_equal_rows_than_the_window() -> None:
    # 30,000 prompts of nine kinds in a window of 16: equal ones are one row with a weight.
    rng = np.random.default_rng(5)
    group, scores = rng.integers(0, 3, 30_000), rng.choice([0.2, 0.5, 0.8], 30_000, p=[0.5, 0.3, 0.2])
    rule = ConditionalThreshold("0.1", window=16).fit(np.eye(3)[group], scores)
    assert len(rule.get_state_data()["success_scores"]) == 9
    for one in range(3):
        assert rule.threshold(np.eye(3)[one]) == compute_order_statistic(scores[group == one], "0.1")


def test_edge_case_more_rows_on_the_fit_than_the_window() -> None:
    # 95 of 100 prompts lie on s = m, no two of them equal: all of them are kept, and nothing is refused.
    rng = np.random.default_rng(6)
    m = rng.random(20_000)
    scores = np.where(rng.random(20_000) < 0.95, m, rng.random(20_000))
    rule = ConditionalThreshold("0.1").fit(np.stack([np.ones(20_000), m], axis=1), scores)
    assert rule.get_state_data()["success_scores"].size > 18_000
    found = rule.solve(np.stack([np.ones(200), m[:200]], axis=1))
    assert not found.outside.any()
    np.testing.assert_allclose(found.values, m[:200], atol=1e-12)


@pytest.mark.parametrize(
    ("alphas", "along_a_slope"),
    [(("0.001", "0.0009", "0.0000001"), "0.001"), (("0.999", "0.9999", "0.9999999"), "0.999")],
    ids=["zero", "one"],
)
def test_edge_case_alpha_near_zero_and_one(alphas: tuple[str, ...], along_a_slope: str) -> None:
    scores = np.random.default_rng(7).random(1_200)
    for alpha in alphas:
        assert fit_constant(scores.tolist(), alpha).threshold([1.0]) == compute_order_statistic(scores, alpha)
    features, slope_scores = draw_sloped_prompts(3_000)
    expected = solve_dual_programme(features, slope_scores, along_a_slope, features[0])
    found = ConditionalThreshold(along_a_slope).fit(features, slope_scores).threshold(features[0])
    assert found == pytest.approx(expected, abs=1e-7)


def test_edge_case_one_calibration_prompt() -> None:
    features, scores = np.array([[1.0, 3.0]]), np.array([0.4])
    for alpha in ("0.4", "0.5", "0.6"):
        rule = ConditionalThreshold(alpha).fit(features, scores)
        for factor in (-1.0, 0.25, 1.0, 4.0):
            exact = compute_exact_threshold(features, scores, alpha, factor * features[0])
            value = rule.threshold(factor * features[0])
            assert (value == math.inf) if exact is None else (abs(Fraction(value) - exact) < 1e-15)
