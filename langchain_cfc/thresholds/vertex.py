r"""Vertices of quantile regression: where a search stands, and an optimum in numbers.

A vertex is d rows B that the fit goes through, beta = X_B^-1 S_B, and a side for every other row; see
`simplex` for the notation. An optimal one answers not only for the prompt it was found for. Sides do not
depend on the prompt; its features phi enter the balance of the basis only, through w = X_B^-T phi:

    F = G - p w,   G = (q low - p total) X_B^-1,   -q <= F <= 0   (times the weight of the row).

So a vertex is optimal for every phi whose w lies in a box; where the inequalities are strict its fit is the
only optimal one, since every other must go through the same rows (complementary slackness). That is all a
threshold costs once its vertex is known: one d x d product, the box, one dot product.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from langchain_cfc._arrays import BoolArray, FloatArray, IntArray
from langchain_cfc.errors import ThresholdError

EPS = float(np.finfo(np.float64).eps)
# Rates below this share of the largest possible are round-off of rows that do not move.
STILL = 1e-11
# Rates that are certain to be found below that share again.
FLAT = STILL / 2
TOO_DEPENDENT = "features are too nearly dependent for floating point; use fewer features"


class Vertex(NamedTuple):
    """A basis and a side for every row.

    Attributes:
        basis: (d,) numbers of the rows that the fit goes through.
        below: (N,) True for rows below the fit; False on basis rows.
    """

    basis: IntArray
    below: BoolArray


class Box(NamedTuple):
    """The prompts that one vertex answers: all phi with phi @ sides < ends, and those on an edge it owns.

    An edge, F_k at a bound, belongs to two vertices. The face rule gives it to the one that stays in the box
    as theta -> tau from below: at the lower bound if w_k > 0, at the upper one if w_k < 0. Where w_k = 0 the
    mean prompt decides (see `simplex`).

    Attributes:
        sides: (d, 4d) w, -w, phi and -phi as linear functions of phi.
        ends: (4d,) their bounds, round-off taken off.
        edges: (2d,) bounds of w and -w as they are.
        ties: (2d,) how near to an edge a prompt is on it; below 0 for no edge.
        owned: (2d,) whether the mean prompt gives the edge to this vertex where w_k = 0.
    """

    sides: FloatArray
    ends: FloatArray
    edges: FloatArray
    ties: FloatArray
    owned: BoolArray

    def holds(self, phi: FloatArray) -> bool:
        """Whether a prompt lies strictly inside; False where that is not certain."""
        return bool((phi.dot(self.sides) < self.ends).all())

    def holds_each(self, phis: FloatArray) -> BoolArray:
        """The same for (m, d) prompts: (m,) flags."""
        return np.asarray((phis @ self.sides < self.ends).all(axis=1), dtype=np.bool_)

    def owns_each(self, phis: FloatArray) -> BoolArray:
        """(m,) whether (m, d) prompts lie inside or on edges that the vertex owns."""
        products, d = phis @ self.sides, phis.shape[1]
        inside, w = products < self.ends, products[:, : 2 * d]
        largest = np.abs(w).max(axis=1, initial=0.0, keepdims=True)
        owned = (w > 2.0 * STILL * largest) | (self.owned & (np.abs(w) <= FLAT * largest))
        on = owned & (np.abs(w - self.edges) <= self.ties)
        return np.asarray((inside[:, : 2 * d] | on).all(axis=1) & inside[:, 2 * d :].all(axis=1))

    def owns(self, phi: FloatArray) -> bool:
        """The same for one prompt, at a third of the cost."""
        products, d = phi.dot(self.sides), len(phi)
        left = (~(products < self.ends)).nonzero()[0]
        if len(left) and left[-1] >= 2 * d:
            return False
        w, largest = products[left], float(np.abs(products[:d]).max(initial=0.0))
        owned = (w > 2.0 * STILL * largest) | (self.owned[left] & (np.abs(w) <= FLAT * largest))
        return bool((owned & (np.abs(w - self.edges[left]) <= self.ties[left])).all())


class Solution(NamedTuple):
    """The fit through d independent rows, X_B beta = S_B, with bounds on its round-off.

    Attributes:
        rows: (d, d) X_B.
        scores: (d,) S_B.
        inverse: (d, d) inverse of X_B.
        beta: (d,) coefficients X_B^-1 S_B, refined once.
        own: (d,) |S_B| + |X_B| |beta|: the numbers in each equation, and what one refinement leaves of it.
        size: (d,) |X_B^-1| times that: round-off in beta for each unit of it in an operation.
    """

    rows: FloatArray
    scores: FloatArray
    inverse: FloatArray
    beta: FloatArray
    own: FloatArray
    size: FloatArray

    @classmethod
    def through(cls, rows: FloatArray, scores: FloatArray) -> Solution:
        """The fit through (d, d) rows with (d,) scores.

        Without the refinement the round-off of the inverse enters, for which no bound in terms of the entries
        of rows and beta holds: a row [1, 0, ...] of the basis with score 0 was missed by 2e-16 while 1e-29
        was allowed, and no vertex could be proven. One step makes the residual of each equation small by
        itself (Skeel 1980).
        """
        inverse = inverted(rows)
        beta = inverse.dot(scores)
        beta += inverse.dot(scores - rows.dot(beta))
        large, right = np.abs(inverse), np.abs(scores)
        # What one refinement leaves is of second order and spread over all equations. An equation of tiny
        # numbers (score 0, coefficients that are 0 but for round-off) fails by that much more than by its
        # own: rows were missed by 7e-33 where 1e-33 was allowed, and no vertex could be proven.
        left = EPS * np.abs(rows).dot(large.dot(right)).max(initial=0.0)
        own = right + np.abs(rows).dot(np.abs(beta)) + left
        return cls(rows, scores, inverse, beta, own, large.dot(own))

    @property
    def unit(self) -> float:
        """Round-off of an operation of this size, relative to its operands."""
        return 4 * (len(self.beta) + 2) * EPS

    def round_off(self, features: FloatArray, scores: FloatArray) -> FloatArray:
        """(N,) bounds on the round-off in the residuals of (N, d) features and (N,) scores.

        A row feels the round-off of the equations through x X_B^-1. Bounds by |x| |X_B^-1| would be so wide
        for nearly dependent features that rows on the wrong side passed for rows on the fit.
        """
        equations = self.own + EPS * np.abs(self.rows).dot(self.size)
        felt = np.abs(features.dot(self.inverse)).dot(equations)
        return np.asarray(self.unit * (np.abs(scores) + np.abs(features).dot(np.abs(self.beta)) + felt))


@dataclass(frozen=True)
class Fit:
    """An optimal vertex in numbers.

    Attributes:
        solution: The fit through rows that lie on it: those of the basis, or others that follow from the fit
            alone (see `simplex`).
        inverse: (d, d) inverse of the rows of the basis.
        vertex: Where it was found.
        low: (d,) weighted sum of all rows below it.
        shared: Whether every search that ends at this fit finds the same solution.
        alone: Whether no row but the basis lies on it.
    """

    solution: Solution
    inverse: FloatArray
    vertex: Vertex
    low: FloatArray
    shared: bool
    alone: bool

    @property
    def beta(self) -> FloatArray:
        """(d,) the coefficients."""
        return self.solution.beta

    @property
    def blur(self) -> FloatArray:
        """(d,) bound on their round-off."""
        return self.solution.unit * self.solution.size

    def value(self, phi: FloatArray) -> tuple[float, float]:
        """The threshold phi' beta and a bound on its round-off.

        The value is w' S_B + (phi - X_B' w)' beta with w = phi X_B^-1: whatever w is, that equals phi' beta,
        and the second term takes off what round-off in w does to the first. For indicator features w is exact
        and the value one of the scores, to the bit. The bound holds the round-off of every product and sum,
        and that of features and scores that were themselves rounded.
        """
        solution = self.solution
        w = phi.dot(solution.inverse)
        value = w.dot(solution.scores) + (phi - w.dot(solution.rows)).dot(solution.beta)
        return float(value), float(self._error(np.abs(w), np.abs(phi)))

    def values(self, phis: FloatArray) -> tuple[FloatArray, FloatArray]:
        """The same for (m, d) prompts: (m,) thresholds, bit by bit those of `value`, and (m,) bounds."""
        solution, each = self.solution, phis[:, np.newaxis, :]  # vector times matrix for each, as in `value`
        w = each @ solution.inverse
        value = w @ solution.scores + (each - w @ solution.rows) @ solution.beta
        return value[:, 0], self._error(np.abs(w), np.abs(each))[:, 0]

    def _error(self, w: FloatArray, phi: FloatArray) -> FloatArray:
        """Bounds on round-off for |w| and |phi|, (d,) or (m, 1, d)."""
        on_basis, on_prompt = self._round_off
        return np.asarray(w @ on_basis + phi @ on_prompt)

    @cached_property
    def _round_off(self) -> tuple[FloatArray, FloatArray]:
        """Round-off in a value for each unit of |w| and of |phi|."""
        solution = self.solution
        beta, rows = np.abs(solution.beta), np.abs(solution.rows)
        # Round-off in beta counts by what X_B' w misses of phi, which is round-off itself.
        missed = EPS * np.abs(solution.inverse).dot(rows.dot(solution.size))
        return solution.unit * (np.abs(solution.scores) + rows.dot(beta)), solution.unit * (beta + missed)


def inverted(matrix: FloatArray) -> FloatArray:
    """The inverse of a (d, d) matrix.

    Raises:
        ThresholdError: If it is singular in floating point.
    """
    try:
        return np.asarray(np.linalg.inv(matrix), dtype=np.float64)
    except np.linalg.LinAlgError as singular:
        raise ThresholdError(TOO_DEPENDENT) from singular
