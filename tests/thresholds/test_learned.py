"""Plain quantile regression attains the smallest pinball loss."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from langchain_cfc.thresholds import LearnedThreshold
from tests.lengths import mostly_long

from .cases import KINDS, Case, cases
from .oracles import compute_smallest_pinball_loss


def fit_learned(case: Case) -> LearnedThreshold:
    # A large cap: the regression is tested, and not where it is cut.
    return LearnedThreshold(case.alpha, cap=1e6).fit(case.features, case.scores)


@mostly_long("kind", KINDS, quick=6)
def test_learned_threshold_attains_the_smallest_pinball_loss(kind: str) -> None:
    for case in cases(kind, 15):
        tau = float(1 - Fraction(case.alpha))
        residuals = case.scores - fit_learned(case).thresholds(case.features)
        loss = np.maximum(tau * residuals, (tau - 1.0) * residuals).sum()
        assert loss == pytest.approx(
            compute_smallest_pinball_loss(case.features, case.scores, case.alpha), abs=1e-9
        )


@pytest.mark.parametrize("kind", ["continuous", "tied", "atoms", "hopeless_prompts", "polynomials"])
def test_learned_threshold_with_an_intercept_has_tau_of_scores_below(kind: str) -> None:
    # Zero in the subgradient of the intercept: #below <= N tau <= #below + #on.
    for case in cases(kind, 15):
        found = fit_learned(case).solve(case.features)
        reach = len(case.scores) * (1 - Fraction(case.alpha))
        assert np.sum(case.scores < found.values - found.errors) <= reach
        assert np.sum(case.scores <= found.values + found.errors) >= reach


def test_learned_threshold_interpolates_as_many_points_as_features() -> None:
    features = np.random.default_rng(0).normal(size=(4, 4))
    scores = np.array([0.1, 0.9, 0.4, 0.6])
    found = LearnedThreshold("0.1").fit(features, scores).solve(features)
    assert (np.abs(found.values - scores) <= found.errors).all()
    assert found.errors.max() < 1e-11


def test_learned_threshold_is_the_same_alone_and_in_a_batch() -> None:
    [case] = cases("continuous", 1)
    rule = fit_learned(case)
    many = rule.solve(case.features)
    for row, value, error in zip(case.features, many.values, many.errors, strict=True):
        alone = rule.solve(row[np.newaxis])
        assert (alone.values[0], alone.errors[0]) == (value, error)


def test_learned_threshold_is_infinite_outside_the_row_space() -> None:
    for case in cases("outside_row_space", 10):
        assert np.isinf(fit_learned(case).thresholds(case.queries)).all()
    for case in cases("group_without_points", 10):
        assert fit_learned(case).threshold(case.queries[-1]) == math.inf


def test_learned_threshold_at_the_cap_is_infinite() -> None:
    rule = LearnedThreshold("0.1", cap=1.5).fit([[1.0], [1.0], [1.0]], [1.5, 1.5, 1.5])
    assert rule.threshold([1.0]) == math.inf


def test_learned_threshold_of_zero_features_is_zero() -> None:
    rule = LearnedThreshold("0.1").fit(np.zeros((3, 2)), [0.1, 0.2, 0.3])
    assert rule.thresholds([[0.0, 0.0], [1.0, 0.0]]).tolist() == [0.0, math.inf]
