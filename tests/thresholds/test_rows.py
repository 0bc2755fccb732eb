"""Rows: equal ones merged, and sums."""

from __future__ import annotations

import numpy as np
import pytest

from langchain_cfc.support.arrays import FloatArray
from langchain_cfc.thresholds import _rows as module
from langchain_cfc.thresholds._rows import Rows, RowSums


def draw_rows(size: int, seed: int = 0) -> Rows:
    """Rows of which many are equal, with zeros of both signs."""
    rng = np.random.default_rng(seed)
    features = rng.choice([-0.0, 0.0, 0.5, 1.0], (size, 3))
    scores, weights = rng.integers(0, 3, size) / 10, rng.integers(1, 5, size).astype(np.float64)
    return Rows(features, scores, weights, weights)


def count_weights(rows: Rows) -> dict[tuple[float, ...], float]:
    """Weights by row, in plain Python."""
    weights: dict[tuple[float, ...], float] = {}
    for x, s, w in zip(rows.features.tolist(), rows.scores.tolist(), rows.weights.tolist(), strict=True):
        key = (*(value + 0.0 for value in x), s)
        weights[key] = weights.get(key, 0.0) + w
    return weights


@pytest.mark.parametrize("chunk", [16, 100, 1 << 16])
def test_merge_equal_sums_the_weights_of_equal_rows(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MERGE_SIZE", chunk)
    rows = draw_rows(500)
    merged = rows.merge_equal()
    assert count_weights(merged) == count_weights(rows)
    assert len(merged) == len(count_weights(rows))
    first = list(count_weights(rows))
    order = [(*(value + 0.0 for value in x), s) for x, s in zip(merged.features, merged.scores, strict=True)]
    assert order == first


def test_merge_equal_survives_hash_collisions(monkeypatch: pytest.MonkeyPatch) -> None:
    # Factors of zero give every row the same hash.
    monkeypatch.setattr(module, "HASH_TWO", np.uint64(0))
    monkeypatch.setattr(module, "HASH_ONE", np.uint64(0))
    rows = draw_rows(300)
    assert count_weights(rows.merge_equal()) == count_weights(rows)


def test_is_repetitive_tells_whether_rows_repeat() -> None:
    rng = np.random.default_rng(1)
    assert draw_rows(20_000).is_repetitive
    assert not Rows.with_unit_weights(rng.random((20_000, 2)), rng.random(20_000)).is_repetitive
    assert not Rows.with_unit_weights(np.ones((1, 1)), np.ones(1)).is_repetitive


@pytest.mark.parametrize("block", [7, 8192])
def test_rest_sums_equal_sums_over_the_rows(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCK_SIZE", block)
    rng = np.random.default_rng(2)
    weights, targets = rng.uniform(0.5, 2.0, 100), rng.uniform(0.1, 3.0, 100)
    rows = Rows(rng.normal(size=(100, 3)), rng.random(100), weights, targets)
    below = rng.random(100) < 0.6
    rest = RowSums.from_rows(rows, below)
    expected: dict[str, FloatArray] = {
        "low": (weights * below) @ rows.features,
        "total": weights @ rows.features,
        "mass": weights @ np.abs(rows.features),
        "below_scores": np.asarray((weights * below) @ rows.scores),
        "target": targets @ rows.features,
        "target_scores": np.asarray(targets @ rows.scores),
    }
    for name, value in expected.items():
        np.testing.assert_allclose(getattr(rest, name), value, rtol=1e-12)
    half = RowSums.from_rows(rows.take(slice(None, 50)), below[:50])
    other = RowSums.from_rows(rows.take(slice(50, None)), below[50:])
    for whole in (half + other, rest):
        for name, value in vars(whole - other).items():
            np.testing.assert_allclose(value, getattr(half, name), rtol=1e-9, atol=1e-12)
