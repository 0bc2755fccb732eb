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
from functools import cached_property, partial
from typing import Any, ClassVar, Literal, TypeAlias, TypeVar

import numpy as np

from langchain_cfc._internal.arrays import BoolArray, FloatArray, IntArray
from langchain_cfc._internal.suggestions import suggest_name
from langchain_cfc.calibration.fit import fit_combination
from langchain_cfc.candidates import CandidateBatch, LabelledBatch, Unit
from langchain_cfc.decision import AnswerSets
from langchain_cfc.errors import InputError
from langchain_cfc.experiments.baselines import BackOffRule, SamplingRule
from langchain_cfc.experiments.comparison_report import Family
from langchain_cfc.features import FeatureMap, name_records_in_errors, precompute_statistics
from langchain_cfc.guarantee.stability import PaperStability
from langchain_cfc.records import with_scores
from langchain_cfc.set_rules import Claims, parse_set_rule
from langchain_cfc.thresholds import (
    ConditionalThreshold,
    LearnedThreshold,
    MarginalThreshold,
    ThresholdRule,
    Thresholds,
    compute_tau,
)
from langchain_cfc.thresholds._rows import find_unique_rows

RuleName: TypeAlias = Literal["conditional", "randomised", "marginal", "confident", "learned"]
# `development` is all that is not `test`: the paper calibrates on all of it, feature maps included.
Rows: TypeAlias = Literal["fit", "calibration", "development", "test"]
T = TypeVar("T")
CAP = 2.0
DELTA = "0.05"


class Cache:
    """Levels, features, thresholds and rules that are made once, by what they were made from."""

    cache: dict[tuple[object, ...], Any]

    def get_or_make(self, key: tuple[object, ...], make: Callable[[], T]) -> T:
        """Return what was made for a key; the first caller makes it."""
        if key not in self.cache:
            self.cache[key] = make()
        found: T = self.cache[key]
        return found


class Pool(Cache):
    """Labelled prompts, one of each cluster, with what does not depend on how they are split.

    With `measure` every statistic is computed once, for feature maps to look up.
    """

    def __init__(self, labelled: LabelledBatch, *, measure: bool = True) -> None:
        draws = precompute_statistics(labelled.draws) if measure else labelled.draws
        self.labelled = replace(labelled, draws=draws)
        self.cache = {}

    @property
    def draws(self) -> CandidateBatch:
        """Candidates of the N prompts."""
        return self.labelled.draws

    @property
    def correct(self) -> BoolArray:
        """(N, n) which candidates are correct."""
        return self.labelled.correct

    @cached_property
    def attainable(self) -> BoolArray:
        """(N,) whether a prompt has a correct candidate; of claims, which may all be dropped, always."""
        if self.labelled.unit == "claims":
            return np.ones(len(self.labelled), dtype=np.bool_)
        return np.asarray(self.correct.any(axis=1), dtype=np.bool_)

    def compute_levels(self, set_rule: str) -> FloatArray:
        """Return (N, n) entry levels under a set rule."""
        return self.get_or_make((set_rule,), lambda: parse_set_rule(set_rule).levels(self.draws))

    def compute_success_scores(self, set_rule: str, cap: float) -> FloatArray:
        """Return (N,) success scores under a set rule, `cap` without a correct candidate."""
        rule = parse_set_rule(set_rule)
        return self.get_or_make((set_rule, cap), lambda: rule.success_scores(self.labelled, cap))

    def combine(self, names: Sequence[str], fitted_on: IntArray) -> Pool:
        """Return the same prompts, scored by a combination of verifiers that is fitted on some rows."""
        labelled = self.labelled
        raw = np.stack([labelled.raw[name] for name in names], axis=-1)
        combination = fit_combination(names, raw[fitted_on], labelled.take(fitted_on))
        return Pool(with_scores(labelled, combination.score_all(raw)))

    def compute_features(self, text: str, fitted_on: IntArray) -> FloatArray:
        """Return (N, d) features of all prompts by a map that is fitted on some rows."""
        feature_map = FeatureMap.parse(text)
        ids = self.labelled.ids
        if feature_map.needs_fit:
            with name_records_in_errors([ids[row] for row in fitted_on.tolist()]):
                feature_map = feature_map.fit(self.draws.take(fitted_on))
        with name_records_in_errors(ids):
            return feature_map.transform(self.draws)


