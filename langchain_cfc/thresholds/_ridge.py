"""An exact active-set method for quantile regression with a ridge penalty and one linear term.

Notation as in `_simplex`: rows x_i in R^d of `features` with success scores S_i and weights w_i > 0, target
coverage tau = p / q in lowest terms, phi the features of the prompt. With penalties D_j > 0, the problem is

    minimise over beta   sum_i w_i rho_tau(S_i - x_i' beta) - tau phi' beta + 1/2 sum_j D_j beta_j^2.

All coefficients are penalised, so there is one minimiser. Let h_i in [0, w_i] be the part of row i that
counts as below the fit: w_i for a row below it, 0 for one above, in between on the fit (in the dual programme
eta_i = w_i tau - h_i). A fit is optimal if and only if some such parts balance it, D beta + sum_i h_i x_i =
tau (phi + sum_i w_i x_i).

*State.* A set A of at most d rows that the fit goes through, and a side for every other row. With `low` the
weighted sum of the rows below, G = q h_A / sigma and C = q D / sigma, the best fit through A solves

    [ C    X_A' ] [ beta ]   [ (p (phi + sum_i w_i x_i) - q low) / sigma ]
    [ X_A   0   ] [  G   ] = [ S_A                                       ].

sigma is a power of two that brings C to order one; for integer features the sums are exact. The matrix is
regular if the rows of A are independent; each step preserves this, and descends. The search may start at any
state; near the optimum it takes a few steps.

*Step within A.* Move from the current fit towards the solution. A row whose residual reaches zero flips its
side, which adds q w_i |x_i' step| / sigma to the slope of the objective, on top of the curvature step' C
step. If the slope turns positive at such a row, the row joins A; if it vanishes in between, the fit stops
there, and the new sides give a new solution. If no row is in the way, the solution is reached.

*Step out of A.* At the solution G_k < 0 says that the objective falls at rate -G_k when row k's residual
rises; G_k > q w_k / sigma, that it falls when the residual sinks. Column d + k of the inverse is the step:
the other rows of A stay on the fit, which stays optimal otherwise. With no such k the fit is optimal.

*Ties.* Steps run on scores perturbed by seeded noise. Sides and box are then checked on the true scores; if
one fails, the noise is made smaller, and finally left out.

*No sharing.* With a penalty the fit moves with every change of the prompt, so each prompt is solved
separately.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import NamedTuple

import numpy as np

from langchain_cfc.errors import ThresholdError
from langchain_cfc.support.arrays import FloatArray, IntArray
from langchain_cfc.thresholds._rows import Rows, RowSums
from langchain_cfc.thresholds._simplex import EPS, NOISE_LEVELS, STILL_TOLERANCE, TOO_DEPENDENT, Vertex
from langchain_cfc.thresholds._warm_start import BaseFit, Start, extend_base_fit

# During steps, residuals below this share of the numbers they are computed from have no sign.
SIGN_TOLERANCE = 64 * EPS


class System(NamedTuple):
    """The equations for a set A of k rows: their (d + k, d + k) matrix and its inverse."""

    matrix: FloatArray
    inverse: FloatArray

    def solve(self, right: FloatArray) -> FloatArray:
        """Solve the equations; one refinement makes the residual of each equation small (Skeel 1980)."""
        solution = self.inverse @ right
        return solution + self.inverse @ (right - self.matrix @ solution)

    def bound_round_off(
        self, x: FloatArray, beta: FloatArray, sizes: FloatArray, first: int = 0
    ) -> FloatArray:
        """Bound the round-off in x' beta for rows x, given the (d + k,) `sizes` of terms in the equations.

        The first-order part counts only equations from `first` on.
        """
        d, matrix, inverse = len(beta), np.abs(self.matrix), np.abs(self.inverse)
        # The error after the refinement is of second order, but may be spread over all equations.
        left = matrix @ (inverse @ (matrix @ (inverse @ sizes)))
        own = np.abs(beta) + EPS * float(left.max(initial=0.0)) * inverse[:d].sum(axis=1)
        reach = np.abs(x @ self.inverse[:d, first:]) @ sizes[first:]
        return np.asarray(4 * (d + 2) * EPS * (reach + np.abs(x) @ own), dtype=np.float64)


@dataclass(frozen=True)
class RidgeFit:
    """An optimal fit with bounds on its round-off."""

    beta: FloatArray  # (d,) coefficients
    vertex: Vertex  # The rows on the fit, and the sides of the others
    scores: FloatArray  # (k,) success scores S_A of the rows on the fit
    system: System  # Their equations
    sizes: FloatArray  # (d + k,) absolute values of the numbers in each equation

    @cached_property
    def rounding_error(self) -> FloatArray:
        """The (d,) bound on the round-off in beta."""
        return self.system.bound_round_off(np.eye(len(self.beta)), self.beta, self.sizes)

    def compute_values(self, phis: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Compute (m,) thresholds of (m, d) prompts and (m,) bounds; see `compute_value`."""
        each = np.array([self.compute_value(phi) for phi in phis]).reshape(-1, 2)
        return each[:, 0], each[:, 1]

    def compute_value(self, phi: FloatArray) -> tuple[float, float]:
        """Compute the threshold phi' beta, or the score of an equal row on the fit, and its round-off."""
        same = (self.system.matrix[len(phi) :, : len(phi)] == phi).all(axis=1)
        value = self.scores[int(np.argmax(same))] if same.any() else phi @ self.beta
        return float(value), float(self.system.bound_round_off(phi, self.beta, self.sizes))


