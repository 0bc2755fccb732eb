"""Methods: ways to make answer sets of recorded candidates, each a point on two axes.

A method is a *set rule* (how entry levels come from scores) and a *threshold rule* (how a threshold comes
from calibration prompts), in one of two conventions.

Ours: success scores under the set rule that is served, a cap above 1 for prompts without a correct candidate,
thresholds at the cap flagged, feature maps fitted on prompts that never calibrate.

The paper's, as its tables must have been computed: success score 1 without a correct candidate, thresholds
cut to [0, 1] and nothing flagged, calibration on all prompts that are not tested on, feature maps fitted on
the same ones, and truncated sets calibrated on untruncated scores.

Source: the paper's section 4 and appendix C, and what its published figures leave as the only reading.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
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
from langchain_cfc.set_rules import parse_set_rule
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
    """

    name: str
    cap: float
    calibrates: Rows
    fits: Rows

    def finished(self, thresholds: Thresholds) -> Thresholds:
        """The thresholds that are used: the paper's are cut to [0, 1], so that none is flagged."""
        if self.cap > 1.0:
            return thresholds
        return replace(thresholds, values=np.clip(thresholds.values, 0.0, 1.0))


OURS = Convention("ours", CAP, "calibration", "fit")
PAPER = Convention("paper", 1.0, "development", "development")


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
        sets = AnswerSets.within(split.test_draws, split.test_levels(served), thresholds)
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
        sets = AnswerSets.within(split.test_draws, split.test_levels("rank"), thresholds)
        return Made(sets, None, split.all_drawn)


_NO_THEOREM = "nothing: no theorem covers it"
_TOGETHER = "all prompts together, on average over calibration sets"
_LESS = "less than the paper says: a set without a correct candidate counts as covered where S = 1"


def ours(name: str) -> Method:
    """One of our methods by name.

    Args:
        name: `conditional`, `marginal`, `confident` or `learned`, and perhaps a set rule of its own after a
            colon, such as `conditional:best_prefix`.

    Returns:
        The method.

    Raises:
        InputError: If there is no such method or set rule.
    """
    kind, colon, set_rule = name.partition(":")
    served = parse_set_rule(set_rule).text if colon else None
    sets = "" if served is None else f"; sets by {served}"

    def made(
        rule: Literal["conditional", "marginal", "confident", "learned"], words: str, promise: str
    ) -> Method:
        return ThresholdMethod(
            name, words + sets, promise, "ours", rule=rule, convention=OURS, set_rule=served
        )

    if kind == "conditional":
        every = "every weighting that the features span, on average over calibration sets"
        return made("conditional", "exact conditional thresholds (CFC with its cures)", every)
    if kind == "marginal":
        return made("marginal", "one threshold for all prompts (ICP with its cures)", _TOGETHER)
    if kind == "confident":
        held = f"all prompts together, with confidence {1 - float(DELTA):g} for the calibration set at hand"
        return made("confident", "one threshold, of a rank that holds with confidence", held)
    if kind == "learned":
        return made("learned", "plain quantile regression, without correction", _NO_THEOREM)
    listed = ", ".join(one.name for one in (*paper(), *outside()))
    msg = (
        f"unknown method {name!r}; known are the families ours, paper and outside, {', '.join(KNOWN)}, each "
        f"perhaps with a set rule of its own, such as conditional:best_prefix, and {listed}"
    )
    raise InputError(msg)


def paper(learned_features: str | None = None, grid: tuple[int, ...] | None = None) -> tuple[Method, ...]:
    """The methods of the paper's tables, in its own conventions.

    Args:
        learned_features: The feature map of Learnt CP; by default that of the others.
        grid: The K of TopK; by default all up to n.

    Returns:
        TopK in both readings, ICP, Learnt CP, CFC, CFC-FULL, CFC-PAC and CFC-PAC-FULL.
    """
    slack = PaperStability.from_constant()

    def full(name: str, words: str, promise: str = _LESS, **settings: Any) -> Method:
        return ThresholdMethod(name, words, promise, "paper", convention=PAPER, set_rule="all", **settings)

    def truncated(name: str, words: str, **settings: Any) -> Method:
        # Kept for the tables: the theorem does not cover a set that was cut after calibration.
        return ThresholdMethod(
            name,
            words,
            _NO_THEOREM,
            "paper",
            rule="conditional",
            convention=PAPER,
            set_rule="best_prefix",
            calibrated_on="all",
            **settings,
        )

    return (
        TopK("TopK", "the K best, K of coverage nearest to the target", _NO_THEOREM, "paper", False, grid),
        TopK(
            "TopK-reaching",
            "the K best, the smallest K that reaches the target",
            _NO_THEOREM,
            "paper",
            True,
            grid,
        ),
        full("ICP", "one threshold for all prompts", rule="marginal"),
        full("Learnt CP", "quantile regression", _NO_THEOREM, rule="learned", features=learned_features),
        truncated("CFC", "conditional thresholds, sets cut after the best candidate"),
        full("CFC-FULL", "conditional thresholds", rule="conditional"),
        truncated("CFC-PAC", "CFC at a level made stricter by the paper's slack", stability=slack),
        full("CFC-PAC-FULL", "CFC-FULL at that level", _NO_THEOREM, rule="conditional", stability=slack),
    )


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


def outside() -> tuple[Method, ...]:
    """Conformal language modelling's sampling rule, and claim-level back-off."""
    held = f"all prompts together, with confidence {1 - float(DELTA):g} for the calibration set at hand"
    other = "another thing: that everything returned is correct, for all prompts together"
    return (
        Sampling(
            "sampling", "draw until a score is low enough (conformal language modelling)", held, "outside"
        ),
        BackOff("back-off", "keep what is surely right (claim-level back-off)", other, "outside"),
    )


KNOWN = ("conditional", "marginal", "confident", "learned")
OURS_SHOWN = (*KNOWN, "conditional:best_prefix", "marginal:rank")


def methods_named(names: str | Sequence[str | Method]) -> tuple[Method, ...]:
    """Methods by name.

    Args:
        names: One or several: families (`ours`, `paper`, `outside`), names of their methods, names that
            `ours` takes, and methods as they are.

    Returns:
        The methods, each once, in this order.

    Raises:
        InputError: If a name is unknown, there is none, or two methods share a name.
    """
    families = {"ours": tuple(map(ours, OURS_SHOWN)), "paper": paper(), "outside": outside()}
    listed = {one.name: one for one in (*families["paper"], *families["outside"])}
    found: dict[str, Method] = {}
    for name in [names] if isinstance(names, str) else names:
        if isinstance(name, Method):
            several: tuple[Method, ...] = (name,)
        elif not isinstance(name, str):
            msg = f"methods are names or `Method`s, got {name!r}"
            raise InputError(msg)
        else:
            several = families.get(name) or ((listed[name],) if name in listed else (ours(name),))
        for method in several:
            if found.setdefault(method.name, method) != method:
                msg = f"two methods are called {method.name!r}"
                raise InputError(msg)
    if not found:
        msg = "at least one method is needed"
        raise InputError(msg)
    return tuple(found.values())
