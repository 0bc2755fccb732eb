"""Choose the rows to keep, so that every ordinary prompt has a proven threshold.

A threshold is proven if its fit beta moved less than the radius of the neighbourhood, |beta - beta0|_W < R
(see `_locality`). How far fits move, and in which directions, depends on the data: a small group moves only
its own coefficient, but far; where the base fit lies on the cap or on an atom of the scores it may jump. One
ball in the metric W = X' X / N, wide enough for the farthest move, would keep far too many rows in all other
directions. So moves are measured: a sample of the calibration prompts is solved, each with its own weight.

*Small moves.* If the nearest rows prove every answer with a margin of a factor `HEADROOM`, they are kept.

*Otherwise the metric is fitted to the moves.* Let y_k be `HEADROOM` times the moves. W becomes Sigma^-1 with

    Sigma = sum_k u_k y_k y_k' + r^2 (X' X / N)^-1,

the weights u_k such that y_k' Sigma^-1 y_k <= 1: nearly the smallest ellipsoid that holds all y_k (Khachiyan
1996; weights are multiplied by y_k' Sigma^-1 y_k `WEIGHT_UPDATES` times, and Sigma is then scaled until it
holds the longest y_k), enlarged by the ball that holds half of the usual number of rows. All rows with
D_i <= 1 in this metric are kept. The proof holds for any metric.

An unproven answer gives an estimate of its move and is solved again, until all answers are proven. If some
are not after `MAX_ROUNDS` rounds, all rows are kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from langchain_cfc.support.arrays import FloatArray
from langchain_cfc.thresholds._locality import Centre, Neighbourhood
from langchain_cfc.thresholds._rows import Rows, triangularize
from langchain_cfc.thresholds._simplex import Unbounded
from langchain_cfc.thresholds._warm_start import BaseFit
from langchain_cfc.thresholds._windows import Windows

# Prompts in the sample, in addition to those with the smallest and the largest entry of each feature.
SAMPLE_SIZE = 128
# Factor by which the rows kept reach farther than the moves of the sample.
HEADROOM = 3.0
# Attempts to prove all answers before all rows are kept.
MAX_ROUNDS = 12
# Updates of the weights of an ellipsoid, which need not be the smallest.
WEIGHT_UPDATES = 12
# Largest ratio of the axes of an ellipsoid, so that its metric stays well conditioned.
LARGEST_AXIS_RATIO = 1e4


def sample_prompts(prompts: Rows, beta: FloatArray, cap: float) -> FloatArray:
    """Sample calibration prompts and return (m, d) features times targets, the linear terms to solve for.

    They are drawn with a fixed seed and include the prompts with the smallest and the largest entry of every
    column, so that each group and each knot is represented. Prompts at which the base fit beta (d,) reaches
    the cap are left out: their threshold is infinite and needs no proof.
    """
    size = len(prompts)
    drawn = np.random.default_rng(0).choice(size, min(size, SAMPLE_SIZE), replace=False)
    ends = [prompts.features.argmin(axis=0), prompts.features.argmax(axis=0)]
    sample = np.unique(np.concatenate([drawn, *ends]))
    sample = sample[prompts.features[sample] @ beta < cap]
    return np.unique(prompts.targets[sample, np.newaxis] * prompts.features[sample], axis=0)


def build_wide_neighbourhood(
    rows: Rows,
    base: BaseFit,
    root: FloatArray,
    keep: int | None,
    *,
    linear_terms: FloatArray,
    build_windows: Callable[[Neighbourhood], Windows[Any]],
) -> Neighbourhood:
    """Build a neighbourhood of the base fit that proves the answers to (m, d) `linear_terms` with a margin.

    It keeps at least `keep` rows, or all if None. `root` is the triangular root of the metric X' X / N, and
    `build_windows` builds the solver for a neighbourhood.
    """
    near = Neighbourhood.build(rows, base, root, keep)
    if keep is None:
        return near
    moves = Moves(base.beta, root)
    for _ in range(MAX_ROUNDS):
        if near.radius == np.inf:
            return near
        linear_terms = moves.measure(near, build_windows(near), linear_terms)
        if moves.are_all_within(near):
            return near
        ball = _find_ball_radius(rows, Centre(base.beta, root), keep)
        if near.radius == 0.0:  # more rows lie on the fit than were kept, and no move is known yet
            near = Neighbourhood.build(rows, base, root, keep, ball)
        else:
            near = Neighbourhood.build(rows, base, moves.fit_metric(ball), keep, 1.0)
    return Neighbourhood.build(rows, base, root, None)


class Moves:
    """The moves of fits away from the base fit, compared in the metric of a root."""

    def __init__(self, beta: FloatArray, root: FloatArray) -> None:
        self._beta, self._root = beta, root
        self._proven: list[FloatArray] = []
        self._unproven: list[FloatArray] = []

    def measure(self, near: Neighbourhood, windows: Windows[Any], linear_terms: FloatArray) -> FloatArray:
        """Solve prompts, and return those to solve again: those without a proof, and unbounded ones."""
        self._unproven, again = [], []
        for phi in linear_terms:
            found = windows.find(phi)
            if found is None:
                guess = windows.solve_unproven(phi)
                again.append(phi)
                self._unproven.append(self._estimate_move(near, guess))
            elif not isinstance(found, Unbounded):
                self._proven.append(found.beta - self._beta)
            else:
                again.append(phi)  # its proof depends on the rows that are left out
        return np.array(again).reshape(-1, linear_terms.shape[1])

    def are_all_within(self, near: Neighbourhood) -> bool:
        """Return whether all answers are proven, with a margin of a factor `HEADROOM`."""
        if self._unproven:
            return False
        length = near.centre.compute_lengths(np.array(self._proven).reshape(-1, len(self._beta)))
        return bool(HEADROOM * length.max(initial=0.0) <= near.radius * (1.0 + 1e-9))

    def fit_metric(self, ball: float) -> FloatArray:
        """Fit the (d, d) triangular root of the metric in which moves are at most 1 / `HEADROOM` long."""
        moves = HEADROOM * np.array([*self._proven, *self._unproven]) @ self._root.T
        ball = max(ball, float(np.abs(moves).max()) / LARGEST_AXIS_RATIO)
        weights, within = np.ones(len(moves)), ball**2 * np.eye(len(self._beta))
        for _ in range(WEIGHT_UPDATES):
            weights *= _compute_squared_lengths(moves, weights, within)
        # Enlarge the ellipsoid until it contains the longest move.
        longest = max(1.0, float(_compute_squared_lengths(moves, weights, within).max()))
        lower = np.linalg.cholesky(longest * (moves.T @ (weights[:, np.newaxis] * moves) + within))
        return triangularize(np.linalg.solve(lower, self._root))

    def _estimate_move(self, near: Neighbourhood, guess: Any) -> FloatArray:
        """Estimate the move to an unproven answer; beyond the radius if it is unbounded."""
        if isinstance(guess, Unbounded):
            length = float(near.centre.compute_lengths(guess.ray[np.newaxis])[0])
            return guess.ray * (2.0 * near.radius / length)
        return np.asarray(guess.beta - self._beta)


def _compute_squared_lengths(moves: FloatArray, weights: FloatArray, within: FloatArray) -> FloatArray:
    """Compute the squared lengths of moves in the metric that they define."""
    sigma = moves.T @ (weights[:, np.newaxis] * moves) + within
    return np.asarray(np.einsum("ij,ji->i", moves, np.linalg.solve(sigma, moves.T)))


def _find_ball_radius(rows: Rows, centre: Centre, keep: int) -> float:
    """Find the radius that contains half of the rows to keep, not counting those on the fit."""
    distances = centre.compute_distances(rows)
    off = distances[(distances > 0.0) & (distances < np.inf)]
    rank = min(keep // 2, len(off) - 1)
    return float(np.partition(off, rank)[rank]) if len(off) else 1.0
