"""Seeded random calibration sets of every shape that has broken a threshold solver, each under its name."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from langchain_cfc.support.arrays import FloatArray
from tests.lengths import repetitions

ALPHAS = ("0.05", "0.1", "0.2", "0.25", "0.3", "0.5", "0.7")


@dataclass(frozen=True)
class Case:
    """A calibration set and prompts to ask about: features (N, d), scores (N,), queries (m, d)."""

    features: FloatArray
    scores: FloatArray
    queries: FloatArray
    alpha: str
    cap: float = 2.0


Kind = Callable[[np.random.Generator], Case]


def cases(kind: str, count: int) -> Iterator[Case]:
    """The first `count` cases of a kind, fewer of many in the quick tier; the seed is the kind's name."""
    rng = np.random.default_rng(zlib.crc32(kind.encode()))
    for _ in range(count if count < 4 else max(3, repetitions(count, share=0.06))):
        yield KINDS[kind](rng)


def _draw_alpha(rng: np.random.Generator) -> str:
    return ALPHAS[rng.integers(len(ALPHAS))]


def _draw_shape(rng: np.random.Generator, largest: int = 60) -> tuple[int, int]:
    d = int(rng.integers(1, 9))
    return int(rng.integers(d, largest + 1)), d


def _draw_gaussian(rng: np.random.Generator, size: int, d: int) -> FloatArray:
    features = rng.normal(size=(size, d))
    features[:, 0] = 1.0
    return features


def _make_queries(rng: np.random.Generator, features: FloatArray, fresh: FloatArray) -> FloatArray:
    """Three prompts: a calibration row, a fresh one, and the mean prompt."""
    return np.vstack([features[rng.integers(len(features))], fresh, features.mean(axis=0)])


def _encode_one_hot(codes: np.ndarray[tuple[int], np.dtype[np.int64]], groups: int) -> FloatArray:
    return np.eye(groups)[codes]


def continuous(rng: np.random.Generator) -> Case:
    size, d = _draw_shape(rng)
    features = _draw_gaussian(rng, size, d)
    return Case(
        features, rng.random(size), _make_queries(rng, features, _draw_gaussian(rng, 1, d)), _draw_alpha(rng)
    )


def tied(rng: np.random.Generator) -> Case:
    size, d = _draw_shape(rng)
    features = _draw_gaussian(rng, size, d)
    scores = rng.integers(0, 11, size) / 10
    return Case(features, scores, _make_queries(rng, features, _draw_gaussian(rng, 1, d)), _draw_alpha(rng))


def nearly_tied(rng: np.random.Generator) -> Case:
    """Equal but for the last bits, as sums of tenths are."""
    size, d = _draw_shape(rng)
    features = _draw_gaussian(rng, size, d)
    scores = rng.integers(0, 11, size) / 10 + rng.choice([0.0, 1e-16, 3e-15, 1e-13, 1e-11], size)
    return Case(features, scores, _make_queries(rng, features, _draw_gaussian(rng, 1, d)), _draw_alpha(rng))


def atoms(rng: np.random.Generator) -> Case:
    size, d = _draw_shape(rng)
    features = _draw_gaussian(rng, size, d)
    scores = np.where(rng.random(size) < 0.7, rng.choice([0.3, 0.3, 0.7], size), rng.random(size))
    return Case(features, scores, _make_queries(rng, features, _draw_gaussian(rng, 1, d)), _draw_alpha(rng))


def lattice(rng: np.random.Generator) -> Case:
    """Small whole numbers everywhere: repeated rows, minimisers that are not unique, ties."""
    size, d = _draw_shape(rng, 30)
    features = rng.integers(-1, 3, (size, d)).astype(np.float64)
    fresh = rng.integers(-1, 3, (1, d)).astype(np.float64)
    return Case(features, rng.integers(0, 5, size) / 4, _make_queries(rng, features, fresh), _draw_alpha(rng))


def groups(rng: np.random.Generator) -> Case:
    size, d = _draw_shape(rng)
    scores = rng.random(size) if rng.random() < 0.5 else rng.integers(0, 11, size) / 10
    return Case(_encode_one_hot(rng.integers(0, d, size), d), scores, np.eye(d), _draw_alpha(rng))


def overlapping_partitions(rng: np.random.Generator) -> Case:
    size, _ = _draw_shape(rng)
    a, b = rng.integers(0, 3, size), rng.integers(0, 4, size)
    features = np.hstack([_encode_one_hot(a, 3), _encode_one_hot(b, 4)])
    fresh = np.hstack([_encode_one_hot(rng.integers(0, 3, 2), 3), _encode_one_hot(rng.integers(0, 4, 2), 4)])
    return Case(
        features, rng.integers(0, 21, size) / 20, _make_queries(rng, features, fresh), _draw_alpha(rng)
    )


