"""`Term`: the one shape of every term, and what several of them compute alike."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar, Generic, NoReturn, TypeGuard, TypeVar

import numpy as np

from langchain_cfc._arrays import FloatArray, IntArray
from langchain_cfc.draws import Draws
from langchain_cfc.errors import FeatureError
from langchain_cfc.features.statistics import LARGEST, Statistic
from langchain_cfc.features.weights import GuaranteedWeight

if TYPE_CHECKING:
    from typing_extensions import Self

Learned = TypeVar("Learned")


@dataclass(frozen=True)
class Term(ABC, Generic[Learned]):
    """A few columns of a feature map, and the non-negative functions that they span.

    Attributes:
        learned: What `fit` learned (cut-offs, knots, categories), in a meaningful order; empty before that.
        learns: What the learned values are called in data; empty for a term that learns nothing.
        sums_to_one: Whether the columns sum to one for every prompt.
    """

    learned: tuple[Learned, ...] = field(default=(), kw_only=True)
    learns: ClassVar[str]
    sums_to_one: ClassVar[bool]

    @property
    @abstractmethod
    def text(self) -> str:
        """The canonical feature text."""

    @property
    @abstractmethod
    def statistics(self) -> tuple[Statistic, ...]:
        """The statistics that the columns are made of."""

    @property
    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """One name per column."""

    @property
    @abstractmethod
    def weights(self) -> tuple[GuaranteedWeight, ...]:
        """Non-negative functions in the span; coefficients: of the constant, then of the own columns."""

    @abstractmethod
    def learn(self, draws: Draws) -> tuple[Learned, ...]:
        """What is to be learned from the fit split."""

    @abstractmethod
    def admit(self, values: Sequence[object]) -> tuple[Learned, ...]:
        """The same values, come back from data; a FeatureError if `learn` cannot have returned them."""

    @abstractmethod
    def transform(self, draws: Draws) -> FloatArray:
        """(N, width) columns of a fitted term, each prompt for itself."""

    @property
    def metadata_keys(self) -> tuple[str, ...]:
        """The metadata keys that the term reads."""
        return tuple(statistic.key for statistic in self.statistics if statistic.key is not None)

    @property
    def fitted(self) -> bool:
        """Whether there is nothing left to learn."""
        return bool(self.learned) or not self.learns

    def fit(self, draws: Draws) -> Self:
        """The fitted term; `draws` is the fit split."""
        return replace(self, learned=self.learn(draws))

    def to_data(self) -> dict[str, list[Learned]]:
        """What was learned, ready for JSON."""
        return {self.learns: list(self.learned)} if self.learns else {}

    def from_data(self, data: object) -> Self:
        """The fitted term out of what `to_data` returned; a FeatureError for anything else."""
        fields = [self.learns] if self.learns else []
        if not isinstance(data, Mapping) or list(data) != fields:
            msg = f"{self.text} is stored as an object with the fields {fields}, got {data!r}"
            raise FeatureError(msg)
        values = data[self.learns] if self.learns else []
        if not isinstance(values, list):
            self.refuse("a list", values)
        return replace(self, learned=self.admit(values))

    def refuse(self, expected: str, values: object) -> NoReturn:
        """Raise the FeatureError for stored values that cannot have been learned."""
        msg = f"the {self.learns} of {self.text} must be {expected}, got {values!r}"
        raise FeatureError(msg)

    def admit_numbers(self, values: Sequence[object], least: int, most: int) -> tuple[float, ...]:
        """`least` to `most` finite numbers out of data, as floats."""
        numbers = tuple(float(value) for value in values if _is_number(value))
        if len(numbers) < len(values) or not least <= len(numbers) <= most:
            self.refuse(f"{least} to {most} finite numbers", values)
        return numbers

    def admit_increasing(self, values: Sequence[object], least: int, most: int) -> tuple[float, ...]:
        """The same in strictly increasing order."""
        numbers = self.admit_numbers(values, least, most)
        if any(left >= right for left, right in pairwise(numbers)):
            self.refuse("strictly increasing", values)
        return numbers


def indicators(which: IntArray, width: int) -> FloatArray:
    """Columns of a partition.

    Args:
        which: (N,) the part that each prompt belongs to, in 0..width - 1.
        width: The number of parts.

    Returns:
        (N, width) with a single 1 in each row.
    """
    return np.asarray(which[:, None] == np.arange(width), dtype=np.float64)


def own_columns(width: int) -> list[tuple[float, ...]]:
    """The coefficients of each own column, behind that of the constant: width rows of 1 + width numbers."""
    return [tuple(float(column == own + 1) for column in range(width + 1)) for own in range(width)]


def _is_number(value: object) -> TypeGuard[float]:
    # Written so that NaN fails it as well.
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= LARGEST
