"""Fitting a combination of verifiers: logistic regression of `correct` on their raw outputs.

With standardised raw outputs x_ij of candidate j of prompt i, log-odds z_ij = b + c'x_ij and labels y_ij in
{0, 1}, the fit minimises

    sum_i v_i mean_j [log(1 + exp(z_ij)) - y_ij z_ij] + RIDGE / 2 |c|^2,

where v_i is 1, shared out among the prompts of a cluster. So every prompt weighs the same, and every cluster
like a prompt that stands alone: the promise is about such prompts, one of each cluster, and a conversation of
a hundred turns shall not decide for all others. The intercept is free, which keeps the mean probability equal
to the share of correct candidates.

The penalty is a hundredth of a prompt. It does not shrink what thousands of prompts say, and it keeps
coefficients finite where the outputs separate right from wrong, and unique where two verifiers say the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from langchain_cfc._arrays import BoolArray, FloatArray
from langchain_cfc._extras import require
from langchain_cfc.combination import Combination
from langchain_cfc.draws import LabelledDraws
from langchain_cfc.errors import CalibrationError, InputError

RIDGE = 0.01
# The largest slope of the objective, per prompt, at which it counts as minimal.
_FLAT = 1e-12
_NEWTON_STEPS = 100


def fit_combination(names: Sequence[str], raw: FloatArray, fit_split: LabelledDraws) -> Combination:
    """Fit a combination of k verifiers.

    Args:
        names: Their names.
        raw: (N, n, k) finite raw outputs of the candidates.
        fit_split: The N prompts with their labels; none of them may calibrate.

    Returns:
        The combination.

    Raises:
        CalibrationError: If there is no prompt, or all candidates are correct, or all wrong.
        InputError: If the outputs of a verifier lie too far apart for their deviation to be computed.
        MissingExtraError: If SciPy is not installed.
    """
    _check_both_kinds(fit_split)
    shares = _weights(fit_split.clusters)
    weights = np.repeat(shares / fit_split.draws.n, fit_split.draws.n)
    outputs = raw.reshape(-1, raw.shape[2])
    centres, scales = _units(names, outputs, weights)
    x = np.column_stack([np.ones(len(outputs)), (outputs - centres) / scales])
    intercept, *coefficients = _minimum(_Logistic(x, fit_split.correct.ravel(), weights)).tolist()
    return Combination(
        names=tuple(names),
        centres=tuple(centres.tolist()),
        scales=tuple(scales.tolist()),
        coefficients=tuple(coefficients),
        intercept=intercept,
    )


def _check_both_kinds(fit_split: LabelledDraws) -> None:
    correct = fit_split.correct
    if correct.size and correct.any() and not correct.all():
        return
    found = "no prompt" if not correct.size else f"no {'wrong' if correct.any() else 'correct'} candidate"
    msg = (
        f"a combination of verifiers is fitted on prompts that calibration never sees, but the fit split "
        f"holds {found}: raise fit_fraction, or bring more records (a cluster is never split, so many "
        "clusters are needed)"
    )
    raise CalibrationError(msg)


def _weights(clusters: Sequence[str | None]) -> FloatArray:
    """(N,) weights of the prompts: 1, shared out among the prompts of a cluster."""
    sizes = Counter(clusters)
    return np.array([1.0 if name is None else 1.0 / sizes[name] for name in clusters])


def _units(names: Sequence[str], outputs: FloatArray, weights: FloatArray) -> tuple[FloatArray, FloatArray]:
    """(k,) means and standard deviations."""
    low, high = outputs.min(axis=0), outputs.max(axis=0)
    # A constant is left alone: the mean of equal numbers may miss them by round-off, which a deviation of the
    # same size would blow up. Its column is zero, and so is its coefficient.
    constant = low == high
    with np.errstate(over="ignore", invalid="ignore"):
        span = np.where(constant, 1.0, high - low)
        shares = (outputs - low) / span
        means = np.average(shares, axis=0, weights=weights)
        deviations = np.sqrt(np.average((shares - means) ** 2, axis=0, weights=weights))
        centres = np.where(constant, low, low + span * means)
        scales = np.where(constant, 1.0, span * deviations)
    unusable = ~(np.isfinite(centres) & np.isfinite(scales) & (scales > 0.0))
    if unusable.any():
        column = int(np.flatnonzero(unusable)[0])
        msg = (
            f"the raw outputs of {names[column]!r} run from {low[column]} to {high[column]}, too far "
            "apart, or too near each other, to be standardised"
        )
        raise InputError(msg)
    return centres, scales


@dataclass(frozen=True)
class _Logistic:
    """The objective above, divided by the number of prompts and clusters.

    Attributes:
        x: (M, k + 1) a constant and the standardised outputs.
        correct: (M,) labels.
        weights: (M,) weights of the candidates.
    """

    x: FloatArray
    correct: BoolArray
    weights: FloatArray

    @property
    def size(self) -> float:
        """The number of prompts, each cluster counting as one."""
        return float(self.weights.sum())

    @property
    def penalties(self) -> FloatArray:
        """(k + 1,) penalties: none on the intercept."""
        return np.array([0.0] + [RIDGE] * (self.x.shape[1] - 1))

    def value(self, theta: FloatArray) -> float:
        """The objective."""
        z = self.x @ theta
        losses = np.logaddexp(0.0, z) - self.correct * z
        return float(self.weights @ losses + self.penalties @ theta**2 / 2.0) / self.size

    def gradient(self, theta: FloatArray) -> FloatArray:
        """(k + 1,) its slope."""
        surprise = _expit(self.x @ theta) - self.correct
        return np.asarray((self.x.T @ (self.weights * surprise) + self.penalties * theta) / self.size)

    def hessian(self, theta: FloatArray) -> FloatArray:
        """(k + 1, k + 1) its curvature."""
        p = _expit(self.x @ theta)
        curvature = (self.x.T * (self.weights * p * (1.0 - p))) @ self.x
        return np.asarray((curvature + np.diag(self.penalties)) / self.size)


def _minimum(objective: _Logistic) -> FloatArray:
    optimize = require("scipy.optimize", "calibrate", "fitting a combination of verifiers")
    found = optimize.minimize(
        objective.value,
        np.zeros(objective.x.shape[1]),
        method="trust-exact",
        jac=objective.gradient,
        hess=objective.hessian,
        options={"gtol": 1e-6, "maxiter": 1000},
    )
    # The solver compares values, which round-off makes equal at a distance of its square root from the
    # minimum. Newton's own steps go by the slope, and reach the last digits.
    theta, slope = np.asarray(found.x, dtype=np.float64), np.inf
    for _ in range(_NEWTON_STEPS):
        gradient = objective.gradient(theta)
        slope = float(np.abs(gradient).max())
        if slope <= _FLAT:
            return theta
        theta = theta - np.linalg.solve(objective.hessian(theta), gradient)
    msg = (
        f"the combination of verifiers could not be fitted: the slope is still {slope:.1e} "
        f"({found.message}); look for outliers among the raw outputs"
    )
    raise CalibrationError(msg)


def _expit(values: FloatArray) -> FloatArray:
    return np.asarray(0.5 + 0.5 * np.tanh(0.5 * values))
