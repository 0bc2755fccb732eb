"""Calibration weights: laws they obey, and an independent solver."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from langchain_cfc.errors import InputError
from langchain_cfc.support.arrays import FloatArray
from langchain_cfc.thresholds import ConditionalThreshold
from tests.lengths import mostly_long

from .cases import cases
from .oracles import NUDGE, minimise_by_highs

KINDS = ["continuous", "tied", "atoms", "hopeless_prompts", "groups", "lattice", "high_leverage"]


def compute_weighted_quantile(scores: FloatArray, weights: FloatArray, alpha: str) -> float:
    """The smallest score with tau of all weight, a new prompt's 1 included, at or below it; in rationals."""
    total = sum(map(Fraction, weights.tolist()), start=Fraction(1))
    reached = Fraction(0)
    for row in np.argsort(scores):
        reached += Fraction(float(weights[row]))
        if reached >= (1 - Fraction(alpha)) * total:
            return float(scores[row])
    return float("inf")


def solve_by_highs(
    x: FloatArray, s: FloatArray, w: FloatArray, alpha: str, linear: FloatArray
) -> FloatArray | None:
    """Coefficients for a weighted linear term, by the dual programme; None where it is unbounded."""
    tau = 1.0 - float(alpha)
    bounds = np.stack([w * (tau - 1.0), w * tau], axis=1)
    result: Any = minimise_by_highs(-s, A_eq=x.T, b_eq=-(tau - NUDGE) * linear, bounds=bounds)
    return None if result.status == 2 else np.asarray(-result.eqlin.marginals, dtype=np.float64)


@mostly_long("kind", KINDS, quick=4)
def test_whole_weights_count_like_repeated_prompts(kind: str) -> None:
    rng = np.random.default_rng(1)
    for case in cases(kind, 10):
        times = rng.integers(1, 4, len(case.scores))
        rule = ConditionalThreshold(case.alpha, cap=case.cap)
        weighted = rule.fit(case.features, case.scores, times).solve(case.queries)
        again = np.repeat(np.arange(len(times)), times)
        repeated = rule.fit(case.features[again], case.scores[again]).solve(case.queries)
        np.testing.assert_allclose(weighted.values, repeated.values, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", ["continuous", "hopeless_prompts", "high_leverage", "hat_functions"])
def test_weighted_conditional_threshold_agrees_with_highs(kind: str) -> None:
    rng = np.random.default_rng(2)
    for case in cases(kind, 20):
        weights = rng.uniform(0.2, 5.0, len(case.scores))
        rule = ConditionalThreshold(case.alpha, cap=1e3).fit(case.features, case.scores, weights)
        for phi in case.queries:
            beta = solve_by_highs(case.features, case.scores, weights, case.alpha, phi)
            value = rule.threshold(phi)
            if beta is None:
                assert value == np.inf
            else:
                assert value == pytest.approx(phi @ beta, rel=1e-7, abs=1e-7)


def test_weighted_threshold_of_a_constant_is_the_weighted_quantile() -> None:
    rng = np.random.default_rng(3)
    for size in (1, 5, 30, 300, 3_000):
        scores = rng.random(size) if size % 2 else rng.integers(0, 11, size) / 10
        for unit in (0.25, 1.0, 7.5):
            weights = rng.integers(1, 9, size) / 4 / unit
            rule = ConditionalThreshold("0.2").fit(np.ones((size, 1)), scores, weights)
            assert rule.threshold([1.0]) == compute_weighted_quantile(scores, weights, "0.2")


def test_weighted_window_gives_the_threshold_of_the_full_data() -> None:
    rng = np.random.default_rng(5)
    t = rng.random(6_000)
    features, scores = np.stack([np.ones(6_000), t, t**2], axis=1), 0.5 * t + 0.5 * rng.random(6_000)
    weights = rng.uniform(0.5, 2.0, 6_000)
    everything = ConditionalThreshold("0.1", window=None).fit(features, scores, weights)
    rule = ConditionalThreshold("0.1").fit(features, scores, weights)
    restored = rule.restore(rule.get_state_data())
    expected = everything.solve(features[:100])
    for solved in (rule.solve(features[:100]), restored.solve(features[:100])):
        assert not solved.outside.any()
        np.testing.assert_allclose(solved.values, expected.values, atol=1e-12)


@pytest.mark.parametrize(
    "weights", [[1.0], [1.0, 0.0], [1.0, -1.0], [1.0, np.nan], [1.0, np.inf], ["a", "b"]]
)
def test_conditional_threshold_refuses_invalid_weights(weights: list[Any]) -> None:
    with pytest.raises(InputError, match="weights"):
        ConditionalThreshold("0.5").fit([[1.0], [1.0]], [0.1, 0.2], weights)
