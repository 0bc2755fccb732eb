"""Clusters that replace rows on the base fit, for as long as no fit splits one.

If success scores have an atom, the base fit may lie on it over a region of the features: thousands of rows
have residual zero, each with its own dual variable. Replace the rows i of a cluster C by their weighted mean,
one row of weight w_C = sum_C w_i. The pinball loss is convex and positively homogeneous, so

    w_C rho_tau(mean of S - mean of x' beta)  <=  sum_C w_i rho_tau(S_i - x_i' beta),

with equality where all rows of C lie on one side of the fit or on it. So the objective P' with clusters is a
lower bound of the objective P, and a fit beta that minimises P' and splits no cluster minimises P: min P <=
P(beta) = P'(beta) = min P' <= min P. Every minimiser of P is then a minimiser of P', so a minimiser of P'
with the smallest phi' beta that splits no cluster also has the smallest phi' beta in P. If P' is unbounded
along a ray, so is P, provided that the ray moves no two rows of a cluster to different sides. Every fit is
checked; if the check fails, smaller clusters are tried, and finally none.

The rows of a cluster are fitted to the same coverage, have the same non-zero features, and are close to each
other in these, so the cell of a hat function or a group makes few clusters. Clusters are heavy: a prompt of
weight one hardly moves their dual variables, and one vertex answers nearly all prompts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from langchain_cfc.support.arrays import FloatArray, IntArray
from langchain_cfc.thresholds._rows import Rows, find_unique_rows


@dataclass(frozen=True)
class Clusters:
    """The rows on the base fit, divided into clusters."""

    members: Rows  # The rows, sorted by cluster
    starts: IntArray  # (C,) index of the first member of each cluster
    means: Rows  # One row per cluster, with the total weight
    lows: FloatArray  # (C, d) the smallest entries of the members' features
    highs: FloatArray  # (C, d) the largest entries

    @classmethod
    def build(cls, rows: Rows, parts: int) -> Clusters:
        """Divide rows into at most `parts` clusters per set of non-zero features."""
        _, kinds = find_unique_rows(np.column_stack([rows.features != 0.0, rows.targets / rows.weights]))
        order = np.argsort(kinds, kind="stable")
        kind_ends = np.flatnonzero(np.diff(kinds[order])) + 1
        groups = [part for kind in np.split(order, kind_ends) for part in _divide(rows, kind, parts)]
        members = rows.take(np.concatenate(groups))
        starts = np.cumsum([0, *(len(group) for group in groups[:-1])])
        lows = np.minimum.reduceat(members.features, starts)
        highs = np.maximum.reduceat(members.features, starts)
        weights = np.add.reduceat(members.weights, starts)
        features = np.add.reduceat(members.weights[:, np.newaxis] * members.features, starts)
        scores = np.add.reduceat(members.weights * members.scores, starts) / weights
        lowest, highest = (ufunc.reduceat(members.scores, starts) for ufunc in (np.minimum, np.maximum))
        # Entries that are equal in all rows must not be rounded.
        means = Rows(
            np.where(lows == highs, lows, features / weights[:, np.newaxis]),
            np.where(lowest == highest, lowest, scores),
            weights,
            np.add.reduceat(members.targets, starts),
        )
        return cls(members, starts, means, lows, highs)

    def are_whole(self, step: FloatArray, tolerance: float) -> bool:
        """Return whether a step of the coefficients from the base fit, or a ray, splits no cluster."""
        down, up = np.minimum(step, 0.0), np.maximum(step, 0.0)
        lowest = self.lows @ up + self.highs @ down
        highest = self.highs @ up + self.lows @ down
        ends = np.append(self.starts[1:], len(self.members))
        for cluster in np.flatnonzero((lowest < -tolerance) & (highest > tolerance)):
            moves = self.members.features[self.starts[cluster] : ends[cluster]] @ step
            if moves.min() < -tolerance and moves.max() > tolerance:
                return False
        return True


def _divide(rows: Rows, numbers: IntArray, parts: int) -> list[IntArray]:
    """Divide rows into at most `parts` parts, by repeated halving along the feature that varies most."""
    if parts < 2 or len(numbers) < 2:  # noqa: PLR2004 - halves
        return [numbers]
    features = rows.features[numbers]
    spread = features.max(axis=0) - features.min(axis=0)
    column = int(spread.argmax())
    if spread[column] == 0.0:
        return [numbers]
    order = np.argsort(features[:, column], kind="stable")
    middle = len(order) // 2
    halves = numbers[order[:middle]], numbers[order[middle:]]
    return [part for half in halves for part in _divide(rows, half, parts // 2)]
