"""A regression on many rows, grown from a regression on few.

The fit on a random subsample lies near the fit on everything, so on the way to more rows most of them are
sure of their side: they enter by their sums, and only a band around the last fit is solved for (Portnoy and
Koenker 1997). Nothing is taken on trust: every side is checked at the end, and rows found on the other side
join the band.
"""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np

from langchain_cfc._arrays import BoolArray, FloatArray, IntArray
from langchain_cfc.thresholds.simplex import Fit, QuantileSimplex, Rest, Rows, Vertex

FIRST = 2000
GROWTH = 20


def grown_fit(rows: Rows, tau: Fraction) -> Fit | None:
    """The regression whose linear term is the mean prompt, the start of every search.

    Args:
        rows: Calibration prompts whose features have full column rank.
        tau: Target coverage.

    Returns:
        The optimal vertex over all rows; None where the mean prompt's threshold is infinite.

    Raises:
        ThresholdError: If no vertex could be proven optimal.
    """
    phi = (rows.weights @ rows.features) / rows.weights.sum()
    # Seeded, so that equal data give equal bits.
    order = np.random.default_rng(0).permutation(len(rows)) if len(rows) > FIRST else np.arange(len(rows))
    shuffled, size = rows.take(order), min(FIRST, len(rows))
    fit = QuantileSimplex(shuffled.take(np.arange(size)), tau).minimise(phi)
    while size < len(rows):
        more = min(GROWTH * size, len(rows))
        part = shuffled.take(np.arange(more))
        # On few rows the mean prompt can be endless and on more of them not.
        fit = (
            QuantileSimplex(part, tau).minimise(phi)
            if fit is None
            else _on_more_rows(part, tau, phi, fit, size)
        )
        size = more
    if fit is None:
        return None
    below = np.empty(len(rows), dtype=np.bool_)
    below[order] = fit.vertex.below
    return replace(fit, vertex=Vertex(order[fit.vertex.basis], below))


def _on_more_rows(rows: Rows, tau: Fraction, phi: FloatArray, fit: Fit, known: int) -> Fit | None:
    """The fit on all rows, from the fit on the first `known` of them."""
    residuals = rows.scores - rows.features @ fit.beta
    basis, below = fit.vertex.basis, residuals < 0.0
    band = _nearest(residuals, _band_size(len(rows), known, len(phi), tau))
    band[basis] = True
    while True:
        inside = np.flatnonzero(band)
        start = Vertex(np.searchsorted(inside, basis), below[inside])
        rest = Rest.of(rows.take(~band), below[~band])
        found = QuantileSimplex(rows.take(inside), tau, rest, start).minimise(phi)
        if found is None:
            # Rows outside the band cannot end a descent: whether it really is endless takes all rows to say.
            return QuantileSimplex(rows, tau, start=Vertex(basis, below)).minimise(phi)
        basis = inside[found.vertex.basis]
        below[inside] = found.vertex.below
        crossed = ((rows.scores - rows.features @ found.beta < 0.0) != below) & ~band
        if not crossed.any():
            return replace(found, vertex=Vertex(basis, below))
        band |= crossed  # it grows, so this ends


def _band_size(size: int, known: int, d: int, tau: Fraction) -> int:
    """How many rows may lie between the fit on `known` rows and that on `size`: four standard deviations."""
    return min(math.ceil(4 * size * math.sqrt(d * float(tau * (1 - tau)) / known)), size - 1)


def _nearest(residuals: FloatArray, count: int) -> BoolArray:
    """(N,) flags of the `count` rows with the smallest residuals."""
    band = np.zeros(len(residuals), dtype=np.bool_)
    chosen: IntArray = np.argpartition(np.abs(residuals), count)[:count]
    band[chosen] = True
    return band
