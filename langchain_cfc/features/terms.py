"""`Term`: the one shape of every term, and what several of them compute alike."""

from __future__ import annotations

import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import pairwise
from math import ceil, comb
from typing import TYPE_CHECKING, ClassVar, Generic, Literal, NoReturn, TypeAlias, TypeGuard, TypeVar

import numpy as np

from langchain_cfc._internal.arrays import FloatArray, IntArray
from langchain_cfc.candidates import CandidateBatch, Scalar
from langchain_cfc.errors import FeatureError
from langchain_cfc.features.statistics import (
    LARGEST,
    Statistic,
    listed,
    metadata_value,
    number,
    written_category,
    written_key,
)

if TYPE_CHECKING:
    from typing_extensions import Self


_DECIMAL = re.compile(r"\d+\.\d+(?:e[-+]?\d+)?")
_SOFT = re.compile(r"prompts weighted.* how near their (.*) is to (.*?)(?: \(.*)?", re.DOTALL)

WeightKind: TypeAlias = Literal["constant", "indicator", "hat", "bernstein"]


@dataclass(frozen=True)
class GuaranteedWeight:
    """A function f(X) = features(X) @ coefficients that is non-negative for every possible prompt.

    Coverage is promised under every such f (the paper's function class F): for an indicator this is coverage
    within a group, for the other kinds coverage where nearby prompts count more. A map spans
    many more non-negative functions, and the promise covers those as well; these are the ones that have a
    name. Hat functions and Bernstein polynomials are non-negative everywhere because the map clips their
    statistic to the range seen when it was fitted; in floating point, a Bernstein polynomial may fall below
    zero by 1e-9.

    Attributes:
        name: A short name, such as `1`, `bins(max_score, 5)[0]` or `bernstein(mean_score, 2)[1]`.
        kind: What kind of function it is.
        words: The prompts it speaks of, in plain English, such as `prompts whose topic is 'capital'`.
        coefficients: (d,) the function in the columns of its feature map.
        of_constant: How often it holds the constant.
        constant: (d,) the constant in the same columns, where it holds any of it.
    """

    name: str
    kind: WeightKind
    words: str
    coefficients: tuple[float, ...]
    of_constant: float = 0.0
    constant: tuple[float, ...] = ()

    def values(self, features: FloatArray) -> FloatArray:
        """The weight of each prompt.

        Args:
            features: (N, d) features, from the same map.

        Returns:
            (N,) weights, non-negative up to the round-off of Bernstein polynomials.

        Raises:
            FeatureError: If the features have another number of columns.
        """
        if features.shape != (len(features), len(self.coefficients)):
            msg = f"{self.name} takes (N, {len(self.coefficients)}) features, got shape {features.shape}"
            raise FeatureError(msg)
        values = np.asarray(features @ np.array(self.coefficients), dtype=np.float64)
        if self.of_constant:
            # The constant may be the sum of a group's columns, all zero where its category is unknown.
            missing = ~features[:, np.array(self.constant) != 0.0].any(axis=1)
            values[missing] += self.of_constant
        return values


def in_short(words: str, digits: int | None = 4) -> str:
    """What a weighting speaks of, short enough for a table.

    Args:
        words: Its words.
        digits: Significant digits that decimal numbers are cut to; None leaves them as they are.

    Returns:
        The same without what goes without saying.

    >>> in_short("prompts whose topic is 'sums'"), in_short("prompts whose mean score is below 0.123456")
    ("topic is 'sums'", 'mean score is below 0.1235')
    """
    if digits is not None:
        words = _DECIMAL.sub(lambda found: f"{float(found[0]):.{digits}g}", words)
    soft = _SOFT.fullmatch(words)
    if soft:
        return f"{soft[1]} near {soft[2]} (soft)"
    return words.removeprefix("prompts ").removeprefix("whose ")


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
    def learn(self, draws: CandidateBatch) -> tuple[Learned, ...]:
        """What is to be learned from the fit split."""

    @abstractmethod
    def admit(self, values: Sequence[object]) -> tuple[Learned, ...]:
        """The same values, come back from data; a FeatureError if `learn` cannot have returned them."""

    @abstractmethod
    def transform(self, draws: CandidateBatch) -> FloatArray:
        """(N, width) columns of a fitted term, each prompt for itself."""

    @property
    def metadata_keys(self) -> tuple[str, ...]:
        """The metadata keys that the term reads."""
        return tuple(statistic.key for statistic in self.statistics if statistic.key is not None)

    @property
    def fitted(self) -> bool:
        """Whether there is nothing left to learn."""
        return bool(self.learned) or not self.learns

    def fit(self, draws: CandidateBatch) -> Self:
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
    """Columns of a partition."""
    return np.asarray(which[:, None] == np.arange(width), dtype=np.float64)


