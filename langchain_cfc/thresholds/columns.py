"""Linearly independent columns of a feature matrix, and prompts that lie outside their reach.

Feature maps may repeat themselves (two partitions both sum to one, a group nobody belongs to). A subset of
the *original* columns is kept rather than an SVD's mixtures: indicators stay zeros and ones, so that group
thresholds stay exact order statistics. Columns are scaled by powers of two, which changes no digit of any
number.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from langchain_cfc._arrays import BoolArray, FloatArray, IntArray

# A column is dependent when what the kept ones leave of it is below this share of its own length. Features
# carry round-off of about 1e-16 relative to the numbers they were computed from, amplified by conditioning;
# 1e-9 lies well above that.
DEPENDENT = 1e-9
# Numbers beyond this size overflow when they are multiplied.
LARGEST = 1e150
# Rows of which one block is factored, and rows that are laid side by side to find the largest entries.
COLUMN_BLOCK, WIDE = 8192, 64


@dataclass(frozen=True)
class Columns:
    """The kept columns and how the others follow from them.

    Attributes:
        kept: (r,) numbers of the kept columns.
        dropped: (d - r,) numbers of the others.
        scale: (d,) powers of two by which columns are divided.
        mixture: (r, d - r) coefficients: scaled dropped columns = scaled kept columns @ mixture, on
            calibration data.
    """

    kept: IntArray
    dropped: IntArray
    scale: FloatArray
    mixture: FloatArray

    @classmethod
    def of(cls, features: FloatArray) -> tuple[Columns, FloatArray]:
        """Choose columns of an (N, d) matrix.

        Returns:
            The choice, and the (r, r) upper triangular M with M' M = X' X / N for the kept, scaled columns X.
        """
        largest = np.maximum(_column_maxima(features), -_column_maxima(features, np.minimum))
        scale = power_of_two(largest)
        # Lengths and angles of the columns are those of the triangular factor's, which is small.
        factor = triangular(features) / scale
        kept = independent_columns(factor)
        dropped = np.setdiff1d(np.arange(features.shape[1]), kept)
        mixture = np.linalg.lstsq(factor[:, kept], factor[:, dropped], rcond=None)[0]
        root = triangular(factor[:, kept]) / np.sqrt(len(features))
        return cls(kept, dropped, scale, mixture.astype(np.float64, copy=False)), root

    def reduce(self, features: FloatArray) -> tuple[FloatArray, BoolArray]:
        """Kept, scaled columns, and which rows the calibration data can speak for.

        A row whose dropped entries differ from what its kept entries imply lies outside the row space of the
        calibration features: no linear function of the features is determined there, and no threshold exists.

        Args:
            features: (m, d) features.

        Returns:
            (m, r) reduced features and (m,) flags, True where the row lies in the row space.
        """
        if len(self.dropped) == 0:
            same = bool((self.scale == 1.0).all())
            return features if same else features / self.scale, np.ones(len(features), dtype=np.bool_)
        scaled = features / self.scale
        kept = np.ascontiguousarray(scaled[:, self.kept])
        return kept, self._spans(kept, scaled)

    def reduce_one(self, phi: FloatArray) -> FloatArray | None:
        """Kept, scaled columns of one prompt; None if it is no row of finite numbers, or out of reach."""
        if phi.shape != self.scale.shape or not np.abs(phi).max() < LARGEST:
            return None
        scaled: FloatArray = phi / self.scale
        if len(self.dropped) == 0:
            return scaled
        kept = scaled[self.kept]
        return kept if self._spans(kept[np.newaxis], scaled[np.newaxis])[0] else None

    def _spans(self, kept: FloatArray, scaled: FloatArray) -> BoolArray:
        """(m,) whether the dropped entries of scaled rows are what the kept ones imply."""
        dropped = scaled[:, self.dropped]
        size = np.maximum(
            np.abs(dropped) + np.abs(kept) @ self._sizes, np.abs(scaled).max(axis=1)[:, np.newaxis]
        )
        return np.asarray((np.abs(dropped - kept @ self.mixture) <= DEPENDENT * size).all(axis=1))

    @cached_property
    def _sizes(self) -> FloatArray:
        """(r, d - r) absolute values of the mixture."""
        return np.abs(self.mixture)


def independent_columns(matrix: FloatArray, dependent: float = DEPENDENT) -> IntArray:
    """Numbers of linearly independent columns, ascending (pivoted Gram-Schmidt, orthogonalised twice).

    Args:
        matrix: (N, d).
        dependent: Share of its own length below which what is left of a column is nothing.

    Returns:
        (r,) column numbers, r the numerical rank.
    """
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


def triangular(matrix: FloatArray) -> FloatArray:
    """The upper triangular factor R of a QR decomposition, by blocks of rows.

    Args:
        matrix: (N, d).

    Returns:
        (min(N, d), d) R with R' R = matrix' matrix.
    """
    blocks = [matrix[start : start + COLUMN_BLOCK] for start in range(0, len(matrix), COLUMN_BLOCK)] or [matrix]
    factors = [np.linalg.qr(block, mode="r") for block in blocks]
    factor = factors[0] if len(factors) == 1 else np.linalg.qr(np.vstack(factors), mode="r")
    return np.asarray(factor, dtype=np.float64)


def power_of_two(sizes: FloatArray) -> FloatArray:
    """The smallest powers of two not below (d,) sizes; 1 for a size of zero."""
    return np.asarray(np.exp2(np.ceil(np.log2(np.where(sizes > 0.0, sizes, 1.0)))), dtype=np.float64)


def _column_maxima(matrix: FloatArray, ufunc: np.ufunc = np.maximum) -> FloatArray:
    """Largest (or smallest) entry of each column; taken over long rows first, which memory likes better."""
    size, d = matrix.shape
    whole = size - size % WIDE
    parts = [matrix[whole:]]
    if whole and matrix.flags.c_contiguous:
        parts.append(ufunc.reduce(matrix[:whole].reshape(-1, WIDE * d)).reshape(WIDE, d))
    else:
        parts.append(matrix[:whole])
    return np.asarray(ufunc.reduce(np.vstack(parts)), dtype=np.float64)
