"""Methods: ways to make answer sets from recorded candidates.

Most methods combine a *set rule* (how entry levels follow from scores) with a *threshold rule* (how a
threshold follows from calibration prompts), in one of two conventions:

- Ours: success scores use the set rule served; prompts without a correct candidate get a cap above 1;
  thresholds at the cap are flagged; other sets are never empty; prompts that fit features never calibrate.
- The paper's, nearly as in its code: the success score is 1 without a correct candidate;
  thresholds are clipped to [0, 1] and nothing is flagged; all prompts that are not tested on calibrate and
  fit the feature maps; truncated sets are calibrated on untruncated scores.

Source: the paper's section 4 and appendix C; `conventions` has the conventions of its code to the digit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from typing import Any, ClassVar, Literal, TypeAlias, TypeVar

import numpy as np

from langchain_cfc.candidates import CandidateBatch, LabelledBatch
from langchain_cfc.decision import AnswerSets
from langchain_cfc.errors import InputError
from langchain_cfc.features import FeatureMap, name_records_in_errors, precompute_statistics
from langchain_cfc.guarantee import PaperPAC
from langchain_cfc.guarantee.certified import compute_share
from langchain_cfc.set_rules import AcceptAll, parse_set_rule
from langchain_cfc.support.arrays import BoolArray, FloatArray, IntArray
from langchain_cfc.support.suggestions import suggest_name
from langchain_cfc.support.units import Unit
from langchain_cfc.thresholds import (
    CAP,
    ConditionalThreshold,
    GroupedThreshold,
    Thresholds,
    compute_tau,
    format_alpha,
)
from langchain_cfc_lab.baselines import SamplingRule
from langchain_cfc_lab.comparison_report import Family

RuleName: TypeAlias = Literal["conditional", "randomised", "marginal", "confident", "learned"]
# `development` is everything but `test`; the paper uses all of it both to calibrate and to fit feature maps.
SplitPart: TypeAlias = Literal["fit", "calibration", "development", "test"]
T = TypeVar("T")
DELTA = "0.05"
EPSILON = float(np.finfo(np.float64).eps)


class Cache:
    """Cache of levels, features, thresholds and rules, by the inputs that determine them."""

    cache: dict[tuple[object, ...], Any]

    def get_or_make(self, key: tuple[object, ...], make: Callable[[], T]) -> T:
        """Return the cached value of a key; call `make` for it if there is none yet."""
        if key not in self.cache:
            self.cache[key] = make()
        value: T = self.cache[key]
        return value


class Pool(Cache):
    """Labelled prompts, one from each cluster, with cached results that do not depend on the split.

    With `measure` every statistic is computed once, and feature maps look it up.
    """

    def __init__(self, labelled: LabelledBatch, *, measure: bool = True) -> None:
        draws = precompute_statistics(labelled.draws) if measure else labelled.draws
        self.labelled = replace(labelled, draws=draws)
        self.cache = {}

    @property
    def draws(self) -> CandidateBatch:
        """The candidates of the N prompts."""
        return self.labelled.draws

    @property
    def correct(self) -> BoolArray:
        """(N, n) which candidates are correct."""
        return self.labelled.correct

    @cached_property
    def attainable(self) -> BoolArray:
        """(N,) whether a prompt has a correct candidate; always True for claims, which may all be dropped."""
        if self.labelled.unit == "claims":
            return np.ones(len(self.labelled), dtype=np.bool_)
        return np.asarray(self.correct.any(axis=1), dtype=np.bool_)

    def compute_levels(self, set_rule: str) -> FloatArray:
        """Return (N, n) entry levels under a set rule."""
        return self.get_or_make((set_rule,), lambda: parse_set_rule(set_rule).compute_levels(self.draws))

    def compute_success_scores(self, set_rule: str, cap: float = CAP) -> FloatArray:
        """Return (N,) success scores under a set rule, `cap` for prompts without a correct candidate."""
        rule = parse_set_rule(set_rule)
        return self.get_or_make((set_rule, cap), lambda: rule.compute_success_scores(self.labelled, cap))

    def compute_features(self, text: str, fitted_on: IntArray) -> FloatArray:
        """Return (N, d) features of all prompts, by a feature map that is fitted on the given rows."""
        feature_map = FeatureMap.parse(text)
        ids = self.labelled.ids
        if feature_map.needs_fit:
            with name_records_in_errors([ids[row] for row in fitted_on.tolist()]):
                feature_map = feature_map.fit(self.draws.take(fitted_on))
        with name_records_in_errors(ids):
            return feature_map.transform(self.draws)


@dataclass(frozen=True, eq=False)
class Split(Cache):
    """One division of a pool into parts, with cached results that methods share."""

    pool: Pool
    fit: IntArray  # row numbers, like the next two
    calibration: IntArray
    test: IntArray
    features_text: str  # feature map of methods that have none of their own
    set_rule: str  # set rule of methods that have none of their own
    cache: dict[tuple[object, ...], Any] = field(default_factory=dict)

    @cached_property
    def development(self) -> IntArray:
        """The row numbers of all prompts that are not tested on, ascending."""
        return np.sort(np.concatenate([self.fit, self.calibration]))

    @cached_property
    def test_candidates(self) -> CandidateBatch:
        """The candidates of the m test prompts."""
        return self.pool.draws.take(self.test)

    @cached_property
    def draw_counts(self) -> IntArray:
        """(m,) number of candidates of each test prompt: n, unless a draw rule stopped earlier."""
        return self.pool.draws.counts[self.test]

    @cached_property
    def uniforms(self) -> FloatArray:
        """(m,) random numbers in [0, 1) for randomised thresholds, seeded by the split's test prompts."""
        return np.asarray(np.random.default_rng(self.test).random(len(self.test)), dtype=np.float64)

    @cached_property
    def test_correct(self) -> BoolArray:
        """(m, n) whether each candidate of the test prompts is correct."""
        return self.pool.correct[self.test]

    def get_rows(self, name: SplitPart) -> IntArray:
        """Return the row numbers of a part."""
        rows: IntArray = getattr(self, name)
        return rows

    def compute_test_levels(self, set_rule: str) -> FloatArray:
        """Return (m, n) entry levels of the test prompts' candidates."""
        return self.get_or_make(("levels", set_rule), lambda: self.pool.compute_levels(set_rule)[self.test])

    def compute_features(self, text: str, fitted_on: SplitPart) -> FloatArray:
        """Return (N, d) features of all prompts of the pool, by a feature map fitted on one part."""
        return self.get_or_make(
            ("features", text, fitted_on), lambda: self.pool.compute_features(text, self.get_rows(fitted_on))
        )

    def compute_distinct_features(self, text: str, fitted_on: SplitPart) -> tuple[FloatArray, IntArray]:
        """Return the (k, d) distinct feature rows of test prompts, and each prompt's (m,) index into them."""

        def make() -> tuple[FloatArray, IntArray]:
            features = self.compute_features(text, fitted_on)[self.test]
            distinct, place = np.unique(features, axis=0, return_inverse=True)
            return distinct, place.ravel()

        return self.get_or_make(("distinct features", text, fitted_on), make)


