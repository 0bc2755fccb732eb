"""`best_prefix`: accepted candidates up to the earliest one of lowest score (the paper's truncated CFC)."""

from __future__ import annotations

import numpy as np

from langchain_cfc._arrays import FloatArray
from langchain_cfc.draws import Draws
from langchain_cfc.set_rules.rule import SetRule


class BestPrefix(SetRule):
    """Level = score up to the earliest candidate of lowest score; later candidates never enter.

    The paper truncates after calibrating on the untruncated score, which its theorem does not cover; with
    these levels the truncated set is calibrated on its own success score.
    """

    @property
    def text(self) -> str:
        """The rule's name."""
        return "best_prefix"

    def _levels(self, draws: Draws) -> FloatArray:
        """(N, n) scores up to the best candidate, `inf` after it."""
        best = draws.scores.argmin(axis=1)  # the earliest of several
        return np.where(np.arange(draws.n) <= best[:, np.newaxis], draws.scores, np.inf)
