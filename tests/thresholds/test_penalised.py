"""The conditional threshold with a ridge: units, the paper's form, windows, states and certificates."""

from __future__ import annotations

from typing import Any

import cvxpy
import numpy as np
import pytest

from langchain_cfc.errors import InputError, OutsideCertifiedRegionError
from langchain_cfc.support.arrays import FloatArray
from langchain_cfc.thresholds import ConditionalThreshold
from langchain_cfc.thresholds._rows import Penalised, RidgeUnits, spans_constant
from tests.lengths import mostly_long, repetitions

from .cases import KINDS, Case, cases
from .oracles import compute_order_statistic

FORMS: tuple[Penalised, ...] = ("slopes", "all")
TIGHT = {"tol_gap_abs": 1e-13, "tol_gap_rel": 1e-13, "tol_feas": 1e-13}


def solve_by_clarabel(case: Case, phi: FloatArray, ridge: float, penalised: Penalised) -> float:
    """Clarabel on the penalised regression, written again from its documentation."""
    cp: Any = cvxpy
    tau, size = 1.0 - float(case.alpha), len(case.scores)
    x, f = case.features, phi
    if penalised == "slopes":
        constant = np.linalg.lstsq(x, np.ones(size), rcond=None)[0]
        spanned = bool(np.abs(x @ constant - 1.0).max() < 1e-9)
        middle = x.mean(axis=0) if spanned else np.zeros(x.shape[1])
        unit = np.sqrt(np.mean((x - middle) ** 2, axis=0))
        varies = unit > 1e-12 * np.abs(x).max(axis=0)
        x, f = (x[:, varies] - middle[varies]) / unit[varies], (phi[varies] - middle[varies]) / unit[varies]
        if x.shape[1] == 0:
            return compute_order_statistic(case.scores, case.alpha)
        slopes, level = cp.Variable(x.shape[1]), (cp.Variable() if spanned else cp.Constant(0.0))
    else:
        slopes, level = cp.Variable(x.shape[1]), cp.Constant(0.0)
    over, under = cp.Variable(size, nonneg=True), cp.Variable(size, nonneg=True)
    loss = tau * cp.sum(over) + (1.0 - tau) * cp.sum(under) - tau * (f @ slopes + level)
    penalty = (size + 1.0) * ridge / 2.0 * cp.sum_squares(slopes)
    problem = cp.Problem(cp.Minimize(loss + penalty), [x @ slopes + level + over - under == case.scores])
    problem.solve(solver=cp.CLARABEL, **TIGHT, max_iter=500)
    if problem.status not in {"optimal", "optimal_inaccurate"}:
        return float("inf")
    return float(f @ slopes.value + level.value)


@pytest.mark.parametrize("penalised", FORMS)
@mostly_long(
    "kind",
    ["continuous", "tied", "hopeless_prompts", "hat_functions", "polynomials", "duplicate_columns"],
    quick=2,
)
@pytest.mark.filterwarnings("ignore:Solution may be inaccurate")
def test_ridge_threshold_agrees_with_a_conic_solver(kind: str, penalised: Penalised) -> None:
    compared = 0
    for number, case in enumerate(cases(kind, 12)):
        ridge = (1e-3, 1e-2, 0.3)[number % 3]
        rule = ConditionalThreshold(case.alpha, cap=1e6, ridge=ridge, penalised=penalised)
        fitted = rule.fit(case.features, case.scores)
        # One calibration prompt and one new one: the mean prompt has a whole face of thresholds now and then.
        for phi in case.queries[:2]:
            value, expected = fitted.threshold(phi), solve_by_clarabel(case, phi, ridge, penalised)
            if np.isinf(value) or np.isinf(expected):
                assert np.isinf(value) == (np.isinf(expected) or expected > 1e6)
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
        for penalised in FORMS:
            rule = ConditionalThreshold(case.alpha, cap=case.cap, ridge=1e-2, penalised=penalised)
            fitted = rule.fit(case.features, case.scores)
            for phi in case.queries:
                certificate, value = fitted.make_certificate(phi), fitted.threshold(phi)
                if certificate is None:
                    assert value == np.inf
                else:
                    assert abs(certificate.gap) <= 1e-9 * (abs(certificate.primal) + len(case.scores))
                    assert certificate.balance <= 1e-12


def test_ridge_threshold_of_a_constant_is_the_order_statistic() -> None:
    rng = np.random.default_rng(1)
    for size in (5, 9, 19, 99, 2_500):
        scores = rng.integers(0, 101, size) / 100
        for alpha in ("0.1", "0.25", "0.5"):
            rule = ConditionalThreshold(alpha, ridge=0.1).fit(np.ones((size, 1)), scores)
            assert rule.threshold([1.0]) == compute_order_statistic(scores, alpha)


def test_ridge_threshold_interpolates_between_no_ridge_and_one_quantile() -> None:
    rng = np.random.default_rng(2)
    t = rng.random(500)
    features = np.stack([np.ones(500), t, t**2], axis=1)
    scores = 0.5 * t + 0.5 * rng.random(500)
    without = ConditionalThreshold("0.2").fit(features, scores).thresholds(features[:50])
    small = ConditionalThreshold("0.2", ridge=1e-9).fit(features, scores).thresholds(features[:50])
    large = ConditionalThreshold("0.2", ridge=1e6).fit(features, scores).thresholds(features[:50])
    np.testing.assert_allclose(small, without, atol=1e-4)
    np.testing.assert_allclose(large, compute_order_statistic(scores, "0.2"), atol=1e-3)