@dataclass(frozen=True, eq=False)
class MethodOutput:
    """What a method returns for the test prompts of a split."""

    sets: AnswerSets
    thresholds: FloatArray | None  # (m,); None for a method without thresholds
    drawn: IntArray  # (m,) number of candidates that had to be drawn


@dataclass(frozen=True)
class Method(ABC):
    """Base class of all methods: a way to make answer sets.

    Attributes:
        name: Name in reports.
        words: What it does, in words.
        promise: What it promises, in words.
        family: Where it comes from.
        distinguishes_answers: Whether its sets depend on which answers are equal, under any set rule.
    """

    name: str
    words: str
    promise: str
    family: Family
    distinguishes_answers: ClassVar[bool] = False

    def get_inputs(self, features: str, set_rule: str) -> tuple[str, str]:
        """Return the feature map and the set rule that the method uses; the map `1` if it uses none.

        The arguments are the defaults for methods that have none of their own.
        """
        del features, set_rule
        return "1", "all"

    @abstractmethod
    def make_sets(self, split: Split, alpha: str) -> MethodOutput:
        """Return the answer sets of the split's test prompts at a level, given as decimal text."""


@dataclass(frozen=True)
class Convention:
    """The choices of a method besides its set rule and threshold rule; see the module."""

    name: str
    cap: float  # success score of a prompt without a correct candidate
    calibration_part: SplitPart
    fit_part: SplitPart  # the part that feature maps are fitted on
    fills_empty: bool  # whether an unflagged prompt gets its best candidate if none reaches the threshold

    def clip_thresholds(self, thresholds: Thresholds) -> Thresholds:
        """Return the thresholds to use; the paper's are clipped to [0, 1], so that no prompt is flagged."""
        if self.cap > 1.0:
            return thresholds
        return replace(thresholds, values=np.clip(thresholds.values, 0.0, 1.0))


