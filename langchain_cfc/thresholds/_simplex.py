"""An exact simplex method for quantile regression with one linear term.

Notation: x_i in R^d are the rows of `features` (full column rank), S_i the success scores, tau = p / q the
target coverage as a fraction in lowest terms, phi the features of the prompt to be answered. The problem is

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

*Ties between fits with the same value.* Where F_k is at a bound and w_k = 0, as for a group of which N_g tau
is a whole number and a prompt that is not in it, the fit is not unique either, though phi' beta is. Then the
largest v' beta counts, v the mean prompt: F falls by a positive multiple of u = X_B^-T v, so an F_k at its
upper bound with u_k < 0, or at its lower bound with u_k > 0, is pivoted on. This makes the fit unique, and
one vertex answers the prompts on both sides of the tie.

*More rows on the fit than the basis.* Then many bases have the same fit, and the basis at which a search ends
depends on where it began. The numbers of the fit must not. So its coefficients are computed from rows chosen
in a fixed way among all rows on the fit: those within `ON_FIT` of it, provided that no other is within
`OFF_FIT`, so that the round-off of any basis gives the same rows. Otherwise the fit is not shared between
prompts.

*Pivot.* If F_k > 0, the objective falls at rate F_k / q when r_k rises (if F_k < -q, when r_k falls, at rate
(-q - F_k) / q). Residuals change at rates f a_i, a = X X_B^-1 e_k, f = +-1. Each row whose residual reaches
zero flips its side and slows the descent by |a_i|; the row at which descent would turn into ascent enters the
basis. If there is none, the problem is unbounded: the threshold is infinite.

*Weights.* A row of weight w counts like w equal rows: its eta lies in w [tau - 1, tau], its F in q w [-1, 0],
and it enters sums and slows a descent w-fold. Sums of the rows outside a window enter `low` and `sum_i x_i`.

*Levels.* Each row may have its own coverage, tau_i = p_i / q, and the prompt tau_x: the loss of row i is
rho_{tau_i}, its eta lies in [tau_i - 1, tau_i], and the linear term is theta phi' beta for theta just below
tau_x. With F = q (eta_B - tau_B) the box is [-q, 0] as before, and

    X_B' F = q low - (sum_i p_i x_i + p_x phi).

A descent slows by |a_i| when row i flips, for any tau_i. So nothing else changes: tau = p / q is a common
divisor of all tau_i, the *target* of a row is p_i / p (times its weight), and the solver is called with
(p_x / p) phi. Source: Cherian, Gibbs and Candes (2024), level-adaptive conformal prediction.

*Ties.* Pivots run on scores perturbed by seeded noise, which makes every step a strict descent. The basis
found is then checked on the true scores; if a residual lies on the wrong side by more than round-off, the
noise is made smaller, and finally left out. A basis is accepted only if box, sides and face rule hold on the
true scores; if none is accepted, an error is raised.

*Sharing.* An optimal vertex answers more prompts than the one it was found for. Sides do not depend on the
prompt; its features phi enter only the balance of the basis, through w = X_B^-T phi:

    F = G - p w,   G = (q low - p total) X_B^-1,   -q <= F <= 0   (times the weight of the row).

So a vertex is optimal for every phi whose w lies in a box. Where the inequalities are strict, its fit is the
only optimal one, since every other must go through the same rows (complementary slackness). Once its vertex
is known, a threshold costs one d x d product, the box check and one dot product.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import NamedTuple

import numpy as np

from langchain_cfc.errors import ThresholdError
from langchain_cfc.support.arrays import BoolArray, FloatArray, IntArray
from langchain_cfc.thresholds._rows import Rows, RowSums, find_independent_columns

EPS = float(np.finfo(np.float64).eps)
# Rates below this share of the largest possible are round-off of rows that do not move.
STILL_TOLERANCE = 1e-11
# Rates below this share are below `STILL_TOLERANCE` in every computation.
FLAT_TOLERANCE = STILL_TOLERANCE / 2
# Perturbations relative to the spread of the scores, tried in this order. Without noise more than one round
# may be needed: a row on the fit within the round-off of one vertex may be off it within that of the next.
NOISE_LEVELS = (1e-9, 1e-12, *8 * (0.0,))
# For scores of order one, rows with residuals up to `ON_FIT` are on a fit, and rows from `OFF_FIT` on off it.
ON_FIT, OFF_FIT = 1e-12, 1e-9
# Share of a row's length that projection must leave for it to be independent of other rows on the fit.
INDEPENDENCE_TOLERANCE = 1e-4
# Number of pivots after which distances are recomputed.
REFRESH_INTERVAL = 50
# Pivots smaller than this amplify the round-off of an updated inverse, which is then recomputed.
SMALL_PIVOT = 1e-6
# Breakpoints sorted at first.
FIRST_BREAKPOINTS = 64
TOO_DEPENDENT = "features are nearly dependent in floating point; use fewer features"


class Vertex(NamedTuple):
    """A basis and a side for every row."""

    basis: IntArray  # (d,) row numbers of the basis, which lies on the fit
    below: BoolArray  # (N,) True for rows below the fit; False for basis rows


class Box(NamedTuple):
    """The prompts that a vertex answers: all phi with phi @ sides < ends, and those on an edge it owns.

    An edge, F_k at a bound, belongs to two vertices. The face rule gives it to the one that stays in the box
    as theta -> tau from below: at the lower bound if w_k > 0, at the upper one if w_k < 0. Where w_k = 0 the
    mean prompt decides (see the module).
    """

    sides: FloatArray  # (d, 4d) w, -w, phi and -phi as linear functions of phi
    ends: FloatArray  # (4d,) their bounds, with round-off taken off
    edges: FloatArray  # (2d,) the bounds of w and -w, without that margin
    ties: FloatArray  # (2d,) distance up to which a prompt counts as on an edge; below 0 if no prompt does
    owned: BoolArray  # (2d,) whether the mean prompt gives the edge to this vertex where w_k = 0

    def holds(self, phi: FloatArray) -> bool:
        """Return whether a prompt certainly lies strictly inside."""
        return bool((phi.dot(self.sides) < self.ends).all())

    def holds_each(self, phis: FloatArray) -> BoolArray:
        """Return for (m, d) prompts whether each certainly lies strictly inside."""
        return np.asarray((phis @ self.sides < self.ends).all(axis=1), dtype=np.bool_)

    def owns_each(self, phis: FloatArray) -> BoolArray:
        """Return for (m, d) prompts whether each lies inside or on edges that the vertex owns."""
        products, d = phis @ self.sides, phis.shape[1]
        inside, w = products < self.ends, products[:, : 2 * d]
        largest = np.abs(w).max(axis=1, initial=0.0, keepdims=True)
        owned = (w > 2.0 * STILL_TOLERANCE * largest) | (self.owned & (np.abs(w) <= FLAT_TOLERANCE * largest))
        on = owned & (np.abs(w - self.edges) <= self.ties)
        return np.asarray((inside[:, : 2 * d] | on).all(axis=1) & inside[:, 2 * d :].all(axis=1))

    def owns(self, phi: FloatArray) -> bool:
        """Return whether one prompt lies inside or on edges that the vertex owns, at a third of the cost."""
        products, d = phi.dot(self.sides), len(phi)
        left = (~(products < self.ends)).nonzero()[0]
        if len(left) and left[-1] >= 2 * d:
            return False
        w, largest = products[left], float(np.abs(products[:d]).max(initial=0.0))
        owned = (w > 2.0 * STILL_TOLERANCE * largest) | (
            self.owned[left] & (np.abs(w) <= FLAT_TOLERANCE * largest)
        )
        return bool((owned & (np.abs(w - self.edges[left]) <= self.ties[left])).all())


class Solution(NamedTuple):
    """The fit through d independent rows, X_B beta = S_B, with bounds on its round-off."""

    rows: FloatArray  # (d, d) X_B
    scores: FloatArray  # (d,) S_B
    inverse: FloatArray  # (d, d) inverse of X_B
    beta: FloatArray  # (d,) coefficients X_B^-1 S_B, refined once
    own: FloatArray  # (d,) |S_B| + |X_B| |beta|, the numbers in each equation, plus the error left in it
    size: FloatArray  # (d,) |X_B^-1| own: round-off in beta per unit of round-off in an operation

    @classmethod
    def solve(cls, rows: FloatArray, scores: FloatArray) -> Solution:
        """Compute the fit through (d, d) rows with (d,) scores.

        Without the refinement the round-off of the inverse enters, for which no bound in terms of the entries
        of rows and beta holds: a row [1, 0, ...] of the basis with score 0 was missed by 2e-16 while 1e-29
        was allowed, and no vertex could be proven. One step makes the residual of each equation small
        (Skeel 1980).
        """
        inverse = invert(rows)
        beta = inverse.dot(scores)
        beta += inverse.dot(scores - rows.dot(beta))
        large, right = np.abs(inverse), np.abs(scores)
        # The error after one refinement is of second order and spread over all equations. In an equation of
        # tiny numbers (score 0, coefficients that are 0 up to round-off) it exceeds the equation's own error:
        # rows were missed by 7e-33 where 1e-33 was allowed, and no vertex could be proven.
        left = EPS * np.abs(rows).dot(large.dot(right)).max(initial=0.0)
        own = right + np.abs(rows).dot(np.abs(beta)) + left
        return cls(rows, scores, inverse, beta, own, large.dot(own))

    @property
    def unit(self) -> float:
        """The relative round-off of an operation of this dimension."""
        return 4 * (len(self.beta) + 2) * EPS

    def bound_round_off(self, features: FloatArray, scores: FloatArray) -> FloatArray:
        """Bound the round-off in the (N,) residuals of (N, d) features and (N,) scores.

        The round-off of the equations reaches a row through x X_B^-1. Bounds by |x| |X_B^-1| would be so wide
        for nearly dependent features that rows on the wrong side would count as rows on the fit.
        """
        equations = self.own + EPS * np.abs(self.rows).dot(self.size)
        felt = np.abs(features.dot(self.inverse)).dot(equations)
        return np.asarray(self.unit * (np.abs(scores) + np.abs(features).dot(np.abs(self.beta)) + felt))


@dataclass(frozen=True)
class Fit:
    """The fit of an optimal vertex with bounds on its round-off."""

    # The fit through rows that lie on it: those of the basis, or others that depend only on the fit.
    solution: Solution
    inverse: FloatArray  # (d, d) inverse of the rows of the basis
    vertex: Vertex  # The vertex at which the search ended
    low: FloatArray  # (d,) weighted sum of all rows below the fit
    is_shared: bool  # Whether every search that ends at this fit finds the same solution
    is_isolated: bool  # Whether no row but the basis lies on it

    @property
    def beta(self) -> FloatArray:
        """The (d,) coefficients."""
        return self.solution.beta

    @property
    def rounding_error(self) -> FloatArray:
        """The (d,) bound on the round-off in the coefficients."""
        return self.solution.unit * self.solution.size

    def compute_value(self, phi: FloatArray) -> tuple[float, float]:
        """Compute the threshold phi' beta and a bound on its round-off.

        The value is w' S_B + (phi - X_B' w)' beta with w = phi X_B^-1: this equals phi' beta for any w, and
        the second term corrects the effect of round-off in w on the first. For indicator features w is exact
        and the value is one of the scores, to the bit. The bound includes the round-off of every product and
        sum, and of features and scores that were themselves rounded.
        """
        solution = self.solution
        w = phi.dot(solution.inverse)
        value = w.dot(solution.scores) + (phi - w.dot(solution.rows)).dot(solution.beta)
        return float(value), float(self._bound_error(np.abs(w), np.abs(phi)))

    def compute_values(self, phis: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Compute (m,) thresholds of (m, d) prompts, bit by bit as `compute_value` does, and (m,) bounds."""
        # One vector-matrix product per prompt, as in `compute_value`.
        solution, each = self.solution, phis[:, np.newaxis, :]
        w = each @ solution.inverse
        value = w @ solution.scores + (each - w @ solution.rows) @ solution.beta
        return value[:, 0], self._bound_error(np.abs(w), np.abs(each))[:, 0]

    def _bound_error(self, w: FloatArray, phi: FloatArray) -> FloatArray:
        """Bound the round-off in values for |w| and |phi|, (d,) or (m, 1, d)."""
        on_basis, on_prompt = self._round_off_factors
        return np.asarray(w @ on_basis + phi @ on_prompt)

    @cached_property
    def _round_off_factors(self) -> tuple[FloatArray, FloatArray]:
        """The round-off in a value per unit of |w| and of |phi|."""
        solution = self.solution
        beta, rows = np.abs(solution.beta), np.abs(solution.rows)
        # Round-off in beta is multiplied by phi - X_B' w, which is round-off itself.
        missed = EPS * np.abs(solution.inverse).dot(rows.dot(solution.size))
        return solution.unit * (np.abs(solution.scores) + rows.dot(beta)), solution.unit * (beta + missed)


