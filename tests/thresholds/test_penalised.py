"""The conditional threshold with a ridge: thresholds, windows, states and certificates."""

from __future__ import annotations

from typing import Any

import cvxpy
import numpy as np
import pytest

from langchain_cfc.errors import InputError, OutsideCertifiedRegionError
from langchain_cfc.support.arrays import FloatArray
from langchain_cfc.thresholds import ConditionalThreshold
from tests.lengths import mostly_long, repetitions

from .cases import KINDS, Case, cases

TIGHT = {"tol_gap_abs": 1e-13, "tol_gap_rel": 1e-13, "tol_feas": 1e-13}


def solve_by_clarabel(case: Case, phi: FloatArray, ridge: float) -> float:
    """Clarabel on the penalised regression, written again from its documentation."""
    cp: Any = cvxpy
    tau, size = 1.0 - float(case.alpha), len(case.scores)
    beta = cp.Variable(case.features.shape[1])
    over, under = cp.Variable(size, nonneg=True), cp.Variable(size, nonneg=True)
    loss = tau * cp.sum(over) + (1.0 - tau) * cp.sum(under) - tau * (phi @ beta)
    penalty = (size + 1.0) * ridge / 2.0 * cp.sum_squares(beta)
    problem = cp.Problem(cp.Minimize(loss + penalty), [case.features @ beta + over - under == case.scores])
    problem.solve(solver=cp.CLARABEL, **TIGHT, max_iter=500)
    assert problem.status in {"optimal", "optimal_inaccurate"}
    return float(phi @ beta.value)


@mostly_long(
    "kind",
    ["continuous", "tied", "hopeless_prompts", "hat_functions", "polynomials", "duplicate_columns"],
    quick=2,
)
@pytest.mark.filterwarnings("ignore:Solution may be inaccurate")
def test_ridge_threshold_agrees_with_a_conic_solver(kind: str) -> None:
    compared = 0
    for number, case in enumerate(cases(kind, 12)):
        ridge = (1e-3, 1e-2, 0.3)[number % 3]
        rule = ConditionalThreshold(case.alpha, cap=1e6, ridge=ridge)
        fitted = rule.fit(case.features, case.scores)
        # One calibration prompt and one new one: the mean prompt has a whole face of thresholds now and then.
        for phi in case.queries[:2]:
            value, expected = fitted.threshold(phi), solve_by_clarabel(case, phi, ridge)
            if np.isinf(value):  # outside the row space, or above the cap
                assert fitted.fitted.reduce_one(phi) is None or expected > 1e6
                continue
            certificate = fitted.make_certificate(phi)
            assert certificate is not None
            assert abs(certificate.gap) <= 1e-9 * (1.0 + abs(certificate.primal))
            assert value == pytest.approx(expected, abs=1e-7 * max(1.0, abs(value)))
            compared += 1
    assert compared > repetitions(12, share=0.2)


@mostly_long("kind", KINDS, quick=4)
def test_ridge_threshold_is_certified_for_every_kind_of_data(kind: str) -> None:
    for case in cases(kind, 4):
        fitted = ConditionalThreshold(case.alpha, cap=case.cap, ridge=1e-2).fit(case.features, case.scores)
        for phi in case.queries:
            certificate, value = fitted.make_certificate(phi), fitted.threshold(phi)
            if certificate is None:
                assert value == np.inf
            else:
                assert abs(certificate.gap) <= 1e-9 * (abs(certificate.primal) + len(case.scores))
                assert certificate.balance <= 1e-12


def test_ridge_certificate_proves_a_threshold_if_rows_on_the_fit_are_clustered() -> None:
    rng = np.random.default_rng(4)
    t = rng.random(3_000)
    features = np.stack([np.interp(t, np.linspace(0.0, 1.0, 5), row) for row in np.eye(5)], axis=1)
    scores = np.where(rng.random(3_000) < 0.95 - 0.3 * t, 0.0, rng.random(3_000))
    rule = ConditionalThreshold("0.2", ridge=1e-6).fit(features, scores)
    assert rule.fitted.windows._n_clustered
    for phi in features[:20]:
        certificate = rule.make_certificate(phi)
        assert certificate is not None
        assert abs(certificate.gap) <= 1e-9 * (1.0 + abs(certificate.primal))


def test_ridge_threshold_tends_to_the_one_without_a_ridge() -> None:
    rng = np.random.default_rng(2)
    t = rng.random(500)
    features = np.stack([np.ones(500), t, t**2], axis=1)
    scores = 0.5 * t + 0.5 * rng.random(500)
    without = ConditionalThreshold("0.2").fit(features, scores).thresholds(features[:50])
    small = ConditionalThreshold("0.2", ridge=1e-9).fit(features, scores).thresholds(features[:50])
    large = ConditionalThreshold("0.2", ridge=1e6).fit(features, scores).thresholds(features[:50])
    np.testing.assert_allclose(small, without, atol=1e-4)
    np.testing.assert_allclose(large, 0.0, atol=1e-3)


