"""Calibration prompts near the base fit, and the proof that no other prompt affects a threshold.

Let beta0 be the regression on all N prompts without a linear term, penalised or not, and r_i its residuals.
The fit beta that answers a prompt lies near beta0, so most rows keep their side. For any positive definite W,
with |v|_W^2 = v' W v and the dual norm |x|_* = max x' v / |v|_W,

    |x_i' (beta - beta0)| <= |x_i|_* |beta - beta0|_W < |r_i|   if   |beta - beta0|_W < D_i = |r_i| / |x_i|_*

and then row i has not changed sides. So the K rows with the smallest D_i are kept, the others enter only
through their sums, and R is the smallest D_i among the others. If a vertex of that small problem has
|beta - beta0|_W < R, every row of the full problem is on its side of the fit: the vertex meets the full
problem's optimality conditions, face rule included, and its threshold is exact for all N prompts. The proof
costs O(d^2) and needs none of the rows.

With W = X' X / N, D_i is the same under any change of basis of the features. W is stored as the triangular
root M of a QR decomposition: |v|_W = |M v| and |x|_* = |M^-T x|. Any other W would be equally valid, only
less tight. Round-off matters only because the two norms must be dual to each other, which `NORM_ROUND_OFF`
covers.

*Rows on the fit.* Equal rows are merged into one row with their total weight. If more rows than are kept
still lie on the base fit, R = 0. A vertex is then proven if its fit is the base fit, that is, if all its
basis rows lie on the base fit: a row on a fit may be counted on either side.

*Infinity.* An unbounded small problem proves nothing by itself: a row left out might end the descent. It is
a proof if the descent continues even with all rows left out on the side that they move to. Their sums show
this where each column along the ray has one sign, as columns of groups and hat functions do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from langchain_cfc.support.arrays import FloatArray, IntArray
from langchain_cfc.thresholds._rows import Rows, RowSums
from langchain_cfc.thresholds._simplex import EPS, invert
from langchain_cfc.thresholds._warm_start import BaseFit

# Relative round-off in norms whose root has a condition number of up to 1 / `DEPENDENCE_TOLERANCE`.
NORM_ROUND_OFF = 1e-6
# For each row to keep, the distances of this many rows are computed at first.
CANDIDATES_PER_ROW = 16


@dataclass(frozen=True)
class Centre:
    """The base fit and the metric around it."""

    # (d,) coefficients beta0; the proof needs no property of them.
    beta: FloatArray
    root: FloatArray  # (d, d) upper triangular root M of the metric

    @cached_property
    def dual(self) -> FloatArray:
        """The (d, d) inverse of the root: |x|_* = |x' dual|."""
        return invert(self.root)

    def shrink_residuals(self, residuals: FloatArray, scores: FloatArray) -> FloatArray:
        """Return lower bounds on the absolute residuals, with round-off taken off; 0 on the fit."""
        off = np.abs(residuals)
        # Entries are at most one in size, so this bounds the round-off in every row.
        largest = np.abs(self.beta).sum() + np.abs(scores).max(initial=0.0)
        off -= 4 * (len(self.beta) + 2) * EPS * largest
        return np.maximum(off, 0.0, out=off)

    def compute_distances(self, rows: Rows) -> FloatArray:
        """Return lower bounds on D_i, how far a fit must move before row i changes sides; 0 on the fit."""
        y = rows.features @ self.dual
        length = np.sqrt(np.einsum("ij,ij->i", y, y))
        # A row of zeros has the same residual under every fit.
        far = np.full(len(rows), np.inf)
        residuals = rows.scores - rows.features @ self.beta
        np.divide(self.shrink_residuals(residuals, rows.scores), length, out=far, where=length > 0.0)
        return far

    @property
    def max_dual_norm(self) -> float:
        """A positive upper bound on |x|_* for rows with entries of at most one in size."""
        return max(float(np.linalg.norm(np.abs(self.dual).sum(axis=0))), EPS)

    def compute_lengths(self, moves: FloatArray) -> FloatArray:
        """Compute the (m,) lengths of moves (m, d) of the coefficients."""
        return np.asarray(np.linalg.norm(moves @ self.root.T, axis=1), dtype=np.float64)

    def bound_move(self, beta: FloatArray, rounding_error: FloatArray) -> float:
        """Return an upper bound on the distance of a fit with (d,) `rounding_error` from the base fit."""
        step = np.abs(self.root.dot(beta - self.beta)) + np.abs(self.root).dot(rounding_error)
        return math.sqrt(step.dot(step)) * (1.0 + NORM_ROUND_OFF)


