"""The ridge-penalised regression against a conic solver, rational arithmetic, and laws that it obeys."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any, NamedTuple

import cvxpy
import numpy as np
import pytest

from langchain_cfc.errors import ThresholdError
from langchain_cfc.support.arrays import BoolArray, FloatArray
from langchain_cfc.thresholds import _warm_start
from langchain_cfc.thresholds._ridge import RidgeFit, RidgeRegression, fit_penalised_base
from langchain_cfc.thresholds._rows import Rows, RowSums
from langchain_cfc.thresholds._simplex import Vertex
from langchain_cfc.thresholds._warm_start import Start
from tests.lengths import LONG, mostly_long

from .cases import KINDS, cases

# Asked for by the design: values agree to 1e-8, optimality equations to 1e-12.
AGREEMENT, EQUATIONS = 1e-8, 1e-12
# Rows that lie on a fit without being in its state do so to within the round-off of tenths.
ROUNDED = 1e-14


class Problem(NamedTuple):
    """One regression per query, columns scaled to order one as the callers of the engine do it."""

    rows: Rows
    alpha: str
    penalty: FloatArray
    queries: FloatArray

    @property
    def tau(self) -> Fraction:
        return 1 - Fraction(self.alpha)

    def solver(self, **settings: Any) -> RidgeRegression:
        return RidgeRegression(self.rows, self.tau, self.penalty, **settings)

    def solved(self) -> Iterator[tuple[FloatArray, RidgeFit]]:
        solver = self.solver()
        return ((phi, solver.minimise(phi)) for phi in self.queries)


def list_problems(kind: str, count: int, *, weighted: bool = True) -> Iterator[Problem]:
    """Calibration sets of a kind with penalties from 1e-6 to 10, equal or one for each column."""
    rng = np.random.default_rng(len(kind))
    for case in cases(kind, count):
        units = np.abs(case.features).max(axis=0)
        units = np.exp2(np.ceil(np.log2(np.where(units > 0.0, units, 1.0))))
        features, size = case.features / units, len(case.scores)
        ridge = 10.0 ** rng.uniform(-6.0, 1.0, features.shape[1] if rng.random() < 0.3 else 1)
        penalty = (size + 1) * np.resize(ridge, features.shape[1])
        weights = np.ones(size)
        if weighted and rng.random() < 0.4:
            whole = rng.random() < 0.5
            weights[:] = rng.integers(1, 4, size) if whole else rng.uniform(0.1, 3.0, size)
        yield Problem(
            Rows(features, case.scores, weights, weights), case.alpha, penalty, case.queries / units
        )


def compute_objective(problem: Problem, phi: FloatArray, beta: FloatArray) -> float:
    rows, tau = problem.rows, float(problem.tau)
    residuals = rows.scores - rows.features @ beta
    loss = rows.weights @ np.maximum(tau * residuals, (tau - 1) * residuals)
    return float(loss - tau * phi @ beta + problem.penalty @ beta**2 / 2)


def measure_failure(
    problem: Problem, phi: FloatArray, fit: RidgeFit, beta: FloatArray | None = None
) -> float:
    """By how much the optimality conditions fail over all rows, from the definition of eta."""
    rows, tau, beta = problem.rows, float(problem.tau), fit.beta if beta is None else beta
    on, below = fit.vertex.basis, fit.vertex.below
    residuals = rows.scores - rows.features @ beta
    eta = rows.weights * (tau - below)
    eta[on] = 0.0
    missing = problem.penalty * beta - eta @ rows.features - tau * phi
    eta[on] = np.linalg.lstsq(rows.features[on].T, missing, rcond=None)[0]
    balance = missing - eta[on] @ rows.features[on]
    size = problem.penalty * np.abs(beta) + rows.weights @ np.abs(rows.features) + np.abs(phi)
    wrong = np.where(below, residuals, -residuals)
    wrong[on] = np.abs(residuals[on])
    wrong /= 1.0 + np.abs(rows.scores) + np.abs(rows.features) @ np.abs(beta)
    outside = np.maximum(eta[on] - tau * rows.weights[on], (tau - 1) * rows.weights[on] - eta[on])
    return max(
        float((np.abs(balance) / np.maximum(size, 1e-300)).max()),
        float(wrong.max()),
        float(outside.max(initial=0.0)),
    )


def solve_by_clarabel(problem: Problem, phi: FloatArray) -> tuple[str, FloatArray | None]:
    """Status and minimiser of the same problem as a tight conic programme."""
    cp: Any = cvxpy
    rows, tau, size = problem.rows, float(problem.tau), len(problem.rows)
    beta, above, below = cp.Variable(len(phi)), cp.Variable(size, nonneg=True), cp.Variable(size, nonneg=True)
    loss = rows.weights @ (tau * above + (1 - tau) * below) - tau * (phi @ beta)
    penalty = cp.sum_squares(cp.multiply(np.sqrt(problem.penalty), beta)) / 2
    programme = cp.Problem(cp.Minimize(loss + penalty), [rows.features @ beta + above - below == rows.scores])
    tight = {"tol_gap_abs": 1e-13, "tol_gap_rel": 1e-13, "tol_feas": 1e-13, "tol_ktratio": 1e-10}
    programme.solve(solver=cp.CLARABEL, **tight, max_iter=500)
    return str(programme.status), beta.value


@mostly_long("kind", sorted(KINDS), quick=4)
@pytest.mark.filterwarnings("ignore:Solution may be inaccurate")  # its status is checked below
def test_ridge_regression_agrees_with_a_conic_solver(kind: str) -> None:
    for problem in list_problems(kind, 8):
        solver = problem.solver()
        for phi in problem.queries[:3]:
            fit, (status, beta) = solver.minimise(phi), solve_by_clarabel(problem, phi)
            assert beta is not None
            least = compute_objective(problem, phi, fit.beta)
            scale = 1.0 + abs(least)
            assert least <= compute_objective(problem, phi, beta) + 1e-12 * scale
            assert least >= compute_objective(problem, phi, beta) - AGREEMENT * scale
            value, bound = fit.compute_value(phi)
            slack = AGREEMENT * max(1.0, abs(value)) + bound
            if status == "optimal":
                assert value == pytest.approx(phi @ beta, abs=slack)


@mostly_long("kind", sorted(KINDS), quick=6)
def test_ridge_regression_satisfies_optimality_conditions_over_all_rows(kind: str) -> None:
    # Scores that differ by about the noise of the solver are the hardest: nearly right sides fail the check.
    for problem in list_problems(kind, 400 if kind == "nearly_tied_partitions" else 60):
        for phi, fit in problem.solved():
            assert measure_failure(problem, phi, fit) <= EQUATIONS


@pytest.mark.parametrize(
    ("kind", "ridge", "count"),
    [
        ("scores_on_a_polynomial", 1e5, 20),  # noise in scores becomes noise in eta, times the penalty
        ("overlapping_partitions", 1e-6, 150),  # bounds on the round-off in sums are as wide as the noise
        ("nearly_tied_partitions", 1e-7, 40),
    ],
)
def test_ridge_regression_keeps_no_trace_of_noise_that_breaks_ties(
    kind: str, ridge: float, count: int
) -> None:
    for problem in list_problems(kind, count):
        penalty = np.full(len(problem.penalty), ridge * (len(problem.rows) + 1))
        changed = problem._replace(penalty=penalty)
        for phi, fit in changed.solved():
            assert measure_failure(changed, phi, fit) <= EQUATIONS


@mostly_long("kind", sorted(KINDS), quick=6)
def test_optimality_check_fails_for_a_slightly_wrong_answer(kind: str) -> None:
    checked = 0
    for problem in list_problems(kind, 10):
        for phi, fit in problem.solved():
            on_fit = problem.rows.features[fit.vertex.basis]
            for j, shift in enumerate(1e-6 * np.eye(len(phi))):
                # No equation contains the others: columns of zeros with almost no penalty.
                if np.abs(on_fit[:, j]).max(initial=0.0) > 1e-3 or problem.penalty[j] > 0.1:
                    assert measure_failure(problem, phi, fit, fit.beta + shift) > EQUATIONS
                    checked += 1
    assert checked > 10


def solve_in_rationals(matrix: list[list[Fraction]], right: list[Fraction]) -> list[Fraction]:
    """Gauss-Jordan elimination of a regular system."""
    table, n = [[*row, value] for row, value in zip(matrix, right, strict=True)], len(right)
    for j in range(n):
        pivot = next(i for i in range(j, n) if table[i][j] != 0)
        table[j], table[pivot] = table[pivot], table[j]
        table[j] = [value / table[j][j] for value in table[j]]
        for i in range(n):
            if i != j and table[i][j] != 0:
                table[i] = [a - table[i][j] * b for a, b in zip(table[i], table[j], strict=True)]
    return [row[-1] for row in table]


@mostly_long(
    "kind", ["continuous", "tied", "lattice", "groups", "hopeless_prompts", "high_leverage"], quick=3
)
def test_ridge_regression_states_are_proven_in_rational_arithmetic(kind: str) -> None:
    """From the rows on the fit and the sides alone: sides, box, and the value within its bound, exactly."""
    for problem in list_problems(kind, 12):
        x = [[Fraction(float(v)) for v in row] for row in problem.rows.features]
        s, w = ([Fraction(float(v)) for v in a] for a in (problem.rows.scores, problem.rows.weights))
        penalty, d, tau = [Fraction(float(v)) for v in problem.penalty], problem.penalty.size, problem.tau
        for phi, fit in problem.solved():
            on, f = [int(i) for i in fit.vertex.basis], [Fraction(float(v)) for v in phi]
            off = sorted(set(range(len(x))) - set(on))
            eta = [w[i] * (tau - int(fit.vertex.below[i])) for i in range(len(x))]
            pull = [tau * f[j] + sum((eta[i] * x[i][j] for i in off), Fraction(0)) for j in range(d)]
            upper = [[*(penalty[j] * (j == k) for k in range(d)), *(-x[i][j] for i in on)] for j in range(d)]
            lower = [[*x[i], *(Fraction(0) for _ in on)] for i in on]
            solution = solve_in_rationals(upper + lower, pull + [s[i] for i in on])
            beta, duals = solution[:d], solution[d:]
            for i in off:
                residual = s[i] - sum((a * b for a, b in zip(x[i], beta, strict=True)), Fraction(0))
                assert (-residual if fit.vertex.below[i] else residual) >= -Fraction(ROUNDED)
            for i, dual in zip(on, duals, strict=True):
                assert w[i] * (tau - 1) - Fraction(ROUNDED) <= dual
                assert dual <= w[i] * tau + Fraction(ROUNDED)
            exact = sum((a * b for a, b in zip(f, beta, strict=True)), Fraction(0))
            value, bound = fit.compute_value(phi)
            assert abs(Fraction(value) - exact) <= Fraction(bound)


def test_ridge_regression_at_a_row_on_the_fit_returns_its_score() -> None:
    for problem in list_problems("continuous", 40):
        for _, fit in problem.solved():
            for row in fit.vertex.basis:
                assert fit.compute_value(problem.rows.features[row])[0] == problem.rows.scores[row]


@mostly_long("kind", sorted(KINDS), quick=6)
def test_ridge_regression_does_not_depend_on_the_start(kind: str) -> None:
    rng = np.random.default_rng(0)
    for problem in list_problems(kind, 8):
        plain = list(problem.solved())
        for _, base in plain[:1]:
            sides = rng.random(len(problem.rows)) < 0.5
            wild = Start(Vertex(base.vertex.basis, sides), rng.normal(size=base.beta.size))
            for start in (Start(base.vertex, base.beta), wild):
                solver = problem.solver(start=start)
                for phi, expected in plain:
                    fit = solver.minimise(phi)
                    value, bound = expected.compute_value(phi)
                    assert fit.compute_value(phi)[0] == pytest.approx(value, abs=EQUATIONS + 2 * bound)


def test_ridge_regression_does_not_depend_on_earlier_calls() -> None:
    for problem in list_problems("tied", 20):
        solver = problem.solver()
        first = [solver.minimise(phi) for phi in problem.queries]
        for fit, phi in zip(first[::-1], problem.queries[::-1], strict=True):
            np.testing.assert_array_equal(fit.beta, solver.minimise(phi).beta)


@mostly_long("kind", sorted(KINDS), quick=6)
def test_ridge_regression_weight_counts_like_repeated_rows(kind: str) -> None:
    rng = np.random.default_rng(1)
    for problem in list_problems(kind, 8, weighted=False):
        times = rng.integers(1, 4, len(problem.rows))
        weights = times.astype(np.float64)
        one = problem._replace(rows=Rows(problem.rows.features, problem.rows.scores, weights, weights))
        other = problem._replace(rows=problem.rows.take(np.repeat(np.arange(len(times)), times)))
        left, right = one.solver(), other.solver()
        for phi in problem.queries:
            value, bound = right.minimise(phi).compute_value(phi)
            assert left.minimise(phi).compute_value(phi)[0] == pytest.approx(value, abs=EQUATIONS + 2 * bound)


@mostly_long("kind", sorted(KINDS), quick=6)
def test_ridge_regression_accepts_rows_summed_into_a_rest(kind: str) -> None:
    rng = np.random.default_rng(2)
    for problem in list_problems(kind, 8):
        for phi, whole in problem.solved():
            outside: BoolArray = rng.random(len(problem.rows)) < 0.7
            outside[whole.vertex.basis] = False
            inside = np.flatnonzero(~outside)
            rest = RowSums.from_rows(problem.rows.take(outside), whole.vertex.below[outside])
            basis = np.searchsorted(inside, whole.vertex.basis)
            near = Start(Vertex(basis, whole.vertex.below[inside]), np.zeros(len(phi)))
            window = problem._replace(rows=problem.rows.take(inside))
            fit = window.solver(rest=rest, start=near).minimise(phi)
            value, bound = whole.compute_value(phi)
            assert fit.compute_value(phi)[0] == pytest.approx(value, abs=EQUATIONS + 2 * bound)


def draw_large_rows(rng: np.random.Generator, kind: str, size: int) -> Rows:
    t = rng.random(size)
    features = np.stack([np.ones(size), t, t**2, rng.random(size), t < 3e-3], axis=1)
    scores = 0.5 * t + 0.5 * rng.random(size)
    if kind == "tied":
        features, scores = np.round(features, 1), np.round(scores, 1)
    if kind == "hopeless":
        scores = np.where(rng.random(size) < 0.07, 2.0, scores)
    order = np.argsort(scores) if kind == "sorted" else np.arange(size)
    weights = np.ones(size)
    if kind == "weighted":
        weights[:] = rng.integers(1, 4, size)
    return Rows(features[order], scores[order], weights, weights)


RIDGE = np.array([1e-4, 1e-3, 1e-3, 0.1, 1e-6])


def assert_base_equals_direct_fit(
    rows: Rows, tau: Fraction, ridge: FloatArray, *, tied: bool = False
) -> None:
    """The state is compared as well, unless tied scores let several states have the same coefficients."""
    direct = RidgeRegression(rows, tau, (rows.weights.sum() + 1) * ridge).minimise(np.zeros(len(ridge)))
    grown = fit_penalised_base(rows, tau, ridge)
    np.testing.assert_allclose(grown.beta, direct.beta, atol=1e-9)
    if not tied:
        np.testing.assert_array_equal(grown.vertex.basis, direct.vertex.basis)
        np.testing.assert_array_equal(grown.vertex.below, direct.vertex.below)


@pytest.mark.parametrize("kind", ["continuous", "tied", "hopeless", "sorted", "weighted"])
@mostly_long(("size", "first"), [(1_500, 2_000), (3_000, 50), (9_000, 2_000), (20_000, 100)], quick=2)
def test_fit_penalised_base_equals_the_direct_fit(
    kind: str, size: int, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_warm_start, "FIRST_SAMPLE_SIZE", first)
    rows = draw_large_rows(np.random.default_rng(size), kind, size)
    assert_base_equals_direct_fit(rows, Fraction(9, 10), RIDGE, tied=kind == "tied")


def test_fit_penalised_base_finds_a_group_too_rare_for_a_subsample() -> None:
    rows, ridge = draw_large_rows(np.random.default_rng(5), "continuous", 20_000), np.append(RIDGE, 1e-6)
    for member in range(0, 20_000, 4_000 if LONG else 10_000):
        alone = (np.arange(20_000) == member)[:, None]
        grouped = replace(rows, features=np.hstack([rows.features, alone]))
        assert_base_equals_direct_fit(grouped, Fraction(1, 2), ridge)


def test_fit_penalised_base_accepts_a_subsample_too_small_for_the_level(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_warm_start, "FIRST_SAMPLE_SIZE", 50)
    rows = draw_large_rows(np.random.default_rng(4), "continuous", 3_000)
    assert_base_equals_direct_fit(rows, 1 - Fraction(1, 4_000), RIDGE)


def test_ridge_regression_is_bounded_by_a_penalty() -> None:
    rows = Rows.with_unit_weights(np.ones((3, 1)), np.array([0.2, 0.4, 0.6]))
    fit = RidgeRegression(rows, Fraction(9, 10), np.full(1, 0.1)).minimise(np.ones(1))
    # All rows lie below: 0.1 beta + 3 = 0.9 * 4.
    assert fit.compute_value(np.ones(1))[0] == pytest.approx((0.9 * 4 - 3) / 0.1)


def test_ridge_regression_splits_equal_columns_and_refuses_dependent_rows() -> None:
    rows = Rows.with_unit_weights(np.ones((5, 2)), np.linspace(0.1, 0.9, 5))
    start = Start(Vertex(np.array([0, 1]), np.zeros(5, dtype=np.bool_)), np.zeros(2))
    with pytest.raises(ThresholdError, match="nearly dependent"):
        RidgeRegression(rows, Fraction(1, 2), np.ones(2), start=start)
    fit = RidgeRegression(rows, Fraction(1, 2), np.ones(2)).minimise(np.zeros(2))
    np.testing.assert_allclose(fit.beta, fit.beta[::-1], rtol=0.0, atol=1e-15)