def predict_learned(fitted: ConditionalThreshold, features: FloatArray) -> Thresholds:
    """Predict (m,) success scores by the tau-quantile regression on the calibration prompts alone: phi' beta.

    It ignores that the new prompt is not among the calibration prompts, so it has no finite-sample guarantee.
    Source: Koenker and Bassett (1978); the paper's baseline Learnt CP.
    """
    state = fitted.fitted
    reduced, inside = state.reduce(features)
    terms = reduced * state.near.centre.beta
    errors = 4 * (terms.shape[1] + 2) * EPSILON * np.abs(terms).sum(axis=1)
    return Thresholds.apply_cap(np.where(inside, terms.sum(axis=1), np.inf), errors, fitted.cap)


OUR_CONVENTION = Convention("ours", CAP, "calibration", "fit", fills_empty=True)
PAPER_CONVENTION = Convention("paper", 1.0, "development", "development", fills_empty=False)


@dataclass(frozen=True)
class ThresholdMethod(Method):
    """A method that combines a set rule with a threshold rule."""

    # `confident` is the marginal rule at a rank that holds for this calibration set with confidence
    # 1 - DELTA, `randomised` the conditional rule with randomised thresholds
    rule: RuleName
    convention: Convention
    set_rule: str | None = None  # the set rule served; None for the split's
    calibrated_on: str | None = None  # set rule whose success scores calibrate; None for the one served
    features: str | None = None  # None for the split's
    pac: PaperPAC | None = None  # the slack by which the level is made stricter

    def get_inputs(self, features: str, set_rule: str) -> tuple[str, str]:
        """See `Method.get_inputs`."""
        alike = self.rule in {"marginal", "confident"}
        return "1" if alike else self.features or features, self.set_rule or set_rule

    def make_sets(self, split: Split, alpha: str) -> MethodOutput:
        """See `Method.make_sets`."""
        features, served = self.get_inputs(split.features_text, split.set_rule)
        thresholds = self._compute_thresholds(split, alpha, self.calibrated_on or served, features)
        rule, levels = parse_set_rule(served), split.compute_test_levels(served)
        sets = AnswerSets.from_levels(split.test_candidates, levels, thresholds, rule)
        if self.convention.fills_empty and rule.shows_best_alone:
            sets = sets.fill_empty(levels)
        return MethodOutput(sets, thresholds.values, split.draw_counts)

    def _compute_thresholds(self, split: Split, alpha: str, calibrated_on: str, features: str) -> Thresholds:
        """Return the test prompts' thresholds, cached for methods that differ only in the set served."""
        size = len(split.get_rows(self.convention.calibration_part))
        level = alpha if self.pac is None else self.pac.effective_alpha(alpha, size)
        key = ("thresholds", self.rule, self.convention.name, calibrated_on, features, level)
        return split.get_or_make(key, lambda: self._fit_thresholds(split, level, calibrated_on, features))

    def _fit_thresholds(self, split: Split, level: str, calibrated_on: str, text: str) -> Thresholds:
        size, convention = len(split.test), self.convention
        if level == "0":  # the slack uses up alpha: the paper accepts everything, we flag everything
            accept_all = Thresholds(np.full(size, np.inf), np.zeros(size), np.zeros(size, dtype=np.bool_))
            return convention.clip_thresholds(accept_all)
        features = split.compute_features(text, convention.fit_part)
        rows = split.get_rows(convention.calibration_part)
        success = split.pool.compute_success_scores(calibrated_on, convention.cap)
        fitted = self._make_rule(level).fit(features[rows], success[rows])
        if self.rule == "randomised" and isinstance(fitted, ConditionalThreshold):
            return convention.clip_thresholds(fitted.solve(features[split.test], uniforms=split.uniforms))
        # If features are groups, thousands of prompts have the same features, so each is solved for once.
        distinct, place = split.compute_distinct_features(text, convention.fit_part)
        if self.rule == "learned" and isinstance(fitted, ConditionalThreshold):
            solved = predict_learned(fitted, distinct)
        else:
            solved = fitted.solve(distinct)
        each = Thresholds(solved.values[place], solved.errors[place], solved.outside[place])
        return convention.clip_thresholds(each)

    def _make_rule(self, level: str) -> ConditionalThreshold | GroupedThreshold:
        if self.rule == "marginal":
            return GroupedThreshold(level)
        if self.rule == "confident":
            # As in `calibrate`: the first attempt to certify with the labels gets this part of delta.
            return GroupedThreshold(
                level, delta=format_alpha(float(Fraction(DELTA) * compute_share(1)), "delta")
            )
        return ConditionalThreshold(level, window=None)


