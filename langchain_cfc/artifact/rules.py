"""Which threshold rule an artifact serves by."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from langchain_cfc._arrays import FloatArray
from langchain_cfc.artifact.facts import Ridge
from langchain_cfc.draws import Draws
from langchain_cfc.errors import FeatureError, InputError
from langchain_cfc.features import Statistic
from langchain_cfc.thresholds import (
    WINDOW,
    ConditionalThreshold,
    GroupedThreshold,
    LearnedThreshold,
    Level,
    MarginalThreshold,
    ThresholdRule,
)

ThresholdRuleName = Literal["conditional", "marginal", "grouped", "learned"]


def threshold_rule(
    name: ThresholdRuleName,
    alpha: Level,
    cap: float,
    *,
    effective_alpha: str | None = None,
    delta: str | None = None,
    ridge: Ridge | None = None,
    window: int | None = WINDOW,
) -> ThresholdRule[Any]:
    """The rule of a name, not fitted.

    Args:
        name: `conditional`, `marginal`, `grouped` or `learned`.
        alpha: Error level.
        cap: Success score of a prompt without a correct candidate.
        effective_alpha: The smaller level to fit at; `0` for the rule that flags every prompt.
        delta: Failure probability of the rules that come with confidence.
        ridge: The penalty of a ridge.
        window: How many calibration prompts the conditional rule keeps at least; None for all.

    Returns:
        The rule.

    Raises:
        InputError: If the name is unknown or needs a failure probability.
    """
    if effective_alpha == "0":
        return MarginalThreshold(alpha, cap)  # whose state without an order statistic flags every prompt
    level = alpha if effective_alpha is None else effective_alpha
    if name == "conditional":
        penalty = Ridge(strength=0.0, penalised="slopes") if ridge is None else ridge
        return ConditionalThreshold(
            level, cap, ridge=penalty.strength, penalised=penalty.penalised, window=window
        )
    if name == "marginal":
        return MarginalThreshold(level, cap, delta=delta)
    if name == "learned":
        return LearnedThreshold(level, cap)
    if name == "grouped":
        if delta is None:
            msg = (
                "the grouped rule gives confidence, with a failure probability: calibrate with confident=True"
            )
            raise InputError(msg)
        return GroupedThreshold(level, cap, delta=delta)
    msg = f"unknown threshold rule {name!r}; known are conditional, marginal, grouped and learned"
    raise InputError(msg)


def likelihood_ratios(shift: Statistic, draws: Draws) -> FloatArray:
    """(N,) how much likelier each prompt is where it is served; see `CalibrationArtifact.weights`."""
    ratios = shift.values(draws)
    bad = np.flatnonzero(~(ratios > 0.0))
    if len(bad):
        msg = (
            f"{shift.text} of prompt {bad[0]} is {ratios[bad[0]]:g}; a prompt that may be served has a "
            "likelihood ratio above 0"
        )
        raise FeatureError(msg, int(bad[0]))
    return ratios
