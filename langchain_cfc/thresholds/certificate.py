"""Certificates of optimality: a primal and a dual solution that prove a threshold without the solver."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

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

    @cached_property
    def taus(self) -> FloatArray:
        """The (K,) coverages that the kept prompts are fitted to."""
        return self.tau * (self.rows.targets / self.rows.weights)

    def compute_primal(self, beta: FloatArray) -> float:
        """Compute the primal objective of coefficients (d,)."""
        residuals = self.rows.scores - self.rows.features @ beta
        pinball = self.rows.weights * np.maximum(self.taus * residuals, (self.taus - 1.0) * residuals)
        everyone = self.rest.target_scores - self.rest.target @ beta
        low = self.rest.below_scores - self.rest.low @ beta
        linear = self.tau * float(self.phi @ beta)
        return float(pinball.sum() + self.tau * everyone - low - linear + 0.5 * self.penalty @ beta**2)

    def compute_imbalance(self, eta: FloatArray) -> FloatArray:
        """Compute the (d,) imbalance X' eta + tau phi over all prompts, for (K,) dual variables."""
        others = self.tau * self.rest.target - self.rest.low
        return np.asarray(eta @ self.rows.features + others + self.tau * self.phi, dtype=np.float64)

    def compute_dual(self, eta: FloatArray) -> float:
        """Compute the dual objective: S' eta less half the squared imbalance over the penalty."""
        shrunk = self.penalty > 0.0
        cost = 0.5 * float((self.compute_imbalance(eta)[shrunk] ** 2 / self.penalty[shrunk]).sum())
        everyone = self.tau * self.rest.target_scores
        return float(eta @ self.rows.scores + everyone - self.rest.below_scores) - cost

    def compute_balance(self, eta: FloatArray) -> float:
        """Compute the largest relative imbalance along columns without a penalty: zero if feasible."""
        size = np.abs(eta) @ np.abs(self.rows.features) + self.rest.mass + self.tau * np.abs(self.phi)
        left = np.abs(self.compute_imbalance(eta)) / np.where(size > 0.0, size, 1.0)
        return float(left[self.penalty == 0.0].max(initial=0.0))

    def compute_eta(self, vertex: Vertex, on_basis: FloatArray) -> FloatArray:
        """Compute the (K,) dual variables: `on_basis` for the basis, and by their sides for other rows."""
        eta = self.rows.weights * (self.taus - vertex.below)
        eta[vertex.basis] = on_basis
        return eta


def build_certificate(
    problem: Problem, vertex: Vertex, on_basis: FloatArray, beta: FloatArray, value: tuple[float, float]
) -> Certificate:
    """Build the certificate of a fit, from its vertex, dual variables, coefficients, value and error."""
    rows, (basis, below) = problem.rows, vertex
    eta = problem.compute_eta(vertex, on_basis)
    free = np.ones(len(rows), dtype=np.bool_)
    free[basis] = False
    return Certificate(
        value=value[0],
        error=value[1],
        primal=problem.compute_primal(beta),
        dual=problem.compute_dual(eta),
        balance=problem.compute_balance(eta),
        basis_features=rows.features[basis],
        basis_scores=rows.scores[basis],
        basis_dual=on_basis,
        above=float(rows.weights @ (free & ~below)),
        below=float(rows.weights @ (free & below)),
    )
