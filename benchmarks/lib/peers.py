"""Other solvers of the same problem, each in a process of its own: `python -m benchmarks.lib.peers NAME ...`.

Each builds what can be built once, and returns a function of prompts. Peers take the problem as arrays and
give the threshold as a float, `inf` where it is unbounded. Solvers are asked for the limit theta -> tau from
below with feasibility tolerances of 1e-10, which is the same threshold as ours also where the optimum is not
unique; at their defaults of 1e-7 they take no less time. Processes can be stopped and have another NumPy.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.lib.measuring import ROOT, limit_threads
from benchmarks.lib.problems import TAU, FloatArray, Problem

Ask = Callable[[FloatArray], float]
Peer = Callable[[Problem], Ask]

# Slightly below tau the solution has the smallest value over the optimal face.
BELOW = float(TAU) - 1e-8
LOWER, UPPER = float(TAU) - 1.0, float(TAU)
TOLERANCE = 1e-10
TIGHT_TOLERANCES = {"primal_feasibility_tolerance": TOLERANCE, "dual_feasibility_tolerance": TOLERANCE}


def make_scipy_dual(method: str) -> Peer:
    """Solve one dual linear programme per prompt by a HiGHS method of `scipy.optimize.linprog`."""

    def build(problem: Problem) -> Ask:
        linprog = importlib.import_module("scipy.optimize").linprog
        objective, matrix = -problem.scores, problem.features.T

        def ask(phi: FloatArray) -> float:
            result = linprog(
                objective,
                A_eq=matrix,
                b_eq=-BELOW * phi,
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


# By name, with the module that each needs.
PEERS: dict[str, tuple[str, Peer]] = {
    "scipy": ("scipy.optimize", make_scipy_dual("highs")),
    "scipy ipm": ("scipy.optimize", make_scipy_dual("highs-ipm")),
    "highspy": ("highspy", make_warm_highs),
    "cvxpy": ("cvxpy", make_cvxpy_linear),
    "conditionalconformal exact": ("conditionalconformal", make_conditionalconformal(exact=True)),
    "conditionalconformal bisection": ("conditionalconformal", make_conditionalconformal(exact=False)),
    "mapie exact": ("mapie.conditional_conformal_prediction", make_mapie(exact=True)),
    "mapie bisection": ("mapie.conditional_conformal_prediction", make_mapie(exact=False)),
}
# Packages that are imported in the peers' own environment.
SEPARATE_PACKAGES = ("conditionalconformal", "mapie")
START_SECONDS = 60.0  # seconds that starting a process and importing a peer may take


@dataclass
class Answers:
    """The answers of a peer to one problem.

    Attributes:
        prepared: Seconds to build and to answer a first prompt.
        seconds: Of each answer.
        values: Thresholds; None where the peer raised an error or ran out of time.
    """

    prepared: float
    seconds: list[float]
    values: list[float | None]


def ask_peer(
    name: str, problems: Sequence[Path], *, count: int, limit: float, python: Path | None = None
) -> list[Answers] | str:
    """Ask a peer for so many thresholds of each problem; return why there are none as a text.

    Args:
        name: One of `PEERS`.
        problems: Files of `Problem.save`.
        count: Prompts of each problem, at most.
        limit: Seconds for preparing a problem, for one answer, and for all answers to a problem.
        python: Interpreter of the peers' own environment.
    """
    is_separate = name.startswith(SEPARATE_PACKAGES)
    if is_separate and python is None:
        return "--peer-python was not given"
    interpreter = str(python) if is_separate else sys.executable
    command = [interpreter, "-m", "benchmarks.lib.peers", name, str(count), str(limit), *map(str, problems)]
    try:
        ran = subprocess.run(  # noqa: S603 - our own module
            command,
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=START_SECONDS + 3 * limit * len(problems),
        )
    except subprocess.TimeoutExpired:
        return f"over {limit:g} s"
    if ran.returncode:
        lines = ran.stderr.strip().splitlines()
        return lines[-1][:80] if lines else f"the process ended with {ran.returncode}"
    return [Answers(**one) for one in json.loads(ran.stdout)]


def main() -> None:
    """Print the answers of one peer to problems as JSON."""
    limit_threads()
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what solvers print must not mix with the answers
    name, count, limit, *files = sys.argv[1:]
    module, build = PEERS[name]
    importlib.import_module(module)
    warnings.simplefilter("ignore")
    found = [_answer(build, Problem.load(Path(file)), int(count), float(limit)) for file in files]
    json.dump(found, out)
    out.close()


def _answer(build: Peer, problem: Problem, count: int, limit: float) -> dict[str, Any]:
    start = time.perf_counter()
    ask = _call_with_limit(lambda: build(problem), limit)
    if not _is_error(ask):
        _call_with_limit(lambda: ask(problem.mean), limit)
    prepared = time.perf_counter() - start
    seconds: list[float] = []
    values: list[float | None] = []
    for phi in problem.prompts[:count]:
        began = time.perf_counter()
        value = ask if _is_error(ask) else _call_with_limit(partial(ask, phi), limit)
        seconds.append(time.perf_counter() - began)
        values.append(None if _is_error(value) else value)
        if sum(seconds) > limit:
            break
    return {"prepared": prepared, "seconds": seconds, "values": values}


def _call_with_limit(call: Callable[[], Any], limit: float) -> Any:
    def stop(*_: object) -> None:
        raise TimeoutError

    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, limit)
    try:
        return call()
    except Exception as error:  # noqa: BLE001 - an error of a peer is a result
        return error
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)


def _is_error(found: Any) -> bool:
    return isinstance(found, Exception)


if __name__ == "__main__":
    main()
