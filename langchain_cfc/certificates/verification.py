"""`verify`: check an artifact's thresholds with a solver that shares no code with this library.

The artifact holds calibration prompts one by one and the sums of all others, so any solver can solve the same
regression that its thresholds come from. Here CVXPY passes it to HiGHS (simplex); with a ridge it is no
linear programme, and goes to Clarabel (interior points).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from langchain_cfc.artifact import CalibrationArtifact
from langchain_cfc.errors import InputError, OutsideCertifiedRegionError, ThresholdError
from langchain_cfc.features import AdaptiveAlpha
from langchain_cfc.support.arrays import FloatArray
from langchain_cfc.support.imports import require
from langchain_cfc.thresholds import ConditionalThreshold, compute_tau

# Thresholds may differ by this much. They are solved for theta just below tau, which stands for the limit;
# the solvers' own tolerances are far smaller.
TOLERANCE = 1e-6
THETA_DISTANCE = 1e-8
HIGHS_OPTIONS = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}
CLARABEL_OPTIONS = {"tol_gap_abs": 1e-10, "tol_gap_rel": 1e-10, "tol_feas": 1e-10}


@dataclass(frozen=True)
class LevelVerification:
    """The result of verifying one error level.

    Attributes:
        alpha: Error level.
        complete: Whether all calibration prompts are in the artifact one by one; else most of them enter by
            their sums, and only the artifact's own proof shows that they stay on their side of the fit.
        kept: Calibration prompts in the artifact one by one, equal ones counted once.
        prompts: Prompts asked about.
        infinite: How many of them have an infinite threshold.
        outside: How many lie outside the certified region, and were left out.
        contradicted: How many thresholds are infinite here but not for the other solver, or the reverse.
        largest_difference: Largest difference between finite thresholds.
    """

    alpha: str
    complete: bool
    kept: int
    prompts: int
    infinite: int
    outside: int
    contradicted: int
    largest_difference: float

    @property
    def agrees(self) -> bool:
        """Whether the other solver confirms every threshold."""
        return self.contradicted == 0 and self.largest_difference <= TOLERANCE


def verify(
    artifact: CalibrationArtifact,
    *,
    prompts: int = 20,
    progress: Callable[[Iterable[FloatArray]], Iterable[FloatArray]] = iter,
) -> list[LevelVerification]:
    """Solve a sample of thresholds again, with HiGHS, or with Clarabel if there is a ridge.

    Args:
        artifact: An artifact with the conditional rule.
        prompts: How many kept calibration prompts to ask about, besides the mean one.
        progress: Wraps the sample of each level, for a progress bar.

    Returns:
        The results, level by level.

    Raises:
        InputError: If the artifact's rule is not the conditional one: others need no solver.
        MissingExtraError: If CVXPY is not installed.
    """
    levels, adaptive = [], artifact.feature_map.adaptive_alpha
    for level in artifact.levels:
        rule = artifact.get_rule(level.alpha)
        if not isinstance(rule, ConditionalThreshold):
            msg = "order statistics of groups need no solver: there is nothing to verify"
            raise InputError(msg)
        levels.append(_verify_level(rule, artifact.unpack_state(level.rule), prompts, progress, adaptive))
    return levels


def _verify_level(
    rule: ConditionalThreshold,
    state: Mapping[str, FloatArray],
    prompts: int,
    progress: Callable[[Iterable[FloatArray]], Iterable[FloatArray]],
    adaptive: AdaptiveAlpha | None,
) -> LevelVerification:
    features, size = state["features"], len(state["features"])
    chosen = np.random.default_rng(0).choice(size, min(prompts, size), replace=False)
    sample = np.vstack([features.mean(axis=0, keepdims=True), features[np.sort(chosen)]])
    solver = _ReferenceSolver(state, rule)
    differences = [0.0]
    infinite = outside = contradicted = 0
    for reduced in progress(sample):
        phi = _restore_features(reduced, state)
        alpha = None
        if adaptive is not None:
            alpha = float(adaptive.read_alphas(phi[np.newaxis], str(rule.alpha))[0])
        try:
            ours = rule.threshold(phi, alpha=alpha)
        except OutsideCertifiedRegionError:
            outside += 1
            continue
        tau = float(compute_tau(rule.alpha if alpha is None else alpha))
        theirs = solver.compute_threshold(reduced, tau)
        reaches = theirs >= rule.cap - TOLERANCE
        infinite += bool(np.isinf(ours))
        if np.isinf(ours) != reaches:
            contradicted += 1
        elif not reaches:
            differences.append(abs(ours - theirs))
    return LevelVerification(
        alpha=str(rule.alpha),
        complete=not state["rest"].any(),
        kept=size,
        prompts=len(sample),
        infinite=infinite,
        outside=outside,
        contradicted=contradicted,
        largest_difference=max(differences),
    )


def _restore_features(reduced: FloatArray, state: Mapping[str, FloatArray]) -> FloatArray:
    """Return (d,) features from their independent, scaled columns; with a ridge from all scaled columns."""
    kept, scale = state["kept"].astype(np.int64), state["scale"]
    if "penalty" in state:
        return reduced * scale
    phi = np.empty(len(scale))
    phi[kept] = reduced
    phi[np.setdiff1d(np.arange(len(scale)), kept)] = reduced @ state["mixture"]
    return phi * scale


class _ReferenceSolver:
    """The regression of one level, solved through CVXPY."""

    def __init__(self, state: Mapping[str, FloatArray], rule: ConditionalThreshold) -> None:
        self._cvxpy: Any = require("cvxpy", "verify", "verification")
        features, scores = state["features"], state["success_scores"]
        weights = state["weights"] if len(state["weights"]) else np.ones(len(scores))
        (low, total, _), (below, everyone) = state["rest"], state["rest_scores"]
        # Weights times coverages, for the prompts one by one and for the sum of all others.
        targets, rest_target = weights, total
        if rule.has_levels:
            targets, rest_target = state["targets"], state["rest_target"]
        unit = float(rule.unit)
        self._beta = self._cvxpy.Variable(features.shape[1])
        self._linear = self._cvxpy.Parameter(features.shape[1])
        over, under = (self._cvxpy.Variable(len(scores), nonneg=True) for _ in range(2))
        others = unit * everyone - below + (low - unit * rest_target) @ self._beta
        pinball = (unit * targets) @ over + (weights - unit * targets) @ under
        self._penalised = "penalty" in state
        penalty = 0.0
        if self._penalised:
            penalty = 0.5 * self._cvxpy.sum_squares(
                self._cvxpy.multiply(np.sqrt(state["penalty"]), self._beta)
            )
        self._problem = self._cvxpy.Problem(
            self._cvxpy.Minimize(pinball + others + penalty - self._linear @ self._beta),
            [features @ self._beta + over - under == scores],
        )

    def compute_threshold(self, phi: FloatArray, tau: float) -> float:
        """Return the smallest fit at a prompt of coverage tau; `inf` if the problem is unbounded."""
        self._linear.value = (tau - THETA_DISTANCE) * phi
        settings: dict[str, Any] = {"solver": "HIGHS", "highs_options": HIGHS_OPTIONS}
        if self._penalised:
            settings = {"solver": "CLARABEL", **CLARABEL_OPTIONS}
        try:
            self._problem.solve(**settings)
        except self._cvxpy.error.SolverError as error:
            msg = f"{settings['solver']} could not compute a threshold, so it cannot be verified: {error}"
            raise ThresholdError(msg) from error
        return float(phi @ self._beta.value) if self._problem.status == "optimal" else np.inf
