"""The decision: from scores, answers and metadata to a threshold, and a set or an abstention.

This is the one place where it is made. The runnable, evaluation, certification and monitoring all call it,
so that what is measured is what is served.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from langchain_cfc._arrays import BoolArray, FloatArray, IntArray
from langchain_cfc.artifact import CalibrationArtifact
from langchain_cfc.draws import Draws
from langchain_cfc.errors import InputError
from langchain_cfc.set_rules import accepted
from langchain_cfc.thresholds import Level

Reason = Literal["answered", "no_candidate_accepted", "not_certifiable"]


@dataclass(frozen=True)
class Decisions:
    """What was decided for N prompts.

    Attributes:
        features: (N, d) features.
        thresholds: (N,) unclipped thresholds; `inf` where none can be certified.
        levels: (N, n) entry levels.
        accepted: (N, n) the answer sets; empty where the prompt is flagged.
        not_certifiable: (N,) whether the prompt is flagged.
    """

    features: FloatArray
    thresholds: FloatArray
    levels: FloatArray
    accepted: BoolArray
    not_certifiable: BoolArray

    def reason(self, row: int) -> Reason:
        """Why prompt `row` was answered or abstained on."""
        if self.not_certifiable[row]:
            return "not_certifiable"
        return "answered" if self.accepted[row].any() else "no_candidate_accepted"

    def best_first(self, row: int, scores: FloatArray) -> IntArray:
        """Slots of the answer set of prompt `row`, by score and then by draw order; `scores` is (N, n)."""
        slots = np.flatnonzero(self.accepted[row])
        return slots[np.argsort(scores[row, slots], kind="stable")]


def decide(
    artifact: CalibrationArtifact, draws: Draws, alpha: Level | None = None, *, marginal: bool = False
) -> Decisions:
    """Decide for one prompt or for many.

    Args:
        artifact: The calibration artifact.
        draws: N >= 1 prompts with the artifact's number of candidates each.
        alpha: Error level, chosen before the candidates were drawn; may be left out where the artifact holds
            only one.
        marginal: Whether to use the marginal rule instead of the artifact's own, to compare with.

    Returns:
        The decisions, in the order of the draws.

    Raises:
        InputError: If the number of candidates is not the artifact's, or the level is not held.
        FeatureError: If the feature map does not know a category or misses metadata.
    """
    if draws.n != artifact.n:
        msg = f"the artifact was calibrated with n = {artifact.n} candidates per prompt, got {draws.n}"
        raise InputError(msg)
    features = artifact.feature_map.transform(draws)
    thresholds = artifact.solve(features, alpha, marginal=marginal)
    flagged = np.isinf(thresholds.values)
    levels = artifact.parsed_set_rule.levels(draws)
    inside = accepted(levels, thresholds) & ~flagged[:, np.newaxis]
    return Decisions(features, thresholds.values, levels, inside, flagged)