@dataclass(frozen=True, eq=False)
class Split(Cache):
    """One division of a pool, and what methods that are run on it share."""

    pool: Pool
    fit: IntArray
    calibration: IntArray
    test: IntArray
    features_text: str  # feature map of methods that name none
    set_rule: str  # set rule of methods that name none
    cache: dict[tuple[object, ...], Any] = field(default_factory=dict)

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
        """(m,) numbers of candidates of the prompts tested on: n, unless a rule stops drawing."""
        return self.pool.draws.counts[self.test]

    @cached_property
    def uniforms(self) -> FloatArray:
        """(m,) random numbers of the prompts tested on, for randomised thresholds: others in each split."""
        return np.asarray(np.random.default_rng(self.test).random(len(self.test)), dtype=np.float64)

    @cached_property
    def test_correct(self) -> BoolArray:
        """(m, n) which candidates tested on are correct."""
        return self.pool.correct[self.test]

    def get_rows(self, name: Rows) -> IntArray:
        """Return the rows of a part."""
        found: IntArray = getattr(self, name)
        return found

    def compute_test_levels(self, set_rule: str) -> FloatArray:
        """Return (m, n) entry levels of the candidates tested on."""
        return self.get_or_make(("levels", set_rule), lambda: self.pool.compute_levels(set_rule)[self.test])

    def compute_features(self, text: str, fitted_on: Rows) -> FloatArray:
        """Return (N, d) features of all prompts of the pool, by a map fitted on one part."""
        return self.get_or_make(
            ("features", text, fitted_on), lambda: self.pool.compute_features(text, self.get_rows(fitted_on))
        )

    def compute_distinct_features(self, text: str, fitted_on: Rows) -> tuple[FloatArray, IntArray]:
        """Return (k, d) distinct features of test prompts, and (m,) which of them each prompt has."""

        def make() -> tuple[FloatArray, IntArray]:
            features = self.compute_features(text, fitted_on)[self.test]
            first, place = find_unique_rows(features)
            return features[first], place

        return self.get_or_make(("distinct features", text, fitted_on), make)


@dataclass(frozen=True, eq=False)
class MethodOutput:
    """What a method returns for the test prompts of a split."""

    sets: AnswerSets
    thresholds: FloatArray | None  # (m,); None for a method without thresholds
    drawn: IntArray  # (m,) number of candidates that had to be drawn


@dataclass(frozen=True)
class Method(ABC):
    """A method that makes answer sets, the base of all methods compared.

    Attributes:
        name: Name in reports.
        words: What it does, in words.
        promise: What it promises, in words.
        family: Where it comes from.
        aims_at_coverage: Whether it aims at prompts being covered or flagged.
        distinguishes_answers: Whether its sets depend on which candidates give the same answer under any set
            rule.
    """

    name: str
    words: str
    promise: str
    family: Family
    aims_at_coverage: ClassVar[bool] = True
    distinguishes_answers: ClassVar[bool] = False

    def get_inputs(self, features: str, set_rule: str) -> tuple[str, str]:
        """Return the feature map and the set rule that the method uses; the map `1` where it uses none.

        The arguments are those of methods that name none.
        """
        del features, set_rule
        return "1", "all"

    @abstractmethod
    def make(self, split: Split, alpha: str) -> MethodOutput:
        """Return the answer sets of the split's test prompts at a level, given as decimal text."""


@dataclass(frozen=True)
class Convention:
    """What is done besides the two axes."""

    name: str
    cap: float  # success score of a prompt without a correct candidate
    calibration_part: Rows
    fit_part: Rows  # feature maps are fitted on it
    never_empty: bool  # whether an unflagged prompt gets its best candidate where none reaches the threshold

    def clip_thresholds(self, thresholds: Thresholds) -> Thresholds:
        """Return the thresholds that are used: the paper's are cut to [0, 1], so that none is flagged."""
        if self.cap > 1.0:
            return thresholds
        return replace(thresholds, values=np.clip(thresholds.values, 0.0, 1.0))


OURS = Convention("ours", CAP, "calibration", "fit", never_empty=True)
PAPER = Convention("paper", 1.0, "development", "development", never_empty=False)


