r"""Vertices of quantile regression: where a search stands, and an optimum in numbers.

A vertex is d rows B that the fit goes through, beta = X_B^-1 S_B, and a side for every other row; see
`simplex` for the notation. An optimal one answers not only for the prompt it was found for. Sides do not
depend on the prompt; its features phi enter the balance of the basis only, through w = X_B^-T phi:

    F = G - p w,   G = (q low - p total) X_B^-1,   -q <= F <= 0   (times the weight of the row).

So a vertex is optimal for every phi whose w lies in a box; where the inequalities are strict and no other
row lies on the fit it is the only optimal one. That is all a threshold costs once its vertex is known:
one d x d product, the box, one dot product.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from langchain_cfc._arrays import BoolArray, FloatArray, IntArray

EPS = float(np.finfo(np.float64).eps)


@dataclass
class Vertex:
    """A basis and a side for every row.

    Attributes:
        basis: (d,) numbers of the rows that the fit goes through.
        below: (N,) True for rows below the fit; False on basis rows.
    """

    basis: IntArray
    below: BoolArray


@dataclass(frozen=True)
class Box:
    """The prompts that one vertex answers: all phi with phi @ sides < ends.

    Attributes:
        sides: (d, 4d) w, -w, phi and -phi as linear functions of phi.
        ends: (4d,) their bounds, round-off taken off.
    """

    sides: FloatArray
    ends: FloatArray

    def holds(self, phi: FloatArray) -> bool:
        """Whether the vertex is the only optimal one for a prompt; False where that is not certain."""
        return bool((phi.dot(self.sides) < self.ends).all())

    def holds_each(self, phis: FloatArray) -> BoolArray:
        """The same for (m, d) prompts: (m,) flags."""
        return np.asarray((phis @ self.sides < self.ends).all(axis=1), dtype=np.bool_)


@dataclass(frozen=True)
class Fit:
    """An optimal vertex in numbers.

    Attributes:
        beta: (d,) coefficients X_B^-1 S_B.
        inverse: (d, d) inverse of X_B.
        rows: (d, d) X_B.
        scores: (d,) S_B.
        vertex: Where it was found.
        alone: Whether no row but the basis lies on the fit.
    """

    beta: FloatArray
    inverse: FloatArray
    rows: FloatArray
    scores: FloatArray
    vertex: Vertex
    alone: bool

    def value(self, phi: FloatArray) -> tuple[float, float]:
        """The threshold phi' beta and a bound on its round-off.

        The value is w' S_B + (phi - X_B' w)' beta with w = phi X_B^-1: whatever w is, that equals phi' beta,
        and the second term takes off what round-off in w does to the first. For indicator features w is exact
        and the value one of the scores, to the bit. The bound holds the round-off of every product and sum,
        and that of features and scores that were themselves rounded.
        """
        w = phi.dot(self.inverse)
        value = w.dot(self.scores) + (phi - w.dot(self.rows)).dot(self.beta)
        on_basis, on_prompt = self._round_off
        return float(value), float(np.abs(w).dot(on_basis) + np.abs(phi).dot(on_prompt))

    def values(self, phis: FloatArray) -> tuple[FloatArray, FloatArray]:
        """The same for (m, d) prompts: (m,) thresholds, bit by bit those of `value`, and (m,) bounds."""
        each = phis[:, np.newaxis, :]  # vector times matrix for each, as `value` does it
        w = each @ self.inverse
        value = w @ self.scores + (each - w @ self.rows) @ self.beta
        on_basis, on_prompt = self._round_off
        return value[:, 0], np.abs(w[:, 0]) @ on_basis + np.abs(phis) @ on_prompt

    @cached_property
    def blur(self) -> FloatArray:
        """(d,) bound on the round-off in beta."""
        return np.asarray(np.abs(self.inverse) @ self._round_off[0], dtype=np.float64)

    @cached_property
    def _round_off(self) -> tuple[FloatArray, FloatArray]:
        """Round-off of a value for each unit of |w| and of |phi|."""
        factor = 4 * (len(self.beta) + 2) * EPS
        beta, rows, inverse = np.abs(self.beta), np.abs(self.rows), np.abs(self.inverse)
        on_basis = factor * (np.abs(self.scores) + rows @ beta)
        # That of beta counts by what X_B' w misses of phi, which is round-off itself.
        return on_basis, factor * (beta + inverse @ (rows @ (inverse @ on_basis)))
