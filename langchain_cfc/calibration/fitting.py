"""The calibration split in numbers, and the rules fitted on it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from langchain_cfc._arrays import BoolArray, FloatArray
from langchain_cfc.artifact import AttainableGroup, LevelState, PackedArray, SelfCheck
from langchain_cfc.calibration.attainability import attainable_groups
from langchain_cfc.calibration.request import Request
from langchain_cfc.draws import LabelledDraws
from langchain_cfc.errors import CalibrationError
from langchain_cfc.features import FeatureMap, GuaranteedWeight, naming
from langchain_cfc.thresholds import ConditionalThreshold, MarginalThreshold, ThresholdRule

# Calibration prompts that a fitted rule is asked, and how much wider its window becomes if it refuses one.
ASKED, WIDER = 1_000, 4
RuleT = TypeVar("RuleT", bound=ThresholdRule[Any])


@dataclass(frozen=True)
class Calibration:
    """The calibration split in numbers.

    Attributes:
        labelled: N labelled prompts.
        feature_map: The fitted map.
        features: (N, d) their features.
        success_scores: (N,) their success scores, `cap` where none can be covered.
        ratios: (N,) how much likelier each is where it is served; None where there is no shift.
        units_of: (M, d) features of the fit split, from which a ridge takes its units; None without one.
        cap: Number above 1.
    """

    labelled: LabelledDraws
    feature_map: FeatureMap
    features: FloatArray
    success_scores: FloatArray
    ratios: FloatArray | None
    units_of: FloatArray | None
    cap: float

    @property
    def reachable(self) -> BoolArray:
        """(N,) whether a threshold below the cap can cover the prompt."""
        return np.asarray(self.success_scores < self.cap, dtype=np.bool_)

    @property
    def weights(self) -> FloatArray | None:
        """(N,) how much each counts; None where all count as one.

        Prompts that were chosen to be labelled with unequal probabilities count for less than one each. A
        prompt to come counts as one, which is the most it could: thresholds never fall as its weight grows,
        so that no promise is broken by that.
        """
        return self.labelled.weights if self.ratios is None else self.ratios

    @property
    def counts(self) -> tuple[float, float]:
        """As how many prompts they count, and as how many those that are reachable."""
        counted = np.ones(len(self.labelled)) if self.labelled.weights is None else self.labelled.weights
        # Sums that do not depend on the order, so that all of them are as many as all.
        return math.fsum(counted), math.fsum(counted[self.reachable])

    @property
    def weightings(self) -> tuple[GuaranteedWeight, ...]:
        """The weightings that the feature map spans and that have a name, the constant first."""
        return self.feature_map.guaranteed_weights()

    @cached_property
    def groups(self) -> list[AttainableGroup]:
        """Attainable coverage of all prompts first, then of every guaranteed weighting."""
        weights = self.labelled.weights
        if self.ratios is not None:
            # In the unit in which they are one on average, sums of them are numbers of prompts again.
            weights = self.ratios / self.ratios.mean()
        return attainable_groups(self.weightings, self.features, self.reachable, weights)


def fitted_map(feature_map: FeatureMap, fit_split: LabelledDraws, calibration: LabelledDraws) -> FeatureMap:
    """The map, fitted on the fit split if it did not come fitted.

    Args:
        feature_map: The map that was asked for.
        fit_split: Prompts that fit it.
        calibration: Prompts that calibrate. Their categories are known as well: a rare one may be missing
            from the fit split (`Group` says why that is sound).

    Raises:
        CalibrationError: If the fit split is empty and something is to be fitted.
        FeatureError: If the map cannot be fitted on it.
    """
    if feature_map.fitted:
        return feature_map
    if feature_map.needs_fit and len(fit_split) == 0:
        msg = (
            f"features {feature_map.text!r} must be fitted on prompts that calibration never sees, but the "
            "fit split is empty: raise fit_fraction, or bring more records (a cluster is never split, so "
            "many clusters are needed)"
        )
        raise CalibrationError(msg)
    with naming(fit_split.ids):
        fitted = feature_map.fit(fit_split.draws)
    with naming(calibration.ids):
        return fitted.with_categories_of(calibration.draws)


def units(feature_map: FeatureMap, fit_split: LabelledDraws) -> FloatArray:
    """(M, d) features of the fit split, from which a ridge takes its units.

    Raises:
        CalibrationError: If the fit split is empty.
    """
    if len(fit_split) == 0:
        msg = (
            "a ridge takes its units from prompts that calibration never sees, but the fit split is empty: "
            "raise fit_fraction, or bring more records"
        )
        raise CalibrationError(msg)
    with naming(fit_split.ids):
        return feature_map.transform(fit_split.draws)


def fit_levels(
    data: Calibration, request: Request, alphas: Sequence[str], fair: BoolArray
) -> tuple[list[LevelState], dict[str, PackedArray]]:
    """The fitted rules at every level, and the arrays that they refer to, equal ones stored once.

    Args:
        data: The calibration split in numbers.
        request: What was asked for.
        alphas: The levels.
        fair: (N,) which prompts are a fair sample: on those the marginal rule is fitted, which knows no
            weights and is compared with. Where there are none it flags every prompt.

    Returns:
        Both.
    """
    arrays: dict[str, PackedArray] = {}

    def stored(state: Mapping[str, FloatArray]) -> dict[str, str]:
        packed = {key: PackedArray.pack(array) for key, array in state.items()}
        arrays.update({array.name: array for array in packed.values()})
        return {key: array.name for key, array in packed.items()}

    levels = []
    for alpha in alphas:
        effective = None
        if request.stability is not None:
            effective = request.stability.effective_alpha(alpha, len(data.labelled))
        rule = request.threshold_rule(alpha, effective)
        fitted = None if effective == "0" else _fit(rule, data)
        check = None
        if isinstance(fitted, ConditionalThreshold):
            fitted, check = _widened(fitted, data)
        marginal = MarginalThreshold(alpha, request.cap)
        compared = marginal.fit(data.features[fair], data.success_scores[fair]) if fair.any() else None
        levels.append(
            LevelState(
                alpha=alpha,
                rule=stored(_state(fitted, data)),
                marginal=stored(_state(compared, data)),
                effective_alpha=effective,
                slack=_slack(fitted, data),
                self_check=check,
            )
        )
    return levels, arrays


def _fit(rule: RuleT, data: Calibration) -> RuleT:
    if not isinstance(rule, ConditionalThreshold):
        return rule.fit(data.features, data.success_scores)
    return rule.fit(data.features, data.success_scores, data.weights, units_of=data.units_of)


def _widened(fitted: ConditionalThreshold, data: Calibration) -> tuple[ConditionalThreshold, SelfCheck]:
    """A fitted rule that refuses none of its own prompts, as far as a sample tells, and what it answers them.

    Fitting has asked a few of them already and kept what they need; here more are asked, and the window is
    widened until all are answered.
    """
    chosen = np.unique(np.linspace(0, len(data.features) - 1, ASKED).astype(np.int64))
    weights = None if data.ratios is None else data.ratios[chosen]
    while True:
        refused = int(fitted.solve(data.features[chosen], weights).outside.sum())
        if refused == 0 or fitted.window is None:
            break
        wider = WIDER * fitted.window
        fitted = _fit(replace(fitted, window=wider if wider < len(data.features) else None), data)
    kept = len(fitted.state_data()["success_scores"])
    return fitted, SelfCheck(asked=len(chosen), refused=refused, kept=kept)


def _state(fitted: ThresholdRule[Any] | None, data: Calibration) -> dict[str, FloatArray]:
    """The state of a rule; of None that of one that flags every prompt."""
    if fitted is not None:
        return fitted.state_data()
    return {"quantile": np.empty(0), "dimension": np.array([float(data.feature_map.dimension)])}


def _slack(fitted: ThresholdRule[Any] | None, data: Calibration) -> dict[str, float]:
    """By name of a weighting, what a ridge is estimated to cost.

    A category that the fit split lacks has no units: the ridge leaves its column out, with nothing to
    estimate.
    """
    if not isinstance(fitted, ConditionalThreshold) or fitted.ridge == 0.0:
        return {}
    slack = {
        one.name: fitted.ridge_slack(np.array(one.coefficients), data.features, data.weights)
        for one in data.weightings
        if fitted.penalised == "all" or data.units_of is None or one.values(data.units_of).any()
    }
    # The constant pays nothing but round-off where it is left out of the penalty.
    return slack if fitted.penalised == "all" else {**slack, data.weightings[0].name: 0.0}