def own_columns(width: int) -> list[tuple[float, ...]]:
    """The coefficients of each own column, behind that of the constant: width rows of 1 + width numbers."""
    return [tuple(float(column == own + 1) for column in range(width + 1)) for own in range(width)]


def _is_number(value: object) -> TypeGuard[float]:
    # Written so that NaN fails it as well.
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= LARGEST


@dataclass(frozen=True)
class Constant(Term[float]):
    """A column of ones. Its weight is the one that every map lists first, so it lists none of its own."""

    learns: ClassVar[str] = ""
    sums_to_one: ClassVar[bool] = True
    text: ClassVar[str] = "1"
    statistics: ClassVar[tuple[Statistic, ...]] = ()
    names: ClassVar[tuple[str, ...]] = ("1",)
    weights: ClassVar[tuple[GuaranteedWeight, ...]] = ()

    def learn(self, draws: CandidateBatch) -> tuple[float, ...]:  # noqa: ARG002  (one shape for all terms)
        """Nothing."""
        return ()

    def admit(self, values: Sequence[object]) -> tuple[float, ...]:  # noqa: ARG002  (one shape for all terms)
        """Nothing."""
        return ()

    def transform(self, draws: CandidateBatch) -> FloatArray:
        """(N, 1) ones."""
        return np.ones((len(draws), 1))


_LARGEST_ROUNDING = Fraction(1, 10**9)
_LARGEST_COEFFICIENT = 10**100


@dataclass(frozen=True)
class Polynomial(Term[float]):
    """Columns T, T^2, ..., T^k of a statistic T clipped to the range [lo, hi] of the fit split.

    With the constant, which the map adds, `mean_score^2` is the paper's [1, T, T^2]. Powers span no
    indicator: the non-negative functions to be had are smooth bumps such as the Bernstein polynomials on
    [lo, hi]. Without the clipping even these would turn negative beyond the fitted range, and the promise
    would not cover them.

    Attributes:
        statistic: T.
        degree: k, from 1 to 10.
        learned: lo and hi.
    """

    learns: ClassVar[str] = "range"
    sums_to_one: ClassVar[bool] = False
    statistic: Statistic
    degree: int

    @property
    def text(self) -> str:
        """Such as `mean_score^2`, or `mean_score` for degree 1."""
        return self.names[-1]

    @property
    def statistics(self) -> tuple[Statistic, ...]:
        """T."""
        return (self.statistic,)

    @property
    def names(self) -> tuple[str, ...]:
        """Such as `mean_score`, `mean_score^2`."""
        base = self.statistic.text
        return (base, *(f"{base}^{power}" for power in range(2, self.degree + 1)))

    def learn(self, draws: CandidateBatch) -> tuple[float, ...]:
        """The smallest and the largest value on the fit split; a FeatureError if powers hardly differ."""
        values = self.statistic.values(draws)
        lo, hi = float(values.min()), float(values.max())
        if lo == hi:
            msg = (
                f"{self.text} needs at least two different values, but {self.statistic.words} is "
                f"{number(lo)} for every prompt of the fit split; take another statistic"
            )
            raise FeatureError(msg)
        return self._resolved(lo, hi)

    def admit(self, values: Sequence[object]) -> tuple[float, ...]:
        """Two increasing numbers whose powers can be told apart."""
        lo, hi = self.admit_increasing(values, 2, 2)
        return self._resolved(lo, hi)

    def transform(self, draws: CandidateBatch) -> FloatArray:
        """(N, k) powers."""
        base = np.clip(self.statistic.values(draws), self.learned[0], self.learned[1])
        # Repeated products: unlike `np.power`, they give one prompt the same last bit as many.
        return np.multiply.accumulate(np.repeat(base[:, None], self.degree, axis=1), axis=1)

    @property
    def weights(self) -> tuple[GuaranteedWeight, ...]:
        """The k + 1 Bernstein polynomials of degree k on [lo, hi]."""
        lo, hi = self.learned
        return tuple(
            GuaranteedWeight(
                f"bernstein({self.statistic.text}, {self.degree})[{index}]",
                "bernstein",
                f"prompts weighted smoothly by how near their {self.statistic.words} is to "
                f"{number(lo + (hi - lo) * index / self.degree)} (within [{number(lo)}, {number(hi)}])",
                tuple(float(coefficient) for coefficient in coefficients),
            )
            for index, coefficients in enumerate(bernstein_coefficients(lo, hi, self.degree))
        )

    def _resolved(self, lo: float, hi: float) -> tuple[float, float]:
        """The range, unless round-off in features @ coefficients could reach 1e-9 or a power overflow.

        Powers over a range that is narrow compared with its distance from zero are nearly multiples of each
        other, and Bernstein polynomials are then small differences of huge numbers. Each of the k + 1
        products T^j c_j of at most 2 k roundings is off by at most 2 (k + 1) eps of its size, and their sum
        by k eps more: 4 (k + 1) eps bounds both.
        """
        far = Fraction(max(abs(lo), abs(hi)))
        rows = bernstein_coefficients(lo, hi, self.degree)
        size = max(sum(abs(c) * far**power for power, c in enumerate(row)) for row in rows)
        rounding = 4 * (self.degree + 1) * Fraction(sys.float_info.epsilon) * size
        largest = max(far**self.degree, *(abs(c) for row in rows for c in row))
        if rounding > _LARGEST_ROUNDING or largest > _LARGEST_COEFFICIENT:
            msg = (
                f"{self.text} cannot be computed accurately: on [{lo!r}, {hi!r}] the powers of "
                f"{self.statistic.words} are too much alike, or too large; take a lower degree or "
                f"hat({self.statistic.text}, 5)"
            )
            raise FeatureError(msg)
        return lo, hi