@dataclass(frozen=True)
class TopK(Method):
    """The paper's TopK: the K candidates of lowest score, K chosen by its coverage on development prompts."""

    # Whether K is the smallest that reaches the target, as in the paper's text, or the one whose coverage is
    # nearest to the target, as in its tables (73.6 % at a target of 75 %).
    reaching: bool
    grid: tuple[int, ...] | None = None  # values of K to choose from; None for 1 ... n
    distinct: bool = False  # whether K counts distinct answers, each with its best score, or candidates

    def make_sets(self, split: Split, alpha: str) -> MethodOutput:
        """See `Method.make_sets`."""
        n, m = split.pool.draws.n, len(split.test)
        grid = sorted({k for k in self.grid or range(1, n + 1) if 1 <= k <= n})
        if not grid:
            msg = f"TopK chooses K from {self.grid}, but the records hold {n} candidates a prompt"
            raise InputError(msg)
        levels = split.pool.get_or_make(("top k", self.distinct), lambda: self._compute_ranks(split.pool))
        success = np.where(split.pool.correct, levels, CAP).min(axis=1)[split.development]
        # k / n is computed like the levels, so that equal ranks compare equal. Coverage is a `Fraction`, so
        # that round-off does not decide between two K at the same distance.
        tau = compute_tau(alpha)
        coverage = {k: Fraction(int((success <= k / n).sum()), len(success)) for k in grid}
        if self.reaching:
            chosen = next((k for k in grid if coverage[k] >= tau), grid[-1])
        else:
            chosen = min(grid, key=lambda k: abs(coverage[k] - tau))
        level = np.full(m, chosen / n)
        thresholds = Thresholds(level, np.zeros(m), np.zeros(m, dtype=np.bool_))
        # K is at least 1, so no set is empty.
        sets = AnswerSets.from_levels(split.test_candidates, levels[split.test], thresholds, AcceptAll())
        return MethodOutput(sets, None, split.draw_counts)

    def _compute_ranks(self, pool: Pool) -> FloatArray:
        """Return (N, n) levels, rank / n; infinite for repeated answers if K counts distinct answers."""
        if not self.distinct:
            return pool.compute_levels("rank")
        pool.compute_success_scores("unique(all)")  # raises if an answer is both correct and wrong
        best = pool.compute_levels("unique(all)")
        # Repeated answers sort last, so they do not change the ranks of the others.
        places = np.argsort(np.argsort(best, axis=1, kind="stable"), axis=1, kind="stable") + 1.0
        return np.where(np.isfinite(best), places / pool.draws.n, np.inf)


