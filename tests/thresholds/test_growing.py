"""Regressions grown from subsamples are those on all rows."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

from langchain_cfc.thresholds import ConditionalThreshold, _warm_start
from langchain_cfc.thresholds._rows import Rows, RowSums
from langchain_cfc.thresholds._simplex import QuantileSimplex, Unbounded
from langchain_cfc.thresholds._warm_start import FIRST_SAMPLE_SIZE, BaseFit, fit_base_regression
from tests.lengths import mostly_long

from .oracles import compute_order_statistic

TAU = Fraction(9, 10)


def continuous(rng: np.random.Generator, size: int) -> Rows:
    t = rng.random(size)
    features = np.stack([np.ones(size), t, t**2, rng.random(size)], axis=1)
    return Rows.with_unit_weights(features, 0.5 * t + 0.5 * rng.random(size))


def with_hopeless(rng: np.random.Generator, size: int) -> Rows:
    rows = continuous(rng, size)
    return Rows.with_unit_weights(rows.features, np.where(rng.random(size) < 0.07, 2.0, rows.scores))


def tied(rng: np.random.Generator, size: int) -> Rows:
    rows = continuous(rng, size)
    return Rows.with_unit_weights(np.round(rows.features, 1), np.round(rows.scores, 1))


def grouped(rng: np.random.Generator, size: int) -> Rows:
    return Rows.with_unit_weights(np.eye(4)[rng.integers(0, 4, size)], np.round(rng.random(size), 2))


def sorted_by_score(rng: np.random.Generator, size: int) -> Rows:
    rows = continuous(rng, size)
    return rows.take(np.argsort(rows.scores))


KINDS = [continuous, with_hopeless, tied, grouped, sorted_by_score]
Kind = Callable[[np.random.Generator, int], Rows]


def assert_optimal(rows: Rows, fit: BaseFit, tau: Fraction) -> None:
    """First-order conditions of quantile regression, over every row: sides, box and balance."""
    residuals = rows.scores - rows.features @ fit.beta
    basis, below = fit.vertex.basis, fit.vertex.below
    off = np.ones(len(rows), dtype=np.bool_)
    off[basis] = False
    assert (residuals[off & below] <= 1e-12).all()
    assert (residuals[off & ~below] >= -1e-12).all()
    eta = float(tau) - below.astype(np.float64)
    rest = (eta[off] * rows.weights[off]) @ rows.features[off]
    on_fit = np.linalg.solve(rows.features[basis].T, -rest) / rows.weights[basis]
    assert (on_fit >= float(tau) - 1 - 1e-9).all()
    assert (on_fit <= float(tau) + 1e-9).all()


@mostly_long("kind", KINDS, quick=3)
@pytest.mark.parametrize("size", [FIRST_SAMPLE_SIZE, FIRST_SAMPLE_SIZE + 1, 7_000, 50_000])
def test_fit_base_regression_is_optimal_over_all_rows(kind: Kind, size: int) -> None:
    rows = kind(np.random.default_rng(size), size)
    fit = fit_base_regression(rows, TAU)
    assert_optimal(rows, fit, TAU)
    expected = RowSums.from_rows(rows, fit.vertex.below)
    for name, expected_sum in vars(expected).items():
        np.testing.assert_allclose(getattr(fit.sums, name), expected_sum, rtol=1e-12, atol=1e-9)


@mostly_long("kind", KINDS, quick=3)
def test_fit_base_regression_is_exact_with_a_too_narrow_band(
    kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = kind(np.random.default_rng(1), 7_000)
    wide = fit_base_regression(rows, TAU)
    monkeypatch.setattr(_warm_start, "_compute_band_size", lambda *_: 1)
    narrow = fit_base_regression(rows, TAU)
    assert_optimal(rows, narrow, TAU)
    np.testing.assert_allclose(narrow.beta, wide.beta, atol=1e-12)


@mostly_long("kind", KINDS, quick=3)
def test_threshold_does_not_depend_on_the_start_of_the_search(kind: Kind) -> None:
    rows = kind(np.random.default_rng(2), 3_000)
    rule = ConditionalThreshold("0.1").fit(rows.features, rows.scores)
    plain = QuantileSimplex(rows, TAU)
    for phi in rows.features[:5]:
        fit = plain.minimise(phi)
        expected = np.inf if isinstance(fit, Unbounded) else fit.compute_value(phi)[0]
        expected = np.inf if expected >= 2.0 - 1e-9 else expected
        assert rule.threshold(phi) == pytest.approx(expected, abs=1e-12)


def test_threshold_of_groups_beyond_the_first_subsample_is_exact() -> None:
    rows = grouped(np.random.default_rng(3), 9_001)
    rule = ConditionalThreshold("0.1").fit(rows.features, rows.scores)
    for group in range(4):
        scores = rows.scores[rows.features[:, group] == 1.0]
        assert rule.threshold(np.eye(4)[group]) == compute_order_statistic(scores, "0.1")


def test_fit_base_regression_is_optimal_at_a_level_few_rows_reach() -> None:
    """At 1 - 1/10000 a subsample of 2,000 rows has no row above the fit, nor have 3,000 rows in all."""
    tau = Fraction(9999, 10_000)
    for size in (3_000, 12_000):
        rows = continuous(np.random.default_rng(size), size)
        assert_optimal(rows, fit_base_regression(rows, tau), tau)
