"""`SetRule`: how the scores of a prompt's candidates become entry levels, and what follows from the levels.

A rule is nothing but its levels, the smallest threshold at which each candidate enters the answer set. So
every rule is nested in the threshold, and calibrating on the rule's own success score guarantees the very
set that is returned.

Under every rule the level of a candidate without an answer is `inf`: its answer is blank, because the model
said nothing, refused, or the answer extractor found nothing. So no set holds it, and it is never the best
answer. It stays a candidate like any other elsewhere: it is drawn, scored, and counted in features. This is
part of the levels, and not a filter of what is shown, because the theorem speaks of levels: calibration and
serving apply the same function to exchangeable prompts, the success score S(X) is the smallest of these
levels among correct candidates, and P(S(X) <= threshold) >= 1 - alpha says what it says for every other rule,
about the very set that is returned. To withhold a set after the fact because its best answer is blank would
lose the correct answers beside it, and only promise "covered, flagged or withheld". The price is stated as
attainability: a prompt whose only correct candidates are blank counts as one without any.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace

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

    def levels(self, draws: Draws) -> FloatArray:
        """Compute entry levels.

        Args:
            draws: N prompts with n candidates each.

        Returns:
            (N, n) levels in [0, 1]; `inf` for a candidate that never enters, as one with a blank answer.
        """
        blank = draws.blank
        if blank is None or not blank.any():
            return self._levels(draws)
        last = replace(draws, scores=np.where(blank, np.inf, draws.scores))
        return np.where(blank, np.inf, self._levels(last))

    @abstractmethod
    def _levels(self, draws: Draws) -> FloatArray:
        """Compute (N, n) entry levels from scores, `inf` for candidates whose answers are blank."""

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