@dataclass(frozen=True)
class Sampling(Method):
    """Conformal language modelling: draw until the set looks good enough; see `SamplingRule`."""

    distinguishes_answers: ClassVar[bool] = True

    def make_sets(self, split: Split, alpha: str) -> MethodOutput:
        """See `Method.make_sets`."""
        rule = split.get_or_make(("sampling",), lambda: self._learn_rule(split))
        draws = split.test_candidates
        found = rule.make_sets(draws.scores, draws.answer_codes, alpha)
        return MethodOutput(AnswerSets(draws, found.accepted, found.flagged), None, found.draws)

    def _learn_rule(self, split: Split) -> SamplingRule:
        # The rule orders configurations on every other row and tests on the rest, so rows are shuffled first.
        learnt_on = split.pool.labelled.take(np.random.default_rng(0).permutation(split.development))
        draws = learnt_on.draws
        return SamplingRule.learn(draws.scores, learnt_on.correct, draws.answer_codes, delta=DELTA)


_NO_PROMISE = "nothing: no theorem covers it"
_HOLDS_ON_AVERAGE = "all prompts together, on average over calibration sets"
_PROMISES_CFC_FULL = "the same as CFC-FULL; the confidence claimed for it is not proven"
_PROMISES_LESS = "less than the paper says: a set without a correct candidate counts as covered where S = 1"
_OUR_RULES: dict[str, tuple[RuleName, str, str]] = {
    "conditional": (
        "conditional",
        "a threshold for each prompt, from its features (CFC, corrected)",
        "every weighting that the features span, on average over calibration sets",
    ),
    "marginal": ("marginal", "one threshold for all prompts (ICP, corrected)", _HOLDS_ON_AVERAGE),
    "confident": (
        "confident",
        "one threshold, at a rank that holds with confidence",
        f"all prompts together, with confidence {1 - float(DELTA):g} for the calibration set at hand",
    ),
    "learned": ("learned", "plain quantile regression, without correction", _NO_PROMISE),
}
OUR_RULES = tuple(_OUR_RULES)
OUR_DEFAULT_METHODS = (*OUR_RULES, "conditional:best_prefix", "marginal:rank")


def make_our_method(name: str, unit: Unit = "answers") -> ThresholdMethod:
    """Return one of our methods by name: a threshold rule, optionally followed by `:` and a set rule."""
    kind, colon, set_rule = name.partition(":")
    served = parse_set_rule(set_rule).text if colon else None
    if kind not in _OUR_RULES or (unit == "claims" and colon):
        published = _list_published(unit)
        others = [one.name for methods in published.values() for one in methods]
        families, sets = "ours and outside", " (for claims)"
        if unit == "answers":
            families = "ours, paper and outside"
            sets = " (with a set rule: conditional:best_prefix)"
        msg = (
            f"unknown method {name!r}; known are {families}, {', '.join(_OUR_RULES)}{sets}, "
            f"and {', '.join(others)}{suggest_name(kind, [*_OUR_RULES, *others])}"
        )
        raise InputError(msg)
    rule, words, promise = _OUR_RULES[kind]
    sets = "" if served is None else f"; set rule {served}"
    return ThresholdMethod(
        name, words + sets, promise, "ours", rule=rule, convention=OUR_CONVENTION, set_rule=served
    )


