"""Thresholds with a ridge penalty: the regression on all rows, and windows around it.

Each prompt is solved by itself: with a penalty the fit moves with every change of the prompt, so no answer is
shared but with the same prompt.
"""

from __future__ import annotations

from fractions import Fraction
from typing import ClassVar

import numpy as np

from langchain_cfc._arrays import FloatArray, IntArray
from langchain_cfc.thresholds.certificate import Certificate, certificate_of
from langchain_cfc.thresholds.growing import FIRST, Base, band_size, bounded, nearest
from langchain_cfc.thresholds.neighbourhood import Neighbourhood
from langchain_cfc.thresholds.ridge import Active, RidgeFit, RidgeRegression
from langchain_cfc.thresholds.rows import Rest, Rows
from langchain_cfc.thresholds.vertex import Vertex
from langchain_cfc.thresholds.windows import Start, Windows

# At most this many times more rows in one step.
GROWTH = 20


def penalised_base(rows: Rows, tau: Fraction, ridge: FloatArray) -> Base:
    """The penalised regression without a linear term, grown from a subsample as the plain one is.

    Args:
        rows: Calibration prompts; N is the sum of their weights.
        tau: Target coverage.
        ridge: (d,) lambda of every column; the penalty is (N + 1) lambda.

    Returns:
        Its fit, with the sides of and the sums over all rows.

    Raises:
        ThresholdError: If no fit could be proven optimal.
    """
    size, penalty = len(rows), (rows.weights.sum() + 1.0) * ridge
    if size <= 2 * FIRST:
        return _base(rows, bounded(RidgeRegression(rows, tau, penalty).minimise(np.zeros(len(ridge)))))
    known = FIRST if size <= 2 * GROWTH * FIRST else size // GROWTH
    # Seeded, so that equal data give equal bits; with a row of every column, however rare.
    sample = np.random.default_rng(0).choice(size, known, replace=False)
    sample = np.union1d(sample, np.abs(rows.features).argmax(axis=0))
    return _on_more_rows(rows, tau, penalty, penalised_base(rows.take(sample), tau, ridge), sample)


def _base(rows: Rows, fit: RidgeFit) -> Base:
    residuals = rows.scores - rows.features @ fit.beta
    return Base(fit.beta, fit.vertex, residuals, Rest.of(rows, fit.vertex.below))


def _on_more_rows(rows: Rows, tau: Fraction, penalty: FloatArray, before: Base, sample: IntArray) -> Base:
    """The fit on all rows, from the fit on a sample of them."""
    residuals = rows.scores - rows.features @ before.beta
    start = Active(sample[before.vertex.basis], residuals < 0.0, before.beta)
    band = nearest(residuals, band_size(len(rows), len(sample), len(penalty), tau))
    while True:
        band[start.rows] = True
        inside, below = np.flatnonzero(band), start.below.copy()
        rest = Rest.of(rows, below) - Rest.of(rows.take(inside), below[inside])
        near = Active(np.searchsorted(inside, start.rows), below[inside], start.beta)
        found = RidgeRegression(rows.take(inside), tau, penalty, rest, near).minimise(np.zeros(len(penalty)))
        if not isinstance(found, RidgeFit):
            # The rows that would end the descent lie outside the band: all rows say what does.
            everyone = RidgeRegression(rows, tau, penalty, start=start)
            return _base(rows, bounded(everyone.minimise(np.zeros(len(penalty)))))
        below[inside] = found.active.below
        start = Active(inside[found.active.rows], below, found.beta)
        residuals = rows.scores - rows.features @ found.beta
        crossed = ((residuals < 0.0) != below) & ~band
        if not crossed.any():
            return Base(found.beta, Vertex(start.rows, below), residuals, Rest.of(rows, below))
        band |= crossed  # it grows, so this ends


class RidgeWindows(Windows[RidgeRegression]):
    """Answers to prompts from quantile regression with a ridge penalty.

    Args:
        near: The neighbourhood of the penalised regression.
        tau: Target coverage.
        penalty: (d,) penalties.
    """

    solver: ClassVar[type[RidgeRegression]] = RidgeRegression

    def __init__(self, near: Neighbourhood, tau: Fraction, penalty: FloatArray) -> None:
        super().__init__(near, tau)
        self._given = penalty

    def __reduce__(self) -> tuple[type[RidgeWindows], tuple[object, ...]]:
        """Copies start anew."""
        return type(self), (self._near, self._tau, self._given)

    def certificate(self, phi: FloatArray) -> Certificate | None:
        """What proves the answer to one prompt; None unless that is a fit."""
        fit = self.find(phi)
        if not isinstance(fit, RidgeFit):
            return None
        vertex = Vertex(fit.vertex.basis, self._sides(fit))
        return certificate_of(self._problem(phi), vertex, fit.eta, fit.beta, fit.value(phi))

    @property
    def _penalty(self) -> FloatArray:
        return self._given

    def _regression(self, rows: Rows, rest: Rest, start: Start | None) -> RidgeRegression:
        active = None if start is None else Active(*start.vertex, start.beta)
        return self.solver(rows, self._tau, self._given, rest, active)