def invert(matrix: FloatArray) -> FloatArray:
    """Invert a (d, d) matrix; raise a ThresholdError if it is singular in floating point."""
    try:
        return np.asarray(np.linalg.inv(matrix), dtype=np.float64)
    except np.linalg.LinAlgError as singular:
        raise ThresholdError(TOO_DEPENDENT) from singular


class LeavingRow(NamedTuple):
    """The row that leaves a basis: its position, the sign f, and q times the rate of descent."""

    position: int
    sign: float
    rate: float


class Unbounded(NamedTuple):
    """A direction of beta in which the objective falls without bound: the threshold is infinite."""

    ray: FloatArray


@dataclass
class SearchState:
    """The state of a descent: a vertex, and the distance of every row from its fit."""

    basis: IntArray  # (d,) numbers of the rows that the fit goes through
    side: FloatArray  # (N,) 1 above the fit, -1 below it, 0 on the basis
    distance: FloatArray  # (N,) how far each row lies from the fit, towards its side
    inverse: FloatArray  # (d, d) inverse of the basis rows

    def copy(self) -> SearchState:
        """Copy the state to pivot on it."""
        return SearchState(self.basis.copy(), self.side.copy(), self.distance.copy(), self.inverse)


class QuantileSimplex:
    """Quantile regressions on one data set that differ only in their linear term.

    Features must have full column rank. `rest` are rows with fixed sides, `start` a vertex to start from.
    `negative` is for linear terms a = c phi with c < 0: the largest a' beta of the face counts, which is the
    smallest phi' beta (see `_randomized`).
    """

    def __init__(
        self,
        rows: Rows,
        tau: Fraction,
        rest: RowSums | None = None,
        start: Vertex | None = None,
        *,
        negative: bool = False,
    ) -> None:
        self._is_negative = negative
        self._x, self._s, self._weights = rows.features, rows.scores, rows.weights
        self._targets = rows.targets
        self._p, self._q = float(tau.numerator), float(tau.denominator)
        self._lowest = -self._q * self._weights
        plain = bool((self._weights == 1.0).all())
        self._weighted = self._x if plain else self._weights[:, np.newaxis] * self._x
        self._unit = 8 * EPS * (self._p + self._q)
        self._rest = RowSums.zeros(self._x.shape[1]) if rest is None else rest
        everything = self._rest + RowSums.from_rows(rows, np.zeros(len(rows), dtype=np.bool_))
        self._target, self._mass = everything.target, everything.mass
        self._mean = self._target / max(1.0, float(np.abs(self._target).max(initial=0.0)))
        # Round-off grows with phi, so a box holds no prompt beyond this reach.
        reach, one = 1.0 + self._mass, np.eye(self._x.shape[1])
        self._box_noise = 2.0 * self._bound_noise(reach)
        self._box_sides = np.hstack([one, one, one, -one])
        self._box_ends = self._p * np.tile(reach, 4)
        self._spread = max(1.0, float(np.abs(self._s).max()))
        self._noise = self._spread * np.random.default_rng(0).uniform(-1.0, 1.0, len(rows))
        self._start = self._start_search(start or self._choose_first_basis(), NOISE_LEVELS[0])

    def minimise(self, phi: FloatArray, start: Vertex | None = None) -> Fit | Unbounded:
        """Find the minimiser with the smallest phi' beta, from a vertex near it if one is known.

        Return the optimal fit, or a direction in which the problem is unbounded. Raise a ThresholdError if no
        vertex can be proven optimal.
        """
        search = self._start.copy() if start is None else self._start_search(start, NOISE_LEVELS[0])
        for attempt, noise in enumerate(NOISE_LEVELS):
            if attempt > 0:
                search = self._start_search(Vertex(search.basis, search.side < 0.0), noise)
            ray = self._descend(search, noise, phi)
            if ray is not None:
                return Unbounded(ray)
            fit = self._prove(search, phi)
            if fit is not None:
                return fit
        msg = f"the threshold could not be proven optimal: {TOO_DEPENDENT}"
        raise ThresholdError(msg)

    def _choose_first_basis(self) -> Vertex:
        """Choose a first vertex: d rows that are as independent as possible."""
        basis = find_independent_columns(self._x.T, dependent=16 * EPS)
        if len(basis) < self._x.shape[1]:
            raise ThresholdError(TOO_DEPENDENT)
        return Vertex(basis, np.zeros(len(self._s), dtype=np.bool_))

    def _start_search(self, vertex: Vertex, noise: float) -> SearchState:
        """Start a search at a vertex, on scores perturbed by noise.

        Sides follow from the signs of the residuals; rows on the fit within round-off keep their sides.
        """
        scores = self._s + noise * self._noise
        solution = Solution.solve(self._x[vertex.basis], scores[vertex.basis])
        residuals = scores - self._x.dot(solution.beta)
        off = np.abs(residuals) > solution.bound_round_off(self._x, scores)
        below = np.where(off, residuals < 0.0, vertex.below)
        side = np.where(below, -1.0, 1.0)
        side[vertex.basis] = 0.0
        return SearchState(vertex.basis.copy(), side, side * residuals, solution.inverse)

    def _descend(self, search: SearchState, noise: float, phi: FloatArray) -> FloatArray | None:
        """Pivot until the vertex is optimal for these scores; return the ray if the problem is unbounded."""
        linear, size = self._p * (phi + self._target), self._bound_noise(phi)
        for count in range(1, 200 + 20 * len(self._s)):
            if count % REFRESH_INTERVAL == 0:
                fresh = self._start_search(Vertex(search.basis, search.side < 0.0), noise)
                search.side, search.distance = fresh.side, fresh.distance
            low = self._sum_below(search.side < 0.0)
            leaving = self._choose_leaving(search, self._q * low - linear, size, phi)
            if leaving is None:
                return None
            if not self._pivot(search, leaving):
                ray: FloatArray = -leaving.sign * search.inverse[:, leaving.position]
                return ray
        msg = f"the simplex did not converge: {TOO_DEPENDENT}"
        raise ThresholdError(msg)

    def _sum_below(self, below: BoolArray) -> FloatArray:
        """Compute the (d,) weighted sum of all rows below the fit."""
        low: FloatArray = self._rest.low + below.astype(np.float64).dot(self._weighted)
        return low

    def _bound_noise(self, phi: FloatArray) -> FloatArray:
        """Bound the round-off in the balance of a basis, per unit of its inverse."""
        size: FloatArray = self._unit * (self._mass + np.abs(phi))
        return size

    def _choose_leaving(
        self, search: SearchState, balance: FloatArray, size: FloatArray, phi: FloatArray
    ) -> LeavingRow | None:
        """Choose the row that leaves the basis; None at the optimum."""
        if len(phi) == 0:  # all features are zero, and so is every fit
            return None
        above = balance.dot(search.inverse)
        noise = size.dot(np.abs(search.inverse))
        under = self._lowest[search.basis] - above
        excess = np.maximum(above, under) - noise
        k = int(excess.argmax())
        if excess[k] > 0.0:
            return LeavingRow(k, 1.0 if above[k] > under[k] else -1.0, float(excess[k] + noise[k]))
        if (excess < -2.0 * noise).all():
            return None  # strictly inside the box
        at_top, at_bottom = np.abs(above) <= noise, np.abs(under) <= noise
        w = (-phi if self._is_negative else phi) @ search.inverse
        still = STILL_TOLERANCE * float(np.abs(w).max())
        leaving = _choose_on_edge(at_top & (w > still), at_bottom & (w < -still), w)
        if leaving is not None or still == 0.0:  # without a linear term any fit will do
            return leaving
        u, flat = self._mean @ search.inverse, np.abs(w) <= still
        still = STILL_TOLERANCE * float(np.abs(u).max())
        return _choose_on_edge(at_top & flat & (u < -still), at_bottom & flat & (u > still), u)

    def _pivot(self, search: SearchState, leaving: LeavingRow) -> bool:
        """Replace a row of the basis by the row that ends the descent; return False if none does."""
        k, f, rate = leaving
        column = search.inverse[:, k]
        toward = search.side * self._x.dot(-f * column)
        # The leaving row moves at rate one.
        still = STILL_TOLERANCE * max(1.0, float(np.abs(toward).max()))
        moving = (toward > still).nonzero()[0]
        if len(moving) == 0:
            return False
        rates = toward[moving]
        steps = np.maximum(search.distance[moving], 0.0) / rates
        slowing = -self._lowest[moving] * rates
        passed, last = _find_long_step(steps, slowing, rate)
        if last < 0:
            return False
        passed = moving[passed]
        entering = moving[last]
        search.distance -= steps[last] * toward
        search.side[passed] *= -1.0
        search.distance[passed] *= -1.0
        left = search.basis[k]
        search.side[left], search.distance[left] = f, steps[last]
        search.side[entering] = search.distance[entering] = 0.0
        search.basis[k] = entering
        search.inverse = self._update_inverse(search, k)
        return True

    def _update_inverse(self, search: SearchState, k: int) -> FloatArray:
        """Compute the inverse after row k of the basis was exchanged."""
        inverse = search.inverse
        w = self._x[search.basis[k]].dot(inverse)
        pivot = w[k]
        if abs(pivot) < SMALL_PIVOT:
            return invert(self._x[search.basis])
        w[k] -= 1.0
        updated: FloatArray = inverse - (inverse[:, k] / pivot)[:, np.newaxis] * w
        return updated

    def _prove(self, search: SearchState, phi: FloatArray) -> Fit | None:
        """Return the fit of a vertex if sides, box and face rule hold on the true scores; else None."""
        basis = np.sort(search.basis)
        solution = Solution.solve(self._x[basis], self._s[basis])
        towards = search.side * (self._s - self._x.dot(solution.beta))
        bound = solution.bound_round_off(self._x, self._s)
        alone = int(np.count_nonzero(towards > bound)) == len(bound) - len(basis)
        if not alone and (towards < -bound).any():
            return None
        below = search.side < 0.0
        low = self._sum_below(below)
        fresh = SearchState(basis, search.side, search.distance, solution.inverse)
        balance = self._q * low - self._p * (phi + self._target)
        if self._choose_leaving(fresh, balance, self._bound_noise(phi), phi) is not None:
            return None
        fixed = solution if alone else self._solve_fixed_rows(np.abs(towards), float(bound.max()))
        vertex, inverse = Vertex(basis, below), solution.inverse
        return Fit(fixed or solution, inverse, vertex, low, is_shared=fixed is not None, is_isolated=alone)

    def _solve_fixed_rows(self, residuals: FloatArray, bound: float) -> Solution | None:
        """Compute the same fit through rows that depend only on the fit; None if that is not certain."""
        on, off = ON_FIT * self._spread, OFF_FIT * self._spread
        near = residuals <= on
        if 4.0 * bound > on or int(np.count_nonzero(residuals < off)) > int(np.count_nonzero(near)):
            return None
        rows = np.flatnonzero(near)
        rows = rows[find_independent_columns(self._x[rows].T, dependent=INDEPENDENCE_TOLERANCE)]
        return Solution.solve(self._x[rows], self._s[rows]) if len(rows) == self._x.shape[1] else None

    def build_box(self, fit: Fit) -> Box:
        """Compute the prompts that a vertex proven here answers."""
        inverse, lowest = fit.inverse, self._lowest[fit.vertex.basis]
        balance = (self._q * fit.low - self._p * self._target).dot(inverse)
        noise = self._box_noise.dot(np.abs(inverse))
        sides, d = self._box_sides.copy(), len(inverse)
        sides[:, :d], sides[:, d : 2 * d] = inverse, -inverse
        ends = self._box_ends.copy()
        ends[:d], ends[d : 2 * d] = balance - lowest - noise, -balance - noise
        # A tie here must be a tie for every prompt; the round-off without a prompt is the smallest.
        tie = 0.5 * self._bound_noise(np.zeros(d)).dot(np.abs(inverse)) / self._p
        u = self._mean @ inverse
        certain = 2.0 * STILL_TOLERANCE * float(np.abs(u).max(initial=0.0))
        edges = np.concatenate([balance - lowest, -balance]) / self._p
        owned = np.concatenate([u < -certain, u > certain])
        # For negative terms each edge belongs to the other vertex.
        ties = np.full(2 * d, -1.0) if self._is_negative else np.tile(tie, 2)
        return Box(sides, ends / self._p, edges, ties, owned)

    def compute_loss(self, fit: Fit) -> float:
        """Compute the pinball loss of a fit over all rows, including those known only by their sums."""
        tau, below = self._p / self._q, fit.vertex.below
        residuals = self._s - self._x @ fit.beta
        inside = (tau * self._targets - self._weights * below) @ residuals
        everyone = self._rest.target_scores - self._rest.target @ fit.beta
        return float(inside + tau * everyone - (self._rest.below_scores - self._rest.low @ fit.beta))


