"""Quantile regression on many rows, started from the regression on a subsample.

The fit on a random subsample lies near the fit on all rows, so the side of most rows is known. These rows
enter only through their sums, and the rows in a band around the last fit enter one by one (Portnoy and
Koenker 1997). Every side is checked at the end; rows found on the other side join the band.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np

from langchain_cfc.errors import ThresholdError
from langchain_cfc.support.arrays import BoolArray, FloatArray, IntArray
from langchain_cfc.thresholds._rows import DEPENDENCE_TOLERANCE, Rows, RowSums, triangularize
from langchain_cfc.thresholds._simplex import TOO_DEPENDENT, Fit, QuantileSimplex, Unbounded, Vertex

# Rows in the first subsample.
FIRST_SAMPLE_SIZE = 2000
# The largest factor from one sample to the next.
BASE_GROWTH = 25
F = TypeVar("F")


class Start(NamedTuple):
    """A starting point of a search: a vertex and its coefficients."""

    vertex: Vertex
    beta: FloatArray


class BaseFit(NamedTuple):
    """The regression without linear term on all rows, from which every search starts."""

    beta: FloatArray  # (d,) coefficients
    vertex: Vertex  # The rows on the fit, and the sides of all others
    residuals: FloatArray  # (N,) residuals, positive above the fit
    sums: RowSums  # Sums over all rows with these sides


# Solves a regression without linear term, plain or penalised: from the total weight of all rows, the rows
# that enter one by one, the sums of the others, and a start. It returns a fit, or `Unbounded`.
Solver: TypeAlias = "Callable[[float, Rows, RowSums, Start | None], Any]"


def fit_base_regression(rows: Rows, tau: Fraction) -> BaseFit:
    """Fit the quantile regression to any number of rows whose features have full column rank."""
    nothing = np.zeros(rows.features.shape[1])

    def solve(_: float, near: Rows, rest: RowSums, start: Start | None) -> Fit | Unbounded:
        vertex = None if start is None else start.vertex
        return QuantileSimplex(near, tau, rest, vertex).minimise(nothing)

    return extend_base_fit(rows, tau, solve)


def extend_base_fit(rows: Rows, tau: Fraction, solve: Solver) -> BaseFit:
    """Fit a regression to a sample of the rows, and extend the fit to larger ones, at last to all rows."""
    if len(rows) <= FIRST_SAMPLE_SIZE:
        return _fit_directly(rows, solve)
    steps = math.ceil(math.log(len(rows) / FIRST_SAMPLE_SIZE) / math.log(BASE_GROWTH))
    sizes = [
        round(FIRST_SAMPLE_SIZE * (len(rows) / FIRST_SAMPLE_SIZE) ** (step / steps)) for step in range(steps)
    ]
    # Seeded, so that equal data give equal bits.
    sample = np.random.default_rng(0).choice(len(rows), sizes[-1], replace=False)
    needed = _find_spanning_rows(rows.features, sample[:FIRST_SAMPLE_SIZE])
    sample = np.concatenate([needed, sample[~np.isin(sample, needed)]])
    fit, known = _fit_directly(rows.take(sample[:FIRST_SAMPLE_SIZE]), solve), FIRST_SAMPLE_SIZE
    for size in sizes[1:]:
        fit = _extend_fit(rows.take(sample[:size]), tau, solve, fit, known)
        known = size
    basis, below = fit.vertex
    return _extend_fit(rows, tau, solve, fit._replace(vertex=Vertex(sample[basis], below)), known)


def _fit_directly(rows: Rows, solve: Solver) -> BaseFit:
    """Compute the fit on all rows at once."""
    d = rows.features.shape[1]
    fit = require_bounded(solve(float(rows.weights.sum()), rows, RowSums.zeros(d), None))
    residuals = rows.scores - rows.features @ fit.beta
    return BaseFit(fit.beta, fit.vertex, residuals, RowSums.from_rows(rows, fit.vertex.below))


def _find_spanning_rows(features: FloatArray, sample: IntArray) -> IntArray:
    """Find rows that the sample needs for full column rank, such as one of a rare group."""
    needed = np.empty(0, dtype=np.int64)
    while len(needed) < features.shape[1]:
        _, sizes, directions = np.linalg.svd(triangularize(features[np.append(sample, needed)]))
        if len(sizes) == 0 or sizes[-1] > DEPENDENCE_TOLERANCE * sizes[0]:
            break
        # The direction that the sample does not determine, and the row with the largest component in it.
        needed = np.append(needed, np.abs(features @ directions[-1]).argmax())
    return np.unique(needed)


def require_bounded(found: F | Unbounded) -> F:
    """Return the minimiser; raise a ThresholdError if the regression came out unbounded.

    A regression on all rows without linear term has a minimiser, because its loss is >= 0.
    """
    if isinstance(found, Unbounded):
        msg = f"quantile regression without a linear term came out unbounded: {TOO_DEPENDENT}"
        raise ThresholdError(msg)
    return found


def _extend_fit(rows: Rows, tau: Fraction, solve: Solver, before: BaseFit, known: int) -> BaseFit:
    """Compute the fit on all rows from the fit on `known` of them, whose basis is numbered like all rows."""
    beta, basis = before.beta, before.vertex.basis
    residuals = rows.scores - rows.features @ beta
    below = residuals < 0.0
    everyone = RowSums.from_rows(rows, below)
    count = _compute_band_size(len(rows), known, len(beta), rows.mean_target * tau)
    band = _flag_nearest(residuals, count)
    while True:
        band[basis] = True
        inside = np.flatnonzero(band)
        near = rows.take(inside)
        rest = everyone - RowSums.from_rows(near, below[inside])
        start = Start(Vertex(np.searchsorted(inside, basis), below[inside]), beta)
        found = solve(float(rows.weights.sum()), near, rest, start)
        if isinstance(found, Unbounded) and not band.all():
            # The rows that would end the descent lie outside the band.
            count *= BASE_GROWTH
            band |= _flag_nearest(residuals, count)
            continue
        fit = require_bounded(found)
        residuals = rows.scores - rows.features @ fit.beta
        crossed = ((residuals < 0.0) != below) & ~band
        if not crossed.any():
            sums = rest + RowSums.from_rows(near, fit.vertex.below)
            below[inside] = fit.vertex.below
            return BaseFit(fit.beta, Vertex(inside[fit.vertex.basis], below), residuals, sums)
        band |= crossed  # it grows, so this ends


def _compute_band_size(size: int, known: int, d: int, tau: Fraction) -> int:
    """Compute how many rows may lie between the fits on `known` and `size` rows: 4 standard deviations."""
    return math.ceil(4 * size * math.sqrt(d * float(tau * (1 - tau)) / known))


def _flag_nearest(residuals: FloatArray, count: int) -> BoolArray:
    """Flag the `count` rows with the smallest residuals, and ties."""
    if count >= len(residuals):
        return np.ones(len(residuals), dtype=np.bool_)
    distances = np.abs(residuals)
    return np.asarray(distances <= np.partition(distances, count)[count], dtype=np.bool_)
