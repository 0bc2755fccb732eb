"""Other solvers of the same problem. Each builds what can be built once, and returns a function of prompts.

Peers take the problem as arrays and give the threshold as a float, `inf` where it is unbounded. Solvers are
asked for the limit theta -> tau from below with feasibility tolerances of 1e-10, which is the same threshold
as ours also where the optimum is not unique; at their defaults of 1e-7 they take no less time.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.lib.problems import TAU, FloatArray, Problem

Ask = Callable[[FloatArray], float]
Peer = Callable[[Problem], Ask | None]
"""Builds, and returns how a prompt is answered; None from a peer that fits and does not answer."""

BELOW, ABOVE = float(TAU) - 1e-8, float(TAU) + 1e-8
LOWER, UPPER = float(TAU) - 1.0, float(TAU)
TOLERANCE = 1e-10
TIGHT_TOLERANCES = {"primal_feasibility_tolerance": TOLERANCE, "dual_feasibility_tolerance": TOLERANCE}
CLARABEL_SETTINGS = {"tol_gap_abs": 1e-12, "tol_gap_rel": 1e-12, "tol_feas": 1e-12, "max_threads": 1}


def make_scipy_dual(method: str, theta: float = BELOW) -> Peer:
    """Solve one dual linear programme per prompt by a HiGHS method of `scipy.optimize.linprog`.

    `theta` is the weight of the prompt: slightly below tau gives the smallest value over the optimal face,
    slightly above it the largest.
    """

    def build(problem: Problem) -> Ask:
        linprog = importlib.import_module("scipy.optimize").linprog
        objective, matrix = -problem.scores, problem.features.T

        def ask(phi: FloatArray) -> float:
            result = linprog(
                objective,
                A_eq=matrix,
                b_eq=-theta * phi,
                bounds=(LOWER, UPPER),
                method=method,
                options=TIGHT_TOLERANCES,
            )
            if result.status == 2:  # noqa: PLR2004 - infeasible: nothing bounds the threshold
                return float("inf")
            if result.status != 0:
                raise ArithmeticError(result.message)
            return float(-result.eqlin.marginals @ phi)

        return ask

    return build


def make_warm_highs(problem: Problem) -> Ask:
    """Use HiGHS directly: a prompt changes the right-hand side of one model, starting at the last basis."""
    highspy = importlib.import_module("highspy")
    size, d = problem.features.shape
    solver = highspy.Highs()
    settings = {"output_flag": False, "threads": 1, **TIGHT_TOLERANCES}
    for name, value in settings.items():
        solver.setOptionValue(name, value)
    model = highspy.HighsLp()
    model.num_col_, model.num_row_ = size, d
    model.col_cost_ = -problem.scores
    model.col_lower_, model.col_upper_ = np.full(size, LOWER), np.full(size, UPPER)
    model.row_lower_ = model.row_upper_ = np.zeros(d)
    model.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    model.a_matrix_.start_ = np.arange(size + 1) * d
    model.a_matrix_.index_ = np.tile(np.arange(d), size)
    model.a_matrix_.value_ = problem.features.ravel()
    solver.passModel(model)
    rows = np.arange(d, dtype=np.int32)
    infinite = {highspy.HighsModelStatus.kInfeasible, highspy.HighsModelStatus.kUnboundedOrInfeasible}

    def ask(phi: FloatArray) -> float:
        right = -BELOW * phi
        solver.changeRowsBounds(d, rows, right, right)
        solver.run()
        status = solver.getModelStatus()
        if status in infinite:
            return float("inf")
        if status != highspy.HighsModelStatus.kOptimal:
            raise ArithmeticError(str(status))
        return float(-np.asarray(solver.getSolution().row_dual) @ phi)

    return ask


def make_cvxpy_linear(problem: Problem) -> Ask:
    """Solve the dual as a parametrised cvxpy problem, compiled once, by HiGHS; Clarabel is less exact."""
    cp = importlib.import_module("cvxpy")
    eta, right = cp.Variable(len(problem.scores)), cp.Parameter(problem.features.shape[1])
    balance = problem.features.T @ eta == right
    programme = cp.Problem(cp.Maximize(problem.scores @ eta), [balance, eta >= LOWER, eta <= UPPER])

    def ask(phi: FloatArray) -> float:
        right.value = -BELOW * phi
        programme.solve(solver=cp.HIGHS, threads=1, **TIGHT_TOLERANCES)
        if programme.status == cp.INFEASIBLE:
            return float("inf")
        if programme.status != cp.OPTIMAL:
            raise ArithmeticError(programme.status)
        return float(balance.dual_value @ phi)

    return ask


def make_cvxpy_ridge(problem: Problem) -> Ask:
    """Solve the dual with ridge as a parametrised cvxpy problem by Clarabel to 1e-12.

    The penalty is (N + 1) ridge / 2 times the squared coefficients of the standardised features; a constant
    column is the intercept and free.
    """
    cp = importlib.import_module("cvxpy")
    size, d = problem.features.shape
    spread = problem.features.std(axis=0)
    penalised = spread > 0
    centre = np.where(penalised, problem.mean, 0.0)
    scale = np.where(penalised, spread, 1.0)
    columns = (problem.features - centre) / scale
    eta, right = cp.Variable(size), cp.Parameter(d)
    balances = [columns[:, ~penalised].T @ eta + right[~penalised] == 0]
    objective = -problem.scores @ eta
    if penalised.any():
        pull = cp.Variable(int(penalised.sum()))
        balances.append(columns[:, penalised].T @ eta + right[penalised] == pull)
        objective += cp.sum_squares(pull) / (2 * (size + 1) * problem.ridge)
    programme = cp.Problem(cp.Minimize(objective), [*balances, eta >= LOWER, eta <= UPPER])

    def ask(phi: FloatArray) -> float:
        standard = (phi - centre) / scale
        right.value = float(TAU) * standard  # with a penalty the fit moves with theta, so no nudge
        programme.solve(solver=cp.CLARABEL, **CLARABEL_SETTINGS)
        if programme.status == cp.INFEASIBLE:
            return float("inf")
        if programme.status not in {cp.OPTIMAL, cp.OPTIMAL_INACCURATE}:
            raise ArithmeticError(programme.status)
        value = balances[0].dual_value @ standard[~penalised]
        return float(value + (balances[1].dual_value @ standard[penalised] if penalised.any() else 0.0))

    return ask


def fit_sklearn(problem: Problem) -> None:
    """Fit `QuantileRegressor` to the calibration data, without the prompt's term; it answers no prompts."""
    linear = importlib.import_module("sklearn.linear_model")
    regression = linear.QuantileRegressor(quantile=UPPER, alpha=0.0, fit_intercept=False, solver="highs")
    regression.fit(problem.features, problem.scores)