def test_ridge_threshold_depends_on_units() -> None:
    """The paper penalises the features as they are; powers of two that the engine uses leave no trace."""
    rng = np.random.default_rng(3)
    features = np.stack([np.ones(200), rng.random(200), rng.normal(size=200)], axis=1)
    scores, rule = rng.random(200), ConditionalThreshold("0.2", ridge=0.1)
    one = rule.fit(features, scores).thresholds(features[:20])
    for factor, ridge, same in ((2.0, 0.4, True), (3.0, 0.9, True), (3.0, 0.1, False)):
        scaled = ConditionalThreshold("0.2", ridge=ridge).fit(factor * features, scores)
        assert np.allclose(one, scaled.thresholds(factor * features[:20]), atol=1e-9) is same


def test_ridge_window_gives_the_threshold_of_the_full_data_or_none() -> None:
    rng = np.random.default_rng(5)
    t = rng.random(6_000)
    features = np.stack([np.ones(6_000), t, t**2, rng.normal(size=6_000)], axis=1)
    scores = np.where(rng.random(6_000) < 0.05, 2.0, 0.5 * t + 0.5 * rng.random(6_000))
    everything = ConditionalThreshold("0.1", ridge=1e-3, window=None)
    near = repetitions(40, share=0.4)
    queries = np.vstack([features[:near], 3.0 * features[: near // 4]])
    expected = everything.fit(features, scores).solve(queries)
    for window in (64, 1024):
        rule = ConditionalThreshold("0.1", ridge=1e-3, window=window)
        found = rule.fit(features, scores).solve(queries)
        known = ~found.outside
        assert known[:near].all()
        np.testing.assert_allclose(found.values[known], expected.values[known], atol=1e-9)


def test_ridge_threshold_refuses_prompts_far_from_the_data() -> None:
    rng = np.random.default_rng(6)
    features = np.stack([np.ones(5_000), rng.normal(size=5_000)], axis=1)
    rule = ConditionalThreshold("0.1", ridge=1e-6, window=64).fit(features, rng.random(5_000))
    with pytest.raises(OutsideCertifiedRegionError):
        rule.threshold([1.0, 150.0])


def test_ridge_state_restored_is_bit_identical() -> None:
    for kind in ("continuous", "tied", "hat_functions", "duplicate_columns", "hopeless_prompts"):
        for case in cases(kind, repetitions(3, share=1 / 3)):
            rule = ConditionalThreshold(case.alpha, cap=case.cap, ridge=0.01)
            fitted = rule.fit(case.features, case.scores)
            restored = rule.restore(fitted.get_state_data())
            before, after = fitted.solve(case.queries), restored.solve(case.queries)
            assert after.values.tobytes() == before.values.tobytes()
            assert after.errors.tobytes() == before.errors.tobytes()
            assert [restored.threshold(phi) for phi in case.queries] == before.values.tolist()


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("penalty", np.array([0.0, 1.0])),
        ("penalty", np.ones(3)),
        ("penalty", np.array([1.0, 1e308])),  # its products overflow
        ("penalty", np.array([1.0, 5e-324])),
        ("features", np.ones((4, 3))),
        ("root", np.zeros((2, 3))),
    ],
)
def test_ridge_restore_refuses_an_invalid_state(name: str, array: FloatArray) -> None:
    rule = ConditionalThreshold("0.5", ridge=0.1)
    state = rule.fit([[1.0, 0.1], [1.0, 0.5], [1.0, 0.9], [1.0, 0.3]], [0.1, 0.2, 0.3, 0.4]).get_state_data()
    rule.restore(state)
    with pytest.raises(InputError):
        rule.restore({**state, name: array})
    with pytest.raises(InputError):
        ConditionalThreshold("0.5").restore(state)


@pytest.mark.parametrize("ridge", [-1.0, float("nan"), float("inf")])
def test_conditional_threshold_refuses_an_invalid_ridge(ridge: float) -> None:
    with pytest.raises(InputError):
        ConditionalThreshold("0.1", ridge=ridge)


def test_ridge_threshold_is_infinite_outside_the_span() -> None:
    features = np.eye(3)[[0, 0, 0, 0, 1, 1, 1, 1]]
    rule = ConditionalThreshold("0.5", ridge=0.1).fit(features, np.linspace(0.1, 0.8, 8))
    assert rule.threshold([0.0, 0.0, 1.0]) == np.inf
    assert np.isfinite(rule.threshold([1.0, 0.0, 0.0]))


def test_ridge_threshold_of_zero_features_is_zero() -> None:
    rule = ConditionalThreshold("0.2", ridge=0.01).fit(np.zeros((6, 2)), np.ones(6) / 2)
    assert rule.thresholds([[0.0, 0.0]]).tolist() == [0.0]
    assert rule.threshold([1.0, 0.0]) == np.inf
