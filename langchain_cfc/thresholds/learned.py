"""Plain quantile regression (the paper's Learnt CP): a threshold from features, without a guarantee."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from langchain_cfc._internal.arrays import FloatArray
from langchain_cfc.errors import InputError
from langchain_cfc.thresholds._rows import Columns, Rows
from langchain_cfc.thresholds._simplex import EPS
from langchain_cfc.thresholds._warm_start import fit_base_regression
from langchain_cfc.thresholds.base import ThresholdRule, Thresholds, check_state, compute_tau


@dataclass(frozen=True, eq=False)
class _LearnedState:
    """The fitted coefficients `beta` (r,) of the independent columns."""

    columns: Columns
    beta: FloatArray


@dataclass(frozen=True)
class LearnedThreshold(ThresholdRule[_LearnedState]):
    """The tau-quantile regression of the success score on the features: phi' beta.

    It ignores that the new prompt is not among the calibration prompts, so it has no finite-sample guarantee;
    it serves as a baseline. Source: Koenker and Bassett (1978); the paper's baseline Learnt CP.
    """

    kind: ClassVar[str] = "learned"

    @property
    def dimension(self) -> int:
        """The number of features d of the calibration data."""
        return len(self.fitted.columns.scale)

    def get_state_data(self) -> dict[str, FloatArray]:
        """Return `beta` (r,), `kept` (r,), `scale` (d,) and `mixture` (r, d - r)."""
        return {"beta": self.fitted.beta, **self.fitted.columns.to_arrays()}

    def restore(self, data: Mapping[str, FloatArray]) -> LearnedThreshold:
        """Return a fitted copy from `get_state_data`."""
        check_state(data, {"beta": 1, "kept": 1, "scale": 1, "mixture": 2})
        columns = Columns.from_arrays(data)
        if len(data["beta"]) != len(columns.kept):
            msg = "`beta` of a learned threshold's state must have an entry for each of the columns in `kept`"
            raise InputError(msg)
        return replace(self, _state=_LearnedState(columns, data["beta"]))

    def _learn(self, features: FloatArray, success_scores: FloatArray) -> _LearnedState:
        columns, _ = Columns.choose(features)
        reduced, _ = columns.reduce(features)
        base = fit_base_regression(Rows.with_unit_weights(reduced, success_scores), compute_tau(self.alpha))
        return _LearnedState(columns, base.beta)

    def _compute(self, state: _LearnedState, features: FloatArray) -> Thresholds:
        reduced, inside = state.columns.reduce(features)
        # Row by row, not by BLAS, so that a prompt gets the same bits alone and in a batch.
        values = np.where(inside, (reduced * state.beta).sum(axis=1), np.inf)
        errors = 4 * (len(state.beta) + 2) * EPS * np.abs(reduced * state.beta).sum(axis=1)
        return Thresholds.apply_cap(values, errors, self.cap)
