"""`Request`: what is asked of a calibration, checked before a record is read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import ROUND_FLOOR, Decimal
from typing import Any, Literal

from langchain_cfc.artifact import Ridge, ThresholdRuleName, threshold_rule
from langchain_cfc.calibration.config import CalibrationConfig
from langchain_cfc.errors import InputError
from langchain_cfc.features import FeatureMap, parse_statistic
from langchain_cfc.guarantee.stability import PaperStability
from langchain_cfc.splits import SplitPlan, split_plan
from langchain_cfc.thresholds import ConditionalThreshold, Level, ThresholdRule, format_alpha, format_delta

DEFAULT_DELTA = "0.05"
DEFAULT_FIT_FRACTION = 0.2
DEFAULT_CERTIFICATION_FRACTION = 0.3
# Levels whose sets a policy may answer from, where none are named.
POLICY_ALPHAS = ("0.05", "0.1", "0.15", "0.2", "0.25", "0.3", "0.4", "0.5", "0.6", "0.7", "0.8", "0.9")
# A level is tested at so many equal steps up to itself.
STEPS = 20
# The last decimal of a level.
UNIT = Decimal(1).scaleb(-12)


@dataclass(frozen=True)
class Request:
    """What is asked of a calibration.

    Attributes:
        alphas: Error levels as decimal text, ascending.
        rule: Name of the threshold rule.
        cap: Success score of a prompt without a correct candidate.
        window: How many calibration prompts the conditional rule keeps at least; None for all.
        ridge: The penalty of a ridge, if there is one.
        stability: The paper's slack, if levels are made stricter by it.
        confident: Whether the promise is to hold for the very artifact.
        max_wrong_rate: Largest wrong-answer rate of bot mode as decimal text; None without bot mode.
        by_group: Whether the wrong-answer rate is to be certified in groups as well.
        delta: Failure probability of whatever is to hold with confidence, as decimal text.
        shift: The statistic that holds likelihood ratios; None where there is no shift.
        randomised: Whether thresholds are randomised.
        levels_named: Whether the levels were named, or those of `POLICY_ALPHAS`.
    """

    alphas: tuple[str, ...]
    rule: ThresholdRuleName
    cap: float
    window: int | None
    ridge: Ridge | None
    stability: PaperStability | None
    confident: bool
    max_wrong_rate: str | None
    by_group: bool
    delta: str
    shift: str | None
    randomised: bool
    levels_named: bool

    @classmethod
    def of(cls, config: CalibrationConfig) -> Request:
        """Check what was asked."""
        alpha, max_wrong_rate, delta = config.alpha, config.max_wrong_rate, config.delta
        if alpha is None and max_wrong_rate is None:
            msg = "alpha: at least one error level is needed"
            raise InputError(msg)
        request = cls(
            alphas=POLICY_ALPHAS if alpha is None else _alphas(alpha),
            rule=config.threshold_rule,
            cap=float(config.cap),
            window=config.window,
            ridge=_ridge(config.ridge, config.penalised),
            stability=config.stability,
            confident=config.confident,
            max_wrong_rate=None if max_wrong_rate is None else _rate_text(max_wrong_rate),
            by_group=config.wrong_rate_groups,
            delta=DEFAULT_DELTA if delta is None else format_delta(delta),
            shift=None if config.shift is None else parse_statistic(config.shift).text,
            randomised=config.randomised,
            levels_named=alpha is not None,
        )
        request._check()
        ignored = {
            "delta: nothing holds with confidence here; ask for confident or max_wrong_rate, or certify": (
                delta is not None and not config.confident and max_wrong_rate is None
            ),
            "wrong_rate_groups: there is no max_wrong_rate": (
                config.wrong_rate_groups and max_wrong_rate is None
            ),
            "penalised: there is no ridge": config.penalised != "slopes" and not config.ridge,
        }
        _refuse(problem for problem, found in ignored.items() if found)
        return request

    def _check(self) -> None:
        _ = self.threshold_rule(self.alphas[0])  # refuses an impossible cap before it shapes success scores
        conditional = self.rule == "conditional"
        together = {
            "a ridge: only the conditional rule has one": self.ridge is None or conditional,
            "stability: it is the paper's slack, of the conditional rule": self.stability is None
            or conditional,
            'a shift: only the conditional rule has one; its plain form are the features "1"': (
                self.shift is None or conditional
            ),
            "randomised thresholds: only the conditional rule has them": not self.randomised or conditional,
            "confident: the learned rule has no theorem at all": not self.confident or self.rule != "learned",
            "confident, together with a shift, randomised thresholds or stability: no law of coverage given "
            "the calibration set is known here; certify the artifact on held-out records instead": not (
                self.confident and (self.shift or self.randomised or self.stability)
            ),
            "max_wrong_rate, together with a shift: certification prompts come from where it was "
            "calibrated, not from where it is served": not (self.max_wrong_rate and self.shift),
            "max_wrong_rate, together with confident and the conditional rule: both would test on the same "
            "prompts. Take the marginal or the grouped rule, whose confidence needs none": not (
                self.max_wrong_rate and self.tested
            ),
        }
        _refuse(problem for problem, fits in together.items() if not fits)

    @property
    def tested(self) -> bool:
        """Whether levels are tested on a third split: no law gives the conditional rule's confidence."""
        return self.confident and self.rule == "conditional"

    @property
    def weighs(self) -> bool:
        """Whether thresholds heed weights of calibration prompts, and no more than these.

        The law of an order statistic knows none, the paper's slack counts prompts, and with a ridge or
        randomised thresholds the weight of a prompt to come must be known. With a shift it is another one.
        """
        extras = self.ridge or self.shift or self.randomised or self.stability
        return self.rule == "conditional" and not extras

    @property
    def certifies(self) -> bool:
        """Whether the third split is used up to choose a level or a policy."""
        return self.tested or self.max_wrong_rate is not None

    def threshold_rule(self, alpha: str, effective_alpha: str | None = None) -> ThresholdRule[Any]:
        """The rule to fit at one level."""
        return threshold_rule(
            self.rule,
            alpha,
            self.cap,
            effective_alpha=effective_alpha,
            delta=self._delta_of_a_level if self.confident and not self.tested else None,
            ridge=self.ridge,
            window=self.window,
        )

    @property
    def _delta_of_a_level(self) -> str:
        """A policy may be found at any level, so that all of them have to hold at once."""
        if self.max_wrong_rate is None:
            return self.delta
        shared = (Decimal(self.delta) / len(self.alphas)).quantize(UNIT, rounding=ROUND_FLOOR)
        return format_delta(shared)

    def steps(self, alpha: str) -> list[str]:
        """The levels to test in place of one, ascending, the last of them itself."""
        steps = [
            (Decimal(alpha) * step / STEPS).quantize(UNIT, rounding=ROUND_FLOOR)
            for step in range(1, STEPS + 1)
        ]
        return [format_alpha(step) for step in dict.fromkeys(steps) if step > 0]

    def plan(self, feature_map: FeatureMap, config: CalibrationConfig) -> SplitPlan:
        """The split, with parts to fit and to certify on only where there is something to do."""
        came_fitted = feature_map.needs_fit and feature_map.fitted
        # The units of a ridge are fitted as well.
        learns = config.combine is not None or self.ridge is not None
        fit_fraction, certification_fraction = config.fit_fraction, config.certification_fraction
        if came_fitted and fit_fraction and not learns:
            msg = (
                "the feature map came fitted: leave fit_fraction out, or give the map's text to have it "
                "fitted here"
            )
            raise InputError(msg)
        if fit_fraction is None:
            learns = learns or (feature_map.needs_fit and not feature_map.fitted)
            fit_fraction = DEFAULT_FIT_FRACTION if learns else 0.0
        if certification_fraction is None:
            certification_fraction = DEFAULT_CERTIFICATION_FRACTION if self.certifies else 0.0
        return split_plan(
            config.seed, fit=fit_fraction, test=config.test_fraction, certification=certification_fraction
        )


def _refuse(problems: Iterable[str]) -> None:
    for problem in problems:
        raise InputError(problem)


def _ridge(strength: float, penalised: Literal["slopes", "all"]) -> Ridge | None:
    checked = ConditionalThreshold("0.5", ridge=strength, penalised=penalised)
    return Ridge(strength=float(checked.ridge), penalised=penalised) if strength else None


def _alphas(alpha: Level | Sequence[Level]) -> tuple[str, ...]:
    several = [alpha] if isinstance(alpha, str) or not isinstance(alpha, Sequence) else alpha
    texts = {format_alpha(one) for one in several}
    if not texts:
        msg = "alpha: at least one error level is needed"
        raise InputError(msg)
    return tuple(sorted(texts, key=float))


def _rate_text(rate: Level) -> str:
    try:
        return format_alpha(rate)
    except InputError as error:
        msg = f"max_wrong_rate must be a decimal number strictly between 0 and 1, such as 0.05; got {rate!r}"
        raise InputError(msg) from error
