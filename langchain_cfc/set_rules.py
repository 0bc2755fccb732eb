"""Set rules: compute entry levels from the scores of a prompt's candidates, and answer sets from levels.

A rule is defined by its levels: the level of a candidate is the smallest threshold at which it enters the
answer set. So the sets of every rule are nested in the threshold, and calibrating on the rule's own success
score guarantees exactly the set that is returned.

Under every rule the level of a candidate with a blank answer is `inf`: the model said nothing, refused, or
the answer extractor found nothing; also that of one on which the verifier has no verdict. So no set holds it,
and it is never the best answer. In all other respects it is an ordinary candidate: it is drawn, scored, and
counted in features. This is part of the levels and not a filter on the output, because the theorem is about
levels: calibration and serving apply the same function to exchangeable prompts, the success score S(X) is the
smallest of these levels among correct candidates, and P(S(X) <= threshold) >= 1 - alpha holds as for every
other rule, for the set that is returned. Withholding a set afterwards because its best answer is blank would
lose its correct answers, and would guarantee only "covered, flagged or withheld". The cost shows in the
attainable coverage: a prompt whose only correct candidates are blank counts as a prompt without correct
candidates.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Literal

import numpy as np

from langchain_cfc.candidates import CandidateBatch, LabelledBatch
from langchain_cfc.errors import InputError
from langchain_cfc.features.statistics import MEAN_SCORE
from langchain_cfc.support.arrays import BoolArray, FloatArray, IntArray, find_first_equal
from langchain_cfc.support.suggestions import suggest_name
from langchain_cfc.support.units import Unit
from langchain_cfc.thresholds import CAP, Thresholds

__all__ = [
    "AcceptAll",
    "BestAnswer",
    "BestPrefix",
    "Claims",
    "Rank",
    "SetRule",
    "Unique",
    "parse_set_rule",
    "select_candidates",
]


class SetRule:
    """A rule that computes entry levels from scores.

    Attributes:
        text: The rule's name, which `parse_set_rule` reads.
        unit: What it accepts or rejects. Claims that a threshold reaches are rejected, answers are accepted.
        at_most: Maximum number of unsupported claims that stay; None for rules about whole answers.
        option: The option of `calibrate` that names the error levels of its promise.
        withheld: Why a prompt that is not flagged has an answer that is not shown.
        shows_best_alone: Whether a set that would be empty holds the best candidate, unless it is flagged.
        needs_answers: Whether it compares answers.
    """

    text: str
    unit: Unit = "answers"
    at_most: int | None = None
    option: Literal["alpha", "max_wrong_of_all"] = "alpha"
    withheld: Literal["mean_score_too_high", "no_claim_kept"] = "mean_score_too_high"
    shows_best_alone: bool = True
    needs_answers: bool = False

    def compute_levels(self, draws: CandidateBatch) -> FloatArray:
        """Compute the entry levels of all candidates.

        Args:
            draws: N prompts with n candidates each.

        Returns:
            (N, n) levels in [0, 1]; `inf` for a candidate that never enters, such as one with a blank answer,
            and for a slot without a candidate.
        """
        if draws.drawn is not None:
            levels = np.full(draws.scores.shape, np.inf)
            for rows, part in draws.split_by_count():
                levels[rows, : part.n] = self.compute_levels(part)
            return levels
        blank = draws.blank
        if blank is None or not blank.any():
            return self._compute_levels(draws)
        last = replace(draws, scores=np.where(blank, np.inf, draws.scores))
        return np.where(blank, np.inf, self._compute_levels(last))

    def _compute_levels(self, draws: CandidateBatch) -> FloatArray:
        """Compute (N, n) entry levels from scores, `inf` for candidates whose answers are blank."""
        raise NotImplementedError

    def covers(self, correct: BoolArray, accepted: BoolArray) -> BoolArray:
        """Return (N,) whether the accepted set keeps the promise: here, whether it holds a correct answer.

        Both arguments are (N, n) flags.
        """
        return np.asarray(np.any(accepted & correct, axis=1), dtype=np.bool_)

    def accept(self, levels: FloatArray, thresholds: Thresholds) -> BoolArray:
        """Accept the candidates that a threshold reaches; none under a threshold of `inf`, which flags.

        Args:
            levels: (N, n) entry levels.
            thresholds: N thresholds.

        Returns:
            (N, n) whether each candidate is accepted.
        """
        return select_candidates(levels, thresholds) & ~np.isposinf(thresholds.values)[:, np.newaxis]

    def choose_shown(
        self, best: IntArray, accepted: BoolArray, draw_uniforms: Callable[[], FloatArray]
    ) -> IntArray:
        """Choose what decides whether a prompt is answered wrongly: its best candidate, or a random claim.

        Args:
            best: (N,) slots of the best candidates.
            accepted: (N, n) the answer sets.
            draw_uniforms: Returns (N,) random numbers in [0, 1), for rules that draw at random.

        Returns:
            (N,) slots.
        """
        del accepted, draw_uniforms
        return best

    def compute_reach(self, draws: CandidateBatch, share: str | None = None) -> FloatArray:
        """Compute (N,) thresholds above every success score of a prompt for which enough can be shown.

        With claims, `share` of an answer's claims is enough: decimal text above 0 and below 1, by default one
        claim.
        """
        del share
        return np.full(len(draws), CAP)

    def compute_success_scores(self, labelled: LabelledBatch, cap: float = CAP) -> FloatArray:
        """Compute the paper's S(X): the smallest level among a prompt's correct candidates, else `cap`.

        The value for a prompt without a correct candidate must lie above every level: with 1 the event
        "S <= 1" would be true without a correct answer.

        Args:
            labelled: N prompts with labels.
            cap: Number above 1; only the reproduction of the paper passes 1.

        Returns:
            (N,) success scores, at most `cap`.

        Raises:
            InputError: If the prompts are of another unit, or the rule needs answers that are missing.
        """
        if labelled.unit != self.unit:
            msg = (
                f"the set rule {self.text} is for {self.unit}, but these records hold {labelled.unit}: pass "
                f"unit={labelled.unit!r}"
            )
            raise InputError(msg)
        return self._compute_success_scores(labelled, cap)

    def _compute_success_scores(self, labelled: LabelledBatch, cap: float) -> FloatArray:
        levels = np.where(labelled.correct, self.compute_levels(labelled.draws), np.inf)
        return np.asarray(np.minimum(levels.min(axis=1), cap), dtype=np.float64)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.text!r})"


def select_candidates(levels: FloatArray, thresholds: Thresholds) -> BoolArray:
    """Select the candidates that a threshold reaches: level <= threshold + the threshold's error bound.

    Args:
        levels: (N, n) entry levels.
        thresholds: N thresholds; a value in [1, cap) reaches every finite level, a negative value none.

    Returns:
        (N, n) whether each candidate is reached.
    """
    reach = (thresholds.values + thresholds.errors)[:, np.newaxis]
    return np.asarray((levels <= reach) & np.isfinite(levels), dtype=np.bool_)


class AcceptAll(SetRule):
    """Set rule `all`: the level is the score."""

    text = "all"

    def _compute_levels(self, draws: CandidateBatch) -> FloatArray:
        return draws.scores.copy()


class BestPrefix(SetRule):
    """Set rule `best_prefix`: level = score up to the earliest candidate of lowest score, then `inf`.

    The paper truncates after calibrating on the untruncated score, which its theorem does not cover; with
    these levels the truncated set is calibrated on its own success score.
    """

    text = "best_prefix"

    def _compute_levels(self, draws: CandidateBatch) -> FloatArray:
        best = draws.scores.argmin(axis=1)  # the earliest in case of ties
        return np.where(np.arange(draws.n) <= best[:, np.newaxis], draws.scores, np.inf)


class Rank(SetRule):
    """Set rule `rank`: the level is rank / n, with ranks from 1 and ties in draw order."""

    text = "rank"

    def _compute_levels(self, draws: CandidateBatch) -> FloatArray:
        order = np.argsort(draws.scores, axis=1, kind="stable")
        return (np.argsort(order, axis=1) + 1.0) / draws.n


class Unique(SetRule):
    """Set rule `unique(base)`: only one candidate per distinct answer, the earliest of smallest level.

    Labels of equal answers may differ, as those of a judge do: the label of this one candidate counts, which
    is what a set shows.

    Args:
        base: The rule that computes each candidate's level.
    """

    needs_answers = True

    def __init__(self, base: SetRule) -> None:
        self._base = base
        self.text = f"unique({base.text})"

    def _compute_levels(self, draws: CandidateBatch) -> FloatArray:
        levels = self._base.compute_levels(draws)
        if draws.answer_codes is None:
            msg = "the set rule `unique` needs the candidates' answers; these candidates have scores only"
            raise InputError(msg)
        order = np.argsort(levels, axis=1, kind="stable")
        first = find_first_equal(np.take_along_axis(draws.answer_codes, order, axis=1))
        represents = np.zeros(levels.shape, dtype=np.bool_)
        np.put_along_axis(represents, order, first == np.arange(draws.n), axis=1)
        return np.where(represents, levels, np.inf)


class DroppingRule(SetRule):
    """A rule under which the threshold drops what it reaches, so that at most k wrong items stay.

    So the dropped items are nested in the threshold, as sets are under every other rule. The success score
    S(X) is the smallest threshold that leaves at most k wrong items: the (k+1)-th largest level among them, 0
    if there are at most k. "At most k wrong items stay" is the event S(X) <= threshold, so every theorem
    about sets holds for it. A threshold of `inf` drops everything, which keeps the promise trivially.
    """

    shows_best_alone = False

    def covers(self, correct: BoolArray, accepted: BoolArray) -> BoolArray:
        """Return (N,) whether at most k wrong items are kept."""
        return np.asarray((accepted & ~correct).sum(axis=1) <= (self.at_most or 0), dtype=np.bool_)

    def accept(self, levels: FloatArray, thresholds: Thresholds) -> BoolArray:
        """Keep the items that a threshold does not reach; see `SetRule`."""
        return np.isfinite(levels) & ~select_candidates(levels, thresholds)

    def _compute_success_scores(self, labelled: LabelledBatch, cap: float) -> FloatArray:
        del cap  # never needed, because dropping everything keeps the promise
        levels = self.compute_levels(labelled.draws)
        of_wrong = np.where(np.isfinite(levels) & ~labelled.correct, levels, 0.0)
        place = of_wrong.shape[1] - 1 - (self.at_most or 0)
        if place < 0:
            return np.zeros(len(of_wrong))
        return np.asarray(np.partition(of_wrong, place, axis=1)[:, place], dtype=np.float64)


class BestAnswer(DroppingRule):
    """Set rule `best_answer`: show the best candidate, unless the threshold reaches the prompt's confidence.

    The rule of a bot that promises few wrong answers among all questions. The level of the best candidate,
    the earliest of lowest score, is the confidence 1 - mean score; all others never enter. So the success
    score is the confidence if the best candidate is wrong, and 0 if it is right or if there is nothing to
    show: under each guaranteed weighting of the prompts at most alpha of them are answered wrongly. It is the
    rule `claims(0)` for an answer with a single claim.
    """

    text = "best_answer"
    option = "max_wrong_of_all"

    def compute_levels(self, draws: CandidateBatch) -> FloatArray:
        """Compute (N, n) levels: the confidence at the slot of the best candidate, `inf` elsewhere."""
        is_answer = draws.is_drawn if draws.blank is None else draws.is_drawn & ~draws.blank
        scores = np.where(is_answer, draws.scores, np.inf)
        rows, best = np.arange(len(draws)), scores.argmin(axis=1)
        levels = np.full(scores.shape, np.inf)
        levels[rows, best] = np.where(
            np.isfinite(scores[rows, best]), 1.0 - MEAN_SCORE.compute_values(draws), np.inf
        )
        return levels


class Claims(DroppingRule):
    """Set rule `claims(k)`: drop claims of one answer, so that at most k unsupported ones stay.

    The level of a claim is its confidence, 1 - score, and claims at or below the threshold are dropped
    (Mohri and Hashimoto 2024 for one threshold; Cherian, Gibbs and Candes 2024 for conditional ones).

    Args:
        at_most: k >= 0, the number of unsupported claims that may stay.
    """

    unit: Unit = "claims"
    at_most: int
    withheld = "no_claim_kept"

    def __init__(self, at_most: int) -> None:
        self.at_most = at_most
        self.text = f"claims({at_most})"

    def compute_levels(self, draws: CandidateBatch) -> FloatArray:
        """Compute the (N, n) confidences of claims; `inf` for a slot without a claim."""
        return np.where(draws.is_drawn, 1.0 - draws.scores, np.inf)

    def choose_shown(
        self, best: IntArray, accepted: BoolArray, draw_uniforms: Callable[[], FloatArray]
    ) -> IntArray:
        """Draw one of the claims kept in each answer, uniformly at random; see `SetRule`."""
        del best
        places = np.floor(draw_uniforms() * accepted.sum(axis=1))
        return np.asarray((np.cumsum(accepted, axis=1) > places[:, np.newaxis]).argmax(axis=1), np.int64)

    def compute_reach(self, draws: CandidateBatch, share: str | None = None) -> FloatArray:
        """Compute the (N,) confidences of the last claim of the share: only a threshold below keeps it."""
        needed = [max(1, math.ceil(Fraction(share or 0) * count)) for count in draws.counts.tolist()]
        ordered = np.sort(np.where(draws.is_drawn, 1.0 - draws.scores, 0.0), axis=1)
        return np.asarray(ordered[np.arange(len(ordered)), draws.n - np.array(needed)], np.float64)


_CLAIMS_PATTERN = re.compile(r"claims\((0|[1-9]\d{0,5})\)")
_RULES: dict[str, SetRule] = {rule.text: rule for rule in (AcceptAll(), BestPrefix(), Rank())}
_RULES |= {f"unique({text})": Unique(rule) for text, rule in _RULES.items()}
_RULES |= {"unique": _RULES["unique(all)"], "best_answer": BestAnswer()}


def parse_set_rule(text: str) -> SetRule:
    """Parse the text of a set rule, such as `unique(best_prefix)`.

    Args:
        text: `all`, `best_prefix` or `rank`, or `unique(...)` around one of these; `unique` alone wraps
            `all`. For claims, `claims(k)`; for a bot that promises few wrong answers among all questions,
            `best_answer`.

    Returns:
        The rule.

    Raises:
        InputError: If the name is unknown.

    Examples:
        >>> parse_set_rule("unique(best_prefix)").text, parse_set_rule("unique").text
        ('unique(best_prefix)', 'unique(all)')
    """
    name = text.replace(" ", "")
    if (of_claims := _CLAIMS_PATTERN.fullmatch(name)) is not None:
        return Claims(int(of_claims[1]))
    if name not in _RULES:
        known = f"{', '.join(_RULES)} and claims(k)"
        msg = f"unknown set rule {text!r}; known are {known}{suggest_name(name, _RULES)}"
        raise InputError(msg)
    return _RULES[name]
