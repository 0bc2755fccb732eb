"""Split conformal prediction (the paper's ICP): one threshold for all prompts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from langchain_cfc._arrays import FloatArray
from langchain_cfc.errors import InputError
from langchain_cfc.thresholds.levels import Level, confident_rank, conformal_rank, delta_text, exact_tau
from langchain_cfc.thresholds.rule import ThresholdRule, Thresholds, check_state


@dataclass(frozen=True)
class Quantile:
    """The order statistic that serves everyone: `value`, `inf` beyond rank N, and `dimension` d."""

    value: float
    dimension: int


@dataclass(frozen=True)
class MarginalThreshold(ThresholdRule[Quantile]):
    """The order statistic S_(ceil((N + 1) tau)) of the success scores, the same for every prompt.

    Covers a correct answer with probability at least 1 - alpha on average over prompts, and says nothing
    about hard prompts. Source: Vovk, Gammerman and Shafer (2005); the paper's baseline ICP.

    That average is over calibration sets too, and given one of them the coverage lies below 1 - alpha about
    half of the time. With `delta` the rank is that of `confident_rank`: for i.i.d. prompts the coverage given
    the calibration set is at least 1 - alpha with confidence 1 - delta, whatever the distribution of success
    scores (see `GroupedThreshold`, of which this is the case of one group).

    Args:
        alpha: Error level, 0 < alpha < 1, read as a decimal.
        cap: Success score of a prompt without a correct candidate; above 1, fixed before the data is seen.
        delta: Failure probability of the promise given the calibration set, 0 < delta < 1, read as a decimal;
            None for the promise on average alone.

    >>> rule = MarginalThreshold(alpha=0.1).fit([[1.0]] * 9, [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9])
    >>> rule.threshold([1.0])
    0.9
    """

    kind: ClassVar[str] = "marginal"

    delta: Level | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        """Keep delta as canonical decimal text."""
        super().__post_init__()
        if self.delta is not None:
            object.__setattr__(self, "delta", delta_text(self.delta))

    @property
    def dimension(self) -> int:
        """Number of features d of the calibration data; their values play no role."""
        return self.fitted.dimension

    def state_data(self) -> dict[str, FloatArray]:
        """`quantile`: (1,) the order statistic, or (0,) where there is none; `dimension`: (1,) d."""
        value, dimension = self.fitted.value, self.fitted.dimension
        return {
            "quantile": np.array([value] if np.isfinite(value) else [], dtype=np.float64),
            "dimension": np.array([dimension], dtype=np.float64),
        }

    def restore(self, data: Mapping[str, FloatArray]) -> MarginalThreshold:
        """A fitted copy from `state_data`."""
        check_state(data, {"quantile": 1, "dimension": 1})
        quantile, dimension = data["quantile"], data["dimension"]
        if len(quantile) > 1 or (quantile > self.cap).any():
            msg = "`quantile` of a marginal threshold's state is at most one number, not above the cap"
            raise InputError(msg)
        if len(dimension) != 1 or dimension[0] < 1 or dimension[0] % 1 != 0:
            msg = "`dimension` of a marginal threshold's state is one whole number, at least 1"
            raise InputError(msg)
        value = float(quantile[0]) if len(quantile) else np.inf
        return replace(self, _state=Quantile(value, int(dimension[0])))

    def _learn(self, features: FloatArray, success_scores: FloatArray) -> Quantile:
        size, tau = len(success_scores), exact_tau(self.alpha)
        rank = conformal_rank(size, tau) if self.delta is None else confident_rank(size, tau, self.delta)
        in_reach = rank <= size
        value = float(np.partition(success_scores, rank - 1)[rank - 1]) if in_reach else np.inf
        return Quantile(value, features.shape[1])

    def _answer(self, state: Quantile, features: FloatArray) -> Thresholds:
        # An order statistic is one of the data: no arithmetic, no error.
        return Thresholds.capped(np.full(len(features), state.value), np.zeros(len(features)), self.cap)
