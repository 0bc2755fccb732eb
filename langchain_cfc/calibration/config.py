"""`CalibrationConfig`: the options of `calibrate`, declared, documented and checked in one place.

`calibrate` builds a `CalibrationConfig` from its keyword arguments; a test compares their names and defaults
with the fields. The flags of the command line are made of the fields. Printed commands, a report's advice and
a monitor's recalibration use the same class, so that none of them can miss an option.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from numbers import Integral, Real
from types import NoneType
from typing import Any, get_args, get_type_hints

from langchain_cfc.artifact import CalibrationArtifact
from langchain_cfc.draw_rules import DrawRule, parse_draw_rule
from langchain_cfc.errors import InputError
from langchain_cfc.features import AdaptiveAlpha, FeatureMap
from langchain_cfc.guarantee import PaperPAC
from langchain_cfc.guarantee.certified import compute_share
from langchain_cfc.records.splits import SplitPlan, make_split_plan
from langchain_cfc.set_rules import BestAnswer, parse_set_rule
from langchain_cfc.support.json_text import short_repr
from langchain_cfc.support.serialization import canonical_json, compute_sha256
from langchain_cfc.support.units import Unit
from langchain_cfc.thresholds import (
    Level,
    format_alpha,
)

DEFAULT_DELTA = "0.05"
DEFAULT_FIT_FRACTION = 0.2
# Feature maps if none is given, in words.
DEFAULT_MAPS = (
    "hat(mean_score, 5), hat(min_score, 5) for claims of which none may be unsupported, or 1 for a bot"
)

# Headings in the help of the command line.
_PROMISE = {"rich_help_panel": "What is promised"}
_SETS = {"rich_help_panel": "Scores and sets"}
_SPLITS = {"rich_help_panel": "Splits"}
# Decimal options, printed in canonical form.
_DECIMAL_OPTIONS = {"alpha", "max_wrong_rate", "max_wrong_of_all", "delta"}


@dataclass(frozen=True, kw_only=True)
class CalibrationConfig:
    """The options of `calibrate`; `check` refuses values that are impossible or conflict with each other.

    The first paragraph about an option is its help on the command line as well.
    """

    alpha: Level | Sequence[Level] | None = field(
        default=None, metadata={**_PROMISE, "show_default": "0.1, or no sets with a rate of wrong answers"}
    )
    """Error level of sets; of several, each served call uses one.

    Each 0 < alpha < 1. May be left out with `max_wrong_rate` or `max_wrong_of_all`.
    """

    adaptive_alpha: bool | Level = field(default=False, metadata={**_PROMISE, "show_default": False})
    """Promise less for hard prompts instead of flagging them (true), or, with claims, to keep more of an
    answer: the share of its claims to keep, such as 0.3. Every result states its coverage.

    A prompt's error level is a function of its mean score, never below alpha, fitted on the fit split unless
    `features` came fitted with one. With claims, the level is so large that an answer can keep this share of
    its claims about as often as the coverage that it states; the share itself is not promised. Conditional
    rule only.
    """

    max_wrong_rate: Level | Sequence[Level] | None = field(default=None, metadata=_PROMISE)
    """Bot mode: certify that at most this share of the answered prompts is answered wrongly.

    A bot answers with the best candidate if the mean score is small enough: of the prompts that it answers,
    at most this share gets a wrong best answer, with confidence 1 - delta. The labels that calibrate and fit
    also certify. Each served call uses one rate, or an alpha given beside it. With claims: of the claims that
    an answer shows, on average over answers, at most this share is unsupported; the scores of the fit split
    fix the cuts to test.
    """

    max_wrong_of_all: Level | Sequence[Level] | None = field(default=None, metadata=_PROMISE)
    """Bot mode: of all questions asked, at most this share gets a wrong answer, on average.

    A bot answers with the best candidate if its mean score is small enough for its kind of question. Of all
    questions, and of those in every group that `features` names, at most this share gets a wrong answer; the
    others get a right one or none. It holds on average over calibration sets, needs no delta and no further
    labels, and answers more than `max_wrong_rate` at the same number, because a wrong answer counts among all
    questions and not among the answered ones. Not beside `alpha`, which needs a feature map of its own.
    """

    wrong_rate_groups: bool = field(default=False, metadata=_PROMISE)
    """Certify the wrong-answer rate in each group of the feature map as well, with half of delta."""

    delta: Level | None = field(default=None, metadata=_PROMISE)
    """Failure probability of `max_wrong_rate` (by default 0.05), or of `alpha` if `features` puts every
    prompt into one of disjoint groups: 1, group(...) or bins(...) alone.

    With alpha and without max_wrong_rate, the guarantee holds with confidence 1 - delta for this very
    artifact, not only on average over calibration sets, in all groups at once. Thresholds are then order
    statistics, see `GroupedThreshold`. 0 < delta < 1.
    """

    features: str | FeatureMap | None = field(default=None, metadata={**_SETS, "show_default": DEFAULT_MAPS})
    """Feature map, such as 'hat(mean_score, 5) + group(topic)'.

    By default sets and claims treat easy and hard questions separately, by their mean score; for claims
    with at_most = 0 by the lowest score, that of the claim that is dropped last. For `max_wrong_of_all` the
    default is 1, all questions: its cut is on the mean score already, so name topics or sources there, such
    as 'group(topic)'.
    """

    unit: Unit = field(default="answers", metadata=_PROMISE)
    """What is kept or rejected: whole answers, or the claims of one answer.

    With claims, the threshold decides which claims of an answer are dropped, so that with probability at
    least 1 - alpha at most `at_most` unsupported claims are left.
    """

    at_most: int = field(default=0, metadata={**_PROMISE, "min": 0})
    """With claims as `unit`: how many unsupported claims an answer may keep."""

    set_rule: str = field(default="all", metadata=_SETS)
    """all, best_prefix or rank, or unique(...) around one of them."""

    draws: str | None = field(default=None, metadata=_SETS)
    """Rule that stops drawing: 'fixed(5)', 'lead(3, at_most=10)', 'below(0.05, at_most=10)' or
    'agree(0.8, rounds=4+4+8)'.

    See `parse_draw_rule`. By default all recorded candidates are used. Those after its stop are left out, and
    serving stops at the same draw, so every guarantee is unchanged and most prompts cost less. Choose it on
    other records, or on the fit split as `suggest --draws` does; labels of the fit split then certify no
    wrong-answer rate.
    """

    pac: PaperPAC | None = field(default=None, metadata=_SETS)
    """The paper's second method, CFC-PAC, by its failure probability (its tables: 0.9); a heuristic.

    Its slack makes each level stricter, see `PaperPAC`, which also takes a ridge.
    """

    seed: str | int = field(default=0, metadata=_SPLITS)
    """Seed of the split."""

    fit_fraction: float | None = field(default=None, metadata=_SPLITS)
    """Share of prompts to fit the feature map and adaptive levels on; by default 0.2 if something is fitted.

    A share of the prompts not held out.
    """

    test_fraction: float = field(default=0.0, metadata=_SPLITS)
    """Share of prompts held out for evaluate and certify on the same file."""

    allow_unattainable: bool = field(default=False, metadata=_PROMISE)
    """Continue even if the target is out of reach over all prompts, so that prompts will be flagged."""

    @classmethod
    def from_artifact(cls, artifact: CalibrationArtifact) -> CalibrationConfig:
        """Return the options that reproduce an artifact from the same records.

        A feature map that was fitted on the fit split is returned as text, one that came fitted as it is.
        """
        facts, confidence, bot = artifact.calibration, artifact.confidence, artifact.bot
        adaptive = artifact.feature_map.adaptive_alpha
        option = artifact.parsed_set_rule.option
        promised = {option: artifact.alphas or None}
        has_set_rule = artifact.unit == "answers" and option == "alpha"
        uses_fewer = artifact.unit == "answers" and artifact.n < facts.recorded_candidates
        deltas = [one.delta for one in (confidence, bot) if one is not None]
        features: str | FeatureMap = artifact.feature_map.text
        if facts.map_came_fitted:  # without the adaptive levels that the fit split fitted
            features = replace(artifact.feature_map, adaptive_alpha=None if facts.fit_size else adaptive)
        return cls(
            alpha=promised.get("alpha"),
            max_wrong_of_all=promised.get("max_wrong_of_all"),
            adaptive_alpha=adaptive is not None and (adaptive.share or True),
            features=features,
            unit=artifact.unit,
            at_most=artifact.at_most or 0,
            set_rule=artifact.set_rule if has_set_rule else "all",
            draws=artifact.draws or (f"fixed({artifact.n})" if uses_fewer else None),
            pac=artifact.pac,
            max_wrong_rate=None if bot is None else bot.rates,
            wrong_rate_groups=bot is not None and bot.by_group,
            delta=deltas[0] if deltas else None,
            seed=facts.split.seed,
            # A share of 0 becomes the default: other options may need the part.
            fit_fraction=facts.split.fit or None,
            test_fraction=facts.split.test,
            allow_unattainable=facts.allow_unattainable,
        )

    def check(self) -> None:
        """Refuse impossible options and options that conflict; needs no records.

        Raises:
            InputError: For the first such option.
        """
        if self.alpha is None and self.max_wrong_rate is None and self.max_wrong_of_all is None:
            msg = (
                "name a promise: alpha for answer sets; for a bot max_wrong_rate (of the answered) or "
                "max_wrong_of_all (of all questions)"
            )
            raise InputError(msg)
        self._check_types()
        # Each property refuses an impossible value.
        _ = self.alphas, self.wrong_rates, self.failure_probability, self.kept_share
        _ = self.draw_rule, parse_set_rule(self.rule_text)
        problems = {
            "max_wrong_of_all with alpha: sets and this bot need two feature maps, because the bot's cut is "
            "on the mean score itself. Make two calls of calibrate with the same records, one for each": (
                self.max_wrong_of_all is not None and self.alpha is not None
            ),
            "max_wrong_of_all is about whole answers, and counts the best one: leave unit, set_rule, "
            "adaptive_alpha and pac out. For claims, max_wrong_rate promises few unsupported ones": (
                self.max_wrong_of_all is not None
                and (self.unit == "claims" or self.set_rule != "all" or self.is_adaptive or bool(self.pac))
            ),
            "set_rule: 'best_answer' belongs to max_wrong_of_all, which sets it": (
                self.set_rule == BestAnswer.text
            ),
            "adaptive_alpha: true for answers; with claims the share of an answer's claims to keep, such as "
            "0.3": self.is_adaptive and (self.unit == "claims") != (self.kept_share is not None),
            "features: the map came with adaptive levels, so adaptive_alpha must be true, or the share that "
            "they were fitted to keep": self.given_levels is not None
            and not (self.is_adaptive and self.kept_share == self.given_levels.share),
            "adaptive_alpha cannot be combined with pac: no theorem guarantees each level then": (
                self.is_adaptive and self.pac is not None
            ),
            "delta with alpha needs features that put every prompt into one of disjoint groups, which are 1, "
            "group(...) or bins(...) alone, and no pac or adaptive_alpha: the law of coverage "
            "given the calibration set is known for these only. Change the features, or leave delta out and "
            "certify the artifact on held-out records": self.is_confident
            and (self.pac is not None or self.is_adaptive or not self.feature_map.has_disjoint_groups),
            "max_wrong_rate with claims: give one rate and no alpha; make an artifact for each": (
                self.certifies_claims and (len(self.wrong_rates) > 1 or self.alpha is not None)
            ),
            "features, set_rule, pac and adaptive_alpha are about sets: leave them out, or give an alpha as "
            "well. For rates in each group of the features there is wrong_rate_groups": not self.alphas
            and (
                self.is_adaptive
                or self.set_rule != "all"
                or self.pac is not None
                or (self.map_text != "1" and not self.wrong_rate_groups)
            ),
            "wrong_rate_groups: needs max_wrong_rate": (
                self.wrong_rate_groups and self.max_wrong_rate is None
            ),
            "claims cannot be combined with set_rule or draws: these are about several answers to a prompt": (
                self.unit == "claims" and (self.set_rule != "all" or self.draws is not None)
            ),
            "at_most: it counts unsupported claims, so it needs unit='claims', and no max_wrong_rate, which "
            "bounds their share": self.at_most != 0 and (self.unit != "claims" or self.certifies_claims),
        }
        for problem, is_wrong in problems.items():
            if is_wrong:
                raise InputError(problem)

    def _check_types(self) -> None:
        """Refuse a value of another type than its field; levels and units are checked where they are read."""
        others = {"adaptive_alpha", "unit", *_DECIMAL_OPTIONS}
        for name, hint in get_type_hints(CalibrationConfig).items():
            types = get_args(hint) or (hint,)
            value = getattr(self, name)
            # NumPy's numbers are no subclasses of these two.
            accepted = tuple({int: Integral, float: Real}.get(one, one) for one in types)
            if name not in others and not isinstance(value, accepted):
                expected = " or ".join("None" if one is NoneType else one.__name__ for one in types)
                msg = f"{name} is {short_repr(value)}; expected {expected}"
                raise InputError(msg)

    @property
    def rule_text(self) -> str:
        """The text of the set rule; `claims(at_most)` for claims, `best_answer` with `max_wrong_of_all`.

        Raises:
            InputError: If the unit is unknown.
        """
        if self.unit not in get_args(Unit):
            msg = f"unit must be 'answers' or 'claims', got {self.unit!r}"
            raise InputError(msg)
        if self.max_wrong_of_all is not None:
            return BestAnswer.text
        return self.set_rule if self.unit == "answers" else f"claims({self.at_most})"

    @property
    def alphas(self) -> tuple[str, ...]:
        """Error levels as decimal text, ascending; none for a certified rate alone."""
        if self.max_wrong_of_all is not None:
            return _list_canonical("max_wrong_of_all", self.max_wrong_of_all)
        return () if self.alpha is None else _list_canonical("alpha", self.alpha)

    @property
    def is_adaptive(self) -> bool:
        """Whether each prompt has its own error level."""
        return str(self.adaptive_alpha).lower() != "false"

    @property
    def kept_share(self) -> str | None:
        """The share of an answer's claims that adaptive levels are fitted to keep, as decimal text."""
        is_switch = str(self.adaptive_alpha).lower() in {"true", "false"}
        return None if is_switch else format_alpha(self.adaptive_alpha, "adaptive_alpha")

    @property
    def given_levels(self) -> AdaptiveAlpha | None:
        """The adaptive levels that the feature map came fitted with."""
        return self.features.adaptive_alpha if isinstance(self.features, FeatureMap) else None

    @property
    def wrong_rates(self) -> tuple[str, ...]:
        """`max_wrong_rate` as decimal texts, ascending; empty without bot mode."""
        return () if self.max_wrong_rate is None else _list_canonical("max_wrong_rate", self.max_wrong_rate)

    @property
    def failure_probability(self) -> str:
        """`delta` as decimal text."""
        return DEFAULT_DELTA if self.delta is None else format_alpha(self.delta, "delta")

    @property
    def first_level(self) -> float:
        """Level of each test of a rate in the first attempt on the labels, which has 80 % of delta."""
        return float(Fraction(self.failure_probability) * compute_share(1) / max(1, len(self.wrong_rates)))

    @property
    def draw_rule(self) -> DrawRule | None:
        """The parsed draw rule; None without one."""
        return None if self.draws is None else parse_draw_rule(self.draws)

    @property
    def feature_map(self) -> FeatureMap:
        """The feature map, parsed if it was given as text."""
        return self.features if isinstance(self.features, FeatureMap) else FeatureMap.parse(self.map_text)

    @property
    def needs_answers(self) -> bool:
        """Whether the feature map, set rule or draw rule compares answers."""
        parts = (self.feature_map, parse_set_rule(self.rule_text), self.draw_rule)
        return any(part is not None and part.needs_answers for part in parts)

    @property
    def map_text(self) -> str:
        """The text of the feature map, or its default; constant for a bot."""
        if self.features is None:
            if self.max_wrong_of_all is not None or not (self.alphas or self.wrong_rate_groups):
                return "1"
            is_strict = self.unit == "claims" and self.at_most == 0
            return f"hat({'min_score' if is_strict else 'mean_score'}, 5)"
        return self.features.text if isinstance(self.features, FeatureMap) else self.features

    @property
    def is_confident(self) -> bool:
        """Whether the guarantee about sets holds with confidence: an alpha and a delta that is its own."""
        is_promised = self.alpha is not None or self.max_wrong_of_all is not None
        return is_promised and self.delta is not None and self.max_wrong_rate is None

    @property
    def certifies_claims(self) -> bool:
        """Whether calibration labels certify cuts on the scores of claims, which the fit split fixes."""
        return self.max_wrong_rate is not None and self.unit == "claims"

    def plan_split(self) -> SplitPlan:
        """Plan the split; it has a fit part by default only if something needs it."""
        feature_map, fit_fraction = self.feature_map, self.fit_fraction
        learns = (self.is_adaptive and self.given_levels is None) or self.certifies_claims
        if feature_map.needs_fit and feature_map.fitted and fit_fraction and not learns:
            msg = (
                "the feature map is already fitted: omit fit_fraction, or pass the map's text to fit it here"
            )
            raise InputError(msg)
        if fit_fraction is None:
            learns = learns or (feature_map.needs_fit and not feature_map.fitted)
            fit_fraction = DEFAULT_FIT_FRACTION if learns else 0.0
        return make_split_plan(self.seed, fit=fit_fraction, test=self.test_fraction)

    @property
    def digest(self) -> str:
        """Digest of the options, equal for options that mean the same."""
        given = self.feature_map
        same = {
            "alpha": None if self.alpha is None else self.alphas,
            "max_wrong_of_all": None if self.max_wrong_of_all is None else self.alphas,
            "adaptive_alpha": self.kept_share or self.is_adaptive,
            "max_wrong_rate": self.wrong_rates,
            "delta": self.failure_probability,
            "seed": str(self.seed),
            "features": given.to_data() if given is self.features else given.text,
            "pac": None if self.pac is None else [self.pac.delta, str(self.pac.ridge)],
            "draws": None if self.draw_rule is None else self.draw_rule.stored_text,
        }
        return compute_sha256(canonical_json({**self.to_arguments(), **same}))

    def to_arguments(self) -> dict[str, Any]:
        """Return the keyword arguments of `calibrate`."""
        return {one.name: getattr(self, one.name) for one in fields(self)}

    @property
    def only_in_python(self) -> tuple[str, ...]:
        """Options that `format_command` cannot express, in words; empty if it expresses everything."""
        problems = {
            "the feature map was already fitted, but the command fits its text": not isinstance(
                self.features, str
            ),
            "pac has a ridge": self.pac is not None and self.pac.ridge > 0.0,
        }
        return tuple(words for words, found in problems.items() if found)

    def format_command(self, records: Sequence[str], out: str | None = None) -> str:
        """Return the shell command that calibrates with these options; see `only_in_python`."""
        words = ["langchain-cfc", "calibrate", *records]
        # These are printed even if they have their defaults; a bot uses no feature map and no set rule.
        printed = {"seed"} if self.alpha is None else {"seed", "set_rule"}
        if out is not None:
            words += ["--out", out]
        for one in fields(self):
            value = getattr(self, one.name)
            if one.name == "features" and self.alphas:  # also if it has its default
                value = self.features or self.map_text
            if one.name in printed or str(value) != str(one.default):
                words += _format_option(one.name, value)
        return shlex.join(words)


def _list_canonical(name: str, given: Level | Sequence[Level]) -> tuple[str, ...]:
    """Return one level or several as distinct decimal texts, ascending."""
    levels = list_levels(given)
    if not levels:
        msg = f"{name}: at least one {'error level' if name == 'alpha' else 'rate'} is needed"
        raise InputError(msg)
    return tuple(sorted({format_alpha(one, name) for one in levels}, key=float))


def list_levels(given: Level | Sequence[Level]) -> Sequence[Level]:
    """Return one level or several as a sequence."""
    return [given] if isinstance(given, str) or not isinstance(given, Sequence) else given


def _format_option(name: str, value: Any) -> list[str]:
    """Return one option as the words of a command line."""
    flag = f"--{name.replace('_', '-')}"
    if name == "adaptive_alpha":
        return [flag, str(value).lower()]
    if value is True:
        return [flag]
    if name in _DECIMAL_OPTIONS:
        return [word for one in list_levels(value) for word in (flag, format_alpha(one))]
    if isinstance(value, FeatureMap):
        value = value.text
    elif isinstance(value, PaperPAC):
        value = value.delta
    return [flag, str(value)]
