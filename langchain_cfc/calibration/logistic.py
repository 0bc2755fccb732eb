"""Logistic regression with a penalty on its slopes.

With standardised inputs x_i of prompt i, log-odds z_i = b + c'x_i, labels y_i in {0, 1} and weights v_i, the
fit minimises

    sum_i v_i [log(1 + exp(z_i)) - y_i z_i] + ridge / 2 |c|^2.

The intercept is free, which keeps the mean probability equal to the share of ones.
"""

from __future__ import annotations

import numpy as np

from langchain_cfc.errors import CalibrationError
from langchain_cfc.support.arrays import BoolArray, FloatArray

# Largest gradient per prompt at which the objective counts as minimal, and the most steps and halvings.
_GRADIENT_TOLERANCE, _MAX_NEWTON_STEPS, _MAX_HALVINGS = 1e-12, 100, 30


def fit_logistic(
    x: FloatArray, outcomes: FloatArray | BoolArray, weights: FloatArray, ridge: float
) -> FloatArray:
    """Fit a logistic regression with a ridge penalty on its slopes.

    Args:
        x: (M, k + 1) a constant and the standardised inputs.
        outcomes: (M,) zeros and ones, or shares of ones, not all 0 and not all 1.
        weights: (M,) weights above 0.
        ridge: Penalty of the slopes, above 0.

    Returns:
        (k + 1,) the intercept and the slopes.

    Raises:
        CalibrationError: If no minimum is found.
    """
    size = float(weights.sum())
    penalties = np.array([0.0] + [ridge] * (x.shape[1] - 1))  # none on the intercept

    def objective(theta: FloatArray) -> float:
        z = x @ theta
        losses = np.logaddexp(0.0, z) - outcomes * z
        return float(weights @ losses + penalties @ theta**2 / 2.0) / size

    def gradient(theta: FloatArray) -> FloatArray:
        residuals = expit(x @ theta) - outcomes
        return np.asarray((x.T @ (weights * residuals) + penalties * theta) / size)

    def hessian(theta: FloatArray) -> FloatArray:
        p = expit(x @ theta)
        curvature = (x.T * (weights * p * (1.0 - p))) @ x
        return np.asarray((curvature + np.diag(penalties)) / size)

    # Damped Newton steps: the objective is strictly convex, so a short enough step always lowers it. Near the
    # minimum round-off hides the fall, and the gradient decides.
    theta, largest = np.zeros(x.shape[1]), np.inf
    for _ in range(_MAX_NEWTON_STEPS):
        slope = gradient(theta)
        largest = float(np.abs(slope).max())
        if largest <= _GRADIENT_TOLERANCE:
            return theta
        step, before = np.linalg.solve(hessian(theta), slope), objective(theta)
        lengths = (2.0**-halvings for halvings in range(_MAX_HALVINGS))
        theta = theta - step * next((one for one in lengths if objective(theta - one * step) < before), 1.0)
    msg = (
        f"logistic regression could not be fitted: the gradient is still {largest:.1e}; look for outliers "
        "among the scores"
    )
    raise CalibrationError(msg)


def expit(values: FloatArray) -> FloatArray:
    """Return the logistic function 1 / (1 + exp(-v)) of each value."""
    return np.asarray(0.5 + 0.5 * np.tanh(0.5 * values))