@dataclass(frozen=True)
class Neighbourhood:
    """The rows kept, the sums of the others, and how near the others come to the base fit."""

    rows: Rows  # K rows: first the basis of the base fit, then the others by distance
    rest: RowSums  # Sums of the rows left out
    centre: Centre  # The base fit
    radius: float  # The smallest distance among the rows left out; `inf` if there are none

    @classmethod
    def build(
        cls, rows: Rows, base: BaseFit, root: FloatArray, keep: int | None, reach: float = -1.0
    ) -> Neighbourhood:
        """Choose the rows to keep: at least `keep` distinct ones (None for all), and all within `reach`.

        `root` is the (d, d) triangular root of the metric, such as that of X' X / N. Entries of the features
        must be at most one in size.
        """
        centre, vertex = Centre(base.beta, root), base.vertex
        size = len(rows) if keep is None else max(keep, len(root))
        inside, radius = _select_nearest(rows, base, centre, size, reach)
        near = rows.take(inside)
        if len(inside) == len(rows):
            return cls(near.merge_equal(), RowSums.zeros(len(root)), centre, np.inf)
        return cls(
            near.merge_equal(), base.sums - RowSums.from_rows(near, vertex.below[inside]), centre, radius
        )


def _select_nearest(
    rows: Rows, base: BaseFit, centre: Centre, keep: int, reach: float
) -> tuple[IntArray, float]:
    """Select all rows within `reach`, at least the `keep` nearest distinct ones; also return the radius.

    The nearest rows come first. Distances are computed only for rows with small residuals; all others are at
    least as far as the smallest of their residuals divided by the largest norm of a row.
    """
    residuals, basis = centre.shrink_residuals(base.residuals, rows.scores), base.vertex.basis
    residuals[basis] = 0.0
    count = CANDIDATES_PER_ROW * keep
    while True:
        near, cut = _select_smallest(residuals, count)
        part = rows.take(near)
        distances = centre.compute_distances(part)
        distances[np.isin(near, basis)] = -1.0
        order = np.argsort(distances, kind="stable")
        kept = _select_distinct(part, distances, order, keep)
        within = int(np.searchsorted(distances[order], reach, side="right"))
        kept = order[:within] if within > len(kept) else kept
        others = np.ones(len(part), dtype=np.bool_)
        others[kept] = False
        beyond = min(float(distances[others].min(initial=np.inf)), cut / centre.max_dual_norm)
        if len(near) == len(rows) or (others.any() and max(reach, float(distances[kept].max())) <= beyond):
            return near[kept], beyond
        count *= CANDIDATES_PER_ROW


def _select_distinct(rows: Rows, distances: FloatArray, order: IntArray, keep: int) -> IntArray:
    """Select the first rows in an order by distance that hold `keep` distinct ones, or all if fewer."""
    ranked, count = distances[order], keep
    while True:
        # Equal rows are equally far, so they are never separated.
        count = int(np.searchsorted(ranked, ranked[min(count, len(order)) - 1], side="right"))
        first = order[:count]
        groups = rows.take(first).group_equal()
        if count == len(order) or groups.max() + 1 >= keep:
            return first[groups < keep]
        count *= 2


def _select_smallest(residuals: FloatArray, count: int) -> tuple[IntArray, float]:
    """Select the rows with the `count` smallest residuals, and ties; also bound all others from below."""
    if count >= len(residuals):
        return np.arange(len(residuals)), np.inf
    cut = float(np.partition(residuals, count)[count])
    return np.flatnonzero(residuals <= cut), cut