def bernstein_coefficients(lo: float, hi: float, degree: int) -> list[list[Fraction]]:
    """Bernstein polynomials on [lo, hi] as polynomials in T, exactly.

    With u = (T - lo) / (hi - lo), the i-th is C(k, i) u^i (1 - u)^(k - i): non-negative for u in [0, 1],
    largest at u = i / k, and all of them sum to one. Writing u = a + b T and 1 - u = c - b T with a = -lo b,
    c = hi b, b = 1 / (hi - lo) and multiplying out the k factors one by one gives the coefficients.
    """
    b = 1 / (Fraction(hi) - Fraction(lo))
    rows = []
    for index in range(degree + 1):
        row = [Fraction(comb(degree, index))]
        factors = [(-Fraction(lo) * b, b)] * index + [(Fraction(hi) * b, -b)] * (degree - index)
        for at_zero, slope in factors:
            shifted = [Fraction(0), *row]
            row = [at_zero * c + slope * d for c, d in zip([*row, Fraction(0)], shifted, strict=True)]
        rows.append(row)
    return rows


@dataclass(frozen=True)
class Bins(Term[float]):
    """Indicators of the half-open bins [c_i, c_(i+1)) between cut-offs; the outer bins are unbounded.

    The cut-offs are values of the fit split, so that each bin holds prompts of it. Where the statistic takes
    few values, cut-offs coincide and are merged: there are then fewer bins than asked for.

    Attributes:
        statistic: The statistic that is cut.
        count: The number of bins asked for, at least 2.
        learned: The cut-offs c_1 < c_2 < ....
    """

    learns: ClassVar[str] = "cuts"
    sums_to_one: ClassVar[bool] = True
    statistic: Statistic
    count: int

    @property
    def text(self) -> str:
        """Such as `bins(max_score, 5)`."""
        return f"bins({self.statistic.text}, {self.count})"

    @property
    def statistics(self) -> tuple[Statistic, ...]:
        """The statistic that is cut."""
        return (self.statistic,)

    @property
    def names(self) -> tuple[str, ...]:
        """Such as `bins(max_score, 5)[0]`."""
        return tuple(f"{self.text}[{index}]" for index in range(len(self.learned) + 1))

    def learn(self, draws: CandidateBatch) -> tuple[float, ...]:
        """The cut-offs; a FeatureError if ties leave fewer than two bins.

        Sorted, the N values of the fit split fall into `count` runs whose sizes differ by at most one; run i
        begins at place floor(i N / count), and the value there is cut-off i. In whole numbers there is no
        rounding to argue about. A cut-off at the smallest value would leave nothing below it and is dropped
        with the duplicates.
        """
        ordered = np.sort(self.statistic.values(draws))
        starts = [index * len(ordered) // self.count for index in range(1, self.count)]
        cuts = sorted({float(ordered[start]) for start in starts} - {float(ordered[0])})
        if not cuts:
            msg = (
                f"{self.text} finds a single bin: {self.statistic.words} is {number(float(ordered[0]))} for "
                f"nearly all {len(ordered)} prompts of the fit split; ask for more bins, take another "
                "statistic, or leave the term out"
            )
            raise FeatureError(msg)
        return tuple(cuts)

    def admit(self, values: Sequence[object]) -> tuple[float, ...]:
        """Increasing numbers, fewer than bins."""
        return self.admit_increasing(values, 1, self.count - 1)

    def transform(self, draws: CandidateBatch) -> FloatArray:
        """(N, number of bins) indicators."""
        which = np.searchsorted(np.array(self.learned), self.statistic.values(draws), side="right")
        return indicators(which.astype(np.int64), len(self.names))

    @property
    def weights(self) -> tuple[GuaranteedWeight, ...]:
        """Each bin."""
        inner = [
            f"lies in [{number(lo)}, {number(hi)})"
            for lo, hi in zip(self.learned, self.learned[1:], strict=False)
        ]
        places = [f"is below {number(self.learned[0])}", *inner, f"is at least {number(self.learned[-1])}"]
        return tuple(
            GuaranteedWeight(name, "indicator", f"prompts whose {self.statistic.words} {place}", own)
            for name, place, own in zip(self.names, places, own_columns(len(places)), strict=True)
        )


@dataclass(frozen=True)
class Hat(Term[float]):
    """One column per knot: 1 at the knot, falling linearly to 0 at its neighbours (linear B-splines).

    The statistic is clipped to the range of the knots, so that columns are non-negative and sum to one for
    every prompt. Unlike powers they are local: the promise holds near each knot, and the threshold moves
    continuously in between.

    Attributes:
        statistic: The statistic.
        count: The number of knots asked for, at least 2.
        learned: The knots, increasing.
    """

    learns: ClassVar[str] = "knots"
    sums_to_one: ClassVar[bool] = True
    statistic: Statistic
    count: int

    @property
    def text(self) -> str:
        """Such as `hat(mean_score, 5)`."""
        return f"hat({self.statistic.text}, {self.count})"

    @property
    def statistics(self) -> tuple[Statistic, ...]:
        """The statistic."""
        return (self.statistic,)

    @property
    def names(self) -> tuple[str, ...]:
        """Such as `hat(mean_score, 5)[2]`."""
        return tuple(f"{self.text}[{index}]" for index in range(len(self.learned)))

    def learn(self, draws: CandidateBatch) -> tuple[float, ...]:
        """The knots; a FeatureError if ties leave fewer than two.

        They are the values of the fit split at `count` equally spaced probabilities from 0 (its smallest) to
        1 (its largest), duplicates merged: place floor(i (N - 1) / (count - 1)) of its N sorted values.
        """
        ordered = np.sort(self.statistic.values(draws))
        places = [index * (len(ordered) - 1) // (self.count - 1) for index in range(self.count)]
        knots = sorted({float(ordered[place]) for place in places})
        if len(knots) == 1:
            msg = (
                f"{self.text} needs at least two different values, but {self.statistic.words} is "
                f"{number(knots[0])} for every prompt of the fit split; take another statistic"
            )
            raise FeatureError(msg)
        return tuple(knots)

    def admit(self, values: Sequence[object]) -> tuple[float, ...]:
        """Increasing numbers, at most as many as knots."""
        return self.admit_increasing(values, 2, self.count)

    def transform(self, draws: CandidateBatch) -> FloatArray:
        """(N, number of knots) hat functions; at most two of a row are positive."""
        knots = np.array(self.learned)
        # Not np.clip, which takes as long as all else here where there is one prompt.
        values = np.minimum(np.maximum(self.statistic.values(draws), knots[0]), knots[-1])
        right = np.minimum(np.maximum(np.searchsorted(knots, values, side="right"), 1), len(knots) - 1)
        share = (values - knots[right - 1]) / (knots[right] - knots[right - 1])
        columns = np.zeros((len(values), len(knots)))
        rows = np.arange(len(values))
        columns[rows, right - 1] = 1.0 - share
        columns[rows, right] = share
        return columns

    @property
    def weights(self) -> tuple[GuaranteedWeight, ...]:
        """Each hat function."""
        return tuple(
            GuaranteedWeight(name, "hat", f"prompts weighted by {self._nearness(index)}", own)
            for index, (name, own) in enumerate(zip(self.names, own_columns(len(self.learned)), strict=True))
        )

    def _nearness(self, index: int) -> str:
        knots = [number(knot) for knot in self.learned]
        beyond = {0: " or less", len(knots) - 1: " or more"}.get(index, "")
        ends = " and ".join(knots[max(index - 1, 0) : index] + knots[index + 1 : index + 2])
        centre = f"{knots[index]}{beyond}"
        return f"how near their {self.statistic.words} is to {centre} (falling to zero at {ends})"


@dataclass(frozen=True)
class Hard(Term[float]):
    """The two groups of the paper's TriviaQA experiment, `hard(entropy, max_score, 0.925)`.

    Each statistic is replaced by its rank: how many of the N fit prompts have at most this value. A prompt is
    hard where the largest of its ranks reaches R, the q-quantile of these largest ranks over the fit split
    (as `numpy.quantile` places it, among N values at (N - 1) q). Ranks never decrease in the value, so "rank
    of s_j reaches R" means that s_j is at least the R-th smallest value of s_j on the fit split, c_j:

        hard  <=>  max_j rank_j >= R  <=>  s_1 >= c_1 or s_2 >= c_2 or ...

    The cut-offs c_j are all there is to store, and no rank is ever divided or rounded. Tied prompts share the
    largest rank among them; they are hard together or easy together, so that ties at a cut-off make the hard
    group larger.

    Attributes:
        parts: The statistics s_j.
        fraction: q as decimal text, between 0 and 1.
        learned: The cut-offs c_j.
    """

    learns: ClassVar[str] = "cuts"
    sums_to_one: ClassVar[bool] = True
    parts: tuple[Statistic, ...]
    fraction: str

    @property
    def text(self) -> str:
        """Such as `hard(entropy, max_score, 0.925)`."""
        return f"hard({', '.join(part.text for part in self.parts)}, {self.fraction})"

    @property
    def statistics(self) -> tuple[Statistic, ...]:
        """The statistics s_j."""
        return self.parts

    @property
    def names(self) -> tuple[str, ...]:
        """Such as `hard(entropy, 0.9)=easy`, `hard(entropy, 0.9)=hard`."""
        return f"{self.text}=easy", f"{self.text}=hard"

    def learn(self, draws: CandidateBatch) -> tuple[float, ...]:
        """The cut-offs; a FeatureError if ties leave no easy prompt."""
        values = [part.values(draws) for part in self.parts]
        ordered = [np.sort(column) for column in values]
        ranks = [np.searchsorted(o, v, side="right") for o, v in zip(ordered, values, strict=True)]
        largest = np.sort(np.max(ranks, axis=0))
        # Between two order statistics a quantile has no fit prompt; reaching it is reaching the upper one.
        reach = int(largest[ceil((len(largest) - 1) * Fraction(self.fraction))])
        if reach == int(largest[0]):
            msg = (
                f"{self.text} calls every prompt of the fit split hard, because of ties; take statistics "
                f"with more different values than {listed(part.text for part in self.parts)}, or a larger "
                "fraction"
            )
            raise FeatureError(msg)
        return tuple(float(column[reach - 1]) for column in ordered)

    def admit(self, values: Sequence[object]) -> tuple[float, ...]:
        """One number per statistic."""
        return self.admit_numbers(values, len(self.parts), len(self.parts))

    def transform(self, draws: CandidateBatch) -> FloatArray:
        """(N, 2) indicators of easy and hard."""
        reached = [part.values(draws) >= cut for part, cut in zip(self.parts, self.learned, strict=True)]
        return indicators(np.any(reached, axis=0).astype(np.int64), 2)

    @property
    def weights(self) -> tuple[GuaranteedWeight, ...]:
        """Easy prompts and hard prompts."""
        pairs = [(part.words, number(cut)) for part, cut in zip(self.parts, self.learned, strict=True)]
        easy = " and ".join(f"whose {words} is below {cut}" for words, cut in pairs)
        hard = " or ".join(f"whose {words} is at least {cut}" for words, cut in pairs)
        return tuple(
            GuaranteedWeight(name, "indicator", f"prompts {words}", own)
            for name, words, own in zip(self.names, (easy, hard), own_columns(2), strict=True)
        )


Category: TypeAlias = str | int | bool


@dataclass(frozen=True)
class Group(Term[Category]):
    """Indicators of the categories of the fit split and of the calibration prompts.

    A category that none of them has is unknown. `transform` refuses it, unless asked to leave the prompt in
    no group; the caller then has to flag the prompt, as `CalibrationArtifact.solve` does.

    *Why calibration prompts may name categories.* Let G be the categories of the fit split, the N calibration
    prompts and the prompt to come. The map with one column for each of G treats these N + 1 prompts alike
    (it reads neither scores nor labels), so the promise holds for it. If the new prompt's category is known
    without that prompt, this map is the one in use. If not, the prompt is flagged, which keeps the promise.
    So the map in use keeps the promise whenever the symmetric one does. Prompts held out for evaluation or
    certificates name no categories: what is measured on them must not depend on them.

    Attributes:
        key: The metadata key.
        learned: The categories (`1`, `True` and `"1"` differ): booleans, numbers, texts, each ascending.
    """

    learns: ClassVar[str] = "categories"
    sums_to_one: ClassVar[bool] = True
    statistics: ClassVar[tuple[Statistic, ...]] = ()
    key: str

    @property
    def text(self) -> str:
        """Such as `group(topic)`."""
        return f"group({written_key(self.key)})"

    @property
    def metadata_keys(self) -> tuple[str, ...]:
        """The key."""
        return (self.key,)

    @property
    def names(self) -> tuple[str, ...]:
        """Such as `group(topic)=capital`."""
        return tuple(f"{self.text}={written_category(category)}" for category in self.learned)

    def learn(self, draws: CandidateBatch) -> tuple[Category, ...]:
        """The categories of the fit split."""
        return _in_order(self._categories(draws))

    def admit(self, values: Sequence[object]) -> tuple[Category, ...]:
        """Different categories, in the order in which `learn` puts them."""
        categories = [value for value in values if isinstance(value, (str, int))]
        if not values or len(categories) < len(values):
            self.refuse("one or more texts, whole numbers or booleans", values)
        if list(map(_typed, _in_order(categories))) != list(map(_typed, categories)):
            self.refuse("different and in ascending order", values)
        return tuple(categories)

    def with_categories_of(self, draws: CandidateBatch) -> Group:
        """Return the fitted term with the categories of more prompts."""
        return replace(self, learned=_in_order([*self.learned, *self._categories(draws)]))

    def transform(self, draws: CandidateBatch, *, allow_unknown: bool = False) -> FloatArray:
        """(N, number of categories) indicators."""
        places = {_typed(category): place for place, category in enumerate(self.learned)}
        categories = self._categories(draws)
        if allow_unknown:
            which = [places.get(_typed(category), -1) for category in categories]
        else:
            which = [self._place(row, category, places) for row, category in enumerate(categories)]
        return indicators(np.array(which, dtype=np.int64), len(self.learned))

    @property
    def weights(self) -> tuple[GuaranteedWeight, ...]:
        """Each category."""
        whose = f"prompts whose {written_key(self.key)} is"
        columns = own_columns(len(self.learned))
        return tuple(
            GuaranteedWeight(name, "indicator", f"{whose} {_words(category)}", own)
            for name, category, own in zip(self.names, self.learned, columns, strict=True)
        )

    def _categories(self, draws: CandidateBatch) -> list[Category]:
        return [self._category(row, entries) for row, entries in enumerate(draws.metadata)]

    def _category(self, row: int, entries: Mapping[str, Scalar]) -> Category:
        value = metadata_value(row, entries, self.key)
        if not isinstance(value, (str, int)):
            msg = (
                f"metadata {self.key!r} of prompt {row} is {value!r}; {self.text} needs a text, a whole "
                f"number or a boolean. For quantities take bins(meta({written_key(self.key)}), 5)"
            )
            raise FeatureError(msg, row)
        return value

    def _place(self, row: int, category: Category, places: Mapping[tuple[str, Category], int]) -> int:
        if _typed(category) not in places:
            msg = (
                f"{self.key} of prompt {row} is {_words(category)}, which {self.text} did not see when it "
                f"was fitted; it knows {listed(map(_words, self.learned))}. Add prompts of this category to "
                "the records, or merge rare categories into one (such as 'other') in the metadata, and "
                "calibrate again"
            )
            raise FeatureError(msg, row)
        return places[_typed(category)]


def _typed(category: Category) -> tuple[str, Category]:
    # To Python, 1 == True; to whoever wrote the metadata they are two things.
    kind = "bool" if isinstance(category, bool) else "int" if isinstance(category, int) else "str"
    return kind, category


def _in_order(categories: Sequence[Category]) -> tuple[Category, ...]:
    return tuple(category for _, category in sorted({_typed(category) for category in categories}))


def _words(category: Category) -> str:
    return f"'{category}'" if isinstance(category, str) else written_category(category)