def _choose_on_edge(top: BoolArray, bottom: BoolArray, rates: FloatArray) -> LeavingRow | None:
    """Choose the row at the top or bottom of its box that leaves it fastest; None if none does."""
    outward = np.where(top | bottom, np.abs(rates), 0.0)
    k = int(outward.argmax())
    return LeavingRow(k, 1.0 if top[k] else -1.0, 0.0) if outward[k] > 0.0 else None


def _find_long_step(steps: FloatArray, slowing: FloatArray, rate: float) -> tuple[IntArray, int]:
    """Find the breakpoints that a descent passes, and the one at which it ends; -1 if it never does.

    Few breakpoints are usually passed, so only a first part of them is sorted.
    """
    # Round-off in the running sum must not let a descent of exactly this rate slip past its end.
    enough = rate * (1.0 - 1e-12)
    first = int(steps.argmin())
    if slowing[first] >= enough:
        return np.zeros(0, dtype=np.int64), first
    count = FIRST_BREAKPOINTS
    while True:
        part = np.argpartition(steps, count)[:count] if count < len(steps) else np.arange(len(steps))
        order = part[np.argsort(steps[part], kind="stable")]
        end = int(np.searchsorted(np.cumsum(slowing[order]), enough, side="left"))
        if end < len(order):
            return order[:end], int(order[end])
        if len(order) == len(steps):
            return order, -1
        count *= 8
