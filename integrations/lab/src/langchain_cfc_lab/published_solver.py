"""The published code's conditional solver in its exact mode, emulated, and where it is wrong.

The threshold of a prompt with features phi is the largest score S for which its dual variable in the
augmented quantile regression stays below tau = 1 - alpha (Gibbs, Cherian and Candes 2023). The published code
(github.com/FlynnYe/CFC-LLMs at commit 2fc0be6, a copy of theirs) starts from the regression on the
calibration prompts, sets S to the fitted value there, and raises S from one change of the basis to the next
until the dual variable reaches tau. Facts that its results depend on:

- The basis of d prompts is read off HiGHS's solution: those whose dual variable is not within 1e-5 of a
  bound, filled up with prompts whose score is fitted to 1e-8.
- **Changes of S of at most 1e-5 are skipped**: a prompt that would enter the basis there never enters. So
  scores that tie with the fit, such as S = 1 of all prompts without a correct candidate, are passed over,
  and the threshold is too high, up to the clip at 1. Without ties, and with scores further apart than that,
  the path is right.
- If no prompt is left that could enter, the threshold is infinite, then clipped.
- If the basis has not d prompts or is singular, the code bisects over S for a dual variable *above* tau,
  which no solution has. So it always ends at its upper limit, twice the largest score, and takes the fitted
  value there. That is a threshold of the theorem where the solution is unique.

Ours beside it is `ConditionalThreshold`, the smallest fitted value over all solutions, without tolerances.
"""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np

from langchain_cfc.support.arrays import BoolArray, FloatArray

_SKIPPED = 1e-5
_MOST_STEPS = 10_000


class PublishedSolver:
    """Thresholds by the exact mode of the published solver.

    Args:
        features: (N, d) features of the calibration prompts.
        success: (N,) their success scores.
        tau: Target coverage 1 - alpha, at least 0.5.

    Attributes:
        bisected: Number of prompts for which the path could not be followed.
    """

    def __init__(self, features: FloatArray, success: FloatArray, tau: float) -> None:
        _, singular, directions = np.linalg.svd(features, full_matrices=False)
        # Features of less than full rank are replaced by as many combinations as their rank.
        kept = directions[singular > 1e-10].T  # noqa: PLR2004
        self.reduction = np.eye(features.shape[1]) if kept.shape[1] == features.shape[1] else kept
        self.features, self.success, self.tau = features @ self.reduction, success, tau
        self.duals, self.beta = _solve_regression(self.features, success, tau, "highs")
        self.bisected = 0

    def compute_threshold(self, phi: FloatArray) -> float:
        """Return the unclipped threshold of a prompt with (d,) features."""
        reduced = phi @ self.reduction
        if np.allclose(reduced, 0.0):
            return np.inf
        try:
            return self._follow_path(reduced)
        except (np.linalg.LinAlgError, ValueError):
            self.bisected += 1
            return self._fit_at_limit(reduced)

    def _find_basis(self) -> BoolArray:
        """Return which of the N prompts form the first basis; raise a ValueError unless there are d."""
        d, near = self.features.shape[1], np.isclose
        basis = ~near(self.duals, self.tau - 1.0) & ~near(self.duals, self.tau)
        missing = d - int(basis.sum())
        if missing:
            fitted = near(np.abs(self.success - self.features @ self.beta), 0.0) & ~basis
            others = np.flatnonzero(fitted)
            if missing < len(others):
                held = np.flatnonzero(basis)
                tried = (list(some) for some in combinations(others.tolist(), missing))
                rows = (some for some in tried if np.isfinite(np.linalg.cond(self.features[[*held, *some]])))
                others = np.array(next(rows, []), dtype=np.int64)
            basis[others] = True
        if int(basis.sum()) != d:
            msg = "no first basis"
            raise ValueError(msg)
        return basis

    def _follow_path(self, phi: FloatArray) -> float:
        size, tau = len(self.success), self.tau
        basis = np.append(self._find_basis(), False)
        duals, rows = np.append(self.duals, 0.0), np.vstack([self.features, phi])
        scores = np.append(self.success, phi @ self.beta)
        entering = size
        for _ in range(_MOST_STEPS):
            held = np.flatnonzero(basis)
            direction = -np.linalg.solve(rows[held].T, rows[entering])
            moving = ~np.isclose(direction, 0.0)
            rises = entering == size or duals[entering] <= 0.0
            ends = np.array([tau, tau - 1.0])[:, None]
            room = (ends - duals[held[moving]]) / direction[moving]
            place = room.max(axis=0).argmin() if rises else room.min(axis=0).argmax()
            step = room[:, place].max() if rises else room[:, place].min()
            taken = float(np.clip(step, tau - 1.0 - duals[entering], tau - duals[entering]))
            duals[held] += taken * direction
            duals[entering] += taken
            if duals[size] > tau:
                break
            if taken == step:
                basis[held[moving][place]], basis[entering] = False, True
            if np.isclose(duals[size], tau):
                break
            outside = np.flatnonzero(~basis)
            combined = np.linalg.solve(rows[basis].T, rows[outside].T)
            pull = combined[-1]  # the new prompt is last in the basis
            change = np.full(len(outside), np.inf)
            pulls = ~np.isclose(pull, 0.0)
            change[pulls] = (scores[outside] - scores[basis] @ combined)[pulls] / pull[pulls]
            change[change <= _SKIPPED] = np.inf
            if not np.isfinite(change).any():
                return np.inf
            entering = int(outside[change.argmin()])
            scores[size] += change.min()
        return float(scores[size])

    def _fit_at_limit(self, phi: FloatArray) -> float:
        """Return the fitted value for a new score far above all others."""
        limit = 2.0 * max(float(np.abs(self.success).max()), 1.0)
        features, success = np.vstack([self.features, phi]), np.append(self.success, limit)
        _, beta = _solve_regression(features, success, self.tau, "highs-ds", {"presolve": False})
        return float(phi @ beta)


def solve_plain_regression(features: FloatArray, success: FloatArray, alpha: float) -> FloatArray:
    """Return the (d,) coefficients of the (1 - alpha)-quantile regression by HiGHS; see `conventions`."""
    return _solve_regression(features, success, 1.0 - alpha, "highs")[1]


def _solve_regression(
    features: FloatArray, success: FloatArray, tau: float, method: str, options: dict[str, bool] | None = None
) -> tuple[FloatArray, FloatArray]:
    """Return the (N,) dual variables and the (d,) coefficients of a quantile regression."""
    from scipy.optimize import linprog  # late: SciPy takes long to import

    solve: Any = linprog
    solved = solve(
        -success,
        A_eq=features.T,
        b_eq=np.zeros(features.shape[1]),
        bounds=(tau - 1.0, tau),
        method=method,
        options=options,
    )
    return np.asarray(solved.x, dtype=np.float64), -np.asarray(solved.eqlin.marginals, dtype=np.float64)
