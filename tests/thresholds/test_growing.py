"""Regressions grown from subsamples are those on all rows, and weights count like repeated rows."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

from langchain_cfc._arrays import FloatArray
from langchain_cfc.thresholds import ConditionalThreshold, growing
from langchain_cfc.thresholds.growing import FIRST, grown_fit
from langchain_cfc.thresholds.simplex import Fit, QuantileSimplex, Rows

from .oracles import order_statistic

TAU = Fraction(9, 10)


def continuous(rng: np.random.Generator, size: int) -> Rows:
    t = rng.random(size)
    features = np.stack([np.ones(size), t, t**2, rng.random(size)], axis=1)
    return Rows.unweighted(features, 0.5 * t + 0.5 * rng.random(size))


def with_hopeless(rng: np.random.Generator, size: int) -> Rows:
    rows = continuous(rng, size)
    return Rows.unweighted(rows.features, np.where(rng.random(size) < 0.07, 2.0, rows.scores))


def tied(rng: np.random.Generator, size: int) -> Rows:
    rows = continuous(rng, size)
    return Rows.unweighted(np.round(rows.features, 1), np.round(rows.scores, 1))


def grouped(rng: np.random.Generator, size: int) -> Rows:
    return Rows.unweighted(np.eye(4)[rng.integers(0, 4, size)], np.round(rng.random(size), 2))


def sorted_by_score(rng: np.random.Generator, size: int) -> Rows:
    rows = continuous(rng, size)
    return rows.take(np.argsort(rows.scores))


KINDS = [continuous, with_hopeless, tied, grouped, sorted_by_score]
Kind = Callable[[np.random.Generator, int], Rows]


def mean_prompt(rows: Rows) -> FloatArray:
    return np.asarray((rows.weights @ rows.features) / rows.weights.sum(), dtype=np.float64)


def assert_optimal(rows: Rows, fit: Fit, tau: Fraction) -> None:
    """First-order conditions of the mean prompt's regression, over every row: sides, box and balance."""
    residuals = rows.scores - rows.features @ fit.beta
    basis, below = fit.vertex.basis, fit.vertex.below
    off = np.ones(len(rows), dtype=np.bool_)
    off[basis] = False
    assert (residuals[off & below] <= 1e-12).all()
    assert (residuals[off & ~below] >= -1e-12).all()
    eta = float(tau) - below.astype(np.float64)
    rest = float(tau) * mean_prompt(rows) + (eta[off] * rows.weights[off]) @ rows.features[off]
    on_fit = np.linalg.solve(rows.features[basis].T, -rest) / rows.weights[basis]
    assert (on_fit >= float(tau) - 1 - 1e-9).all()
    assert (on_fit <= float(tau) + 1e-9).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [FIRST, FIRST + 1, 7_000, 50_000])
def test_a_grown_fit_is_optimal_over_all_rows(kind: Kind, size: int) -> None:
    rows = kind(np.random.default_rng(size), size)
    fit = grown_fit(rows, TAU)
    assert fit is not None
    assert_optimal(rows, fit, TAU)


@pytest.mark.parametrize("kind", KINDS)
def test_a_band_that_is_far_too_narrow_costs_rounds_and_not_exactness(
    kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = kind(np.random.default_rng(1), 7_000)
    wide = grown_fit(rows, TAU)
    monkeypatch.setattr(growing, "_band_size", lambda *_: 1)
    narrow = grown_fit(rows, TAU)
    assert wide is not None
    assert narrow is not None
    assert_optimal(rows, narrow, TAU)
    phi = mean_prompt(rows)
    assert narrow.value(phi)[0] == pytest.approx(wide.value(phi)[0], abs=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_thresholds_do_not_depend_on_where_the_search_starts(kind: Kind) -> None:
    rows = kind(np.random.default_rng(2), 3_000)
    rule = ConditionalThreshold("0.1").fit(rows.features, rows.scores)
    plain = QuantileSimplex(rows, TAU)
    for phi in rows.features[:5]:
        fit = plain.minimise(phi)
        expected = np.inf if fit is None or fit.value(phi)[0] >= 2.0 - 1e-9 else fit.value(phi)[0]
        assert rule.threshold(phi) == pytest.approx(expected, abs=1e-12)


def test_beyond_the_first_subsample_groups_are_still_order_statistics_to_the_bit() -> None:
    rows = grouped(np.random.default_rng(3), 9_001)
    rule = ConditionalThreshold("0.1").fit(rows.features, rows.scores)
    for group in range(4):
        scores = rows.scores[rows.features[:, group] == 1.0]
        assert rule.threshold(np.eye(4)[group]) == order_statistic(scores, "0.1")


def test_where_the_mean_prompt_is_endless_there_is_no_fit_and_thresholds_are_infinite() -> None:
    rows = continuous(np.random.default_rng(4), 3_000)
    assert grown_fit(rows, Fraction(9999, 10_000)) is None
    assert (
        ConditionalThreshold("0.0001").fit(rows.features, rows.scores).threshold(rows.features[0]) == np.inf
    )


def test_a_subsample_too_small_for_the_level_is_no_obstacle() -> None:
    """At 1 - 1/4000 the mean prompt is endless on 2,000 rows and not on 12,000."""
    rows, tau = continuous(np.random.default_rng(6), 12_000), 1 - Fraction(1, 4_000)
    assert grown_fit(rows.take(np.arange(FIRST)), tau) is None
    fit = grown_fit(rows, tau)
    assert fit is not None
    assert_optimal(rows, fit, tau)


@pytest.mark.parametrize("kind", KINDS)
def test_a_weight_counts_like_repeated_rows(kind: Kind) -> None:
    rng = np.random.default_rng(5)
    rows = kind(rng, 60)
    times = rng.integers(1, 4, len(rows))
    weighted = QuantileSimplex(Rows(rows.features, rows.scores, times.astype(np.float64)), TAU)
    repeated = QuantileSimplex(rows.take(np.repeat(np.arange(len(rows)), times)), TAU)
    for phi in rows.features[:20]:
        one, other = weighted.minimise(phi), repeated.minimise(phi)
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            assert one.value(phi)[0] == pytest.approx(other.value(phi)[0], abs=1e-12)
