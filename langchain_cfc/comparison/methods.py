"""Methods: ways to make answer sets of recorded candidates, each a point on two axes.

Most are a *set rule* (how entry levels come from scores) and a *threshold rule* (how a threshold comes
from calibration prompts), in one of two conventions.

Ours: success scores under the set rule that is served, a cap above 1 for prompts without a correct candidate,
thresholds at the cap flagged, other sets never empty, feature maps fitted on prompts that never calibrate.

The paper's, as its tables must have been computed: success score 1 without a correct candidate, thresholds
cut to [0, 1] and nothing flagged, calibration on all prompts that are not tested on, feature maps fitted on
the same ones, and truncated sets calibrated on untruncated scores.

Source: the paper's section 4 and appendix C, and what its published figures leave as the only reading.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, ClassVar, Literal

import numpy as np

from langchain_cfc._arrays import FloatArray, IntArray
from langchain_cfc.comparison.outside import BackOffRule, SamplingRule
from langchain_cfc.comparison.pool import Rows, Split
from langchain_cfc.comparison.report import Family
from langchain_cfc.decision import AnswerSets
from langchain_cfc.errors import InputError
from langchain_cfc.stability import PaperStability
from langchain_cfc.thresholds import (
    ConditionalThreshold,
    LearnedThreshold,
    MarginalThreshold,
    ThresholdRule,
    Thresholds,
    exact_tau,
)

CAP = 2.0
DELTA = "0.05"


@dataclass(frozen=True, eq=False)
class Made:
    """What a method makes of the test prompts of a split.

    Attributes:
        sets: Their answer sets.
        thresholds: (m,) thresholds; None for a method without any.
        drawn: (m,) number of candidates that had to be drawn.
    """

    sets: AnswerSets
    thresholds: FloatArray | None
    drawn: IntArray


@dataclass(frozen=True)
class Method(ABC):
    """A way to make answer sets.

    Attributes:
        name: What reports call it.
        words: What it does.
        promise: What it promises.
        family: Where it comes from.
        aims_at_coverage: Whether covered or flagged is what it aims at.
        tells_answers_apart: Whether its sets depend on which candidates give the same answer, whatever the
            set rule.
    """

    name: str
    words: str
    promise: str
    family: Family
    aims_at_coverage: ClassVar[bool] = True
    tells_answers_apart: ClassVar[bool] = False

    def reads(self, features: str, set_rule: str) -> tuple[str, str]:
        """The feature map and the set rule that it reads prompts by.

        Args:
            features: The map of methods that name none.
            set_rule: The set rule of methods that name none.

        Returns:
            Both as texts; the map `1` where it uses none.
        """
        del features, set_rule
        return "1", "all"

    @abstractmethod
    def make(self, split: Split, alpha: str) -> Made:
        """The answer sets of the split's test prompts.

        Args:
            split: The split.
            alpha: Error level as decimal text.

        Returns:
            The sets.

        Raises:
            FeatureError: If the method's feature map does not suit the split.
            InputError: If the records do not hold what it needs.
        """


@dataclass(frozen=True)
class Convention:
    """What is done beside the two axes.

    Attributes:
        name: Whose it is.
        cap: Success score of a prompt without a correct candidate.
        calibrates: The part that calibrates.
        fits: The part that feature maps are fitted on.
        never_empty: Whether a prompt that is not flagged gets its best candidate where none reaches the
            threshold.
    """

    name: str
    cap: float
    calibrates: Rows
    fits: Rows
    never_empty: bool

    def finished(self, thresholds: Thresholds) -> Thresholds:
        """The thresholds that are used: the paper's are cut to [0, 1], so that none is flagged."""
        if self.cap > 1.0:
            return thresholds
        return replace(thresholds, values=np.clip(thresholds.values, 0.0, 1.0))


OURS = Convention("ours", CAP, "calibration", "fit", never_empty=True)
PAPER = Convention("paper", 1.0, "development", "development", never_empty=False)


