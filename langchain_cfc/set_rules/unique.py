"""`unique(...)`: one entry per distinct answer, on top of any other rule."""

from __future__ import annotations

import numpy as np

from langchain_cfc._arrays import FloatArray, IntArray
from langchain_cfc.draws import Draws, LabelledDraws
from langchain_cfc.errors import InputError
from langchain_cfc.set_rules.rule import SetRule


class Unique(SetRule):
    """A distinct answer enters at the smallest level of its candidates, the earliest of which stands for it.

    Args:
        base: The rule that gives each candidate its level.
    """

    def __init__(self, base: SetRule) -> None:
        self._base = base

    @property
    def text(self) -> str:
        """The rule's name."""
        return f"unique({self._base.text})"

    def _levels(self, draws: Draws) -> FloatArray:
        """(N, n) the base rule's levels on representatives, `inf` on the others."""
        levels = self._base.levels(draws)
        codes = _codes(draws)
        rows = np.arange(len(draws))
        best: IntArray = np.full(levels.shape, -1, dtype=np.int64)
        for slot in range(draws.n):
            # best[row, answer] is the slot that represents the answer among the slots seen so far
            answer = codes[:, slot]
            holder = best[rows, answer]
            better = (holder < 0) | (levels[:, slot] < levels[rows, holder])
            best[rows[better], answer[better]] = slot
        represents = np.zeros(levels.shape, dtype=np.bool_)
        held = best >= 0
        represents[np.nonzero(held)[0], best[held]] = True
        return np.where(represents, levels, np.inf)

    def check_labels(self, labelled: LabelledDraws) -> None:
        """Refuse an answer that is labelled correct in one candidate and wrong in another."""
        codes = _codes(labelled.draws)
        clash = labelled.correct != np.take_along_axis(labelled.correct, codes, axis=1)
        if clash.any():
            row, slot = (int(i) for i in np.argwhere(clash)[0])
            msg = (
                f"record {labelled.ids[row]!r}: candidates {codes[row, slot]} and {slot} give the same "
                f"answer, but one is labelled correct and the other wrong; set_rule='{self.text}' needs one "
                "label per distinct answer"
            )
            raise InputError(msg)
        self._base.check_labels(labelled)


def _codes(draws: Draws) -> IntArray:
    if draws.answer_codes is None:
        msg = "the set rule `unique` needs the candidates' answers; these draws have scores only"
        raise InputError(msg)
    return draws.answer_codes
