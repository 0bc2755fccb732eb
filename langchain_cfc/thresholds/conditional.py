"""`ConditionalThreshold`: the conditional threshold rule of Conditional Factuality Control."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from fractions import Fraction
from functools import cached_property, reduce
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from langchain_cfc.errors import InputError
from langchain_cfc.support.arrays import BoolArray, FloatArray, to_float_array
from langchain_cfc.thresholds._randomized import compute_factors
from langchain_cfc.thresholds._rows import Rows
from langchain_cfc.thresholds._simplex import Unbounded
from langchain_cfc.thresholds._windows import Windows
from langchain_cfc.thresholds.base import (
    MAX_DECIMALS,
    Level,
    ThresholdRule,
    Thresholds,
    check_calibration_arrays,
    compute_tau,
    format_alpha,
)
from langchain_cfc.thresholds.certificate import Certificate
from langchain_cfc.thresholds.state import ConditionalState

if TYPE_CHECKING:
    from typing_extensions import Self

WINDOW = 1024


@dataclass(frozen=True)
class ConditionalThreshold(ThresholdRule[ConditionalState]):
    """The exact conditional threshold: valid under every non-negative reweighting that the features span.

    For features phi it is sup{s : s <= g(s)}, where g(s) is the fit at the prompt of the quantile regression
    on the calibration data and the prompt itself at score s. One linear programme per prompt computes it (see
    `_simplex`). If there are several minimisers, the smallest value is taken; for a constant or for disjoint
    groups this is the order statistic of rank ceil((N + 1) tau).

    Only calibration prompts near the fit are kept. Every threshold comes with a proof that the others do not
    matter (see `_locality`); one that cannot be proven is not returned. Enough prompts are kept, with a
    margin, for prompts like the calibration prompts (see `_widening`).

    Source: the paper's CFC rule; Gibbs, Cherian and Candes (2023), "Conformal prediction with conditional
    guarantees".

    Args:
        alpha: Error level, 0 < alpha < 1, read as a decimal.
        cap: Success score of a prompt without a correct candidate; above 1, fixed before the data is seen.
        ridge: lambda >= 0, the strength of a penalty: (N + 1) lambda / 2 times the squared coefficients. This
            is the paper's form, which penalises the constant as well. With it no coverage is guaranteed: that
            under f = Phi' gamma moves by about lambda gamma' beta / E f, beta the coefficients of the fit
            (Gibbs, Cherian and Candes 2023, Theorem 3).
        window: Minimum number of calibration prompts to keep; None for all of them.
        levels: Error levels that prompts may have instead of alpha, each 0 < level < 1. A function of the
            prompt assigns them; it must be fixed before the calibration data is seen. For every f >= 0 in the
            span of the features, E f(X) (kept - (1 - level(X))) >= 0. So if bins of the level are among the
            features, each level holds for the prompts that it is stated for.

    Examples:
        >>> groups = [[1, 0], [1, 0], [1, 0], [0, 1], [0, 1], [0, 1]]
        >>> rule = ConditionalThreshold(alpha=0.5).fit(groups, [0.1, 0.2, 0.3, 0.7, 0.8, 0.9])
        >>> rule.threshold([1, 0]), rule.threshold([0, 1])
        (0.2, 0.8)
    """

    ridge: float = field(default=0.0, kw_only=True)
    window: int | None = field(default=WINDOW, kw_only=True)
    levels: tuple[Level, ...] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        """Validate the ridge and the window, and normalise the levels."""
        super().__post_init__()
        if not (np.isfinite(self.ridge) and self.ridge >= 0.0):
            msg = f"ridge must be a finite number, at least 0; got {self.ridge!r}"
            raise InputError(msg)
        if self.window is not None and (isinstance(self.window, bool) or self.window < 1):
            msg = f"window must be a number of calibration prompts, at least 1, or None; got {self.window!r}"
            raise InputError(msg)
        texts = {format_alpha(level) for level in (self.alpha, *self.levels)}
        object.__setattr__(self, "levels", tuple(sorted(texts, key=Decimal)))

    @property
    def has_levels(self) -> bool:
        """Whether prompts may have another error level than alpha."""
        return len(self.levels) > 1

    @cached_property
    def unit(self) -> Fraction:
        """The largest number of which all levels' coverages are whole multiples; 1 - alpha without levels."""
        return reduce(_find_common_divisor, (compute_tau(level) for level in self.levels))

    @property
    def dimension(self) -> int:
        """The number of features d of the calibration data."""
        return len(self.fitted.columns.scale)

    def fit(
        self,
        features: npt.ArrayLike,
        success_scores: npt.ArrayLike,
        *,
        alphas: npt.ArrayLike | None = None,
    ) -> Self:
        """Fit the rule to calibration prompts.

        Args:
            features: (N, d) features, one row per prompt, N >= 1, d >= 1.
            success_scores: (N,) success scores; `cap` for prompts without a correct candidate, none above it.
            alphas: (N,) error level of each prompt, one of `levels`; by default alpha for all.

        Returns:
            A fitted copy of this rule.

        Raises:
            InputError: If shapes disagree, a number is not finite, a success score exceeds the cap, or an
                error level is not one of `levels`.
        """
        x, s = check_calibration_arrays(features, success_scores, self.cap)
        rows = Rows.with_unit_weights(x, s)
        if self.has_levels:
            rows = replace(rows, targets=self._match_levels(alphas, len(s))[1])
        elif alphas is not None:
            self._match_levels(alphas, len(s))  # raises if one is not alpha
        state = ConditionalState.fit(rows, self.unit, self.cap, self.window, ridge=self.ridge)
        return replace(self, _state=state)

    def threshold(self, phi: npt.ArrayLike, *, alpha: Level | None = None) -> float:
        """Compute the threshold of one prompt; see `ThresholdRule.threshold`.

        `alpha` is its error level, one of `levels`; by default that of the rule.
        """
        alphas = None if alpha is None else [float(alpha)]
        return float(
            self.solve(to_float_array(phi, "features")[np.newaxis], alphas=alphas).require_known()[0]
        )

    def solve(
        self,
        features: npt.ArrayLike,
        *,
        uniforms: npt.ArrayLike | None = None,
        alphas: npt.ArrayLike | None = None,
    ) -> Thresholds:
        """Compute the thresholds of several prompts with their error bounds.

        By default coverage is at least tau; over all prompts and for continuous success scores it is at most
        d / (N + 1) more. With `uniforms` it is tau: for success scores that are continuous given the
        features, E f (kept - tau) = 0 for every f in the span. With ties P_f(S < threshold) <= tau <=
        P_f(S <= threshold) for every such f >= 0. The cost is that equal prompts get different thresholds.

        Args:
            features: (m, d) features.
            uniforms: (m,) random numbers, uniform on (0, 1), independent of each other and of everything
                else. Thresholds never decrease in them, and approach the default ones towards 1.
            alphas: (m,) error level of each prompt, one of `levels`; by default that of the rule.

        Returns:
            The m thresholds. With `uniforms` one may be `-inf`, for an empty set.

        Raises:
            NotFittedError: Before `fit`.
            InputError: If a shape does not fit, a number is not finite, a uniform is not in (0, 1), or an
                error level is not one of `levels`.

        Source: Gibbs, Cherian and Candes (2023), their randomised prediction set; see `_randomized`.
        """
        state, x = self.fitted, self._check_features(features)
        factors: FloatArray | None = None
        if uniforms is not None or alphas is not None or self.has_levels:
            levels, factors = self._match_levels(alphas, len(x))
            if uniforms is not None:
                factors = compute_factors(_check_uniforms(uniforms, len(x)), levels, state.tau)
        return self._compute_one(state, x, factors) or self._compute(state, x, factors)

    def make_certificate(self, phi: npt.ArrayLike, alpha: Level | None = None) -> Certificate | None:
        """Compute the certificate of one threshold: a fit and a dual vector with the same objective.

        Args:
            phi: (d,) features of a prompt.
            alpha: Its error level, one of `levels`; by default that of the rule.

        Returns:
            The certificate; None if the threshold is unbounded, because no fit proves that.

        Raises:
            NotFittedError: Before `fit`.
            InputError: If the shape does not fit the calibration data, a number is not finite or the error
                level is not one of `levels`.
            OutsideCertifiedRegionError: If the threshold is not determined.
        """
        vector = to_float_array(phi, "features")
        self.threshold(vector, alpha=alpha)  # raises if there is no threshold
        reduced = self.fitted.reduce_one(vector)
        if reduced is None:
            return None
        (target,) = self._match_levels([float(self.alpha if alpha is None else alpha)], 1)[1]
        return self.fitted.windows.certify(target * reduced, reduced)

    def get_state_data(self) -> dict[str, FloatArray]:
        """Return the fitted state as named arrays.

        `features` (K, r), `success_scores` (K,) and `weights` (K,): the prompts kept, equal ones merged, in
        the independent columns; (0,) weights stand for ones. `rest` (3, r) and `rest_scores` (2,): sums over
        the others. `centre` (r,), `root` (r, r) and `radius` (1,): the base fit, the metric around it, and
        how near the others come; radius is (0,) if there are no others. `kept` (r,), `scale` (d,) and
        `mixture` (r, d - r): the columns. With a ridge `penalty` (d,) are the penalties of all d scaled
        columns, which take the place of the independent ones. With levels, `targets` (K,) are the weights of
        the prompts kept times their coverages over `unit`, and `rest_target` (r,) is the sum of the others
        times theirs.
        """
        arrays = self.fitted.to_arrays(has_levels=self.has_levels)
        return {name: array.copy() for name, array in arrays.items()}

    def restore(self, data: Mapping[str, FloatArray]) -> ConditionalThreshold:
        """Return a fitted copy from `get_state_data`."""
        state = ConditionalState.from_arrays(
            data, self.unit, self.cap, ridge=self.ridge > 0.0, has_levels=self.has_levels
        )
        return replace(self, _state=state)

    @cached_property
    def _targets(self) -> FloatArray:
        """The coverages of all levels in units of `unit`."""
        return np.array([float(compute_tau(level) / self.unit) for level in self.levels])

    def _match_levels(self, alphas: npt.ArrayLike | None, size: int) -> tuple[FloatArray, FloatArray]:
        """Return (size,) error levels as exact floats, and their coverages in units of `unit`."""
        given = to_float_array(np.full(size, float(self.alpha)) if alphas is None else alphas, "alphas")
        if given.shape != (size,):
            msg = f"alphas must be {size} error levels, got an array of shape {given.shape}"
            raise InputError(msg)
        offered = np.array([float(level) for level in self.levels])
        nearest = np.abs(given[:, np.newaxis] - offered).argmin(axis=1)
        wrong = ~(np.abs(given - offered[nearest]) < 0.5 * 10.0**-MAX_DECIMALS)
        if wrong.any():
            held = ", ".join(map(str, self.levels))
            msg = f"error level {given[wrong][0]} is not available; this rule has levels {held}"
            raise InputError(msg)
        return offered[nearest], self._targets[nearest]

    def _compute_one(
        self, state: ConditionalState, features: FloatArray, factors: FloatArray | None
    ) -> Thresholds | None:
        """Compute one threshold at a third of the cost; None for several prompts, and if no fit is proven."""
        if len(features) != 1 or (reduced := state.reduce_one(features[0])) is None:
            return None
        factor = 1.0 if factors is None else float(factors[0])
        if factor < 0.0:
            return None
        answer = state.windows.find(reduced if factor == 1.0 else factor * reduced)
        if answer is None or isinstance(answer, Unbounded):
            return None
        value, error = answer.compute_value(reduced)
        return Thresholds.apply_cap(np.array([value]), np.array([error]), self.cap)

    def _compute(
        self, state: ConditionalState, features: FloatArray, factors: FloatArray | None = None
    ) -> Thresholds:
        """Compute thresholds; (m,) factors multiply linear terms: target and randomisation."""
        reduced, reached = state.reduce(features)
        linear = reduced if factors is None else factors[:, np.newaxis] * reduced
        negative = np.zeros(len(features), dtype=np.bool_) if factors is None else factors < 0.0
        # Out of reach, everything or nothing is kept, but with a ridge always everything: see `_randomized`.
        values = np.where(negative & (state.penalty is None), -np.inf, np.inf)
        errors, outside = np.zeros(len(features)), np.zeros(len(features), dtype=np.bool_)
        for windows, of_sign in ((state.windows, ~negative), (state.negative, negative)):
            inside = np.flatnonzero(reached & of_sign)
            if windows is state.windows:
                inside = inside[~self._find_surely_capped(windows, reduced[inside])]
            answers, which = windows.find_each(linear[inside])
            for number, answer in enumerate(answers):
                rows = inside[which == number]
                if isinstance(answer, Unbounded):
                    values[rows] = windows.unbounded_value
                elif answer is not None:
                    values[rows], errors[rows] = answer.compute_values(reduced[rows])
                else:
                    # Prompts of equal weighted features share an answer, but not the bounds on their fits.
                    bounds = [windows.bound_below(linear[row], reduced[row]) for row in rows]
                    values[rows], outside[rows] = np.inf, np.array(bounds) < self.cap
        return Thresholds.apply_cap(values, errors, self.cap, outside)

    def _find_surely_capped(self, windows: Windows[Any], reduced: FloatArray) -> BoolArray:
        """Flag prompts at which the fit without them already reaches the cap; their own weight raises it.

        If many calibration prompts have no correct candidate, the fit lies on the cap and hardly any two
        prompts share a vertex. For 10,000 prompts that are all flagged, this check takes 1 % of the time.
        """
        base = windows.find(np.zeros(reduced.shape[1]))
        if base is None or isinstance(base, Unbounded):
            return np.zeros(len(reduced), dtype=np.bool_)
        return Thresholds.reaches_cap(*base.compute_values(reduced), self.cap)


def _find_common_divisor(first: Fraction, second: Fraction) -> Fraction:
    """Compute the largest fraction of which both numbers are whole multiples."""
    bottom = math.lcm(first.denominator, second.denominator)
    return Fraction(math.gcd(int(first * bottom), int(second * bottom)), bottom)


def _check_uniforms(numbers: npt.ArrayLike, size: int) -> FloatArray:
    """Convert (size,) numbers to floats and check that they lie strictly between 0 and 1."""
    given = to_float_array(numbers, "uniforms")
    if given.shape != (size,) or not ((given > 0.0) & (given < 1.0)).all():
        msg = f"uniforms must be {size} numbers above 0 and below 1, got an array of shape {given.shape}"
        raise InputError(msg)
    return given
