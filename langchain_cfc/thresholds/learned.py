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
from langchain_cfc.thresholds._warm_start import base_regression
from langchain_cfc.thresholds.base import ThresholdRule, Thresholds, check_state, exact_tau


@dataclass(frozen=True, eq=False)
class Regression:
    """The fitted coefficients over the independent columns: `columns` and `beta` (r,)."""

    columns: Columns
    beta: FloatArray


@dataclass(frozen=True)
class LearnedThreshold(ThresholdRule[Regression]):
    """The tau-quantile regression of the success score on the features: phi' beta.

    It ignores that the new prompt is not among the calibration prompts, so it promises nothing for finite
    samples; it is here to be compared with. Source: Koenker and Bassett (1978); the paper's baseline Learnt
    CP.
    """

    kind: ClassVar[str] = "learned"

    @property
    def dimension(self) -> int:
        """Number of features d of the calibration data."""
        return len(self.fitted.columns.scale)

    def state_data(self) -> dict[str, FloatArray]:
        """The regression as arrays: `beta` (r,), `kept` (r,), `scale` (d,) and `mixture` (r, d - r)."""
        columns = self.fitted.columns
        return {
            "beta": self.fitted.beta,
            "kept": columns.kept.astype(np.float64),
            "scale": columns.scale,
            "mixture": columns.mixture,
        }

    def restore(self, data: Mapping[str, FloatArray]) -> LearnedThreshold:
        """A fitted copy from `state_data`."""
        check_state(data, {"beta": 1, "kept": 1, "scale": 1, "mixture": 2})
        beta, kept, scale, mixture = (data[name] for name in ("beta", "kept", "scale", "mixture"))
        size, rank = len(scale), len(beta)
        # Strictly ascending whole numbers in range: what `independent_columns` returns.
        if (np.diff(kept, prepend=-1.0, append=float(size)) < 1).any() or (kept % 1 != 0).any():
            msg = "`kept` of a learned threshold's state is not a choice of columns"
            raise InputError(msg)
        if len(kept) != rank or mixture.shape != (rank, size - rank) or (scale <= 0).any():
            msg = "the state of a learned threshold has arrays of impossible shapes or scales"
            raise InputError(msg)
        numbers = kept.astype(np.int64)
        columns = Columns(numbers, np.setdiff1d(np.arange(size), numbers), scale, mixture)
        return replace(self, _state=Regression(columns, beta))

    def _learn(self, features: FloatArray, success_scores: FloatArray) -> Regression:
        columns, _ = Columns.of(features)
        reduced, _ = columns.reduce(features)
        base = base_regression(Rows.unweighted(reduced, success_scores), exact_tau(self.alpha))
        return Regression(columns, base.beta)

    def _answer(self, state: Regression, features: FloatArray) -> Thresholds:
        reduced, inside = state.columns.reduce(features)
        # Row by row, not by BLAS: a prompt gets the same bits alone and in a batch.
        values = np.where(inside, (reduced * state.beta).sum(axis=1), np.inf)
        errors = 4 * (len(state.beta) + 2) * EPS * np.abs(reduced * state.beta).sum(axis=1)
        return Thresholds.capped(values, errors, self.cap)
