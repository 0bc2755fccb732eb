"""Split conformal prediction: one order statistic in each of disjoint groups, or for all prompts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from langchain_cfc.errors import InputError
from langchain_cfc.support.arrays import BoolArray, FloatArray
from langchain_cfc.thresholds.base import (
    Level,
    ThresholdRule,
    Thresholds,
    check_calibration_arrays,
    check_state,
    compute_confident_rank,
    compute_conformal_rank,
    compute_tau,
    format_alpha,
)


@dataclass(frozen=True, eq=False)
class _GroupedState:
    """One order statistic per group: (d,), the cap for a group without one."""

    values: FloatArray


@dataclass(frozen=True)
class GroupedThreshold(ThresholdRule[_GroupedState]):
    """In each of d disjoint groups, an order statistic of the success scores of its N_g prompts.

    A single column of ones is the group of all prompts (the paper's baseline ICP). Without delta the rank is
    ceil((N_g + 1) tau): the thresholds are those of `ConditionalThreshold`, and on average over calibration
    sets a prompt of every group is covered or flagged with probability at least 1 - alpha. Source: Vovk,
    Gammerman and Shafer (2005).

    With `delta` this holds given the calibration set, with confidence 1 - delta and in all d groups at once.

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
            divided by the number of columns d. None for the guarantee on average.

    Examples:
        >>> groups = [[1, 0], [1, 0], [1, 0], [0, 1], [0, 1], [0, 1]]
        >>> rule = GroupedThreshold(alpha=0.5, delta=0.3).fit(groups, [0.1, 0.2, 0.3, 0.7, 0.8, 2.0])
        >>> rule.threshold([1, 0]), rule.threshold([0, 1]), rule.threshold([1, 1])
        (0.3, inf, inf)
    """

    delta: Level | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        """Convert delta to canonical decimal text."""
        super().__post_init__()
        if self.delta is not None:
            object.__setattr__(self, "delta", format_alpha(self.delta, "delta"))

    @property
    def dimension(self) -> int:
        """The number of groups d."""
        return len(self.fitted.values)

    def get_state_data(self) -> dict[str, FloatArray]:
        """Return `quantiles`, (d,) order statistics, the cap for a group without one."""
        return {"quantiles": self.fitted.values.copy()}

    def restore(self, data: Mapping[str, FloatArray]) -> GroupedThreshold:
        """Return a fitted copy from `get_state_data`."""
        check_state(data, {"quantiles": (np.size(data.get("quantiles", ())),)})
        quantiles = data["quantiles"]
        if len(quantiles) == 0 or (quantiles > self.cap).any():
            msg = "`quantiles` of a grouped threshold's state must hold numbers of groups, none above the cap"
            raise InputError(msg)
        return replace(self, _state=_GroupedState(quantiles.copy()))

    def fit(self, features: npt.ArrayLike, success_scores: npt.ArrayLike) -> GroupedThreshold:
        """Fit the rule to calibration prompts; see `ThresholdRule`."""
        x, s = check_calibration_arrays(features, success_scores, self.cap)
        others = np.flatnonzero(~_is_in_one_group(x))
        if len(others):
            msg = (
                "a grouped threshold needs disjoint groups: a single 1 in every row of the features, unlike "
                f"row {others[0]} (from 0). Use one term such as group(topic), or a ConditionalThreshold"
            )
            raise InputError(msg)
        members = [s[column == 1.0] for column in x.T]
        values = np.array([self._select_quantile(scores, len(members)) for scores in members])
        return replace(self, _state=_GroupedState(values))

    def _select_quantile(self, scores: FloatArray, groups: int) -> float:
        """Return the order statistic of one group; the cap if its rank exceeds the number of scores."""
        size, tau = len(scores), compute_tau(self.alpha)
        if self.delta is None:
            rank = compute_conformal_rank(size, tau)
        else:
            rank = compute_confident_rank(size, tau, Fraction(str(self.delta)) / groups)
        return float(np.partition(scores, rank - 1)[rank - 1]) if rank <= size else self.cap

    def _compute(self, state: _GroupedState, features: FloatArray) -> Thresholds:
        # An order statistic is one of the data, so it has no round-off.
        values = np.where(_is_in_one_group(features), state.values[features.argmax(axis=1)], np.inf)
        return Thresholds.apply_cap(values, np.zeros(len(features)), self.cap)


def _is_in_one_group(features: FloatArray) -> BoolArray:
    """Return for each row of (m, d) features whether it is a single 1 and zeros otherwise."""
    ones, zeros = (np.count_nonzero(features == number, axis=1) for number in (1.0, 0.0))
    return np.asarray((ones == 1) & (zeros == features.shape[1] - 1), dtype=np.bool_)