@dataclass(frozen=True)
class ThresholdMethod(Method):
    """Set rule x threshold rule.

    Attributes:
        rule: The threshold rule; `confident` is the marginal one at a rank that holds for the calibration set
            at hand.
        convention: Ours or the paper's.
        set_rule: The set rule that is served; None for the split's.
        calibrated_on: The set rule whose success scores calibrate; None for the one that is served.
        features: The feature map; None for the split's.
        stability: The slack by which the level is made stricter.
    """

    rule: Literal["conditional", "marginal", "confident", "learned"]
    convention: Convention
    set_rule: str | None = None
    calibrated_on: str | None = None
    features: str | None = None
    stability: PaperStability | None = None

    def reads(self, features: str, set_rule: str) -> tuple[str, str]:
        """See `Method.reads`."""
        alike = self.rule in {"marginal", "confident"}
        return "1" if alike else self.features or features, self.set_rule or set_rule

    def make(self, split: Split, alpha: str) -> Made:
        """The answer sets of the split's test prompts."""
        features, served = self.reads(split.features_text, split.set_rule)
        thresholds = self._thresholds(split, alpha, self.calibrated_on or served, features)
        sets = AnswerSets.within(
            split.test_draws,
            split.test_levels(served),
            thresholds,
            never_empty=self.convention.never_empty,
        )
        return Made(sets, thresholds.values, split.all_drawn)

    def _thresholds(self, split: Split, alpha: str, calibrated_on: str, features: str) -> Thresholds:
        """Thresholds of the test prompts; methods that differ in the set served only share them."""
        level = alpha
        if self.stability is not None:
            level = self.stability.effective_alpha(alpha, len(split.rows(self.convention.calibrates)))
        key = ("thresholds", self.rule, self.convention.name, calibrated_on, features, level)
        return split.once(key, lambda: self._fitted(split, level, calibrated_on, features))

    def _fitted(self, split: Split, level: str, calibrated_on: str, text: str) -> Thresholds:
        size, convention = len(split.test), self.convention
        if level == "0":  # nothing is left of alpha: the paper accepts everything, we flag everything
            everything = Thresholds(np.full(size, np.inf), np.zeros(size), np.zeros(size, dtype=np.bool_))
            return convention.finished(everything)
        features = split.features(text, convention.fits)
        rows = split.rows(convention.calibrates)
        success = split.pool.success_scores(calibrated_on, convention.cap)
        fitted = self._rule(level).fit(features[rows], success[rows])
        # Where features are groups, thousands of prompts ask the same.
        asked, place = split.distinct_test_features(text, convention.fits)
        found = fitted.solve(asked)
        each = Thresholds(found.values[place], found.errors[place], found.outside[place])
        return convention.finished(each)

    def _rule(self, level: str) -> ThresholdRule[Any]:
        if self.rule == "conditional":
            return ConditionalThreshold(level, CAP, window=None)
        if self.rule == "learned":
            return LearnedThreshold(level, CAP)
        return MarginalThreshold(level, CAP, delta=DELTA if self.rule == "confident" else None)


@dataclass(frozen=True)
class TopK(Method):
    """The paper's TopK: the K candidates of lowest score, K chosen by its coverage on calibration prompts.

    Attributes:
        reaching: Whether K is the smallest that reaches the target, as the paper's text has it, or the one
            whose coverage is nearest to it, as its tables do (73.6 % at a target of 75 %).
        grid: The K to choose from; None for all up to n.
    """

    reaching: bool
    grid: tuple[int, ...] | None = None

    def make(self, split: Split, alpha: str) -> Made:
        """The answer sets of the split's test prompts."""
        n, m = split.pool.draws.n, len(split.test)
        grid = sorted({k for k in self.grid or range(1, n + 1) if 1 <= k <= n})
        if not grid:
            msg = f"TopK chooses K from {self.grid}, but the records hold {n} candidates a prompt"
            raise InputError(msg)
        success = split.pool.success_scores("rank", CAP)[split.development]
        # Ranks are divided by n in the same way as levels are, so that equal ones are equal; coverage is
        # counted, for the nearest of two at the same distance shall not be settled by round-off.
        tau = exact_tau(alpha)
        coverage = {k: Fraction(int((success <= k / n).sum()), len(success)) for k in grid}
        if self.reaching:
            chosen = next((k for k in grid if coverage[k] >= tau), grid[-1])
        else:
            chosen = min(grid, key=lambda k: abs(coverage[k] - tau))
        level = np.full(m, chosen / n)
        thresholds = Thresholds(level, np.zeros(m), np.zeros(m, dtype=np.bool_))
        # K is at least 1, so that no set is empty.
        sets = AnswerSets.within(split.test_draws, split.test_levels("rank"), thresholds, never_empty=False)
        return Made(sets, None, split.all_drawn)


@dataclass(frozen=True)
class Sampling(Method):
    """Conformal language modelling: draw until the set looks good enough; see `outside.SamplingRule`."""

    tells_answers_apart: ClassVar[bool] = True

    def make(self, split: Split, alpha: str) -> Made:
        """The answer sets of the split's test prompts."""
        rule = split.once(("sampling",), lambda: self._learnt(split))
        draws = split.test_draws
        found = rule.sets(draws.scores, draws.answer_codes, alpha)
        return Made(AnswerSets(draws, found.accepted, found.flagged), None, found.draws)

    def _learnt(self, split: Split) -> SamplingRule:
        pool = split.pool
        # It orders configurations on every other row and tests them on the rest: no order may be in the rows.
        rows = np.random.default_rng(0).permutation(split.development)
        codes = pool.draws.answer_codes
        return SamplingRule.learn(
            pool.draws.scores[rows], pool.correct[rows], None if codes is None else codes[rows], delta=DELTA
        )


@dataclass(frozen=True)
class BackOff(Method):
    """Claim-level back-off with candidates for claims; see `outside.BackOffRule`."""

    aims_at_coverage: ClassVar[bool] = False

    def make(self, split: Split, alpha: str) -> Made:
        """The answer sets of the split's test prompts."""
        rule = split.once(("back-off",), lambda: self._learnt(split))
        draws = split.test_draws
        sets = AnswerSets(draws, rule.sets(draws.scores, alpha), np.zeros(len(draws), dtype=np.bool_))
        return Made(sets, None, split.all_drawn)

    def _learnt(self, split: Split) -> BackOffRule:
        rows = split.development
        return BackOffRule.learn(split.pool.draws.scores[rows], split.pool.correct[rows])
