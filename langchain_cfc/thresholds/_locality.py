"""The calibration prompts near the fit, which determine every threshold, and a proof that others do not.

Let beta0 be the regression on all N prompts without a linear term, penalised or not, and r_i their residuals.
The fit beta that answers a prompt lies near beta0, so most rows keep their side. With any positive definite
W, |v|_W^2 = v' W v and the dual norm |x|_* = max x' v / |v|_W,

    |x_i' (beta - beta0)| <= |x_i|_* |beta - beta0|_W < |r_i|   if   |beta - beta0|_W < D_i = |r_i| / |x_i|_*

and then row i has not changed sides. So the K rows with the smallest D_i are kept, the others take part by
their sums, and R is the smallest D_i among those. A vertex of that small problem with |beta - beta0|_W < R
has every row of the full problem on its side: it meets the full problem's conditions of optimality, face rule
included, and its threshold is exact for all N prompts. The proof costs O(d^2) and needs none of the rows.

W = X' X / N makes D_i the same under any change of basis of the features. It is kept as the triangular root M
of a QR decomposition, |v|_W = |M v| and |x|_* = |M^-T x|. Any other W would be as right, only less tight;
round-off matters in so far as the two norms must be dual to each other, which `SLACK` covers.

*Rows on the fit.* Equal rows are merged into one row with their weight. Where still more rows than are kept
lie on the base fit, R = 0. Then a vertex is proven if its fit is the base fit, that is, if all its basis rows
lie on that: rows on a fit are as right on either side.

*Infinity.* A small problem that is unbounded proves nothing by itself: a row left out might end the descent.
It does if the descent goes on even with all of them on the side that they move to, which their sums tell
where the columns on the way have one sign, as those of groups and hat functions have.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from langchain_cfc._internal.arrays import FloatArray, IntArray
from langchain_cfc.thresholds._rows import Rest, Rows
from langchain_cfc.thresholds._simplex import EPS, invert
from langchain_cfc.thresholds._warm_start import BaseFit

# Relative round-off in norms whose root has a condition number of up to 1 / `DEPENDENT`.
SLACK = 1e-6
# Rows whose distances are computed per row kept.
CANDIDATES = 16


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
        """Bound the distance of rows from the base fit from below by their residuals; 0 on the fit."""
        off = np.abs(residuals)
        # Entries are at most one in size, so this bounds the round-off in every row.
        largest = np.abs(self.beta).sum() + np.abs(scores).max(initial=0.0)
        off -= 4 * (len(self.beta) + 2) * EPS * largest
        return np.maximum(off, 0.0, out=off)

    def compute_distances(self, rows: Rows) -> FloatArray:
        """Bound the distances D_i that a fit must move for a row to change sides from below; 0 on the fit."""
        y = rows.features @ self.dual
        length = np.sqrt(np.einsum("ij,ij->i", y, y))
        # A row of zeros has the same residual under every fit.
        far = np.full(len(rows), np.inf)
        residuals = rows.scores - rows.features @ self.beta
        np.divide(self.shrink_residuals(residuals, rows.scores), length, out=far, where=length > 0.0)
        return far

    @cached_property
    def abs_root(self) -> FloatArray:
        """The (d, d) absolute values of the root."""
        return np.abs(self.root)

    @property
    def max_dual_norm(self) -> float:
        """A positive upper bound on |x|_* for rows with entries of at most one in size."""
        return max(float(np.linalg.norm(np.abs(self.dual).sum(axis=0))), EPS)

    def compute_lengths(self, moves: FloatArray) -> FloatArray:
        """Compute the (m,) lengths of moves (m, d) of the coefficients."""
        return np.asarray(np.linalg.norm(moves @ self.root.T, axis=1), dtype=np.float64)

    def bound_move(self, beta: FloatArray, rounding_error: FloatArray) -> float:
        """Bound the distance of a fit with (d,) round-off `rounding_error` from the base fit from above."""
        step = np.abs(self.root.dot(beta - self.beta)) + self.abs_root.dot(rounding_error)
        return math.sqrt(step.dot(step)) * (1.0 + SLACK)


@dataclass(frozen=True)
class Neighbourhood:
    """The rows kept, the sums of the others, and their distance."""

    rows: Rows  # K rows; first those on the base fit that make it, then the others by distance
    rest: Rest  # Sums of the rows left out
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
            return cls(near.merge_equal(), Rest.zeros(len(root)), centre, np.inf)
        return cls(near.merge_equal(), base.sums - Rest.from_rows(near, vertex.below[inside]), centre, radius)


def _select_nearest(
    rows: Rows, base: BaseFit, centre: Centre, keep: int, reach: float
) -> tuple[IntArray, float]:
    """Select the rows within reach or among the `keep` nearest distinct ones, nearest first, and the radius.

    Distances are computed only for rows with small residuals; all others are at least as far as the smallest
    of their residuals over the largest norm of a row.
    """
    residuals, basis = centre.shrink_residuals(base.residuals, rows.scores), base.vertex.basis
    residuals[basis] = 0.0
    count = CANDIDATES * keep
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
        count *= CANDIDATES


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
    """Select the rows with the `count` smallest residuals and ties, and bound those of all others."""
    if count >= len(residuals):
        return np.arange(len(residuals)), np.inf
    cut = float(np.partition(residuals, count)[count])
    return np.flatnonzero(residuals <= cut), cut
