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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from typing import Any, ClassVar, Literal, TypeAlias, TypeVar

import numpy as np

from langchain_cfc._internal.arrays import BoolArray, FloatArray, IntArray
from langchain_cfc.calibration.fit import fit_combination
from langchain_cfc.candidates import CandidateBatch, LabelledBatch
from langchain_cfc.decision import AnswerSets
from langchain_cfc.errors import InputError
from langchain_cfc.experiments.baselines import BackOffRule, SamplingRule
from langchain_cfc.experiments.comparison_report import Family
from langchain_cfc.features import FeatureMap, name_records_in_errors, precompute_statistics
from langchain_cfc.guarantee.stability import PaperStability
from langchain_cfc.records import with_scores
from langchain_cfc.set_rules import parse_set_rule
from langchain_cfc.thresholds import (
    ConditionalThreshold,
    LearnedThreshold,
    MarginalThreshold,
    ThresholdRule,
    Thresholds,
    compute_tau,
)
from langchain_cfc.thresholds._rows import find_unique_rows

# `development` is all that is not `test`: the paper calibrates on all of it, feature maps included.
T = TypeVar("T")
Rows: TypeAlias = Literal["fit", "calibration", "development", "test"]


class Pool:
    """Labelled prompts, with what does not depend on how they are split.

    Args:
        labelled: N labelled prompts; of a cluster, one.
        measure: Whether to compute every statistic once, for feature maps to look up.
    """

    def __init__(self, labelled: LabelledBatch, *, measure: bool = True) -> None:
        self.labelled = (
            replace(labelled, draws=precompute_statistics(labelled.draws)) if measure else labelled
        )
        self._levels: dict[str, FloatArray] = {}
        self._success: dict[tuple[str, float], FloatArray] = {}

    @property
    def draws(self) -> CandidateBatch:
        """The candidates."""
        return self.labelled.draws

    @property
    def correct(self) -> BoolArray:
        """(N, n) which of them are correct."""
        return self.labelled.correct

    @cached_property
    def attainable(self) -> BoolArray:
        """(N,) whether a prompt has a correct candidate."""
        return np.asarray(self.correct.any(axis=1), dtype=np.bool_)

    def levels(self, set_rule: str) -> FloatArray:
        """(N, n) entry levels under a set rule."""
        if set_rule not in self._levels:
            self._levels[set_rule] = parse_set_rule(set_rule).levels(self.draws)
        return self._levels[set_rule]

    def success_scores(self, set_rule: str, cap: float) -> FloatArray:
        """(N,) success scores under a set rule, `cap` without a correct candidate."""
        key = set_rule, cap
        if key not in self._success:
            self._success[key] = parse_set_rule(set_rule).success_scores(self.labelled, cap)
        return self._success[key]

    def combined(self, names: Sequence[str], fitted_on: IntArray) -> Pool:
        """The same prompts, scored by a combination of verifiers.

        Args:
            names: Verifiers whose raw outputs the prompts hold.
            fitted_on: (m,) rows that the combination is fitted on.

        Returns:
            The prompts with its scores.

        Raises:
            CalibrationError: If all candidates of these rows are correct, or all wrong.
        """
        labelled = self.labelled
        raw = np.stack([labelled.raw[name] for name in names], axis=-1)
        combination = fit_combination(names, raw[fitted_on], labelled.take(fitted_on))
        return Pool(with_scores(labelled, combination.score_all(raw)))

    def features(self, text: str, fitted_on: IntArray) -> FloatArray:
        """(N, d) features of all prompts.

        Args:
            text: The feature map.
            fitted_on: (m,) rows that it is fitted on.

        Returns:
            The features.

        Raises:
            FeatureError: If the map cannot be fitted there, or a prompt has a category unknown there.
        """
        feature_map = FeatureMap.parse(text)
        ids = self.labelled.ids
        if feature_map.needs_fit:
            with name_records_in_errors([ids[row] for row in fitted_on.tolist()]):
                feature_map = feature_map.fit(self.draws.take(fitted_on))
        with name_records_in_errors(ids):
            return feature_map.transform(self.draws)


