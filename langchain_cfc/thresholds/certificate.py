"""What proves a threshold: numbers that anyone can check, without trust in the solver that found them."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from langchain_cfc._arrays import FloatArray
from langchain_cfc.thresholds.rows import Rest, Rows
from langchain_cfc.thresholds.vertex import Fit


@dataclass(frozen=True)
class Certificate:
    """A fit and a dual vector with the same objective: neither can be improved (weak duality).

    The primal problem is to minimise sum_i w_i rho_tau(S_i - x_i' beta) - tau phi' beta over beta, the dual
    one to maximise S' eta subject to X' eta = -tau phi and w_i (tau - 1) <= eta_i <= w_i tau, both over all N
    calibration prompts: those kept one by one, the others by their sums.

    Attributes:
        value: The fit at the prompt, phi' beta: the threshold, unless it reaches the cap and so is infinite.
        error: Bound on the round-off in it.
        primal: Objective of the fit.
        dual: Objective of the dual vector, computed from it alone.
        balance: Largest absolute entry of X' eta + tau phi, relative to that of the sum of |eta_i x_i|.
        basis_features: (r, r) kept, scaled features of the prompts that the fit goes through.
        basis_scores: (r,) their success scores.
        basis_dual: (r,) their dual variables; tau above the fit and tau - 1 below it for all other prompts,
            times their weight.
        above: Weight of the kept prompts above the fit.
        below: Weight of the kept prompts below the fit.
        distance: How far the fit lies from the base fit.
        radius: How far it may lie for no prompt left out to change sides; `inf` if none was left out.
    """

    value: float
    error: float
    primal: float
    dual: float
    balance: float
    basis_features: FloatArray
    basis_scores: FloatArray
    basis_dual: FloatArray
    above: float
    below: float
    distance: float
    radius: float

    @property
    def gap(self) -> float:
        """Primal minus dual objective: zero up to round-off for an optimal pair, never less."""
        return self.primal - self.dual


def certificate_of(
    fit: Fit, phi: FloatArray, tau: Fraction, rows: Rows, rest: Rest, *, distance: float, radius: float
) -> Certificate:
    """The certificate of an optimal vertex over `rows` and the sums of the `rest`.

    Args:
        fit: The vertex.
        phi: (d,) reduced features of the prompt.
        tau: Target coverage.
        rows: Rows that the vertex gives sides to.
        rest: Sums of all others.
        distance: How far the fit lies from the base fit.
        radius: How far it may lie.

    Returns:
        The certificate.
    """
    t, below, basis = float(tau), fit.vertex.below, fit.vertex.basis
    residuals = rows.scores - rows.features @ fit.beta
    pinball = rows.weights * np.maximum(t * residuals, (t - 1.0) * residuals)
    others = t * (rest.all_scores - rest.total @ fit.beta) - (rest.below_scores - rest.low @ fit.beta)
    value, error = fit.value(phi)
    eta = rows.weights * (t - below)
    eta[basis] = 0.0
    outside = t * rest.total - rest.low
    eta[basis] = np.linalg.solve(fit.solution.rows.T, -t * phi - outside - eta @ rows.features)
    left = eta @ rows.features + outside + t * phi
    size = np.abs(eta) @ np.abs(rows.features) + rest.mass + t * np.abs(phi)
    free = np.ones(len(rows), dtype=np.bool_)
    free[basis] = False
    return Certificate(
        value=value,
        error=error,
        primal=float(pinball.sum() + others - t * value),
        dual=float(eta @ rows.scores + t * rest.all_scores - rest.below_scores),
        balance=float((np.abs(left) / np.where(size > 0.0, size, 1.0)).max(initial=0.0)),
        basis_features=fit.solution.rows,
        basis_scores=fit.solution.scores,
        basis_dual=eta[basis],
        above=float(rows.weights @ (free & ~below)),
        below=float(rows.weights @ (free & below)),
        distance=distance,
        radius=radius,
    )