@dataclass
class _RidgeState:
    """A state of the search: rows on the fit, sides (1 above, -1 below, 0 on), residuals, scores."""

    rows: IntArray  # Ascending
    system: System
    side: FloatArray
    beta: FloatArray
    residuals: FloatArray
    scores: FloatArray


class _Step(NamedTuple):
    """A direction, the rows that may end the step, and the objective's rate and curvature along it."""

    beta: FloatArray
    residuals: FloatArray
    crossing: IntArray
    rate: float
    curvature: float


class RidgeRegression:
    """Quantile regressions on one data set, with penalties above 0, that differ only in their linear term.

    `rest` are rows with fixed sides, `start` a state to start from.
    """

    def __init__(
        self,
        rows: Rows,
        tau: Fraction,
        penalty: FloatArray,
        rest: RowSums | None = None,
        start: Start | None = None,
    ) -> None:
        self._x, self._s = rows.features, rows.scores
        # The smallest power of two not below it, which `log2` need not find on every processor.
        scale = 2.0 ** math.frexp(math.nextafter(tau.denominator * float(penalty.max()), 0.0))[1]
        self._p, self._q = tau.numerator / scale, tau.denominator / scale
        self._cost, self._tops = self._q * penalty, self._q * rows.weights
        self._pull = self._tops[:, None] * self._x
        rest = RowSums.zeros(len(penalty)) if rest is None else rest
        everything = rest + RowSums.from_rows(rows, np.zeros(len(rows), dtype=np.bool_))
        self._upper = self._p * everything.target - self._q * rest.low
        self._mass = (self._p + self._q) * everything.mass
        self._widest = np.abs(self._x).max(axis=0, initial=0.0)
        self._spread = float(np.abs(self._s).max(initial=1.0))
        # Noise in the order of the scores, so that order statistics are found to the bit.
        noise = np.sort(np.random.default_rng(0).uniform(-self._spread, self._spread, len(rows)))
        self._noise = noise[np.argsort(np.argsort(self._s, kind="stable"))]
        nowhere = Vertex(np.empty(0, dtype=np.int64), np.zeros(len(rows), dtype=np.bool_))
        self._start = self._build_point(start or Start(nowhere, np.zeros(len(penalty))), NOISE_LEVELS[0])

    def minimise(self, phi: FloatArray) -> RidgeFit:
        """Find the minimiser; raise a ThresholdError if no fit can be proven optimal."""
        point = replace(self._start, side=self._start.side.copy())
        for noise in NOISE_LEVELS:
            if noise != NOISE_LEVELS[0]:
                point = self._build_point(Start(Vertex(point.rows, point.side < 0.0), point.beta), noise)
            self._descend(point, phi)
            if (fit := self._prove(point, phi, noise)) is not None:
                return fit
        msg = f"the threshold could not be proven optimal: {TOO_DEPENDENT}"
        raise ThresholdError(msg)

    def _build_point(self, start: Start, noise: float) -> _RidgeState:
        """Build the fit nearest to a start through its rows, with sides by the signs of residuals."""
        scores, rows, d = self._s + noise * self._noise, np.sort(start.vertex.basis), len(start.beta)
        system, x, met = self._build_system(rows), self._x[rows], scores[rows]
        beta = start.beta + system.inverse[:d, d:] @ (met - x @ start.beta)
        residuals = scores - self._x @ beta
        sizes = np.append(np.zeros(d), np.abs(met) + np.abs(x) @ np.abs(beta))
        # Rows on the fit within round-off keep their side.
        unsure = np.abs(residuals) <= system.bound_round_off(self._x, beta, sizes)
        side = np.where(np.where(unsure, start.vertex.below, residuals < 0.0), -1.0, 1.0)
        side[rows] = residuals[rows] = 0.0
        return _RidgeState(rows, system, side, beta, residuals, scores)

    def _build_system(self, rows: IntArray) -> System:
        d, k = len(self._cost), len(rows)
        matrix, x = np.zeros((d + k, d + k)), self._x[rows]
        matrix[d:, :d], matrix[:d, d:] = x, x.T
        matrix.ravel()[: d * (d + k) : d + k + 1] = self._cost
        try:
            return System(matrix, np.asarray(np.linalg.inv(matrix), dtype=np.float64))
        except np.linalg.LinAlgError as singular:
            raise ThresholdError(TOO_DEPENDENT) from singular

    def _compute_right_hand_side(self, point: _RidgeState, scores: FloatArray, phi: FloatArray) -> FloatArray:
        upper = self._upper + self._p * phi - (point.side < 0.0) @ self._pull
        return np.concatenate((upper, scores[point.rows]))

    def _compute_equation_sizes(
        self, point: _RidgeState, solution: FloatArray, phi: FloatArray
    ) -> FloatArray:
        """Compute the (d + k,) sizes of the numbers in each equation."""
        sums = self._mass + (self._p + self._q) * np.abs(phi)
        own = np.concatenate((sums, np.abs(self._s[point.rows])))
        return np.asarray(own + np.abs(point.system.matrix) @ np.abs(solution), dtype=np.float64)

    def _descend(self, point: _RidgeState, phi: FloatArray) -> None:
        """Move until the fit is optimal."""
        for _ in range(200 + 20 * len(self._s)):
            solution = point.system.solve(self._compute_right_hand_side(point, point.scores, phi))
            beta = solution[: len(phi)]
            after = point.scores - self._x @ beta
            after[point.rows] = 0.0
            # There is only one fit through d rows.
            step = self._compute_step_towards(point, beta, after) if len(point.rows) < len(phi) else None
            if step is None:
                point.beta, point.residuals = beta, after
                step = self._compute_step_out(point, solution, phi)
            if step is None:
                return
            self._move(point, step)
        raise ThresholdError(TOO_DEPENDENT)

    def _compute_step_towards(self, point: _RidgeState, beta: FloatArray, after: FloatArray) -> _Step | None:
        """Compute the step to a fit through the same rows; None if no row crosses it on the way."""
        rounding_error = SIGN_TOLERANCE * (self._spread + float(self._widest @ np.abs(beta)))
        if float((point.side * after).min(initial=0.0)) >= -rounding_error:
            return None
        step, moved = beta - point.beta, after - point.residuals
        still = rounding_error + STILL_TOLERANCE * float(self._widest @ np.abs(step))
        crossing = np.flatnonzero((point.side * after < -rounding_error) & (point.side * moved < -still))
        curvature = float(step @ (self._cost * step))
        return _Step(step, moved, crossing, curvature, curvature) if len(crossing) else None

    def _compute_step_out(self, point: _RidgeState, solution: FloatArray, phi: FloatArray) -> _Step | None:
        """Compute the step on which a row leaves the fit; None at the optimum."""
        d, inverse = len(phi), point.system.inverse
        noise = 8 * EPS * (np.abs(inverse[d:]) @ self._compute_equation_sizes(point, solution, phi))
        above, under = -solution[d:], solution[d:] - self._tops[point.rows]
        # Minus the round-off, so that a descent does not pass the row that ends it exactly.
        rates = np.maximum(above, under) - noise
        if (rate := float(rates.max(initial=0.0))) <= 0.0:
            return None
        k = int(rates.argmax())
        row, sign = point.rows[k], 1.0 if above[k] > under[k] else -1.0
        step = -sign * inverse[:d, d + k]
        moved = -(self._x @ step)
        moved[point.rows] = 0.0
        crossing = np.flatnonzero(point.side * moved < -STILL_TOLERANCE * float(self._widest @ np.abs(step)))
        moved[row] = point.side[row] = sign
        point.rows = np.delete(point.rows, k)
        return _Step(step, moved, crossing, rate, float(step @ (self._cost * step)))

    def _move(self, point: _RidgeState, step: _Step) -> None:
        """Move along a direction as far as the objective falls."""
        speeds = np.abs(step.residuals[step.crossing])
        times = np.maximum((point.side * point.residuals)[step.crossing], 0.0) / speeds  # 0 if just across
        order = times.argsort(kind="stable")
        crossing, times = step.crossing[order], times[order]
        slowed = np.cumsum(self._tops[crossing] * speeds[order])
        last = int((slowed + step.curvature * times).searchsorted(step.rate))
        rate = step.rate - float(slowed[last - 1]) if last else step.rate
        if step.curvature <= 0.0:  # the penalty underflows
            raise ThresholdError(TOO_DEPENDENT)
        time = rate / step.curvature
        joins = last < len(crossing) and float(times[last]) <= time
        time = float(times[last]) if joins else time
        point.beta = point.beta + time * step.beta
        point.residuals = point.residuals + time * step.residuals
        point.side[crossing[:last]] *= -1.0
        if joins:
            row = crossing[last]
            point.rows = np.sort(np.append(point.rows, row))
            point.side[row] = point.residuals[row] = 0.0
        point.system = self._build_system(point.rows)

    def _prove(self, point: _RidgeState, phi: FloatArray, noise: float) -> RidgeFit | None:
        """Return the fit of a state if sides and box hold on the true scores; else None."""
        d, rows, system = len(phi), point.rows, point.system
        solution = system.solve(self._compute_right_hand_side(point, self._s, phi))
        beta, sizes = solution[:d], self._compute_equation_sizes(point, solution, phi)
        wrong = -point.side * (self._s - self._x @ beta)
        doubtful = np.flatnonzero(wrong > 0.0)
        if len(doubtful):
            # Bounds on round-off in sums can be wide enough to hide a wrong side: they are not used at first.
            bounds = system.bound_round_off(self._x[doubtful], beta, sizes, 0 if noise == 0.0 else d)
            if (wrong[doubtful] > bounds + 4 * EPS * np.abs(self._s[doubtful])).any():
                return None
        if self._compute_step_out(replace(point, side=point.side.copy()), solution, phi) is not None:
            return None
        return RidgeFit(beta, Vertex(rows, point.side < 0.0), self._s[rows], system, sizes)


def fit_penalised_base(rows: Rows, tau: Fraction, ridge: FloatArray) -> BaseFit:
    """Fit the penalised regression without linear term; `ridge` are (d,) penalties per unit of weight."""
    nothing = np.zeros(len(ridge))

    def solve(weight: float, near: Rows, rest: RowSums, start: Start | None) -> RidgeFit:
        return RidgeRegression(near, tau, (weight + 1.0) * ridge, rest, start).minimise(nothing)

    return extend_base_fit(rows, tau, solve)
