"""The interface of every threshold rule (`ThresholdRule`), and levels and ranks in exact arithmetic.

A level is decimal: 0.1 means one tenth, not the binary number next to it. Ranks such as ceil((N + 1) tau)
jump by one when (N + 1) tau is an integer, and binary floats miss that (10 * (1 - 0.7) is
3.0000000000000004), so they are computed in fractions made from the decimal string.

There are two ranks. `compute_conformal_rank` keeps the guarantee on average over calibration sets;
`compute_confident_rank` keeps it for the given calibration set, with confidence 1 - delta.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from langchain_cfc.errors import InputError, NotFittedError, OutsideCertifiedRegionError
from langchain_cfc.support.arrays import BoolArray, FloatArray, to_float_array
from langchain_cfc.support.imports import require
from langchain_cfc.support.suggestions import suggest_share
from langchain_cfc.thresholds._rows import LARGEST_NUMBER

if TYPE_CHECKING:
    from typing_extensions import Self


# The floats of the solver could not distinguish levels with more decimals.
MAX_DECIMALS = 12
# Success score of a prompt without a correct candidate: above 1, the largest score.
CAP = 2.0
# More than the relative round-off of SciPy's binomial tails: see `certificates.bounds`.
TAIL_ROUND_OFF = 1e-9
State = TypeVar("State")
Level: TypeAlias = str | float | Decimal
"""A decimal such as 0.1, read as its shortest decimal text."""


def format_alpha(alpha: Level, name: str = "alpha") -> str:
    """Convert an error level to canonical decimal text.

    Args:
        alpha: Error level, 0 < alpha < 1. A float is rounded to the nearest decimal of 12 digits, so that
            `1 - 0.8` means 0.2; text and `Decimal` are exact.
        name: Name of the argument in error messages.

    Returns:
        Plain decimal text without exponent or trailing zeros, such as `0.1`.

    Raises:
        InputError: If it is not a number strictly between 0 and 1, if a float rounds to 0 or 1, or if text or
            a `Decimal` has more than 12 decimals.

    Examples:
        >>> format_alpha(0.10), format_alpha("0.050"), format_alpha(1e-3), format_alpha(1 - 0.8)
        ('0.1', '0.05', '0.001', '0.2')
    """
    try:
        number = Decimal(str(alpha))
    except ArithmeticError:
        number = Decimal("NaN")
    if isinstance(alpha, bool) or not number.is_finite() or not 0 < number < 1:
        msg = f"{name} must be a decimal number strictly between 0 and 1, such as 0.1 or '0.1'; got {alpha!r}"
        msg += suggest_share(alpha)
        raise InputError(msg)
    if isinstance(alpha, float):
        # Arithmetic such as 1 - 0.8 differs from the decimal only by round-off.
        number = round(Decimal(alpha), MAX_DECIMALS)
    if not 0 < number < 1 or number != round(number, MAX_DECIMALS):
        msg = f"{name} must have at most {MAX_DECIMALS} decimals, got {str(alpha)[:40]}"
        raise InputError(msg)
    return f"{number.normalize():f}"


def compute_tau(alpha: Level) -> Fraction:
    """Compute the target coverage tau = 1 - alpha as a fraction.

    Examples:
        >>> compute_tau(0.3)
        Fraction(7, 10)
    """
    return 1 - Fraction(format_alpha(alpha))


def compute_conformal_rank(size: int, tau: Fraction) -> int:
    """Compute the rank ceil((N + 1) tau) of split conformal prediction; N + 1 means "no score suffices".

    Args:
        size: Number of calibration scores N >= 0.
        tau: Target coverage in (0, 1).

    Returns:
        The rank, 1 ... N + 1.

    Examples:
        >>> compute_conformal_rank(9, compute_tau(0.1)), compute_conformal_rank(9, compute_tau(0.3))
        (9, 7)
    """
    return math.ceil((size + 1) * tau)


def compute_confident_rank(size: int, tau: Fraction, delta: Level | Fraction) -> int:
    """Compute the rank with coverage tau, given the calibration set, with confidence 1 - delta.

    For N independent continuous scores the coverage of the order statistic of rank k, given the calibration
    set, is Beta(k, N + 1 - k) for every distribution of the scores. The rank is the smallest k with
    P(Beta(k, N + 1 - k) < tau) = P(Bin(N, tau) >= k) <= delta, but never below `compute_conformal_rank`: the
    guarantee on average holds as well. Only a delta above 1 / e makes a difference there, since a
    log-concave law such as Beta's lies at or below its mean with probability at least 1 / e (Grunbaum 1960).

    A tail within its round-off of delta counts as above it, so the rank may be one too large, but never too
    small.

    Source: Wilks (1941), tolerance limits; Vovk (2012), "Conditional validity of inductive conformal
    predictors".

    Args:
        size: Number of calibration scores N >= 0.
        tau: Target coverage in (0, 1).
        delta: Failure probability, 0 < delta < 1, over calibration sets: a decimal, or a fraction if one is
            divided among groups.

    Returns:
        The rank, 1 ... N + 1; N + 1 means "no score suffices".

    Raises:
        InputError: If delta is not a number strictly between 0 and 1.
        MissingExtraError: If SciPy is not installed.

    Examples:
        >>> [compute_confident_rank(size, compute_tau(0.1), 0.1) for size in (21, 22, 200, 1000, 9000)]
        [22, 22, 186, 913, 8137]
    """
    allowed = delta if isinstance(delta, Fraction) else Fraction(format_alpha(delta, "delta"))
    if not 0 < allowed < 1:
        msg = f"delta must lie strictly between 0 and 1; got {allowed}"
        raise InputError(msg)
    tail = require("scipy.special", "calibrate", "a guarantee with confidence").betainc
    least, most = compute_conformal_rank(size, tau), float(allowed) / (1.0 + TAIL_ROUND_OFF)
    # The tail decreases in the rank.
    return least + bisect_left(
        range(least, size + 1), True, key=lambda rank: tail(rank, size + 1 - rank, float(tau)) <= most
    )


@dataclass(frozen=True)
class Thresholds:
    """Thresholds of m prompts with bounds on their round-off.

    Attributes:
        values: (m,) unclipped thresholds; `inf` if none can be certified with n candidates; may be negative,
            and `-inf` for randomised thresholds.
        errors: (m,) bounds >= 0 on the round-off in the values. An entry level within the bound of a
            threshold must count as reached: in a measurement, a plain `<=` lost 20 points of coverage.
        outside: (m,) True if the rule kept too little of the calibration data to determine the threshold; the
            value is then `inf`.
    """

    values: FloatArray
    errors: FloatArray
    outside: BoolArray

    def require_known(self) -> FloatArray:
        """Return the values; raise an OutsideCertifiedRegionError if one is not determined."""
        if self.outside.any():
            raise OutsideCertifiedRegionError(np.flatnonzero(self.outside).tolist())
        return self.values

    @staticmethod
    def reaches_cap(values: FloatArray, errors: FloatArray, cap: float) -> BoolArray:
        """Return for (m,) values whether they reach the cap, within their error bounds."""
        return np.asarray(~(values < cap - errors))  # NaN counts as reaching it, so it certifies nothing

    @classmethod
    def apply_cap(
        cls, values: FloatArray, errors: FloatArray, cap: float, outside: BoolArray | None = None
    ) -> Thresholds:
        """Turn thresholds that reach the cap, within their error bound, into `inf`.

        A prompt without a correct candidate has success score `cap`, so a threshold there certifies nothing.
        If the exact value is the cap, floats fall below it half of the time, hence the bound.
        """
        reached = cls.reaches_cap(values, errors, cap)
        unknown = np.zeros(len(values), dtype=np.bool_) if outside is None else outside
        return cls(np.where(reached, np.inf, values), np.where(reached, 0.0, errors), unknown)


@dataclass(frozen=True)
class ThresholdRule(ABC, Generic[State]):
    """A rule that learns thresholds from the features and success scores of calibration prompts.

    `fit` returns a fitted copy; the rule itself never changes.

    Args:
        alpha: Error level, 0 < alpha < 1, read as a decimal.
        cap: Success score of a prompt without a correct candidate; above 1, fixed before the data is seen.

    Raises:
        InputError: If alpha or cap is out of range.
    """

    alpha: Level
    cap: float = CAP
    _state: State | None = field(default=None, kw_only=True, repr=False)

    def __post_init__(self) -> None:
        """Convert alpha to canonical decimal text and validate the cap."""
        object.__setattr__(self, "alpha", format_alpha(self.alpha))
        if not (np.isfinite(self.cap) and self.cap > 1.0):
            msg = f"cap must be a finite number above 1, the largest possible score; got {self.cap!r}"
            raise InputError(msg)

    @property
    def tau(self) -> float:
        """Target coverage 1 - alpha."""
        return float(compute_tau(self.alpha))

    @property
    def fitted(self) -> State:
        """The fitted state; raises a NotFittedError before `fit`."""
        if self._state is None:
            name = type(self).__name__
            msg = f"{name} is not fitted: call .fit(features, success_scores) and use the copy it returns"
            raise NotFittedError(msg)
        return self._state

    @abstractmethod
    def fit(self, features: npt.ArrayLike, success_scores: npt.ArrayLike) -> Self:
        """Fit the rule to calibration prompts.

        Args:
            features: (N, d) features, one row per prompt, N >= 1, d >= 1.
            success_scores: (N,) success scores; `cap` for prompts without a correct candidate, none above it.

        Returns:
            A fitted copy of this rule.

        Raises:
            InputError: If shapes disagree, a number is not finite or a success score exceeds the cap.
        """

    def solve(self, features: npt.ArrayLike) -> Thresholds:
        """Compute the thresholds of several prompts with their error bounds.

        Args:
            features: (m, d) features.

        Returns:
            The m thresholds.

        Raises:
            NotFittedError: Before `fit`.
            InputError: If the shape does not fit the calibration data or a number is not finite.
        """
        state = self.fitted
        return self._compute(state, self._check_features(features))

    def _check_features(self, features: npt.ArrayLike) -> FloatArray:
        """Convert (m, d) features to floats and check them against the calibration data."""
        x = to_float_array(features, "features")
        fits = x.ndim == 2 and x.shape[1] == self.dimension  # noqa: PLR2004 - rows and columns
        if not (fits and _is_moderate(x)):
            msg = f"features must be a finite (m, {self.dimension}) array, got shape {x.shape}"
            raise InputError(msg)
        return x

    def thresholds(self, features: npt.ArrayLike) -> FloatArray:
        """Compute (m,) thresholds from (m, d) features; `inf` if nothing is certified.

        Raises:
            NotFittedError: Before `fit`.
            InputError: If the shape does not fit the calibration data or a number is not finite.
            OutsideCertifiedRegionError: If a threshold is not determined; `solve` marks it instead.
        """
        return self.solve(features).require_known()

    def threshold(self, phi: npt.ArrayLike) -> float:
        """Compute the threshold of one prompt.

        Args:
            phi: (d,) features.

        Returns:
            The unclipped threshold; `inf` if it cannot be certified; possibly negative.

        Raises:
            NotFittedError: Before `fit`.
            InputError: If the shape does not fit the calibration data or a number is not finite.
            OutsideCertifiedRegionError: If the threshold is not determined.
        """
        return float(self.thresholds(to_float_array(phi, "features")[np.newaxis])[0])

    @property
    @abstractmethod
    def dimension(self) -> int:
        """The number of features d that the fitted rule expects."""

    @abstractmethod
    def get_state_data(self) -> dict[str, FloatArray]:
        """Return the fitted state as named float arrays, from which `restore` makes a bit-identical rule."""

    @abstractmethod
    def restore(self, data: Mapping[str, FloatArray]) -> Self:
        """Return a fitted copy of this rule from `get_state_data`.

        Raises:
            InputError: If an array is missing or has an impossible shape or value.
        """

    @abstractmethod
    def _compute(self, state: State, features: FloatArray) -> Thresholds:
        """Compute the thresholds for checked (m, d) features."""


def check_state(data: Mapping[str, FloatArray], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Reject a state unless it has exactly the named arrays, finite and of the given shapes."""
    found = {name: np.shape(array) for name, array in data.items()}
    if found != dict(shapes):
        msg = f"expected a state of arrays with these shapes: {dict(shapes)}; got {found}"
        raise InputError(msg)
    for name, array in data.items():
        if not np.isfinite(array).all():
            msg = f"array {name!r} of the state holds a number that is not finite"
            raise InputError(msg)


