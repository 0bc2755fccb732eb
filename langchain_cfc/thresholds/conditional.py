"""The conditional threshold of Conditional Factuality Control."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from langchain_cfc._arrays import FloatArray
from langchain_cfc.thresholds.columns import Columns
from langchain_cfc.thresholds.growing import grown_fit
from langchain_cfc.thresholds.levels import exact_tau
from langchain_cfc.thresholds.rule import ThresholdRule, Thresholds, check_state
from langchain_cfc.thresholds.simplex import QuantileSimplex, Rows


@dataclass(frozen=True, eq=False)
class CalibrationData:
    """All calibration data, (N, d) features and (N,) success scores, and the solver made from them."""

    features: FloatArray
    success_scores: FloatArray
    alpha: str

    @cached_property
    def columns(self) -> Columns:
        """The independent columns."""
        return Columns.of(self.features)

    @cached_property
    def simplex(self) -> QuantileSimplex:
        """The solver, started at the mean prompt, from which every other is a few pivots away."""
        reduced, _ = self.columns.reduce(self.features)
        rows, tau = Rows.unweighted(reduced, self.success_scores), exact_tau(self.alpha)
        base = grown_fit(rows, tau)
        return QuantileSimplex(rows, tau, start=None if base is None else base.vertex)


@dataclass(frozen=True)
class ConditionalThreshold(ThresholdRule[CalibrationData]):
    """The exact conditional threshold: valid under every non-negative reweighting that the features span.

    For features phi it is sup{s : s <= g(s)}, where g(s) is the fit at the prompt itself of the quantile
    regression on the calibration data and the prompt at score s. One linear programme per prompt gives it
    (see `simplex`), and among several minimisers the smallest value counts, which for a constant or for
    disjoint groups is the order statistic of rank ceil((N + 1) tau).

    Source: the paper's CFC rule; Gibbs, Cherian and Candes (2023), "Conformal prediction with conditional
    guarantees".

    Args:
        alpha: Error level, 0 < alpha < 1, read as a decimal.
        cap: Success score of a prompt without a correct candidate; above 1, fixed before the data is seen.

    >>> groups = [[1, 0], [1, 0], [1, 0], [0, 1], [0, 1], [0, 1]]
    >>> rule = ConditionalThreshold(alpha=0.5).fit(groups, [0.1, 0.2, 0.3, 0.7, 0.8, 0.9])
    >>> rule.threshold([1, 0]), rule.threshold([0, 1])
    (0.2, 0.8)
    """

    kind: ClassVar[str] = "conditional"

    @property
    def dimension(self) -> int:
        """Number of features d of the calibration data."""
        return int(self.fitted.features.shape[1])

    def state_data(self) -> dict[str, FloatArray]:
        """`features`: (N, d) and `success_scores`: (N,), the calibration data."""
        return {"features": self.fitted.features, "success_scores": self.fitted.success_scores}

    def restore(self, data: Mapping[str, FloatArray]) -> ConditionalThreshold:
        """A fitted copy from `state_data`."""
        check_state(data, {"features": 2, "success_scores": 1})
        return self.fit(data["features"], data["success_scores"])

    def _learn(self, features: FloatArray, success_scores: FloatArray) -> CalibrationData:
        return CalibrationData(features, success_scores, str(self.alpha))

    def _answer(self, state: CalibrationData, features: FloatArray) -> Thresholds:
        reduced, inside = state.columns.reduce(features)
        values, errors = np.full(len(features), np.inf), np.zeros(len(features))
        for row in np.flatnonzero(inside):
            fit = state.simplex.minimise(reduced[row])
            if fit is not None:
                values[row], errors[row] = fit.value(reduced[row])
        return Thresholds.capped(values, errors, self.cap)
