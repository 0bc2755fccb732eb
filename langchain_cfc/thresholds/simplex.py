r"""A plain, exact simplex for quantile regression with one linear term.

Notation: x_i in R^d are the rows of `features` (full column rank), S_i the success scores, tau = p / q the
target coverage as a fraction in lowest terms, phi the features of the prompt asked about. Solved is

    minimise over beta   sum_i rho_tau(S_i - x_i' beta) - theta phi' beta

for theta just below tau, with rho_tau(r) = max(tau r, (tau - 1) r). Its linear programming dual is: maximise
S' eta subject to X' eta = -theta phi and tau - 1 <= eta_i <= tau, where eta_i = tau above the fit, tau - 1
below it, and in between on it.

*Vertex.* d rows B with a fit through their scores, beta = X_B^-1 S_B, and a side for every other row. Put
F = q (eta_B - tau), so that the box reads -q <= F <= 0. Then, with `low` the sum of the rows below the fit,

    X_B' F = q low - p (phi + sum_i x_i).

For indicator features all of this is integers, and floats are exact: F_k <= 0 says low_k <= tau (N_k + 1).

*The smallest value of the optimal face.* When minimisers are not unique the threshold is the smallest phi'
beta among them; that is the limit theta -> tau from below. With theta = tau - delta, F grows by q delta w, w
= X_B^-T phi: an F_k at its upper bound with w_k > 0, or at its lower bound with w_k < 0, is infeasible for
every small delta > 0 and is pivoted on.

*Pivot.* F_k > 0: the objective falls at rate F_k / q when r_k rises (F_k < -q: when r_k falls, at rate (-q -
F_k) / q). Residuals change at rates f a_i, a = X X_B^-1 e_k, f = +-1. Each row whose residual reaches zero
flips its side and slows the descent by |a_i|; the row at which descent would turn into ascent enters the
basis. If none is left the problem is unbounded: the threshold is infinite.

*Weights.* A row of weight w counts like w equal rows: its eta lies in w [tau - 1, tau], its F in q w [-1, 0],
and it enters sums and slows a descent w-fold. Rows outside a window enter `low` and `sum_i x_i` by their
sums.

*Ties.* Pivots run on scores perturbed by seeded noise, which makes every step a strict descent. The basis so
found is then checked on the true scores; if a residual lies on the wrong side by more than round-off, the
noise is made smaller, and at last left out. A basis counts only if box, sides and face rule hold on the true
scores; otherwise it is an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from langchain_cfc._arrays import BoolArray, FloatArray, IntArray
from langchain_cfc.errors import ThresholdError
from langchain_cfc.thresholds.columns import independent_columns

EPS = float(np.finfo(np.float64).eps)
# Perturbations relative to the spread of the scores, tried in this order. Without noise more than one round
# may be needed: a row on the fit within the round-off of one vertex lies off it within the smaller round-off
# of the next.
NOISE = (1e-9, 1e-12, 0.0, 0.0, 0.0, 0.0)
# Rates below this share of the largest are round-off of rows that do not move.
STILL = 1e-11
TOO_DEPENDENT = "features are too nearly dependent for floating point; use fewer features"


@dataclass
class Vertex:
    """A basis and a side for every row.

    Attributes:
        basis: (d,) numbers of the rows that the fit goes through.
        below: (N,) True for rows below the fit; False on basis rows.
    """

    basis: IntArray
    below: BoolArray

    def copy(self) -> Vertex:
        """An independent copy to pivot on."""
        return Vertex(self.basis.copy(), self.below.copy())


class Leaving(NamedTuple):
    """The row to let go of a basis: its position, the sign f, and q times the rate of descent."""

    position: int
    sign: float
    rate: float


@dataclass(frozen=True)
class Fit:
    """An optimal vertex in numbers.

    Attributes:
        beta: (d,) coefficients X_B^-1 S_B.
        inverse: (d, d) inverse of X_B.
        rows: (d, d) X_B.
        scores: (d,) S_B.
        vertex: Where it was found.
    """

    beta: FloatArray
    inverse: FloatArray
    rows: FloatArray
    scores: FloatArray
    vertex: Vertex

    def value(self, phi: FloatArray) -> tuple[float, float]:
        """The threshold phi' beta and a bound on its round-off.

        The value is computed as w' S_B with w = X_B^-T phi: for a prompt whose features equal a basis row
        that is the row's score itself, to the bit. The bound adds the forward error of w (Skeel), of the
        products, and of features that were themselves rounded.
        """
        same = (self.rows == phi).all(axis=1)
        w = same.astype(np.float64) if same.any() else refined(self.rows.T, self.inverse.T, phi)
        solved = (np.abs(w) @ np.abs(self.rows) + np.abs(phi)) @ np.abs(self.inverse)
        products = np.abs(w) @ (np.abs(self.scores) + np.abs(self.rows) @ np.abs(self.beta))
        products += np.abs(phi) @ np.abs(self.beta)
        bound = 4 * (len(phi) + 2) * EPS * float(solved @ np.abs(self.scores) + products)
        return float(w @ self.scores), bound


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

    def take(self, rows: IntArray | BoolArray) -> Rows:
        """Some of the rows, by their numbers or by flags."""
        return Rows(self.features[rows], self.scores[rows], self.weights[rows])


@dataclass(frozen=True)
class Rest:
    """Rows that take part by their sums only, their sides fixed.

    Attributes:
        low: (d,) weighted sum of those below the fit.
        total: (d,) weighted sum of all of them.
        mass: (d,) weighted sum of their absolute values, for bounds on round-off.
    """

    low: FloatArray
    total: FloatArray
    mass: FloatArray

    @classmethod
    def of(cls, rows: Rows, below: BoolArray) -> Rest:
        """The sums of some rows with their (N,) sides."""
        x, w = rows.features, rows.weights
        return cls((w * below) @ x, w @ x, w @ np.abs(x))


class QuantileSimplex:
    """Quantile regressions on one data set that differ in their linear term only.

    Args:
        rows: Calibration prompts whose features have full column rank.
        tau: Target coverage p / q in (0, 1).
        rest: Sums of further rows whose sides are taken for granted.
        start: A vertex to start from; by default one is made from the rows.
    """

    def __init__(
        self, rows: Rows, tau: Fraction, rest: Rest | None = None, start: Vertex | None = None
    ) -> None:
        self._x, self._s, self._weights = rows.features, rows.scores, rows.weights
        self._p, self._q = float(tau.numerator), float(tau.denominator)
        own = Rest.of(rows, np.zeros(len(rows), dtype=np.bool_))
        self._low = own.low if rest is None else rest.low
        self._total = own.total if rest is None else own.total + rest.total
        self._mass = own.mass if rest is None else own.mass + rest.mass
        spread = max(1.0, float(np.abs(self._s).max()))
        self._noise = spread * np.random.default_rng(0).uniform(-1.0, 1.0, len(rows))
        self._start = start or self._crash()

    def minimise(self, phi: FloatArray) -> Fit | None:
        """The minimiser with the smallest phi' beta.

        Args:
            phi: (d,) linear term; zeros for plain quantile regression.

        Returns:
            The optimal vertex, or None where the problem is unbounded (the threshold is infinite).

        Raises:
            ThresholdError: If no vertex could be proven optimal.
        """
        vertex = self._start.copy()
        for noise in NOISE:
            scores = self._s + noise * self._noise
            self._take_sides(vertex, scores)
            if not self._descend(vertex, scores, phi):
                return None
            fit = self._fit(vertex)
            if self._wrong_sides(vertex, fit) == 0:
                return fit
        msg = f"the threshold could not be proven optimal: {TOO_DEPENDENT}"
        raise ThresholdError(msg)

    def _crash(self) -> Vertex:
        """A first vertex: d independent rows."""
        basis = independent_columns(self._x.T)
        if len(basis) < self._x.shape[1]:
            msg = TOO_DEPENDENT
            raise ThresholdError(msg)
        return Vertex(basis, np.zeros(len(self._s), dtype=np.bool_))

    def _fit(self, vertex: Vertex) -> Fit:
        rows, scores = self._x[vertex.basis], self._s[vertex.basis]
        inverse = inverted(rows)
        return Fit(refined(rows, inverse, scores), inverse, rows, scores, vertex)

    def _residuals(self, basis: IntArray, scores: FloatArray, inverse: FloatArray) -> FloatArray:
        """(N,) residuals, exactly zero on the basis."""
        residuals = scores - self._x @ refined(self._x[basis], inverse, scores[basis])
        residuals[basis] = 0.0
        return residuals

    def _round_off(self, basis: IntArray, scores: FloatArray, inverse: FloatArray) -> FloatArray:
        """(N,) bounds on the round-off in the residuals."""
        rows = self._x[basis]
        beta = refined(rows, inverse, scores[basis])
        # The last term is of second order: what one refinement leaves, spread over all equations.
        left = EPS * (np.abs(rows) @ (np.abs(inverse) @ np.abs(scores[basis]))).max(initial=0.0)
        fitted = np.abs(inverse) @ (np.abs(scores[basis]) + np.abs(rows) @ np.abs(beta) + left)
        size: FloatArray = np.abs(scores) + np.abs(self._x) @ fitted
        return 4 * (len(beta) + 2) * EPS * size

    def _take_sides(self, vertex: Vertex, scores: FloatArray) -> None:
        """Set sides by the signs of the residuals; rows on the fit within round-off keep their side."""
        inverse = inverted(self._x[vertex.basis])
        residuals = self._residuals(vertex.basis, scores, inverse)
        off = np.abs(residuals) > self._round_off(vertex.basis, scores, inverse)
        vertex.below = np.where(off, residuals < 0.0, vertex.below)
        vertex.below[vertex.basis] = False

    def _wrong_sides(self, vertex: Vertex, fit: Fit) -> int:
        """How many rows lie on the wrong side of the fit on the true scores by more than round-off."""
        residuals = self._residuals(vertex.basis, self._s, fit.inverse)
        wrong = np.where(vertex.below, residuals, -residuals)
        return int(np.sum(wrong > self._round_off(vertex.basis, self._s, fit.inverse)))

    def _descend(self, vertex: Vertex, scores: FloatArray, phi: FloatArray) -> bool:
        """Pivot until the vertex is optimal for these scores; False if the problem is unbounded."""
        for _ in range(200 + 20 * len(scores)):
            inverse = inverted(self._x[vertex.basis])
            leaving = self._leaving(vertex, inverse, phi)
            if leaving is None:
                return True
            if not self._pivot(vertex, scores, inverse, leaving):
                return False
        msg = f"the simplex did not settle: {TOO_DEPENDENT}"
        raise ThresholdError(msg)

    def _leaving(self, vertex: Vertex, inverse: FloatArray, phi: FloatArray) -> Leaving | None:
        """Which row to let go; None at the optimum."""
        if len(phi) == 0:  # all features are zero, and so is every fit
            return None
        low = self._low + (self._weights * vertex.below) @ self._x
        f = (self._q * low - self._p * (phi + self._total)) @ inverse
        w = phi @ inverse
        noise = 8 * EPS * (self._p + self._q) * ((self._mass + np.abs(phi)) @ np.abs(inverse))
        above, under = f, -self._q * self._weights[vertex.basis] - f
        excess = np.maximum(above, under)
        k = int(np.argmax(excess - noise))
        if excess[k] > noise[k]:
            return Leaving(k, 1.0 if above[k] > under[k] else -1.0, float(excess[k]))
        still = STILL * float(np.abs(w).max(initial=0.0))
        outward = np.where((np.abs(above) <= noise) & (w > still), w, 0.0)
        outward = np.where((np.abs(under) <= noise) & (w < -still), -w, outward)
        k = int(np.argmax(outward))
        if outward[k] > 0.0:
            return Leaving(k, 1.0 if w[k] > 0.0 else -1.0, 0.0)
        return None

    def _pivot(self, vertex: Vertex, scores: FloatArray, inverse: FloatArray, leaving: Leaving) -> bool:
        """Let a row of the basis go; the row that ends the descent takes its place. False if none does."""
        k, f, rate = leaving
        change = f * (self._x @ inverse[:, k])
        residuals = self._residuals(vertex.basis, scores, inverse)
        toward = np.where(vertex.below, change, -change)
        toward[vertex.basis] = 0.0
        moving = np.flatnonzero(toward > STILL * float(np.abs(change).max()))
        steps = np.maximum(np.where(vertex.below, -residuals, residuals)[moving], 0.0) / toward[moving]
        order = np.argsort(steps, kind="stable")
        slowed = np.cumsum(self._q * (self._weights[moving] * toward[moving])[order])
        # Round-off in the running sum must not let a descent of exactly this rate slip past its end.
        last = int(np.searchsorted(slowed, rate * (1.0 - 1e-12), side="left"))
        if last == len(order):
            return False
        flipped, entering = moving[order[:last]], moving[order[last]]
        vertex.below[flipped] ^= True
        vertex.below[entering] = False
        vertex.below[vertex.basis[k]] = f < 0.0
        vertex.basis[k] = entering
        return True


def inverted(matrix: FloatArray) -> FloatArray:
    """The inverse of a (d, d) matrix."""
    return np.asarray(np.linalg.inv(matrix), dtype=np.float64)


def refined(matrix: FloatArray, inverse: FloatArray, right: FloatArray) -> FloatArray:
    """The solution of a (d, d) system, refined once.

    Without it the round-off of the inverse enters, for which no bound in terms of the entries of matrix and
    solution holds: a row [1, 0, ...] of the basis with score 0 was missed by 2e-16 while 1e-29 was allowed,
    and no vertex could be proven. One step of refinement makes the residual of each equation small by itself
    (Skeel 1980).
    """
    solution = inverse @ right
    return solution + inverse @ (right - matrix @ solution)