def test_ridge_threshold_depends_on_units_only_if_all_is_penalised() -> None:
    rng = np.random.default_rng(3)
    features = np.stack([np.ones(200), rng.random(200), rng.normal(size=200)], axis=1)
    scores, units = rng.random(200), np.array([1.0, 1000.0, 0.01])
    for penalised, same in zip(FORMS, (True, False), strict=True):
        rule = ConditionalThreshold("0.2", ridge=0.1, penalised=penalised)
        one = rule.fit(features, scores).thresholds(features[:20])
        other = rule.fit(features * units, scores).thresholds(features[:20] * units)
        assert np.allclose(one, other, atol=1e-9) is same


@pytest.mark.long
def test_ridge_on_slopes_keeps_marginal_coverage_exact() -> None:
    """Over all prompts coverage is exact with any ridge: the parts below still sum up to tau (N + 1)."""
    rng = np.random.default_rng(4)
    size, kept = 400, {"slopes": 0.0, "all": 0.0}
    for _ in range(30):
        t = rng.random(2 * size)
        features = np.stack([np.ones(2 * size), t], axis=1)
        scores = t**2 * rng.random(2 * size)
        for penalised in FORMS:
            rule = ConditionalThreshold("0.2", ridge=1.0, penalised=penalised)
            found = rule.fit(features[:size], scores[:size]).thresholds(features[size:])
            kept[penalised] += float((scores[size:] <= found).mean()) / 30
    # 12,000 prompts: a binomial standard deviation is 0.0037, calibration adds as much again.
    assert abs(kept["slopes"] - 0.8) < 5 * 0.0055
    assert abs(kept["all"] - 0.8) > 5 * 0.0055  # the negative control: the paper's form moves it


@pytest.mark.parametrize("penalised", FORMS)
def test_ridge_window_gives_the_threshold_of_the_full_data_or_none(penalised: Penalised) -> None:
    rng = np.random.default_rng(5)
    t = rng.random(6_000)
    features = np.stack([np.ones(6_000), t, t**2, rng.normal(size=6_000)], axis=1)
    scores = np.where(rng.random(6_000) < 0.05, 2.0, 0.5 * t + 0.5 * rng.random(6_000))
    everything = ConditionalThreshold("0.1", ridge=1e-3, penalised=penalised, window=None)
    near = repetitions(40, share=0.4)
    queries = np.vstack([features[:near], 3.0 * features[: near // 4]])
    expected = everything.fit(features, scores).solve(queries)
    for window in (64, 1024):
        rule = ConditionalThreshold("0.1", ridge=1e-3, penalised=penalised, window=window)
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


@pytest.mark.parametrize("penalised", FORMS)
def test_ridge_state_restored_is_bit_identical(penalised: Penalised) -> None:
    for kind in ("continuous", "tied", "hat_functions", "duplicate_columns", "hopeless_prompts"):
        for case in cases(kind, repetitions(3, share=1 / 3)):
            rule = ConditionalThreshold(case.alpha, cap=case.cap, ridge=0.01, penalised=penalised)
            fitted = rule.fit(case.features, case.scores)
            restored = rule.restore(fitted.get_state_data())
            before, after = fitted.solve(case.queries), restored.solve(case.queries)
            assert after.values.tobytes() == before.values.tobytes()
            assert after.errors.tobytes() == before.errors.tobytes()
            assert [restored.threshold(phi) for phi in case.queries] == before.values.tolist()


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("shift", np.zeros(1)),
        ("spread", np.array([0.0, -1.0])),
        ("spread", np.ones(3)),
        ("penalty", np.array([0.0, 0.0])),
        ("penalty", np.array([1.0, 1.0])),
        ("penalty", np.ones(4)),
        ("penalty", np.array([0.0, 1e308])),  # its products overflow
        ("penalty", np.array([0.0, 5e-324])),
        ("features", np.ones((2, 2))),
        ("root", np.zeros((2, 2))),
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


@pytest.mark.parametrize("settings", [{"ridge": -1.0}, {"ridge": float("nan")}, {"penalised": "some"}])
def test_conditional_threshold_refuses_invalid_ridge_settings(settings: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        ConditionalThreshold("0.1", **settings)


def test_spans_constant_recognises_a_constant_in_the_span_only() -> None:
    rng = np.random.default_rng(7)
    hats = np.stack([np.interp(rng.random(50), np.linspace(0, 1, 4), row) for row in np.eye(4)], axis=1)
    t = rng.random(50)
    hats = np.stack([np.interp(t, np.linspace(0, 1, 4), row) for row in np.eye(4)], axis=1)
    assert spans_constant(hats)
    assert spans_constant(np.full((50, 1), 0.3))
    assert not spans_constant(t[:, np.newaxis])
    assert not spans_constant(hats[:, :3] + 0.1 * rng.random((50, 3)))
    units = RidgeUnits.fit(hats, 0.5, "slopes")
    assert units.penalty[0] == 0.0
    assert (np.abs(units.apply(hats)) <= 1.0).all()
    assert (RidgeUnits.fit(hats, 0.5, "all").penalty > 0.0).all()


def test_ridge_threshold_is_infinite_outside_the_span() -> None:
    features = np.eye(3)[[0, 0, 0, 0, 1, 1, 1, 1]]
    rule = ConditionalThreshold("0.5", ridge=0.1).fit(features, np.linspace(0.1, 0.8, 8))
    assert rule.threshold([0.0, 0.0, 1.0]) == np.inf
    assert np.isfinite(rule.threshold([1.0, 0.0, 0.0]))


@pytest.mark.parametrize("penalised", FORMS)
def test_ridge_threshold_of_zero_features_is_zero(penalised: Penalised) -> None:
    rule = ConditionalThreshold("0.2", ridge=0.01, penalised=penalised).fit(np.zeros((6, 2)), np.ones(6) / 2)
    assert rule.thresholds([[0.0, 0.0]]).tolist() == [0.0]
    assert rule.threshold([1.0, 0.0]) == np.inf
