"""Linearly independent columns of a feature matrix, and prompts that lie outside their reach.

Feature maps may repeat themselves (two partitions both sum to one, a group nobody belongs to). A subset of
the *original* columns is kept rather than an SVD's mixtures: indicators stay zeros and ones, so that group
thresholds stay exact order statistics. Columns are scaled by powers of two, which changes no digit of any
number.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from langchain_cfc._arrays import BoolArray, FloatArray, IntArray

# A column is dependent when what the kept ones leave of it is below this share of its own length. Features
# carry round-off of about 1e-16 relative to the numbers they were computed from, amplified by conditioning;
# 1e-9 lies well above that.
DEPENDENT = 1e-9


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
    def of(cls, features: FloatArray) -> Columns:
        """Choose columns of an (N, d) matrix."""
        largest = np.abs(features).max(axis=0)
        scale = np.exp2(np.ceil(np.log2(np.where(largest > 0.0, largest, 1.0))))
        scaled = features / scale
        kept = independent_columns(scaled)
        dropped = np.setdiff1d(np.arange(features.shape[1]), kept)
        mixture = np.linalg.lstsq(scaled[:, kept], scaled[:, dropped], rcond=None)[0]
        return cls(kept, dropped, scale, mixture.astype(np.float64, copy=False))

    def reduce(self, features: FloatArray) -> tuple[FloatArray, BoolArray]:
        """Kept, scaled columns, and which rows the calibration data can speak for.

        A row whose dropped entries differ from what its kept entries imply lies outside the row space of the
        calibration features: no linear function of the features is determined there, and no threshold exists.

        Args:
            features: (m, d) features.

        Returns:
            (m, r) reduced features and (m,) flags, True where the row lies in the row space.
        """
        scaled = features / self.scale
        kept, dropped = scaled[:, self.kept], scaled[:, self.dropped]
        size = np.abs(dropped) + np.abs(kept) @ np.abs(self.mixture)
        size = np.maximum(size, np.abs(scaled).max(axis=1, keepdims=True))
        inside = np.abs(dropped - kept @ self.mixture) <= DEPENDENT * size
        return np.ascontiguousarray(kept), inside.all(axis=1)


def independent_columns(matrix: FloatArray) -> IntArray:
    """Numbers of linearly independent columns, ascending (pivoted Gram-Schmidt, orthogonalised twice).

    Args:
        matrix: (N, d).

    Returns:
        (r,) column numbers, r the numerical rank.
    """
    rest = matrix.copy()
    lengths = np.linalg.norm(matrix, axis=0)
    threshold = DEPENDENT * lengths
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