@dataclass(frozen=True)
class ThresholdMethod(Method):
    """A method that combines a set rule with a threshold rule."""

    # `confident` is the marginal rule at a rank that holds for the calibration set at hand, `randomised` the
    # conditional one with randomised thresholds
    rule: RuleName
    convention: Convention
    set_rule: str | None = None  # the one served; None for the split's
    calibrated_on: str | None = None  # the set rule whose success scores calibrate; None for the one served
    features: str | None = None  # None for the split's
    stability: PaperStability | None = None  # the slack by which the level is made stricter

    def get_inputs(self, features: str, set_rule: str) -> tuple[str, str]:
        """See `Method.get_inputs`."""
        alike = self.rule in {"marginal", "confident"}
        return "1" if alike else self.features or features, self.set_rule or set_rule

    def make(self, split: Split, alpha: str) -> MethodOutput:
        """See `Method.make`."""
        features, served = self.get_inputs(split.features_text, split.set_rule)
        thresholds = self._compute_thresholds(split, alpha, self.calibrated_on or served, features)
        unit = split.pool.labelled.unit
        sets = AnswerSets.from_levels(
            split.test_candidates,
            split.compute_test_levels(served),
            thresholds,
            never_empty=self.convention.never_empty and unit == "answers",
            unit=unit,
        )
        return MethodOutput(sets, thresholds.values, split.all_drawn)

    def _compute_thresholds(self, split: Split, alpha: str, calibrated_on: str, features: str) -> Thresholds:
        """Return thresholds of the test prompts, shared by methods that differ only in the set served."""
        size = len(split.get_rows(self.convention.calibration_part))
        level = alpha if self.stability is None else self.stability.effective_alpha(alpha, size)
        key = ("thresholds", self.rule, self.convention.name, calibrated_on, features, level)
        return split.get_or_make(key, lambda: self._fit_thresholds(split, level, calibrated_on, features))

    def _fit_thresholds(self, split: Split, level: str, calibrated_on: str, text: str) -> Thresholds:
        size, convention = len(split.test), self.convention
        if level == "0":  # nothing is left of alpha: the paper accepts everything, we flag everything
            everything = Thresholds(np.full(size, np.inf), np.zeros(size), np.zeros(size, dtype=np.bool_))
            return convention.clip_thresholds(everything)
        features = split.compute_features(text, convention.fit_part)
        rows = split.get_rows(convention.calibration_part)
        success = split.pool.compute_success_scores(calibrated_on, convention.cap)
        fitted = self._make_rule(level).fit(features[rows], success[rows])
        if self.rule == "randomised" and isinstance(fitted, ConditionalThreshold):
            return convention.clip_thresholds(fitted.solve(features[split.test], uniforms=split.uniforms))
        # Where features are groups, thousands of prompts ask the same.
        asked, place = split.compute_distinct_features(text, convention.fit_part)
        found = fitted.solve(asked)
        each = Thresholds(found.values[place], found.errors[place], found.outside[place])
        return convention.clip_thresholds(each)

    def _make_rule(self, level: str) -> ThresholdRule[Any]:
        if self.rule in {"conditional", "randomised"}:
            return ConditionalThreshold(level, CAP, window=None)
        if self.rule == "learned":
            return LearnedThreshold(level, CAP)
        return MarginalThreshold(level, CAP, delta=DELTA if self.rule == "confident" else None)


@dataclass(frozen=True)
class TopK(Method):
    """The paper's TopK: the K candidates of lowest score, K chosen by its coverage on calibration prompts."""

    # Whether K is the smallest that reaches the target, as the paper's text has it, or the one whose coverage
    # is nearest to it, as in its tables (73.6 % at a target of 75 %).
    reaching: bool
    grid: tuple[int, ...] | None = None  # the K to choose from; None for all up to n
    distinct: bool = False  # whether K counts distinct answers, each with its best score, or candidates

    def make(self, split: Split, alpha: str) -> MethodOutput:
        """See `Method.make`."""
        n, m = split.pool.draws.n, len(split.test)
        grid = sorted({k for k in self.grid or range(1, n + 1) if 1 <= k <= n})
        if not grid:
            msg = f"TopK chooses K from {self.grid}, but the records hold {n} candidates a prompt"
            raise InputError(msg)
        levels = split.pool.get_or_make(("top k", self.distinct), lambda: self._rank(split.pool))
        success = np.where(split.pool.correct, levels, CAP).min(axis=1)[split.development]
        # Ranks are divided by n as levels are, so that equal ones compare equal. Coverage is a fraction:
        # round-off must not decide between two K at the same distance.
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
            split.test_candidates, levels[split.test], thresholds, never_empty=False
        )
        return MethodOutput(sets, None, split.all_drawn)

    def _rank(self, pool: Pool) -> FloatArray:
        """Return (N, n) levels: rank / n, infinite for repeated answers where K counts distinct ones."""
        if not self.distinct:
            return pool.compute_levels("rank")
        pool.compute_success_scores("unique(all)", CAP)  # refuses an answer that is both correct and wrong
        best = pool.compute_levels("unique(all)")
        # Repeated answers come last, so that they shift no rank.
        places = np.argsort(np.argsort(best, axis=1, kind="stable"), axis=1, kind="stable") + 1.0
        return np.where(np.isfinite(best), places / pool.draws.n, np.inf)


