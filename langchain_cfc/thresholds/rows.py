"""Calibration prompts as rows of a regression, and rows that take part by their sums only."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from langchain_cfc._arrays import BoolArray, FloatArray, IntArray

# Rows handled at a time where all of them at once would need a second copy of the features: few enough to
# stay in the processor's cache.
BLOCK = 8192
# Rows merged at a time, and rows that tell whether merging is worth it.
CHUNK, SAMPLE = 1 << 16, 4096
# Of the hash of a row's bits.
ONE, ODD, HALF = np.uint64(1), np.uint64(2), np.uint64(29)


@dataclass(frozen=True)
class Rows:
    """The calibration prompts of a regression.

    Attributes:
        features: (N, d) rows x_i.
        scores: (N,) success scores S_i.
        weights: (N,) positive weights; a row of weight 2 counts like two equal rows.
    """

    features: FloatArray
    scores: FloatArray
    weights: FloatArray

    @classmethod
    def unweighted(cls, features: FloatArray, scores: FloatArray) -> Rows:
        """Rows that each count once."""
        return cls(features, scores, np.ones(len(scores)))

    def __len__(self) -> int:
        """The number of rows N."""
        return len(self.scores)

    def __add__(self, other: Rows) -> Rows:
        """These rows and others after them."""
        return Rows(
            np.concatenate([self.features, other.features]),
            np.concatenate([self.scores, other.scores]),
            np.concatenate([self.weights, other.weights]),
        )

    def take(self, rows: IntArray | BoolArray | slice) -> Rows:
        """Some of the rows, by their numbers or by flags."""
        return Rows(self.features[rows], self.scores[rows], self.weights[rows])

    def mean(self) -> FloatArray:
        """The (d,) mean prompt."""
        return np.asarray((self.weights @ self.features) / self.weights.sum(), dtype=np.float64)

    @property
    def repetitive(self) -> bool:
        """Whether fewer than half of the rows are different, as far as a sample tells."""
        sample = self.take(slice(None, None, max(1, len(self) // SAMPLE)))
        return 2 * len(sample.merged()) < len(sample)

    def merged(self) -> Rows:
        """Equal rows made one that carries their weights, in order of first appearance."""
        starts = range(0, len(self), CHUNK)
        parts = [_merged(self.take(slice(start, start + CHUNK))) for start in starts]
        if len(parts) == 1:
            return parts[0]
        return _merged(
            Rows(
                np.concatenate([part.features for part in parts]),
                np.concatenate([part.scores for part in parts]),
                np.concatenate([part.weights for part in parts]),
            )
        )

    def groups(self) -> IntArray:
        """(N,) numbers that equal rows share, counted from 0 in order of first appearance."""
        first, group = unique_rows(np.column_stack([self.features, self.scores]))
        rank = np.empty(len(first), dtype=np.int64)
        rank[np.argsort(first)] = np.arange(len(first))
        return rank[group]


@dataclass(frozen=True)
class Rest:
    """Rows that take part by their sums only, their sides fixed.

    Attributes:
        low: (d,) weighted sum of those below the fit.
        total: (d,) weighted sum of all of them.
        mass: (d,) weighted sum of their absolute values, for bounds on round-off.
        below_scores: Weighted sum of the scores of those below the fit.
        all_scores: Weighted sum of all their scores.
    """

    low: FloatArray
    total: FloatArray
    mass: FloatArray
    below_scores: float = 0.0
    all_scores: float = 0.0

    @classmethod
    def nothing(cls, d: int) -> Rest:
        """No rows."""
        return cls(np.zeros(d), np.zeros(d), np.zeros(d))

    @classmethod
    def of(cls, rows: Rows, below: BoolArray) -> Rest:
        """The sums of some rows with their (N,) sides."""
        rest = cls.nothing(rows.features.shape[1])
        for start in range(0, len(rows), BLOCK):
            part = slice(start, start + BLOCK)
            x, s, w = rows.features[part], rows.scores[part], rows.weights[part]
            under = w * below[part]
            rest += cls(under @ x, w @ x, w @ np.abs(x), float(under @ s), float(w @ s))
        return rest

    def __add__(self, other: Rest) -> Rest:
        """The sums over both."""
        return Rest(
            self.low + other.low,
            self.total + other.total,
            self.mass + other.mass,
            self.below_scores + other.below_scores,
            self.all_scores + other.all_scores,
        )

    def __sub__(self, other: Rest) -> Rest:
        """The sums without those of some of the rows."""
        return Rest(
            self.low - other.low,
            self.total - other.total,
            self.mass - other.mass,
            self.below_scores - other.below_scores,
            self.all_scores - other.all_scores,
        )


def _merged(rows: Rows) -> Rows:
    groups = rows.groups()
    _, first = np.unique(groups, return_index=True)
    weights = np.bincount(groups, weights=rows.weights)
    return Rows(rows.features[first], rows.scores[first], np.asarray(weights, dtype=np.float64))


def unique_rows(table: FloatArray) -> tuple[IntArray, IntArray]:
    """First row of each kind of an (N, d) table, and the (N,) kind of each row.

    Rows are sorted by a hash of their bits, which is many times quicker than by their numbers; if a hash ever
    joins different rows, by their numbers after all.
    """
    table = table + 0.0  # minus zero equals zero; this makes their bits alike too
    factors = np.random.default_rng(0).integers(1, 2**62, table.shape[1], dtype=np.uint64) * ODD + ONE
    mixed = table.view(np.uint64) * factors
    keys = np.bitwise_xor.reduce(mixed ^ (mixed >> HALF), axis=1)
    _, first, group = np.unique(keys, return_index=True, return_inverse=True)
    if (table[first[group.ravel()]] != table).any():
        _, first, group = np.unique(table, axis=0, return_index=True, return_inverse=True)
    return first, group.ravel()
