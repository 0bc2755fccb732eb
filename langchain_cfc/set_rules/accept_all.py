"""`all`: every candidate whose score is at most the threshold (the paper's FULL)."""

from __future__ import annotations

from langchain_cfc._arrays import FloatArray
from langchain_cfc.draws import Draws
from langchain_cfc.set_rules.rule import SetRule


class AcceptAll(SetRule):
    """Level = score."""

    @property
    def text(self) -> str:
        """The rule's name."""
        return "all"

    def _levels(self, draws: Draws) -> FloatArray:
        """(N, n) the scores themselves."""
        return draws.scores.copy()