def duplicate_columns(rng: np.random.Generator) -> Case:
    size, d = _draw_shape(rng)
    mixing = np.hstack([np.eye(d), rng.integers(-2, 3, (d, 3))])[:, rng.permutation(d + 3)]
    features, fresh = _draw_gaussian(rng, size, d) @ mixing, _draw_gaussian(rng, 1, d) @ mixing
    return Case(features, rng.random(size), _make_queries(rng, features, fresh), _draw_alpha(rng))


def badly_scaled(rng: np.random.Generator) -> Case:
    size, d = _draw_shape(rng)
    units = 10.0 ** rng.uniform(-6.0, 6.0, d)
    features, fresh = _draw_gaussian(rng, size, d) * units, _draw_gaussian(rng, 1, d) * units
    return Case(features, rng.random(size), _make_queries(rng, features, fresh), _draw_alpha(rng))


def polynomials(rng: np.random.Generator) -> Case:
    """Up to the fourth power: beyond, the condition of monomials exceeds what the oracles resolve."""
    size, d = _draw_shape(rng)
    d = min(d, 5)
    t = np.vander(rng.random(size + 1), d, increasing=True)
    scores = rng.random(size) if rng.random() < 0.5 else rng.integers(0, 11, size) / 10
    return Case(t[1:], scores, _make_queries(rng, t[1:], t[:1]), _draw_alpha(rng))


def hat_functions(rng: np.random.Generator) -> Case:
    size, d = _draw_shape(rng)
    knots = np.linspace(0.0, 1.0, d) if d > 1 else np.array([0.5])
    t = rng.random(size + 2) if rng.random() < 0.7 else rng.integers(0, 9, size + 2) / 8
    hats = np.stack([np.interp(t, knots, row) for row in np.eye(d)], axis=1)
    return Case(hats[2:], rng.random(size), _make_queries(rng, hats[2:], hats[:2]), _draw_alpha(rng))


def hopeless_prompts(rng: np.random.Generator) -> Case:
    size, d = _draw_shape(rng)
    features = _draw_gaussian(rng, size, d)
    cap = float(rng.choice([1.0 + 1e-6, 1.5, 2.0]))
    scores = np.where(rng.random(size) < rng.choice([0.05, 0.15, 0.4]), cap, rng.random(size))
    return Case(
        features, scores, _make_queries(rng, features, _draw_gaussian(rng, 1, d)), _draw_alpha(rng), cap
    )


def all_hopeless(rng: np.random.Generator) -> Case:
    size, d = _draw_shape(rng)
    features = _draw_gaussian(rng, size, d)
    cap = float(rng.choice([1.0 + 1e-6, 1.5, 2.0]))
    fresh = _draw_gaussian(rng, 1, d)
    return Case(features, np.full(size, cap), _make_queries(rng, features, fresh), _draw_alpha(rng), cap)


def fewer_points_than_features(rng: np.random.Generator) -> Case:
    d = int(rng.integers(2, 9))
    size = int(rng.integers(1, d))
    features = _draw_gaussian(rng, size, d)
    within = rng.normal(size=(1, size)) @ features
    queries = np.vstack([features[:1], within, _draw_gaussian(rng, 1, d)])
    return Case(features, rng.random(size), queries, _draw_alpha(rng))


def one_calibration_point(rng: np.random.Generator) -> Case:
    features = _draw_gaussian(rng, 1, int(rng.integers(1, 4)))
    queries = np.vstack([features, -features, 0.25 * features, 4.0 * features])
    return Case(features, rng.random(1), queries, _draw_alpha(rng))


def whole_rank(rng: np.random.Generator) -> Case:
    """(N + 1) tau is a whole number, the place where minimisers are not unique."""
    alpha, unit = (("0.1", 10), ("0.2", 5), ("0.25", 4), ("0.5", 2), ("0.7", 10))[rng.integers(5)]
    sizes = [unit * int(rng.integers(1, 6)) - 1 for _ in range(rng.integers(1, 4))]
    codes = np.repeat(np.arange(len(sizes)), sizes)
    scores = rng.random(len(codes)) if rng.random() < 0.5 else rng.integers(0, 11, len(codes)) / 10
    return Case(_encode_one_hot(codes, len(sizes)), scores, np.eye(len(sizes)), alpha)


