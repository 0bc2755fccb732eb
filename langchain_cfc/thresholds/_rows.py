"""Data of a regression: calibration prompts as rows, independent columns, and penalties.

*Rows.* `Rows` are calibration prompts that enter one by one, `RowSums` those that enter only through their
sums.

*Columns.* Features may be linearly dependent (two partitions both sum to one, a group without members). A
subset of the *original* columns is kept rather than an SVD's mixtures: indicators stay zeros and ones, so
that group thresholds stay exact order statistics. Columns are scaled by powers of two, which is exact in
floating point. Outside the row space of the calibration features no threshold exists (see `Columns.reduce`).

*Units.* A ridge penalises the coefficients of the features as they are. Powers of two make the entries of its
columns at most one in size, and the penalties compensate for them, so that no fit depends on them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Any

import numpy as np

from langchain_cfc.errors import InputError
from langchain_cfc.support.arrays import BoolArray, FloatArray, IntArray

# Rows handled at a time, to save a second copy of the features and stay in the processor's cache.
BLOCK_SIZE = 8192
# Rows merged at a time, and rows sampled to decide whether merging is worthwhile.
MERGE_SIZE, MERGE_SAMPLE = 1 << 16, 4096
# Constants of the hash of a row's bits.
HASH_ONE, HASH_TWO, HASH_SHIFT = np.uint64(1), np.uint64(2), np.uint64(29)
# A column is dependent if its residual from the kept ones is below this share of its own length. Features
# carry round-off of about 1e-16 relative to the numbers they were computed from, amplified by conditioning;
# 1e-9 lies well above that.
DEPENDENCE_TOLERANCE = 1e-9
# Numbers beyond this size overflow when they are multiplied.
LARGEST_NUMBER = 1e150
# Share of the identity in the metric of a ridge, for directions without features.
IDENTITY_SHARE = 1e-3


@dataclass(frozen=True)
class Rows:
    """The calibration prompts of a regression."""

    features: FloatArray  # (N, d) rows x_i
    scores: FloatArray  # (N,) success scores S_i
    weights: FloatArray  # (N,) positive weights; a row of weight 2 counts like two equal rows
    # (N,) weights times the coverage each row is fitted to, in units of tau: the weights if it is tau for all
    targets: FloatArray

    @classmethod
    def with_unit_weights(cls, features: FloatArray, scores: FloatArray) -> Rows:
        """Build rows of weight 1 that are all fitted to the same coverage tau."""
        ones = np.ones(len(scores))
        return cls(features, scores, ones, ones)

    def __len__(self) -> int:
        """The number of rows N."""
        return len(self.scores)

    @classmethod
    def concatenate(cls, parts: Sequence[Rows]) -> Rows:
        """Concatenate the rows of several parts."""
        return cls(
            np.concatenate([part.features for part in parts]),
            np.concatenate([part.scores for part in parts]),
            np.concatenate([part.weights for part in parts]),
            np.concatenate([part.targets for part in parts]),
        )

    def take(self, rows: IntArray | BoolArray | slice) -> Rows:
        """Select rows by number or by flag."""
        weights = self.weights[rows]
        # One array for both: their sums are computed once.
        targets = weights if self.targets is self.weights else self.targets[rows]
        return Rows(self.features[rows], self.scores[rows], weights, targets)

    def mean(self) -> FloatArray:
        """The (d,) mean prompt."""
        return np.asarray((self.weights @ self.features) / self.weights.sum(), dtype=np.float64)

    @property
    def mean_target(self) -> Fraction:
        """The mean of the rows' coverages in units of tau; 1 if all have tau."""
        return Fraction(float(self.targets.sum() / self.weights.sum()))

    @property
    def is_repetitive(self) -> bool:
        """Whether fewer than half of the rows are distinct, estimated from a sample."""
        sample = self.take(slice(None, None, max(1, len(self) // MERGE_SAMPLE)))
        return 2 * len(sample.merge_equal()) < len(sample)

    def merge_equal(self) -> Rows:
        """Merge equal rows into one with their total weight, in order of first appearance."""
        starts = range(0, len(self), MERGE_SIZE)
        parts = [_merge_equal(self.take(slice(start, start + MERGE_SIZE))) for start in starts]
        return parts[0] if len(parts) == 1 else _merge_equal(Rows.concatenate(parts))

    def group_equal(self) -> IntArray:
        """Number the rows from 0 in order of first appearance, equal rows with the same number."""
        first, group = find_unique_rows(np.column_stack([self.features, self.scores]))
        return np.argsort(np.argsort(first))[group]


@dataclass(frozen=True)
class RowSums:
    """Sums of rows with fixed sides, through which alone these rows enter a regression."""

    low: FloatArray  # (d,) weighted sum of the rows below the fit
    total: FloatArray  # (d,) weighted sum of all rows
    mass: FloatArray  # (d,) weighted sum of their absolute values, for bounds on round-off
    target: FloatArray  # (d,) sum of all rows times their targets
    below_scores: float = 0.0  # Weighted sum of the scores of the rows below the fit
    target_scores: float = 0.0  # Sum of all scores times their targets

    @classmethod
    def zeros(cls, d: int) -> RowSums:
        """Build the sums of no rows."""
        return cls(np.zeros(d), np.zeros(d), np.zeros(d), np.zeros(d))

    @classmethod
    def from_rows(cls, rows: Rows, below: BoolArray) -> RowSums:
        """Sum N rows, of which those flagged in `below` (N,) lie below the fit."""
        rest = cls.zeros(rows.features.shape[1])
        for start in range(0, len(rows), BLOCK_SIZE):
            part = slice(start, start + BLOCK_SIZE)
            some = rows.take(part)
            x, s, w, t = some.features, some.scores, some.weights, some.targets
            under = w * below[part]
            total = w @ x
            target = total if t is w else t @ x
            rest += cls(under @ x, total, w @ np.abs(x), target, float(under @ s), float(t @ s))
        return rest

    def __add__(self, other: RowSums) -> RowSums:
        return self._combine(operator.add, other)

    def __sub__(self, other: RowSums) -> RowSums:
        return self._combine(operator.sub, other)

    def _combine(self, combine: Callable[[Any, Any], Any], other: RowSums) -> RowSums:
        return RowSums(*(combine(getattr(self, one.name), getattr(other, one.name)) for one in fields(self)))


def _merge_equal(rows: Rows) -> Rows:
    groups = rows.group_equal()
    _, first = np.unique(groups, return_index=True)
    weights, targets = (
        np.bincount(groups, weights=each).astype(np.float64, copy=False)
        for each in (rows.weights, rows.targets)
    )
    return Rows(rows.features[first], rows.scores[first], weights, targets)


def find_unique_rows(table: FloatArray) -> tuple[IntArray, IntArray]:
    """Find the first of each set of equal rows of an (N, d) table, and the (N,) set of each row.

    Rows are sorted by a hash of their bits, which is many times faster than by their entries; if a hash
    collides, they are sorted by their entries.
    """
    table = table + 0.0  # turns minus zero into zero, so that equal numbers have equal bits
    factors = (
        np.random.default_rng(0).integers(1, 2**62, table.shape[1], dtype=np.uint64) * HASH_TWO + HASH_ONE
    )
    mixed = table.view(np.uint64) * factors
    keys = np.bitwise_xor.reduce(mixed ^ (mixed >> HASH_SHIFT), axis=1)
    _, first, group = np.unique(keys, return_index=True, return_inverse=True)
    if (table[first[group.ravel()]] != table).any():
        _, first, group = np.unique(table, axis=0, return_index=True, return_inverse=True)
    return first, group.ravel()


@dataclass(frozen=True)
class Columns:
    """The kept columns, and how the others follow from them."""

    kept: IntArray  # (r,) numbers of the kept columns
    dropped: IntArray  # (d - r,) numbers of the others
    scale: FloatArray  # (d,) powers of two by which columns are divided
    # (r, d - r) coefficients: scaled dropped columns = scaled kept columns @ mixture, on calibration data.
    mixture: FloatArray

    @classmethod
    def choose(cls, features: FloatArray) -> tuple[Columns, FloatArray]:
        """Choose columns X of an (N, d) matrix; also return the triangular M with M' M = X' X / N."""
        blocks = [features[start : start + BLOCK_SIZE] for start in range(0, len(features), BLOCK_SIZE)]
        # Transposed first, because NumPy finds the largest entries of long rows faster.
        largest = np.max([np.abs(block.T, order="C").max(axis=1) for block in blocks], axis=0)
        # The smallest powers of two not below them, on every processor; 1 for a column of zeros.
        scale = np.ldexp(1.0, np.frexp(np.nextafter(largest, 0.0))[1])
        # The columns of the small triangular factor have the same lengths and angles.
        factor = triangularize(features) / scale
        kept = find_independent_columns(factor)
        dropped = np.setdiff1d(np.arange(features.shape[1]), kept)
        mixture = np.linalg.lstsq(factor[:, kept], factor[:, dropped], rcond=None)[0]
        root = triangularize(factor[:, kept]) / np.sqrt(len(features))
        return cls(kept, dropped, scale, mixture.astype(np.float64, copy=False)), root

    def to_arrays(self) -> dict[str, FloatArray]:
        """Return the choice as named arrays."""
        return {"kept": self.kept.astype(np.float64), "scale": self.scale, "mixture": self.mixture}

    @classmethod
    def from_arrays(cls, data: Mapping[str, FloatArray]) -> Columns:
        """Rebuild the choice from named, maybe untrusted arrays; raise an InputError if they do not fit."""
        kept, scale, mixture = data["kept"], data["scale"], data["mixture"]
        d = len(scale)
        # `find_independent_columns` returns strictly ascending whole numbers in range.
        if (np.diff(kept, prepend=-1.0, append=float(d)) < 1.0).any() or (kept % 1.0 != 0.0).any():
            msg = "array 'kept' of the state is not a choice of columns"
            raise InputError(msg)
        if d == 0 or (scale <= 0.0).any():
            msg = "array 'scale' of the state is empty or holds an impossible value"
            raise InputError(msg)
        numbers = kept.astype(np.int64)
        return cls(numbers, np.setdiff1d(np.arange(d), numbers), scale, mixture)

    def reduce(self, features: FloatArray) -> tuple[FloatArray, BoolArray]:
        """Return the kept, scaled columns, and for each row whether it lies in their row space.

        A row whose dropped entries differ from what its kept entries imply lies outside the row space of the
        calibration features: no linear function of the features is determined there, and no threshold exists.
        """
        if len(self.dropped) == 0:
            same = bool((self.scale == 1.0).all())
            return features if same else features / self.scale, np.ones(len(features), dtype=np.bool_)
        scaled = features / self.scale
        kept = np.ascontiguousarray(scaled[:, self.kept])
        return kept, self._is_in_row_space(kept, scaled)

    def reduce_one(self, phi: FloatArray) -> FloatArray | None:
        """Return the kept, scaled columns of one prompt; None if it is invalid or out of reach."""
        if phi.shape != self.scale.shape or not np.abs(phi).max() < LARGEST_NUMBER:
            return None
        scaled: FloatArray = phi / self.scale
        if len(self.dropped) == 0:
            return scaled
        kept = scaled[self.kept]
        return kept if self._is_in_row_space(kept[np.newaxis], scaled[np.newaxis])[0] else None

    def _is_in_row_space(self, kept: FloatArray, scaled: FloatArray) -> BoolArray:
        """Return for each scaled row whether its dropped entries are what the kept ones imply."""
        dropped = scaled[:, self.dropped]
        size = np.maximum(
            np.abs(dropped) + np.abs(kept) @ np.abs(self.mixture), np.abs(scaled).max(axis=1)[:, np.newaxis]
        )
        return np.asarray((np.abs(dropped - kept @ self.mixture) <= DEPENDENCE_TOLERANCE * size).all(axis=1))


def find_independent_columns(matrix: FloatArray, dependent: float = DEPENDENCE_TOLERANCE) -> IntArray:
    """Find linearly independent columns, ascending (pivoted Gram-Schmidt, orthogonalised twice)."""
    rest = matrix.copy()
    lengths = np.linalg.norm(matrix, axis=0)
    threshold = dependent * lengths
    kept: list[int] = []
    while len(kept) < min(matrix.shape):
        remaining = np.linalg.norm(rest, axis=0)
        share = np.where(remaining > threshold, remaining / np.where(lengths > 0.0, lengths, 1.0), -1.0)
        share[kept] = -1.0
        best = int(np.argmax(share))
        if share[best] < 0.0:
            break
        kept.append(best)
        direction = rest[:, best] / remaining[best]
        for _ in range(2):
            rest -= np.outer(direction, direction @ rest)
    return np.array(sorted(kept), dtype=np.int64)


def triangularize(matrix: FloatArray) -> FloatArray:
    """Compute the upper triangular factor R of a QR decomposition, by blocks of rows."""
    blocks = [matrix[start : start + BLOCK_SIZE] for start in range(0, len(matrix), BLOCK_SIZE)] or [matrix]
    factors = [np.linalg.qr(block, mode="r") for block in blocks]
    factor = factors[0] if len(factors) == 1 else np.linalg.qr(np.vstack(factors), mode="r")
    return np.asarray(factor, dtype=np.float64)


def compute_penalties(scale: FloatArray, ridge: float) -> FloatArray:
    """Compute the (d,) penalties of columns divided by `scale` that penalise the columns as they are.

    Raise an InputError if they exceed floating point.
    """
    with np.errstate(over="ignore", divide="ignore"):  # refused below
        penalties: FloatArray = ridge / scale**2
    if not is_in_range(penalties):
        msg = "a ridge on these features exceeds floating point: rescale them to comparable sizes"
        raise InputError(msg)
    return penalties


def is_in_range(penalties: FloatArray) -> bool:
    """Return whether penalties are positive, and products of two neither overflow nor underflow."""
    return bool(((penalties > 1.0 / LARGEST_NUMBER) & (penalties < LARGEST_NUMBER)).all())


def compute_regular_root(features: FloatArray) -> FloatArray:
    """Compute the (d, d) triangular root of a metric for (N, d) features, which may be dependent.

    A thousandth of the identity makes the root regular.
    """
    size, width = features.shape
    factor = np.vstack([triangularize(features), IDENTITY_SHARE * np.sqrt(size) * np.eye(width)])
    return np.asarray(triangularize(factor) / np.sqrt(size), dtype=np.float64)
