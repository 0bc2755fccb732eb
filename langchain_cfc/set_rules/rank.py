"""`rank`: the k candidates of lowest score (TopK), whatever their scores are."""

from __future__ import annotations

import numpy as np

from langchain_cfc._arrays import FloatArray
from langchain_cfc.draws import Draws
from langchain_cfc.set_rules.rule import SetRule


class Rank(SetRule):
    """Level = rank / n, ranks counted from 1, ties in draw order."""

    @property
    def text(self) -> str:
        """The rule's name."""
        return "rank"

    def _levels(self, draws: Draws) -> FloatArray:
        """(N, n) ranks divided by n."""
        order = np.argsort(draws.scores, axis=1, kind="stable")
        ranks = np.empty(order.shape, dtype=np.float64)
        np.put_along_axis(ranks, order, np.arange(1.0, draws.n + 1.0)[np.newaxis, :], axis=1)
        return ranks / draws.n