def list_paper_methods() -> tuple[Method, ...]:
    """Return the methods of the paper's tables, in the paper's convention."""
    # Only for the tables: the theorem does not cover a set that is truncated after calibration.
    cut = {"set_rule": "best_prefix", "calibrated_on": "all"}

    def make(name: str, words: str, promise: str = _PROMISES_LESS, **settings: Any) -> Method:
        chosen = {"rule": "conditional", "set_rule": "all", **settings}
        return ThresholdMethod(name, words, promise, "paper", convention=PAPER_CONVENTION, **chosen)

    nearest = "the K best, K chosen for coverage closest to the target"
    reaching = "the K best, the smallest K that reaches the target"
    return (
        TopK("TopK", nearest, _NO_PROMISE, "paper", reaching=False),
        TopK("TopK-reaching", reaching, _NO_PROMISE, "paper", reaching=True),
        make("ICP", "one threshold for all prompts", rule="marginal"),
        make("Learnt CP", "quantile regression", _NO_PROMISE, rule="learned"),
        make("CFC", "conditional thresholds, sets cut after the best candidate", _NO_PROMISE, **cut),
        make("CFC-FULL", "conditional thresholds"),
        make(
            "CFC-PAC",
            "CFC at a level made stricter by the paper's slack",
            _NO_PROMISE,
            **cut,
            pac=PaperPAC(),
        ),
        make("CFC-PAC-FULL", "CFC-FULL at that level", _PROMISES_CFC_FULL, pac=PaperPAC()),
    )


def list_outside_methods() -> tuple[Method, ...]:
    """Return the methods of other papers: conformal language modelling."""
    held = f"all prompts together, with confidence {1 - float(DELTA):g}, or else everything is flagged"
    drawn = "draws one by one, rejects above one score, stops at another (conformal language modelling)"
    return (Sampling("sampling", drawn, held, "outside"),)


def list_claim_methods() -> tuple[Method, ...]:
    """Return the published methods for claims: one threshold for all answers, and conditional thresholds."""
    exactly = (
        "every weighting that the features span, with equality, on average over calibration sets and "
        "randomisation"
    )
    return (
        ThresholdMethod(
            "back-off",
            "one threshold (Mohri and Hashimoto 2024)",
            _HOLDS_ON_AVERAGE,
            "outside",
            rule="marginal",
            convention=replace(OUR_CONVENTION, name="back-off", calibration_part="development"),
        ),
        ThresholdMethod(
            "conditional-back-off",
            "randomised conditional thresholds (Cherian, Gibbs and Candes 2024)",
            exactly,
            "outside",
            rule="randomised",
            convention=OUR_CONVENTION,
        ),
    )


def _list_published(unit: Unit) -> dict[str, tuple[Method, ...]]:
    """Return the published methods that suit the unit, by family."""
    if unit == "claims":
        return {"outside": list_claim_methods()}
    return {"paper": list_paper_methods(), "outside": list_outside_methods()}


def get_methods(
    names: str | Sequence[str | Method] | None = None, unit: Unit = "answers"
) -> tuple[Method, ...]:
    """Return the methods with the given names.

    Args:
        names: One or several families (`ours`, `paper`, `outside`), names of their methods, names that
            `make_our_method` accepts, or `Method` objects; by default all families.
        unit: What methods keep or reject. For claims there is no family `paper`.

    Returns:
        The methods, each once, in the given order.

    Raises:
        InputError: If a name is unknown, no method is given, or two methods share a name.
    """
    published = _list_published(unit)
    shown = OUR_DEFAULT_METHODS if unit == "answers" else OUR_RULES
    families = {"ours": tuple(make_our_method(name, unit) for name in shown), **published}
    listed = {one.name: one for methods in published.values() for one in methods}
    chosen: dict[str, Method] = {}
    names = tuple(families) if names is None else names
    for name in [names] if isinstance(names, str) else names:
        if isinstance(name, Method):
            matching: tuple[Method, ...] = (name,)
        elif not isinstance(name, str):
            msg = f"methods must be names or `Method` objects, got {name!r}"
            raise InputError(msg)
        else:
            matching = families.get(name) or (
                (listed[name],) if name in listed else (make_our_method(name, unit),)
            )
        for method in matching:
            if chosen.setdefault(method.name, method) != method:
                msg = f"two methods are called {method.name!r}"
                raise InputError(msg)
    if not chosen:
        msg = "at least one method is needed"
        raise InputError(msg)
    return tuple(chosen.values())
