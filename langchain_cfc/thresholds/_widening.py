"""Which rows to keep so that no ordinary prompt is refused for want of rows.

A threshold is proven if its fit beta moved less than the radius of the neighbourhood, |beta - beta0|_W < R
(see `neighbourhood`). How far fits move, and in which directions, depends on the data: a small group moves
its own coefficient only, but far; where the base fit lies on the cap or on an atom of the scores it may jump.
One ball in the metric W = X' X / N, wide enough for the farthest move, would keep far too many rows in all
other directions. So moves are measured: a sample of the calibration prompts is asked, with their own weight.

*Few moves are enough room.* If the nearest rows prove every answer with a factor `HEADROOM` to spare, they
are kept as they are.

*Otherwise the metric is fitted to the moves.* Let y_k be `HEADROOM` times the moves. W becomes Sigma^-1 with

    Sigma = sum_k u_k y_k y_k' + r^2 (X' X / N)^-1,

the weights u_k such that y_k' Sigma^-1 y_k <= 1: nearly the smallest ellipsoid that holds all y_k (Khachiyan
1996; weights are multiplied by y_k' Sigma^-1 y_k until they settle), enlarged by the ball in which half of
the usual number of rows lies. All rows with D_i <= 1 in this metric are kept. The proof holds for any metric.

An answer that is not proven yet gives a first idea of its move and is asked again, until all are proven. What
cannot be had that way keeps all rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from langchain_cfc._internal.arrays import FloatArray
from langchain_cfc.thresholds._locality import Centre, Neighbourhood
from langchain_cfc.thresholds._rows import Rows, triangularize
from langchain_cfc.thresholds._simplex import Unbounded
from langchain_cfc.thresholds._warm_start import BaseFit
from langchain_cfc.thresholds._windows import Windows

# Prompts that are asked, besides those with the largest entry of each feature.
SAMPLE = 128
# How many times farther than the moves of the sample the rows kept reach.
HEADROOM = 3.0
ROUNDS = 12
# Updates of the weights of an ellipsoid: it need not be the smallest.
UPDATES = 12
# Longest to shortest axis of an ellipsoid, so that its metric stays well conditioned.
LONGEST = 1e4


def sample_prompts(prompts: Rows, beta: FloatArray, cap: float) -> FloatArray:
    """Features of calibration prompts to ask, times their weights: (m, d).

    They are drawn with a fixed seed; the prompts with the smallest and the largest entry of every column are
    among them, so that each group and each knot is asked. Those at which the base fit beta (d,) reaches the
    cap are left out: their threshold is infinite without any proof.
    """
    size = len(prompts)
    drawn = np.random.default_rng(0).choice(size, min(size, SAMPLE), replace=False)
    ends = [prompts.features.argmin(axis=0), prompts.features.argmax(axis=0)]
    asked = np.unique(np.concatenate([drawn, *ends]))
    asked = asked[prompts.features[asked] @ beta < cap]
    return np.unique(prompts.weights[asked, np.newaxis] * prompts.features[asked], axis=0)


def build_wide_neighbourhood(
    rows: Rows,
    base: BaseFit,
    root: FloatArray,
    keep: int | None,
    *,
    asked: FloatArray,
    windows_of: Callable[[Neighbourhood], Windows[Any]],
) -> Neighbourhood:
    """The neighbourhood of the base fit that proves the answers to some prompts, with room to spare."""
    near = Neighbourhood.build(rows, base, root, keep)
    if keep is None:
        return near
    moves = Moves(base.beta, root)
    for _ in range(ROUNDS):
        if near.radius == np.inf:
            return near
        asked = moves.measure(near, windows_of(near), asked)
        if moves.are_all_within(near):
            return near
        ball = _find_ball_radius(rows, Centre(base.beta, root), keep)
        if near.radius == 0.0:  # more rows on the fit than were kept: no move is known yet
            near = Neighbourhood.build(rows, base, root, keep, ball)
        else:
            near = Neighbourhood.build(rows, base, moves.fit_metric(ball), keep, 1.0)
    return Neighbourhood.build(rows, base, root, None)


class Moves:
    """How far fits move from the base fit."""

    def __init__(self, beta: FloatArray, root: FloatArray) -> None:
        self._beta, self._root = beta, root
        self._proven: list[FloatArray] = []
        self._unproven: list[FloatArray] = []

    def measure(self, near: Neighbourhood, windows: Windows[Any], asked: FloatArray) -> FloatArray:
        """Ask prompts, and return those whose answers are not proven."""
        self._unproven, again = [], []
        for phi in asked:
            found = windows.find(phi)
            if found is None:
                guess = windows.solve_unproven(phi)
                again.append(phi)
                self._unproven.append(self._estimate_move(near, guess))
            elif not isinstance(found, Unbounded):
                self._proven.append(found.beta - self._beta)
            else:
                again.append(phi)  # what proves it depends on the rows that are left out
        return np.array(again).reshape(-1, asked.shape[1])

    def are_all_within(self, near: Neighbourhood) -> bool:
        """Whether all answers are proven, with a factor of `HEADROOM` to spare."""
        if self._unproven:
            return False
        length = near.centre.compute_lengths(np.array(self._proven).reshape(-1, len(self._beta)))
        return bool(HEADROOM * length.max(initial=0.0) <= near.radius * (1.0 + 1e-9))

    def fit_metric(self, ball: float) -> FloatArray:
        """(d, d) upper triangular root of the metric in which moves are at most 1 / `HEADROOM` long."""
        moves = HEADROOM * np.array([*self._proven, *self._unproven]) @ self._root.T
        ball = max(ball, float(np.abs(moves).max()) / LONGEST)
        weights, within = np.ones(len(moves)), ball**2 * np.eye(len(self._beta))
        for _ in range(UPDATES):
            weights *= _compute_squared_lengths(moves, weights, within)
        # All of it grows until the longest move is within.
        longest = max(1.0, float(_compute_squared_lengths(moves, weights, within).max()))
        lower = np.linalg.cholesky(longest * (moves.T @ (weights[:, np.newaxis] * moves) + within))
        return triangularize(np.linalg.solve(lower, self._root))

    def _estimate_move(self, near: Neighbourhood, guess: Any) -> FloatArray:
        """The move to an answer that is not proven; beyond the radius where it has no end."""
        if isinstance(guess, Unbounded):
            length = float(near.centre.compute_lengths(guess.ray[np.newaxis])[0])
            return guess.ray * (2.0 * near.radius / length)
        return np.asarray(guess.beta - self._beta)


def _compute_squared_lengths(moves: FloatArray, weights: FloatArray, within: FloatArray) -> FloatArray:
    """(m,) squares of the lengths of moves in the metric that they make themselves."""
    sigma = moves.T @ (weights[:, np.newaxis] * moves) + within
    return np.asarray(np.einsum("ij,ji->i", moves, np.linalg.solve(sigma, moves.T)))


def _find_ball_radius(rows: Rows, centre: Centre, keep: int) -> float:
    """The radius within which half of the rows kept lie, those on the fit not counted."""
    distances = centre.compute_distances(rows)
    off = distances[(distances > 0.0) & (distances < np.inf)]
    rank = min(keep // 2, len(off) - 1)
    return float(np.partition(off, rank)[rank]) if len(off) else 1.0