@dataclass(frozen=True)
class Sampling(Method):
    """Conformal language modelling: draw until the set looks good enough; see `SamplingRule`."""

    distinguishes_answers: ClassVar[bool] = True

    def make(self, split: Split, alpha: str) -> MethodOutput:
        """See `Method.make`."""
        rule = split.get_or_make(("sampling",), lambda: self._learn_rule(split))
        draws = split.test_candidates
        found = rule.make_sets(draws.scores, draws.answer_codes, alpha)
        return MethodOutput(AnswerSets(draws, found.accepted, found.flagged), None, found.draws)

    def _learn_rule(self, split: Split) -> SamplingRule:
        # It orders configurations on every other row and tests them on the rest: no order may be in the rows.
        learnt_on = split.pool.labelled.take(np.random.default_rng(0).permutation(split.development))
        draws = learnt_on.draws
        return SamplingRule.learn(draws.scores, learnt_on.correct, draws.answer_codes, delta=DELTA)


@dataclass(frozen=True)
class BackOff(Method):
    """Claim-level back-off, with candidates for claims where whole answers are kept; see `BackOffRule`."""

    aims_at_coverage: ClassVar[bool] = False

    def make(self, split: Split, alpha: str) -> MethodOutput:
        """See `Method.make`."""
        pool, rows, draws = split.pool, split.development, split.test_candidates
        rule = parse_set_rule(split.set_rule)
        right = pool.correct[rows] | ~pool.draws.is_drawn[rows]
        at_most = rule.at_most if isinstance(rule, Claims) else 0
        learn = partial(BackOffRule.learn, pool.draws.scores[rows], right, at_most)
        accepted = split.get_or_make(("back-off",), learn).make_sets(draws.scores, alpha) & draws.is_drawn
        sets = AnswerSets(draws, accepted, np.zeros(len(draws), dtype=np.bool_))
        return MethodOutput(sets, None, split.all_drawn)


class ClaimsBackOff(BackOff):
    """Claim-level back-off of claims, whose event is the one promised here."""

    aims_at_coverage: ClassVar[bool] = True

    def get_inputs(self, features: str, set_rule: str) -> tuple[str, str]:
        """See `Method.get_inputs`."""
        del features
        return "1", set_rule


_NO_THEOREM = "nothing: no theorem covers it"
_TOGETHER = "all prompts together, on average over calibration sets"
_NO_MORE = "what CFC-FULL does; the confidence claimed for it is not proven"
_LESS = "less than the paper says: a set without a correct candidate counts as covered where S = 1"
_OURS: dict[str, tuple[RuleName, str, str]] = {
    "conditional": (
        "conditional",
        "exact conditional thresholds (CFC with its cures)",
        "every weighting that the features span, on average over calibration sets",
    ),
    "marginal": ("marginal", "one threshold for all prompts (ICP with its cures)", _TOGETHER),
    "confident": (
        "confident",
        "one threshold, of a rank that holds with confidence",
        f"all prompts together, with confidence {1 - float(DELTA):g} for the calibration set at hand",
    ),
    "learned": ("learned", "plain quantile regression, without correction", _NO_THEOREM),
}
OURS_SHOWN = (*_OURS, "conditional:best_prefix", "marginal:rank")


def make_our_method(name: str, unit: Unit = "answers") -> Method:
    """Return one of our methods by name: a kind of threshold, and perhaps a set rule after a colon."""
    kind, colon, set_rule = name.partition(":")
    served = parse_set_rule(set_rule).text if colon else None
    if kind not in _OURS or (unit == "claims" and colon):
        published = _list_published(unit)
        others = [one.name for methods in published.values() for one in methods]
        families, sets = "ours and outside", " (for claims)"
        if unit == "answers":
            families = "ours, paper and outside"
            sets = ", each perhaps with a set rule of its own, such as conditional:best_prefix"
        msg = (
            f"unknown method {name!r}; known are the families {families}, {', '.join(_OURS)}{sets}, "
            f"and {', '.join(others)}{suggest_name(kind, [*_OURS, *others])}"
        )
        raise InputError(msg)
    rule, words, promise = _OURS[kind]
    sets = "" if served is None else f"; sets by {served}"
    return ThresholdMethod(name, words + sets, promise, "ours", rule=rule, convention=OURS, set_rule=served)


