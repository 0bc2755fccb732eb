"""Ways to a conditional threshold that share no code with the package, and little with each other.

All of them return the unclipped threshold sup{s : s <= g(s)} as a number, `inf` where it is unbounded; the
smallest minimiser counts where minimisers are not unique. None knows the cap.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from scipy.optimize import linprog

from langchain_cfc.support.arrays import BoolArray, FloatArray, IntArray

# theta = tau - NUDGE stands for the limit theta -> tau from below. It must exceed the solver's tolerances by
# far: where the dual has a single feasible point at tau, faces come out wrong: with 1e-8 in 4 of
# 100,000 cases, with 1e-7 in 2 (rational enumeration decided which).
NUDGE = 1e-7


def minimise_by_highs(cost: FloatArray, **programme: Any) -> Any:
    """HiGHS, tight: at its default tolerances of 1e-7 one of twelve cases of integer rank came out wrong.

    At tight tolerances older releases of it give up on a few programmes (status 4) that they solve without
    presolve or by interior points; what is found then obeys the same tolerances.
    """
    tight = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}
    solve: Any = linprog  # its stubs know no choice of method at run time
    result = solve(cost, **programme, options=tight)
    for method, presolve in (("highs-ds", False), ("highs-ipm", True)):
        if result.status == 4:
            result = solve(cost, **programme, method=method, options={**tight, "presolve": presolve})
    return result


def compute_order_statistic(scores: Sequence[float] | FloatArray, alpha: str) -> float:
    """The score of rank ceil((N + 1) tau), all in rationals; `inf` beyond rank N."""
    rank = math.ceil((len(scores) + 1) * (1 - Fraction(alpha)))
    return sorted(float(score) for score in scores)[rank - 1] if rank <= len(scores) else math.inf


def solve_dual_programme(features: FloatArray, scores: FloatArray, alpha: str, phi: FloatArray) -> float:
    """HiGHS on the dual programme: maximise S' eta, X' eta = -theta phi, tau - 1 <= eta <= tau."""
    tau = float(1 - Fraction(alpha))
    # Units of the columns do not matter to the threshold, but they do to absolute tolerances.
    units = np.maximum(np.abs(features).max(axis=0), np.abs(phi))
    units[units == 0.0] = 1.0
    x, f = features / units, phi / units
    result = minimise_by_highs(-scores, A_eq=x.T, b_eq=-(tau - NUDGE) * f, bounds=(tau - 1.0, tau))
    if result.status == 2:
        return math.inf
    assert result.status == 0, result.message
    return float(-result.eqlin.marginals @ f)


def compute_augmented_fit(
    features: FloatArray, scores: FloatArray, alpha: str, phi: FloatArray, s: float
) -> float:
    """g(s): the smallest fit at the test point of a tau-regression of the data and that point at score s.

    HiGHS on the primal programme: minimise sum_i t_i with t_i above both lines of the pinball loss; the nudge
    prefers small phi' beta.
    """
    tau = float(1 - Fraction(alpha))
    x, y = np.vstack([features, phi]), np.append(scores, s)
    size, d = x.shape
    units = np.abs(x).max(axis=0)
    units[units == 0.0] = 1.0
    x /= units
    lines = np.vstack([np.hstack([-slope * x, -np.eye(size)]) for slope in (tau, tau - 1.0)])
    right = np.concatenate([-slope * y for slope in (tau, tau - 1.0)])
    cost = np.concatenate([NUDGE * x[-1], np.ones(size)])
    result = minimise_by_highs(cost, A_ub=lines, b_ub=right, bounds=(None, None))
    assert result.status == 0, result.message
    return float(result.x[:d] @ x[-1])


def find_threshold_by_bisection(
    features: FloatArray, scores: FloatArray, alpha: str, phi: FloatArray, *, highest: float, accuracy: float
) -> float:
    """The definition itself: bisection for the largest s <= g(s); `inf` if that lies above `highest`."""

    def reached(s: float) -> bool:
        # Half the accuracy decides s = g(s) and is below what is asked of the result.
        return s <= compute_augmented_fit(features, scores, alpha, phi, s) + accuracy / 2

    if reached(highest):
        return math.inf
    low, high, step = highest - 1.0, highest, 1.0
    while not reached(low):
        low, high, step = low - 2 * step, low, 2 * step
    while high - low > accuracy / 2:
        middle = (low + high) / 2
        low, high = (middle, high) if reached(middle) else (low, middle)
    return (low + high) / 2


Rational = list[list[Fraction]]
Reading = Callable[[float], Fraction]


def read_as_decimal(number: float) -> Fraction:
    """The short decimal that a float was written as: 0.1 is one tenth."""
    return Fraction(number).limit_denominator(10_000)


def compute_exact_threshold(
    features: FloatArray, scores: FloatArray, alpha: str, phi: FloatArray, reading: Reading = Fraction
) -> Fraction | None:
    """Enumeration of all vertices in rational arithmetic; None where the threshold is unbounded.

    The threshold is the smallest phi' beta over the minimisers of sum_i rho_tau(S_i - x_i' beta) - tau phi'
    beta. That function is convex and linear on the cells of the arrangement of hyperplanes x_i' beta = S_i.
    With x of full column rank cells hold no line, so minimum and smallest phi' beta are taken at vertices (d
    independent rows met exactly), and the function is bounded below if and only if it does not fall along any
    ray in which d - 1 rows stay put.
    """
    x, y, f = (
        [[reading(float(v)) for v in row] for row in np.atleast_2d(a)] for a in (features, scores, phi)
    )
    return _find_smallest_minimum(x, y[0], f[0], 1 - Fraction(alpha))


def _find_smallest_minimum(
    x: Rational, y: Sequence[Fraction], f: Sequence[Fraction], tau: Fraction
) -> Fraction | None:
    kept = _find_independent_columns(x)
    if len(_find_independent_columns([*x, list(f)])) > len(kept):
        return None
    x, f = [[row[j] for j in kept] for row in x], [f[j] for j in kept]  # the others follow
    d = len(kept)

    def objective(beta: Sequence[Fraction], at: Sequence[Fraction]) -> Fraction:
        residuals = [s - _multiply(row, beta) for row, s in zip(x, at, strict=True)]
        return sum((max(tau * r, (tau - 1) * r) for r in residuals), start=Fraction(0)) - tau * _multiply(
            f, beta
        )

    still = [Fraction(0)] * len(y)
    for rows in itertools.combinations(range(len(x)), d - 1) if d else ():
        ray = _find_normal([x[i] for i in rows], d)
        if any(objective([sign * v for v in ray], still) < 0 for sign in (1, -1)):
            return None
    best: tuple[Fraction, Fraction] | None = None
    for rows in itertools.combinations(range(len(x)), d):
        beta = _solve_exactly([x[i] for i in rows], [y[i] for i in rows])
        if beta is not None:
            found = objective(beta, y), _multiply(f, beta)
            best = found if best is None else min(best, found)
    assert best is not None
    return best[1]


def _multiply(left: Sequence[Fraction], right: Sequence[Fraction]) -> Fraction:
    return sum((a * b for a, b in zip(left, right, strict=True)), start=Fraction(0))


def _reduce_rows(matrix: Rational) -> tuple[Rational, list[int]]:
    """Reduced row echelon form and its pivot columns."""
    rows, pivots = [list(row) for row in matrix], list[int]()
    for column in range(len(rows[0]) if rows else 0):
        top = len(pivots)
        pivot = next((i for i in range(top, len(rows)) if rows[i][column] != 0), None)
        if pivot is None:
            continue
        rows[top], rows[pivot] = rows[pivot], rows[top]
        rows[top] = [v / rows[top][column] for v in rows[top]]
        for i in range(len(rows)):
            if i != top and rows[i][column] != 0:
                rows[i] = [a - rows[i][column] * b for a, b in zip(rows[i], rows[top], strict=True)]
        pivots.append(column)
    return rows, pivots


def _find_independent_columns(matrix: Rational) -> list[int]:
    return _reduce_rows(matrix)[1]


def _solve_exactly(matrix: Rational, right: Sequence[Fraction]) -> list[Fraction] | None:
    """The solution of a square system, None if it is singular."""
    rows, pivots = _reduce_rows([[*row, v] for row, v in zip(matrix, right, strict=True)])
    return [row[-1] for row in rows] if pivots == list(range(len(matrix))) else None


def _find_normal(rows: Rational, d: int) -> list[Fraction]:
    """A vector orthogonal to d - 1 rows by minors; zero if they are dependent."""
    return [
        (-1) ** j * _compute_determinant([[v for k, v in enumerate(row) if k != j] for row in rows])
        for j in range(d)
    ]


def _compute_determinant(matrix: Rational) -> Fraction:
    if not matrix:
        return Fraction(1)
    return sum(
        (
            (-1) ** j
            * value
            * _compute_determinant([[v for k, v in enumerate(row) if k != j] for row in matrix[1:]])
            for j, value in enumerate(matrix[0])
            if value != 0
        ),
        start=Fraction(0),
    )


def prove_value(
    features: FloatArray,
    scores: FloatArray,
    alpha: str,
    phi: FloatArray,
    *,
    basis: IntArray,
    below: BoolArray,
    alphas: Sequence[str] | None = None,
) -> Fraction:
    """The threshold, proven by a vertex in rational arithmetic: a basis and the rows that lie below its fit.

    `alphas` are the levels of the rows where they have their own; tau is then that of the row or the prompt.

    Let eta_i = tau above the fit, tau - 1 below it, and on the basis what X' eta = -tau phi leaves. The
    vertex gives the threshold if no residual contradicts its side, eta lies in [tau - 1, tau], and it stays
    there for theta a little below tau, where eta moves along w, X_B' w = phi. Nothing else of the solver is
    trusted.
    """
    tau = 1 - Fraction(alpha)
    taus = [1 - Fraction(each) for each in alphas or [alpha] * len(scores)]
    x = [[Fraction(float(v)) for v in row] for row in features]
    y = [Fraction(float(v)) for v in scores]
    f = [Fraction(float(v)) for v in phi]
    rows = [int(i) for i in basis]
    inside = [x[i] for i in rows]
    beta = _solve_exactly(inside, [y[i] for i in rows])
    assert beta is not None
    rest = [-tau * v for v in f]
    for i in set(range(len(x))) - set(rows):
        residual = y[i] - _multiply(x[i], beta)
        assert residual <= 0 if below[i] else residual >= 0
        eta = taus[i] - 1 if below[i] else taus[i]
        rest = [r - eta * v for r, v in zip(rest, x[i], strict=True)]
    columns = [list(column) for column in zip(*inside, strict=True)]
    etas, moves = _solve_exactly(columns, rest), _solve_exactly(columns, f)
    assert etas is not None
    assert moves is not None
    for row, eta, move in zip(rows, etas, moves, strict=True):
        assert taus[row] - 1 <= eta <= taus[row]
        assert eta < taus[row] or move <= 0
        assert eta > taus[row] - 1 or move >= 0
    return _multiply(f, beta)


def compute_smallest_pinball_loss(features: FloatArray, scores: FloatArray, alpha: str) -> float:
    """The optimum of plain quantile regression, sum_i rho_tau(S_i - x_i' beta): HiGHS on its dual."""
    tau = float(1 - Fraction(alpha))
    units = np.abs(features).max(axis=0)
    units[units == 0.0] = 1.0
    d = features.shape[1]
    result = minimise_by_highs(-scores, A_eq=(features / units).T, b_eq=np.zeros(d), bounds=(tau - 1.0, tau))
    assert result.status == 0, result.message
    return float(-result.fun)