def make_conditionalconformal(exact: bool) -> Peer:
    """Use the package of the paper's authors on features and scores; `exact` pivots, else bisection."""

    def build(problem: Problem) -> Ask:
        package = importlib.import_module("conditionalconformal")
        method = package.CondConf(score_fn=_return_second, Phi_fn=_return_first)
        method.setup_problem(problem.features, problem.scores)

        def ask(phi: FloatArray) -> float:
            answer: Any = method.predict(UPPER, phi[np.newaxis], score_inv_fn=_return_first, exact=exact)
            return float(np.ravel(answer)[0])

        return ask

    return build


def make_mapie(exact: bool) -> Peer:
    """Use MAPIE's conditional regressor; a prediction of 0 makes its absolute residuals our scores."""

    def build(problem: Problem) -> Ask:
        package = importlib.import_module("mapie.conditional_conformal_prediction")
        dummy = importlib.import_module("sklearn.dummy").DummyRegressor(strategy="constant", constant=0.0)
        method = package.ConditionalSplitConformalRegressor(
            feature_map=_return_first,
            estimator=dummy.fit(problem.features, problem.scores),
            confidence_level=UPPER,
            exact=exact,
        )
        method.conformalize(problem.features, problem.scores)

        def ask(phi: FloatArray) -> float:
            return float(method.predict_interval(phi[np.newaxis])[1][0, 1, 0])

        return ask

    return build


def _return_first(first: Any, _: Any = None) -> Any:
    return first


def _return_second(_: Any, second: Any) -> Any:
    return second


PEERS = {
    "scipy": ("scipy.optimize", make_scipy_dual("highs")),
    "scipy ipm": ("scipy.optimize", make_scipy_dual("highs-ipm")),
    "scipy above": ("scipy.optimize", make_scipy_dual("highs", ABOVE)),
    "highspy": ("highspy", make_warm_highs),
    "cvxpy": ("cvxpy", make_cvxpy_linear),
    "cvxpy ridge": ("cvxpy", make_cvxpy_ridge),
    "sklearn": ("sklearn.linear_model", fit_sklearn),
    "conditionalconformal exact": ("conditionalconformal", make_conditionalconformal(exact=True)),
    "conditionalconformal bisection": ("conditionalconformal", make_conditionalconformal(exact=False)),
    "mapie exact": ("mapie.conditional_conformal_prediction", make_mapie(exact=True)),
    "mapie bisection": ("mapie.conditional_conformal_prediction", make_mapie(exact=False)),
}
"""Peers by name, with the module that each needs. `scipy above` gives the other end of the optimal face."""

LINEAR_PEERS = (
    "scipy",
    "scipy ipm",
    "highspy",
    "cvxpy",
    "sklearn",
    "conditionalconformal exact",
    "conditionalconformal bisection",
    "mapie exact",
    "mapie bisection",
)
RIDGE_PEERS = ("cvxpy ridge",)
SEPARATE_PACKAGES = ("conditionalconformal", "mapie")
"""Packages that are imported in the peers' own environment."""