def list_paper_methods(
    learned_features: str | None = None, grid: tuple[int, ...] | None = None, *, distinct: bool = False
) -> tuple[Method, ...]:
    """Return the methods of the paper's tables, in its own conventions.

    TopK comes in both readings, over the K of `grid` or all up to n, K of distinct answers or of candidates;
    Learnt CP has its own feature map where one is given.
    """
    slack = PaperStability.from_constant()
    # Kept for the tables: the theorem does not cover a set that was cut after calibration.
    cut = {"set_rule": "best_prefix", "calibrated_on": "all"}

    def make(name: str, words: str, promise: str = _LESS, **settings: Any) -> Method:
        chosen = {"rule": "conditional", "set_rule": "all", **settings}
        return ThresholdMethod(name, words, promise, "paper", convention=PAPER, **chosen)

    nearest = "the K best, K of coverage nearest to the target"
    reaching = "the K best, the smallest K that reaches the target"
    return (
        TopK("TopK", nearest, _NO_THEOREM, "paper", reaching=False, grid=grid, distinct=distinct),
        TopK("TopK-reaching", reaching, _NO_THEOREM, "paper", reaching=True, grid=grid, distinct=distinct),
        make("ICP", "one threshold for all prompts", rule="marginal"),
        make("Learnt CP", "quantile regression", _NO_THEOREM, rule="learned", features=learned_features),
        make("CFC", "conditional thresholds, sets cut after the best candidate", _NO_THEOREM, **cut),
        make("CFC-FULL", "conditional thresholds"),
        make(
            "CFC-PAC",
            "CFC at a level made stricter by the paper's slack",
            _NO_THEOREM,
            **cut,
            stability=slack,
        ),
        make("CFC-PAC-FULL", "CFC-FULL at that level", _NO_MORE, stability=slack),
    )


def list_outside_methods() -> tuple[Method, ...]:
    """Return conformal language modelling's sampling rule, and claim-level back-off."""
    held = f"all prompts together, with confidence {1 - float(DELTA):g}, or else everything is flagged"
    other = "another thing: that nothing returned is wrong, on average over all prompts; empty sets count"
    drawn = "drawn one by one, rejected above one score, stopped at another (conformal language modelling)"
    kept = "candidates below a quantile of the lowest wrong scores (claim-level back-off)"
    return (
        Sampling("sampling", drawn, held, "outside"),
        BackOff("back-off", kept, other, "outside"),
    )


def list_claim_methods() -> tuple[Method, ...]:
    """Return the published rules that keep claims, for all answers alike and conditional."""
    exactly = (
        "every weighting that the features span, and no more than that, over calibration sets and chance"
    )
    return (
        ClaimsBackOff("back-off", "one threshold (Mohri and Hashimoto 2024)", _TOGETHER, "outside"),
        ThresholdMethod(
            "conditional-back-off",
            "randomised conditional thresholds (Cherian, Gibbs and Candes 2024)",
            exactly,
            "outside",
            rule="randomised",
            convention=OURS,
        ),
    )


def _list_published(unit: Unit) -> dict[str, tuple[Method, ...]]:
    """Return the methods of others, by family."""
    if unit == "claims":
        return {"outside": list_claim_methods()}
    return {"paper": list_paper_methods(), "outside": list_outside_methods()}


def get_methods(
    names: str | Sequence[str | Method] | None = None, unit: Unit = "answers"
) -> tuple[Method, ...]:
    """Return the methods with these names, each once, in this order.

    Args:
        names: One or several: families (`ours`, `paper`, `outside`), names of their methods, names that
            `make_our_method` takes, and methods as they are; by default all families.
        unit: What methods keep or reject. Of claims there is no family `paper`.

    Returns:
        The methods, each once, in this order.

    Raises:
        InputError: If a name is unknown, there is none, or two methods share a name.
    """
    published = _list_published(unit)
    shown = OURS_SHOWN if unit == "answers" else tuple(_OURS)
    families = {"ours": tuple(make_our_method(name, unit) for name in shown), **published}
    listed = {one.name: one for methods in published.values() for one in methods}
    found: dict[str, Method] = {}
    names = tuple(families) if names is None else names
    for name in [names] if isinstance(names, str) else names:
        if isinstance(name, Method):
            several: tuple[Method, ...] = (name,)
        elif not isinstance(name, str):
            msg = f"methods are names or `Method`s, got {name!r}"
            raise InputError(msg)
        else:
            several = families.get(name) or (
                (listed[name],) if name in listed else (make_our_method(name, unit),)
            )
        for method in several:
            if found.setdefault(method.name, method) != method:
                msg = f"two methods are called {method.name!r}"
                raise InputError(msg)
    if not found:
        msg = "at least one method is needed"
        raise InputError(msg)
    return tuple(found.values())
