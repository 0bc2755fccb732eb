"""Split conformal prediction: one order statistic for all prompts (the paper's ICP), or one per group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import ClassVar

import numpy as np

from langchain_cfc._internal.arrays import BoolArray, FloatArray
from langchain_cfc.errors import InputError
from langchain_cfc.thresholds.base import (
    Level,
    ThresholdRule,
    Thresholds,
    check_state,
    compute_confident_rank,
    compute_conformal_rank,
    compute_tau,
    format_delta,
)


@dataclass(frozen=True)
class _MarginalState:
    """The order statistic for all prompts (`inf` beyond rank N), and the number of features d."""

    value: float
    dimension: int


@dataclass(frozen=True)
class MarginalThreshold(ThresholdRule[_MarginalState]):
    """The order statistic S_(ceil((N + 1) tau)) of the success scores, the same for every prompt.

    It covers a correct answer with probability at least 1 - alpha on average over prompts, with no guarantee
    for hard prompts. Source: Vovk, Gammerman and Shafer (2005); the paper's baseline ICP.

    The average is over calibration sets too: given one of them, the coverage is below 1 - alpha about half of
    the time. With `delta` the rank is that of `compute_confident_rank`: for i.i.d. prompts the coverage given
    the calibration set is at least 1 - alpha with confidence 1 - delta, for every distribution of success
    scores (see `GroupedThreshold`; this is the case of one group).

    Args:
        alpha: Error level, 0 < alpha < 1, read as a decimal.
        cap: Success score of a prompt without a correct candidate; above 1, fixed before the data is seen.
        delta: Failure probability of the guarantee given the calibration set, 0 < delta < 1, read as a
            decimal; None for the guarantee on average alone.

    Examples:
        >>> scores = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]
        >>> rule = MarginalThreshold(alpha=0.1).fit([[1.0]] * 9, scores)
        >>> rule.threshold([1.0])
        0.9
    """

    kind: ClassVar[str] = "marginal"

    delta: Level | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        """Convert delta to canonical decimal text."""
        super().__post_init__()
        if self.delta is not None:
            object.__setattr__(self, "delta", format_delta(self.delta))

    @property
    def dimension(self) -> int:
        """The number of features d of the calibration data; their values are not used."""
        return self.fitted.dimension

    def get_state_data(self) -> dict[str, FloatArray]:
        """Return `quantile`, (1,) or (0,) if there is none, and `dimension`, (1,)."""
        value, dimension = self.fitted.value, self.fitted.dimension
        return {
            "quantile": np.array([value] if np.isfinite(value) else [], dtype=np.float64),
            "dimension": np.array([dimension], dtype=np.float64),
        }

    def restore(self, data: Mapping[str, FloatArray]) -> MarginalThreshold:
        """Return a fitted copy from `get_state_data`."""
        check_state(data, {"quantile": 1, "dimension": 1})
        quantile, dimension = data["quantile"], data["dimension"]
        if len(quantile) > 1 or (quantile > self.cap).any():
            msg = "`quantile` of a marginal threshold's state must be at most one number, not above the cap"
            raise InputError(msg)
        if len(dimension) != 1 or dimension[0] < 1 or dimension[0] % 1 != 0:
            msg = "`dimension` of a marginal threshold's state must be one whole number, at least 1"
            raise InputError(msg)
        value = float(quantile[0]) if len(quantile) else np.inf
        return replace(self, _state=_MarginalState(value, int(dimension[0])))

    def _learn(self, features: FloatArray, success_scores: FloatArray) -> _MarginalState:
        size, tau = len(success_scores), compute_tau(self.alpha)
        rank = (
            compute_conformal_rank(size, tau)
            if self.delta is None
            else compute_confident_rank(size, tau, self.delta)
        )
        return _MarginalState(_select_order_statistic(success_scores, rank, np.inf), features.shape[1])

    def _compute(self, state: _MarginalState, features: FloatArray) -> Thresholds:
        # An order statistic is one of the data, so it has no round-off.
        return Thresholds.apply_cap(np.full(len(features), state.value), np.zeros(len(features)), self.cap)


@dataclass(frozen=True, eq=False)
class _GroupedState:
    """One order statistic per group: (d,), the cap for a group without one."""

    values: FloatArray


@dataclass(frozen=True)
class GroupedThreshold(ThresholdRule[_GroupedState]):
    """In each of d disjoint groups, the order statistic with guaranteed coverage given the calibration set.

    With confidence 1 - delta over calibration sets, a prompt of every group is covered or flagged with
    probability at least 1 - alpha, in all d groups at once.

    Why: given who is in which group, the N_g success scores of group g are independent draws from one law
    with distribution function F, as if made from uniform U by S = F^-1(U). The order statistic of rank k then
    covers with probability F(S_(k)) = F(F^-1(U_(k))) >= U_(k), and U_(k) is Beta(k, N_g + 1 - k) for every F.
    For continuous scores the two are equal; ties and atoms only raise F(S_(k)), and so does the cap, where
    the threshold becomes infinite and every prompt of the group is flagged. `compute_confident_rank` takes
    the smallest k with P(U_(k) < tau) <= delta / d, and d failures of that size add up to delta at most. A
    group too small for any rank has threshold `inf`.

    Prompts have to be i.i.d.; exchangeability, which is enough on average, is not enough here. Of N + 1
    prompts drawn without replacement from N + 1, the first N decide whether the last is covered, and it fails
    with probability 1 - k / (N + 1), which may be far above delta.

    Source: Wilks (1941), tolerance limits; Vovk (2012), "Conditional validity of inductive conformal
    predictors".

    Args:
        alpha: Error level, 0 < alpha < 1, read as a decimal.
        cap: Success score of a prompt without a correct candidate; above 1, fixed before the data is seen.
        delta: Probability that the guarantee fails in some group, 0 < delta < 1, read as a decimal; it is
            divided by the number of columns d.

    Examples:
        >>> groups = [[1, 0], [1, 0], [1, 0], [0, 1], [0, 1], [0, 1]]
        >>> rule = GroupedThreshold(alpha=0.5, delta=0.3).fit(groups, [0.1, 0.2, 0.3, 0.7, 0.8, 2.0])
        >>> rule.threshold([1, 0]), rule.threshold([0, 1]), rule.threshold([1, 1])
        (0.3, inf, inf)
    """

    kind: ClassVar[str] = "grouped"

    delta: Level = field(kw_only=True)

    def __post_init__(self) -> None:
        """Convert delta to canonical decimal text."""
        super().__post_init__()
        object.__setattr__(self, "delta", format_delta(self.delta))

    @property
    def dimension(self) -> int:
        """The number of groups d."""
        return len(self.fitted.values)

    def get_state_data(self) -> dict[str, FloatArray]:
        """Return `quantiles`, (d,) order statistics, the cap for a group without one."""
        return {"quantiles": self.fitted.values.copy()}

    def restore(self, data: Mapping[str, FloatArray]) -> GroupedThreshold:
        """Return a fitted copy from `get_state_data`."""
        check_state(data, {"quantiles": 1})
        quantiles = data["quantiles"]
        if len(quantiles) == 0 or (quantiles > self.cap).any():
            msg = "`quantiles` of a grouped threshold's state must hold numbers of groups, none above the cap"
            raise InputError(msg)
        return replace(self, _state=_GroupedState(quantiles.copy()))

    def _learn(self, features: FloatArray, success_scores: FloatArray) -> _GroupedState:
        others = np.flatnonzero(~_is_in_one_group(features))
        if len(others):
            msg = (
                "a grouped threshold needs disjoint groups: every row of the features must be a single 1 and "
                f"zeros otherwise, unlike row {others[0]}, counted from 0; use a single term that "
                "splits the prompts, such as group(topic) or bins(mean_score, 5), or a ConditionalThreshold"
            )
            raise InputError(msg)
        share = Fraction(str(self.delta)) / features.shape[1]
        members = [success_scores[column == 1.0] for column in features.T]
        tau = compute_tau(self.alpha)
        ranks = [compute_confident_rank(len(scores), tau, share) for scores in members]
        quantiles = map(_select_order_statistic, members, ranks, [self.cap] * len(members))
        return _GroupedState(np.array(list(quantiles)))

    def _compute(self, state: _GroupedState, features: FloatArray) -> Thresholds:
        values = np.where(_is_in_one_group(features), state.values[features.argmax(axis=1)], np.inf)
        return Thresholds.apply_cap(values, np.zeros(len(features)), self.cap)


def _select_order_statistic(scores: FloatArray, rank: int, beyond: float) -> float:
    """Return the score of a rank from 1, or `beyond` for a rank above the number of scores."""
    return float(np.partition(scores, rank - 1)[rank - 1]) if rank <= len(scores) else beyond


def _is_in_one_group(features: FloatArray) -> BoolArray:
    """Return for each row of (m, d) features whether it is a single 1 and zeros otherwise."""
    ones, zeros = (np.count_nonzero(features == number, axis=1) for number in (1.0, 0.0))
    return np.asarray((ones == 1) & (zeros == features.shape[1] - 1), dtype=np.bool_)