def extreme_alpha(rng: np.random.Generator) -> Case:
    size, d = _draw_shape(rng, 80)
    features = _draw_gaussian(rng, size, d)
    alpha = ("0.001", "0.01", "0.99", "0.999")[rng.integers(4)]
    return Case(features, rng.random(size), _make_queries(rng, features, _draw_gaussian(rng, 1, d)), alpha)


def zero_phi(rng: np.random.Generator) -> Case:
    size, d = _draw_shape(rng)
    return Case(_draw_gaussian(rng, size, d), rng.random(size), np.zeros((1, d)), _draw_alpha(rng))


def outside_row_space(rng: np.random.Generator) -> Case:
    size, d = _draw_shape(rng)
    basis = rng.normal(size=(d, d + 2))
    features, fresh = rng.normal(size=(size, d)) @ basis, rng.normal(size=(2, d + 2))
    return Case(features, rng.random(size), fresh, _draw_alpha(rng))


def group_without_points(rng: np.random.Generator) -> Case:
    size, d = _draw_shape(rng)
    features = np.hstack([_encode_one_hot(rng.integers(0, d, size), d), np.zeros((size, 1))])
    return Case(features, rng.random(size), np.eye(d + 1), _draw_alpha(rng))


def high_leverage(rng: np.random.Generator) -> Case:
    size, d = _draw_shape(rng)
    features = _draw_gaussian(rng, size, d)
    queries = np.vstack([factor * _draw_gaussian(rng, 1, d) for factor in (-3.0, 2.0, 5.0, 30.0)])
    return Case(features, rng.random(size), queries, _draw_alpha(rng))


def heavy_tails(rng: np.random.Generator) -> Case:
    """Rows of very different lengths, ratios of 1e5 and more within a column."""
    size, d = _draw_shape(rng)
    features, fresh = np.exp(3.0 * rng.normal(size=(size, d))), np.exp(3.0 * rng.normal(size=(1, d)))
    return Case(features, rng.random(size), _make_queries(rng, features, fresh), _draw_alpha(rng))


def score_among_features(rng: np.random.Generator) -> Case:
    """[1, m] with success score m for most: the fit runs along the scores themselves."""
    size = int(rng.integers(5, 60))
    m = rng.random(size + 1)
    features = np.stack([np.ones(size), m[1:]], axis=1)
    scores = np.where(rng.random(size) < 0.8, m[1:], rng.random(size))
    return Case(features, scores, np.vstack([features[:2], [1.0, m[0]]]), _draw_alpha(rng))


def scores_on_a_polynomial(rng: np.random.Generator) -> Case:
    """Repeated rows, and scores that lie on a fit but for round-off: once no vertex could be proven here."""
    size, d = int(rng.integers(20, 250)), int(rng.integers(2, 6))
    features = np.vander(rng.integers(0, 21, size) / 20, d, increasing=True)
    on = np.clip(features @ rng.normal(scale=0.1, size=d), 0.0, 1.0)
    scores = np.where(rng.random(size) < rng.choice([0.5, 1.0]), on, rng.random(size))
    return Case(features, scores, features[rng.integers(0, size, 2)], _draw_alpha(rng))


def nearly_tied_partitions(rng: np.random.Generator) -> Case:
    """Scores that differ by anything from round-off to the solver's noise: here too no vertex was proven."""
    size = int(rng.integers(20, 250))
    features = np.hstack(
        [_encode_one_hot(rng.integers(0, 3, size), 3), _encode_one_hot(rng.integers(0, 4, size), 4)]
    )
    near = rng.choice([0.0, 1e-16, 1e-13, 1e-12, 1e-11, 1e-10, 1e-9], size)
    scores = rng.integers(0, 11, size) / 10 + near
    return Case(features, scores, features[rng.integers(0, size, 2)], _draw_alpha(rng))


KINDS: dict[str, Kind] = {
    kind.__name__: kind
    for kind in (
        continuous,
        tied,
        nearly_tied,
        atoms,
        lattice,
        groups,
        overlapping_partitions,
        duplicate_columns,
        badly_scaled,
        polynomials,
        hat_functions,
        hopeless_prompts,
        all_hopeless,
        fewer_points_than_features,
        one_calibration_point,
        whole_rank,
        extreme_alpha,
        zero_phi,
        outside_row_space,
        group_without_points,
        high_leverage,
        heavy_tails,
        score_among_features,
        scores_on_a_polynomial,
        nearly_tied_partitions,
    )
}
