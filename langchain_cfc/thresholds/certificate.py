"""Certificates of optimality: a primal and a dual solution that prove a threshold without the solver."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from langchain_cfc.support.arrays import FloatArray
from langchain_cfc.thresholds._rows import Rows, RowSums
from langchain_cfc.thresholds._simplex import Vertex


@dataclass(frozen=True)
class Certificate:
    """A fit and a dual vector with the same objective: neither can be improved (weak duality).

    If all prompts have one level, the primal problem is to minimise sum_i w_i rho_tau(S_i - x_i' beta) - tau
    phi' beta over beta, and the dual is to maximise S' eta subject to X' eta = -tau phi and w_i (tau - 1) <=
    eta_i <= w_i tau. Both are over all N calibration prompts: those kept enter one by one, the others through
    their sums. A ridge adds 1/2 sum_j D_j beta_j^2 to the primal; then X' eta + tau phi is free along
    penalised columns, and half its square over D_j is subtracted from the dual. With levels, tau is the
    coverage of prompt i in its loss and its bounds, and the coverage of the prompt answered in tau phi.

    Attributes:
        value: The fit at the prompt, phi' beta: the threshold, unless it reaches the cap and so is infinite.
        error: Bound on the round-off in the value.
        primal: Objective of the fit.
        dual: Objective of the dual vector, computed from it alone.
        balance: Largest entry of X' eta + tau phi along columns without a penalty, relative to the size of
            its terms.
        basis_features: (r, r) kept, scaled features of the prompts that the fit goes through.
        basis_scores: (r,) their success scores.
        basis_dual: (r,) their dual variables. Other prompts have their weight times tau above the fit, and
            times tau - 1 below it.
        above: Weight of the kept prompts above the fit.
        below: Weight of the kept prompts below the fit.
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

    @property
    def gap(self) -> float:
        """Primal minus dual objective: zero up to round-off for an optimal pair, never less."""
        return self.primal - self.dual


@dataclass(frozen=True)
class Problem:
    """The regression problem that a certificate refers to."""

    rows: Rows  # Calibration prompts one by one
    rest: RowSums  # Sums of all others
    tau: float  # Coverage of which targets are multiples
    penalty: FloatArray  # (d,) ridge penalties; zeros without a ridge
    phi: FloatArray  # (d,) reduced features of the prompt, times its target

    def certify(self, vertex: Vertex, beta: FloatArray, value: tuple[float, float]) -> Certificate:
        """Build the certificate of a fit, from its vertex, coefficients (d,), and value with its error.

        The dual variables of the rows off the fit follow from their sides, and those of the rows on it from
        the balance of an optimal fit, X' eta + tau phi = D beta.
        """
        rows, rest, (basis, below) = self.rows, self.rest, vertex
        taus = self.tau * (rows.targets / rows.weights)
        eta = rows.weights * (taus - below)
        eta[basis] = 0.0
        constant = self.tau * (rest.target + self.phi) - rest.low
        missing = self.penalty * beta - (eta @ rows.features + constant)
        eta[basis] = np.linalg.lstsq(rows.features[basis].T, missing, rcond=None)[0]
        imbalance = eta @ rows.features + constant
        shrunk = self.penalty > 0.0
        cost = 0.5 * float((imbalance[shrunk] ** 2 / self.penalty[shrunk]).sum())
        size = np.abs(eta) @ np.abs(rows.features) + rest.mass + self.tau * np.abs(self.phi)
        relative = np.abs(imbalance) / np.where(size > 0.0, size, 1.0)
        free = np.ones(len(rows), dtype=np.bool_)
        free[basis] = False
        return Certificate(
            value=value[0],
            error=value[1],
            primal=self._compute_primal(taus, beta),
            dual=float(eta @ rows.scores + self.tau * rest.target_scores - rest.below_scores) - cost,
            balance=float(relative[~shrunk].max(initial=0.0)),
            basis_features=rows.features[basis],
            basis_scores=rows.scores[basis],
            basis_dual=eta[basis],
            above=float(rows.weights @ (free & ~below)),
            below=float(rows.weights @ (free & below)),
        )

    def _compute_primal(self, taus: FloatArray, beta: FloatArray) -> float:
        """Compute the primal objective of coefficients (d,) for kept prompts fitted to (K,) coverages."""
        residuals = self.rows.scores - self.rows.features @ beta
        pinball = self.rows.weights * np.maximum(taus * residuals, (taus - 1.0) * residuals)
        everyone = self.rest.target_scores - self.rest.target @ beta
        low = self.rest.below_scores - self.rest.low @ beta
        linear = self.tau * float(self.phi @ beta)
        return float(pinball.sum() + self.tau * everyone - low - linear + 0.5 * self.penalty @ beta**2)