@dataclass(frozen=True, eq=False)
class Split:
    """One division of a pool, and what methods that are run on it share.

    Attributes:
        pool: The prompts.
        fit: Rows that feature maps are fitted on.
        calibration: Rows that calibrate.
        test: Rows that are tested on.
        features_text: The feature map of methods that name none of their own.
        set_rule: The set rule of such methods.
        made: Features and thresholds already made, by what they were made from; methods share them.
    """

    pool: Pool
    fit: IntArray
    calibration: IntArray
    test: IntArray
    features_text: str
    set_rule: str
    made: dict[tuple[object, ...], Any] = field(default_factory=dict)

    @cached_property
    def development(self) -> IntArray:
        """All rows that are not tested on."""
        return np.sort(np.concatenate([self.fit, self.calibration]))

    @cached_property
    def test_candidates(self) -> CandidateBatch:
        """The candidates tested on."""
        return self.pool.draws.take(self.test)

    @cached_property
    def all_drawn(self) -> IntArray:
        """(m,) n for every prompt tested on."""
        return np.full(len(self.test), self.pool.draws.n, dtype=np.int64)

    @cached_property
    def test_correct(self) -> BoolArray:
        """(m, n) which of them are correct."""
        return self.pool.correct[self.test]

    def rows(self, name: Rows) -> IntArray:
        """The rows of a part."""
        found: IntArray = getattr(self, name)
        return found

    def once(self, key: tuple[object, ...], make: Callable[[], T]) -> T:
        """What was made for a key, made now if it is the first to ask."""
        if key not in self.made:
            self.made[key] = make()
        found: T = self.made[key]
        return found

    def test_levels(self, set_rule: str) -> FloatArray:
        """(m, n) entry levels of the candidates tested on."""
        return self.once(("levels", set_rule), lambda: self.pool.levels(set_rule)[self.test])

    def features(self, text: str, fitted_on: Rows) -> FloatArray:
        """(N, d) features of all prompts of the pool, by a map fitted on one part; see `Pool.features`."""
        return self.once(
            ("features", text, fitted_on), lambda: self.pool.features(text, self.rows(fitted_on))
        )

    def distinct_test_features(self, text: str, fitted_on: Rows) -> tuple[FloatArray, IntArray]:
        """(k, d) different features of the prompts tested on, and (m,) which of them each prompt has."""

        def make() -> tuple[FloatArray, IntArray]:
            features = self.features(text, fitted_on)[self.test]
            first, place = find_unique_rows(features)
            return features[first], place

        return self.once(("distinct features", text, fitted_on), make)


CAP = 2.0
DELTA = "0.05"


@dataclass(frozen=True, eq=False)
class MethodOutput:
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
    def make(self, split: Split, alpha: str) -> MethodOutput:
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

    def make(self, split: Split, alpha: str) -> MethodOutput:
        """The answer sets of the split's test prompts."""
        features, served = self.reads(split.features_text, split.set_rule)
        thresholds = self._thresholds(split, alpha, self.calibrated_on or served, features)
        sets = AnswerSets.from_levels(
            split.test_candidates,
            split.test_levels(served),
            thresholds,
            never_empty=self.convention.never_empty,
        )
        return MethodOutput(sets, thresholds.values, split.all_drawn)

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

    def make(self, split: Split, alpha: str) -> MethodOutput:
        """The answer sets of the split's test prompts."""
        n, m = split.pool.draws.n, len(split.test)
        grid = sorted({k for k in self.grid or range(1, n + 1) if 1 <= k <= n})
        if not grid:
            msg = f"TopK chooses K from {self.grid}, but the records hold {n} candidates a prompt"
            raise InputError(msg)
        success = split.pool.success_scores("rank", CAP)[split.development]
        # Ranks are divided by n in the same way as levels are, so that equal ones are equal; coverage is
        # counted, for the nearest of two at the same distance shall not be settled by round-off.
        tau = compute_tau(alpha)
        coverage = {k: Fraction(int((success <= k / n).sum()), len(success)) for k in grid}
        if self.reaching:
            chosen = next((k for k in grid if coverage[k] >= tau), grid[-1])
        else:
            chosen = min(grid, key=lambda k: abs(coverage[k] - tau))
        level = np.full(m, chosen / n)
        thresholds = Thresholds(level, np.zeros(m), np.zeros(m, dtype=np.bool_))
        # K is at least 1, so that no set is empty.
        sets = AnswerSets.from_levels(
            split.test_candidates, split.test_levels("rank"), thresholds, never_empty=False
        )
        return MethodOutput(sets, None, split.all_drawn)


@dataclass(frozen=True)
class Sampling(Method):
    """Conformal language modelling: draw until the set looks good enough; see `outside.SamplingRule`."""

    tells_answers_apart: ClassVar[bool] = True

    def make(self, split: Split, alpha: str) -> MethodOutput:
        """The answer sets of the split's test prompts."""
        rule = split.once(("sampling",), lambda: self._learnt(split))
        draws = split.test_candidates
        found = rule.sets(draws.scores, draws.answer_codes, alpha)
        return MethodOutput(AnswerSets(draws, found.accepted, found.flagged), None, found.draws)

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

    def make(self, split: Split, alpha: str) -> MethodOutput:
        """The answer sets of the split's test prompts."""
        rule = split.once(("back-off",), lambda: self._learnt(split))
        draws = split.test_candidates
        sets = AnswerSets(draws, rule.sets(draws.scores, alpha), np.zeros(len(draws), dtype=np.bool_))
        return MethodOutput(sets, None, split.all_drawn)

    def _learnt(self, split: Split) -> BackOffRule:
        rows = split.development
        return BackOffRule.learn(split.pool.draws.scores[rows], split.pool.correct[rows])
