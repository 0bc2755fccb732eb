"""`decide`: compute thresholds and answer sets, or abstentions, from scores, answers and metadata.

The runnable, evaluation, certification and monitoring all call `decide`, so they measure what is served.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np

from langchain_cfc.artifact import CalibrationArtifact
from langchain_cfc.candidates import CandidateBatch
from langchain_cfc.features.statistics import MEAN_SCORE
from langchain_cfc.set_rules import SetRule
from langchain_cfc.support.arrays import BoolArray, FloatArray, IntArray
from langchain_cfc.thresholds import Level, Thresholds

if TYPE_CHECKING:
    from typing_extensions import Self

Reason = Literal[
    "answered",
    "only_blank_answers",
    "not_certifiable",
    "mean_score_too_high",
    "no_claim_kept",
    "no_claims",
    "failed",
]


# The cut of a bot that answers every prompt.
EVERY_PROMPT = 1.0


@dataclass(frozen=True)
class AnswerSets:
    """The answer sets of N prompts, and which prompts are flagged."""

    draws: CandidateBatch  # The candidates of these prompts
    # (N, n) the answer sets; empty for flagged prompts, and if nothing can be kept
    accepted: BoolArray
    not_certifiable: BoolArray  # (N,) whether the prompt is flagged

    @classmethod
    def from_levels(
        cls,
        draws: CandidateBatch,
        levels: FloatArray,
        thresholds: Thresholds,
        rule: SetRule,
    ) -> Self:
        """Build what a rule accepts by (N, n) entry levels and N thresholds; a threshold of `inf` flags."""
        return cls(draws, rule.accept(levels, thresholds), np.isposinf(thresholds.values))

    def fill_empty(self, levels: FloatArray) -> Self:
        """Give every unflagged prompt with an empty set its best candidate alone.

        That is the one of smallest (N, n) level, the earliest in case of ties; there is none if all answers
        are blank. This only enlarges sets and changes no flag, so every guarantee of coverage still holds.
        Sets also stay nested in the threshold, because every non-empty set holds the best candidate.
        """
        empty = ~(self.accepted.any(axis=1) | self.not_certifiable)
        rows = np.flatnonzero(empty & np.isfinite(levels).any(axis=1))
        if not len(rows):
            return self
        accepted = self.accepted.copy()
        accepted[rows, levels[rows].argmin(axis=1)] = True
        return replace(self, accepted=accepted)

    @classmethod
    def from_best_candidates(cls, draws: CandidateBatch, levels: FloatArray) -> Self:
        """Build sets of the lowest-scoring candidate alone, without flags; empty if all answers are blank."""
        ranked = np.where(np.isfinite(levels), draws.scores, np.inf)
        alone = np.zeros(levels.shape, dtype=np.bool_)
        alone[np.arange(len(levels)), ranked.argmin(axis=1)] = True
        return cls(draws, alone & np.isfinite(ranked), np.zeros(len(levels), dtype=np.bool_))

    @classmethod
    def from_claims_below(cls, draws: CandidateBatch, cut: float) -> Self:
        """Build sets of the claims with a score of at most `cut`, without flags.

        A score of 1, such as that of a claim without a verdict, is above every cut.
        """
        shown = draws.is_drawn & (draws.scores <= cut) & (draws.scores < 1.0)
        return cls(draws, shown, np.zeros(len(draws), dtype=np.bool_))

    @cached_property
    def best(self) -> IntArray:
        """(N,) slot of the best accepted candidate, the earliest of lowest score; 0 for an empty set."""
        scores = np.where(self.accepted, self.draws.scores, np.inf)
        return np.asarray(scores.argmin(axis=1), dtype=np.int64)

    @cached_property
    def distinct_answers(self) -> IntArray:
        """(N,) number of distinct answers in each set, or of accepted candidates if answers are unknown."""
        codes = self.draws.answer_codes
        if codes is None:
            return np.asarray(self.accepted.sum(axis=1), dtype=np.int64)
        held = np.zeros(self.accepted.shape, dtype=np.bool_)
        rows, slots = np.nonzero(self.accepted)
        held[rows, codes[rows, slots]] = True
        return np.asarray(held.sum(axis=1), dtype=np.int64)


@dataclass(frozen=True)
class Decisions(AnswerSets):
    """The decisions for N prompts, as arrays: answer sets, thresholds, and what is answered."""

    features: FloatArray  # (N, d) features
    thresholds: FloatArray  # (N,) unclipped thresholds, `inf` if none can be certified; (0,) for a bot
    # (N,) whether a prompt is flagged only because the artifact keeps too few calibration prompts to
    # determine its threshold.
    refused: BoolArray
    levels: FloatArray  # (N, n) entry levels
    # (N,) error levels stated for the prompts: alpha for all, or adaptive; (0,) for a bot
    stated_alphas: FloatArray
    max_mean_score: float | None  # the cut of a bot on the mean score; None for answer sets and claims
    withheld: Reason  # why a prompt that is not flagged has an answer that is not shown

    @cached_property
    def answered(self) -> BoolArray:
        """(N,) whether there is an answer: not for flagged prompts, empty sets and prompts above the cut."""
        answered = np.asarray(self.accepted.any(axis=1), dtype=np.bool_)
        if self.max_mean_score is not None:
            answered &= MEAN_SCORE.compute_values(self.draws) <= self.max_mean_score
        return answered

    def find_reason(self, row: int) -> Reason:
        """Return the reason why prompt `row` was answered or abstained on."""
        if self.not_certifiable[row]:
            return "not_certifiable"
        if self.answered[row]:
            return "answered"
        if not np.isfinite(self.levels[row]).any():
            return "only_blank_answers"
        return self.withheld

    def list_best_first(self, row: int) -> IntArray:
        """Return the slots in the answer set of prompt `row`, sorted by score and then by draw order."""
        slots = np.flatnonzero(self.accepted[row])
        return slots[np.argsort(self.draws.scores[row, slots], kind="stable")]


def decide(
    artifact: CalibrationArtifact,
    draws: CandidateBatch,
    alpha: Level | None = None,
    *,
    cut: float | None = None,
    marginal: bool = False,
) -> Decisions:
    """Compute the decisions for one or more prompts.

    Args:
        artifact: The calibration artifact.
        draws: N >= 1 prompts with the artifact's number of candidates each, or as drawn by its draw rule.
        alpha: Error level, chosen before the candidates were drawn; optional if the artifact has only one,
            and without meaning for a bot.
        cut: The cut of a bot, which uses no threshold: it answers with the best candidate if the mean score
            of the candidates is at most this, or shows the claims whose scores are; None for answer sets.
        marginal: Whether to use the marginal rule instead of the artifact's own, for comparison. The two
            differ only in their thresholds.

    Returns:
        The decisions, in the order of the draws.

    Raises:
        InputError: If the number of candidates does not match the artifact or its draw rule, or the artifact
            does not have the level.
        FeatureError: If metadata for the feature map is missing. A prompt of an unknown category is flagged.
    """
    artifact.check_draws(draws)
    features = artifact.feature_map.transform(draws, allow_unknown=True)
    rule = artifact.parsed_set_rule
    levels = rule.compute_levels(draws)
    if cut is None:
        solved, level = artifact.solve(features, alpha, marginal=marginal), artifact.select_level(alpha)
        adaptive = None if marginal else artifact.feature_map.adaptive_alpha
        sets = AnswerSets.from_levels(draws, levels, solved, rule)
        if rule.shows_best_alone:
            sets = sets.fill_empty(levels)
        thresholds, refused = solved.values, solved.outside & sets.not_certifiable
        stated = np.full(len(draws), float(level))
        if adaptive is not None:
            stated = adaptive.read_alphas(features, level)
    else:
        if artifact.unit == "answers":
            sets = AnswerSets.from_best_candidates(draws, levels)
        else:
            sets = AnswerSets.from_claims_below(draws, cut)
        thresholds, stated, refused = np.empty(0), np.empty(0), sets.not_certifiable
    return Decisions(
        draws,
        sets.accepted,
        sets.not_certifiable,
        features=features,
        thresholds=thresholds,
        refused=refused,
        levels=levels,
        stated_alphas=stated,
        max_mean_score=cut if artifact.unit == "answers" else None,
        withheld=rule.withheld,
    )


def compute_bot_scores(artifact: CalibrationArtifact, draws: CandidateBatch) -> FloatArray:
    """Return the (N,) mean scores by which a bot answers; `inf` if every answer is blank. See `decide`."""
    has_answer = decide(artifact, draws, cut=EVERY_PROMPT).answered
    return np.where(has_answer, MEAN_SCORE.compute_values(draws), np.inf)