def _is_moderate(numbers: FloatArray) -> bool:
    """Return whether all numbers are finite and no product of two overflows."""
    # Comparisons with NaN are false.
    return bool(numbers.max(initial=0.0) < LARGEST_NUMBER and numbers.min(initial=0.0) > -LARGEST_NUMBER)


def check_calibration_arrays(
    features: npt.ArrayLike, success_scores: npt.ArrayLike, cap: float
) -> tuple[FloatArray, FloatArray]:
    """Convert (N, d) features and (N,) success scores to floats and check them."""
    x = to_float_array(features, "features")
    s = to_float_array(success_scores, "success scores")
    matrix = x.ndim == 2 and x.shape[1] > 0  # noqa: PLR2004 - rows and columns
    if not matrix or s.ndim != 1 or len(x) != len(s):
        msg = f"expected (N, d) features and (N,) success scores, got shapes {x.shape} and {s.shape}"
        raise InputError(msg)
    if len(s) == 0:
        msg = "no calibration prompts: at least one is needed"
        raise InputError(msg)
    if not (_is_moderate(x) and _is_moderate(s)):
        msg = (
            f"features and success scores must be finite and below {LARGEST_NUMBER:g} in size; a prompt "
            "without a correct candidate has the score `cap`"
        )
        raise InputError(msg)
    if s.max() > cap:
        msg = f"success score {s.max()} exceeds the cap {cap}"
        raise InputError(msg)
    return x, s
