"""`ThresholdRule`: the one small interface behind which every threshold rule stands."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from langchain_cfc._arrays import BoolArray, FloatArray
from langchain_cfc.errors import InputError, NotFittedError, OutsideCertifiedRegionError
from langchain_cfc.thresholds.columns import LARGEST
from langchain_cfc.thresholds.levels import Level, alpha_text, exact_tau

if TYPE_CHECKING:
    from typing_extensions import Self

State = TypeVar("State")


@dataclass(frozen=True)
class Thresholds:
    """Thresholds of m prompts with what is known of their accuracy.

    Attributes:
        values: (m,) unclipped thresholds; `inf` where none can be certified with n candidates; may be
            negative, and `-inf` where they are randomised.
        errors: (m,) bounds >= 0 on the round-off in the values. Whoever compares a threshold with a level
            lets anything within the bound count as reached: measured, a plain `<=` lost 20 points of coverage
            to round-off.
        outside: (m,) True where the rule kept too little of the calibration data to know the threshold; the
            value then is `inf`.
    """

    values: FloatArray
    errors: FloatArray
    outside: BoolArray

    def known(self) -> FloatArray:
        """The values, all of which must be known.

        Raises:
            OutsideCertifiedRegionError: If one is not.
        """
        if self.outside.any():
            raise OutsideCertifiedRegionError(np.flatnonzero(self.outside).tolist())
        return self.values

    @staticmethod
    def reaches(values: FloatArray, errors: FloatArray, cap: float) -> BoolArray:
        """(m,) whether values reach the cap; anything within the error bound does."""
        return np.asarray(~(values < cap - errors))  # NaN reaches it: nothing is certified by accident

    @classmethod
    def capped(
        cls, values: FloatArray, errors: FloatArray, cap: float, outside: BoolArray | None = None
    ) -> Thresholds:
        """Turn thresholds that reach the cap, within their error bound, into `inf`.

        A prompt without a correct candidate has success score `cap`, so a threshold there certifies nothing.
        Where the exact value is the cap, floats fall below it half of the time, hence the bound.
        """
        reached = cls.reaches(values, errors, cap)
        known = np.zeros(len(values), dtype=np.bool_) if outside is None else outside
        return cls(np.where(reached, np.inf, values), np.where(reached, 0.0, errors), known)


@dataclass(frozen=True)
class ThresholdRule(ABC, Generic[State]):
    """A way to get thresholds from the features and success scores of calibration prompts.

    `fit` returns a fitted copy; the rule itself never changes.

    Args:
        alpha: Error level, 0 < alpha < 1, read as a decimal.
        cap: Success score of a prompt without a correct candidate; above 1, fixed before the data is seen.

    Raises:
        InputError: If alpha or cap is out of range.
    """

    kind: ClassVar[str]

    alpha: Level
    cap: float = 2.0
    _state: State | None = field(default=None, kw_only=True, repr=False)

    def __post_init__(self) -> None:
        """Keep alpha as canonical decimal text and refuse an impossible cap."""
        object.__setattr__(self, "alpha", alpha_text(self.alpha))
        if not (np.isfinite(self.cap) and self.cap > 1.0):
            msg = f"cap must be a finite number above 1, the largest possible score; got {self.cap!r}"
            raise InputError(msg)

    @property
    def tau(self) -> float:
        """Target coverage 1 - alpha."""
        return float(exact_tau(self.alpha))

    @property
    def fitted(self) -> State:
        """What `fit` learned.

        Raises:
            NotFittedError: If there is nothing yet.
        """
        if self._state is None:
            name = type(self).__name__
            msg = f"{name} has no threshold yet: call .fit(features, success_scores) and use what it returns"
            raise NotFittedError(msg)
        return self._state

    def fit(self, features: npt.ArrayLike, success_scores: npt.ArrayLike) -> Self:
        """Learn from calibration prompts.

        Args:
            features: (N, d) features, one row per prompt, N >= 1, d >= 1.
            success_scores: (N,) success scores; `cap` for prompts without a correct candidate, none above it.

        Returns:
            A fitted copy of this rule.

        Raises:
            InputError: If shapes disagree, a number is not finite or a success score exceeds the cap.
        """
        x, s = calibration_arrays(features, success_scores, self.cap)
        return replace(self, _state=self._learn(x, s))

    def solve(self, features: npt.ArrayLike) -> Thresholds:
        """Thresholds of several prompts with their error bounds.

        Args:
            features: (m, d) features.

        Returns:
            The m thresholds.

        Raises:
            NotFittedError: Before `fit`.
            InputError: If the shape does not fit the calibration data or a number is not finite.
        """
        state = self.fitted
        return self._answer(state, self._checked(features))

    def _checked(self, features: npt.ArrayLike) -> FloatArray:
        """(m, d) features of prompts, copied.

        Raises:
            InputError: If the shape does not fit the calibration data or a number is not finite.
        """
        x = float_array(features, "features")
        fits = x.ndim == 2 and x.shape[1] == self.dimension  # noqa: PLR2004 - rows and columns
        if not (fits and _sane(x)):
            msg = f"features must be a finite (m, {self.dimension}) array, got shape {x.shape}"
            raise InputError(msg)
        return x

    def thresholds(self, features: npt.ArrayLike) -> FloatArray:
        """Thresholds of several prompts: (m, d) features to (m,) floats, `inf` where nothing is certified.

        Raises:
            NotFittedError: Before `fit`.
            InputError: If the shape does not fit the calibration data or a number is not finite.
            OutsideCertifiedRegionError: If a threshold is not known; `solve` goes on without it.
        """
        return self.solve(features).known()

    def threshold(self, phi: npt.ArrayLike) -> float:
        """The threshold of one prompt.

        Args:
            phi: (d,) features.

        Returns:
            The unclipped threshold; `inf` if it cannot be certified; possibly negative.

        Raises:
            NotFittedError: Before `fit`.
            InputError: If the shape does not fit the calibration data or a number is not finite.
            OutsideCertifiedRegionError: If the threshold is not known.
        """
        return float(self.thresholds(float_array(phi, "features")[np.newaxis])[0])

    @property
    @abstractmethod
    def dimension(self) -> int:
        """Number of features d that the fitted rule expects."""

    @abstractmethod
    def state_data(self) -> dict[str, FloatArray]:
        """The fitted state as named float arrays, from which `restore` makes a bit-identical rule."""

    @abstractmethod
    def restore(self, data: Mapping[str, FloatArray]) -> Self:
        """A fitted copy of this rule from `state_data`.

        Raises:
            InputError: If an array is missing or has an impossible shape or value.
        """

    @abstractmethod
    def _learn(self, features: FloatArray, success_scores: FloatArray) -> State:
        """The fitted state for checked (N, d) features and (N,) success scores."""

    @abstractmethod
    def _answer(self, state: State, features: FloatArray) -> Thresholds:
        """Thresholds for checked (m, d) features."""


def check_state(data: Mapping[str, FloatArray], axes: Mapping[str, int]) -> None:
    """Refuse a state that does not consist of the named arrays, finite and with so many axes each.

    Raises:
        InputError: If an array is missing, unknown, of another number of axes or not finite.
    """
    found = {name: np.ndim(array) for name, array in data.items()}
    if found != dict(axes):
        msg = f"expected a state of arrays with so many axes: {dict(axes)}; got {found}"
        raise InputError(msg)
    for name, array in data.items():
        if not np.isfinite(array).all():
            msg = f"array {name!r} of the state holds a number that is not finite"
            raise InputError(msg)


def _sane(numbers: FloatArray) -> bool:
    """Whether all numbers are finite, and no product of two overflows."""
    # Not a number is neither below nor above.
    return bool(numbers.max(initial=0.0) < LARGEST and numbers.min(initial=0.0) > -LARGEST)


def float_array(numbers: npt.ArrayLike, name: str) -> FloatArray:
    """As floats, without a copy where they are floats: whoever keeps them takes a copy.

    Raises:
        InputError: If something is no number or rows differ in length.
    """
    try:
        return np.asarray(numbers, dtype=np.float64)
    except (TypeError, ValueError) as error:
        msg = f"{name} must be an array of numbers: {error}"
        raise InputError(msg) from error


def calibration_arrays(
    features: npt.ArrayLike, success_scores: npt.ArrayLike, cap: float
) -> tuple[FloatArray, FloatArray]:
    """Checked copies of (N, d) features and (N,) success scores.

    Raises:
        InputError: If shapes disagree, a number is not finite or a success score exceeds the cap.
    """
    x = float_array(features, "features")
    s = float_array(success_scores, "success scores")
    matrix = x.ndim == 2 and x.shape[1] > 0  # noqa: PLR2004 - rows and columns
    if not matrix or s.ndim != 1 or len(x) != len(s):
        msg = f"expected (N, d) features and (N,) success scores, got shapes {x.shape} and {s.shape}"
        raise InputError(msg)
    if len(s) == 0:
        msg = "no calibration prompts: at least one is needed"
        raise InputError(msg)
    if not (_sane(x) and _sane(s)):
        msg = (
            f"features and success scores must be finite and below {LARGEST:g} in size; without a correct "
            "candidate the score is `cap`"
        )
        raise InputError(msg)
    if s.max() > cap:
        msg = f"success score {s.max()} exceeds the cap {cap}"
        raise InputError(msg)
    return x, s
