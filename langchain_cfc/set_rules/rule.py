"""`SetRule`: how the scores of a prompt's candidates become entry levels, and what follows from the levels.

A rule is nothing but its levels, the smallest threshold at which each candidate enters the answer set. So
every rule is nested in the threshold, and calibrating on the rule's own success score guarantees the very
set that is returned.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from langchain_cfc._arrays import BoolArray, FloatArray
from langchain_cfc.draws import Draws, LabelledDraws
from langchain_cfc.thresholds import Thresholds


class SetRule(ABC):
    """A way to get entry levels from scores."""

    @property
    @abstractmethod
    def text(self) -> str:
        """The rule's name, from which `parse_set_rule` makes it again."""

    @abstractmethod
    def levels(self, draws: Draws) -> FloatArray:
        """Entry levels.

        Args:
            draws: N prompts with n candidates each.

        Returns:
            (N, n) levels in [0, 1]; `inf` for a candidate that never enters.
        """

    def check_labels(self, labelled: LabelledDraws) -> None:  # noqa: B027 - most rules take any labels
        """Refuse labels that make no sense under this rule.

        Raises:
            InputError: If they do not.
        """

    def success_scores(self, labelled: LabelledDraws, cap: float) -> FloatArray:
        """The paper's S(X): the smallest level among a prompt's correct candidates, `cap` if there are none.

        A prompt without a correct candidate gets one fixed number above every level, never 1: with 1 the
        event "S <= 1" would be true without a correct answer.

        Args:
            labelled: N prompts with labels.
            cap: Number above 1.

        Returns:
            (N,) success scores, at most `cap`.

        Raises:
            InputError: If the labels make no sense under this rule.
        """
        self.check_labels(labelled)
        levels = np.where(labelled.correct, self.levels(labelled.draws), np.inf)
        return np.asarray(np.minimum(levels.min(axis=1), cap), dtype=np.float64)

    def __repr__(self) -> str:
        """The text form."""
        return f"{type(self).__name__}({self.text!r})"


def accepted(levels: FloatArray, thresholds: Thresholds) -> BoolArray:
    """Which candidates are in the answer set: level <= threshold, within the threshold's error bound.

    Args:
        levels: (N, n) entry levels.
        thresholds: N thresholds; [1, cap) accepts all that can ever enter, a negative one none.

    Returns:
        (N, n) flags.
    """
    reach = (thresholds.values + thresholds.errors)[:, np.newaxis]
    return np.asarray((levels <= reach) & np.isfinite(levels), dtype=np.bool_)
