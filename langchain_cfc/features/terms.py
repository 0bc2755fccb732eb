"""Terms of a feature map: their columns, and the non-negative functions that these span."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from math import ceil, comb
from typing import TYPE_CHECKING, ClassVar, Generic, NoReturn, TypeAlias, TypeGuard, TypeVar

import numpy as np

from langchain_cfc.candidates import CandidateBatch
from langchain_cfc.errors import FeatureError
from langchain_cfc.features.statistics import (
    LARGEST_NUMBER,
    MAX_LISTED,
    Statistic,
    format_category,
    format_key,
    format_number,
    get_metadata,
)
from langchain_cfc.features.weights import GuaranteedWeight, WeightKind
from langchain_cfc.support.arrays import FloatArray, IntArray
from langchain_cfc.support.text import join_names

if TYPE_CHECKING:
    from typing_extensions import Self


_LARGEST_ROUNDING = Fraction(1, 10**9)
_LARGEST_COEFFICIENT = 10**100

Learned = TypeVar("Learned")


@dataclass(frozen=True)
class Term(ABC, Generic[Learned]):
    """A few columns of a feature map, and the non-negative functions that they span."""

    # What `fit` learned (cut-offs, knots, categories), in a meaningful order; empty before that.
    learned: tuple[Learned, ...] = field(default=(), kw_only=True)
    learns: ClassVar[str]  # name of the learned values in `to_data`; empty for a term that learns nothing
    sums_to_one: ClassVar[bool]  # whether the columns sum to one for every prompt

    @property
    @abstractmethod
    def text(self) -> str:
        """The canonical feature text."""

    @property
    def statistics(self) -> tuple[Statistic, ...]:
        """The statistics that the columns are computed from; none by default."""
        return ()

    @property
    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """One name per column."""

    @property
    @abstractmethod
    def weights(self) -> tuple[GuaranteedWeight, ...]:
        """Non-negative functions in the span of the constant and the term's columns."""

    def learn(self, draws: CandidateBatch) -> tuple[Learned, ...]:  # noqa: ARG002 - nothing by default
        """Learn the values of a fitted term from the fit split; nothing by default."""
        return ()

    def check_learned(self, values: Sequence[object]) -> tuple[Learned, ...]:  # noqa: ARG002 - as above
        """Check number and types of learned values from data; raise a FeatureError if they do not fit."""
        return ()

    @abstractmethod
    def transform(self, draws: CandidateBatch) -> FloatArray:
        """Compute the (N, width) columns of a fitted term, each prompt independently."""

    @property
    def metadata_keys(self) -> tuple[str, ...]:
        """The metadata keys that the term reads."""
        return tuple(statistic.key for statistic in self.statistics if statistic.key is not None)

    @property
    def fitted(self) -> bool:
        """Whether there is nothing left to learn."""
        return bool(self.learned) or not self.learns

    def fit(self, draws: CandidateBatch) -> Self:
        """Return the term fitted on the fit split."""
        return replace(self, learned=self.learn(draws))

    def to_data(self) -> dict[str, list[Learned]]:
        """Return the learned values, ready for JSON."""
        return {self.learns: list(self.learned)} if self.learns else {}

    def from_data(self, data: object) -> Self:
        """Return the term fitted with the result of `to_data`; raise a FeatureError for anything else."""
        fields = [self.learns] if self.learns else []
        if not isinstance(data, Mapping) or list(data) != fields:
            msg = f"{self.text} is stored as an object with the fields {fields}, got {data!r}"
            raise FeatureError(msg)
        values = data[self.learns] if self.learns else []
        if not isinstance(values, list):
            self._raise_impossible("a list", values)
        return replace(self, learned=self.check_learned(values))

    def _raise_impossible(self, expected: str, values: object) -> NoReturn:
        msg = f"the {self.learns} of {self.text} must be {expected}, got {values!r}"
        raise FeatureError(msg)

    def _check_numbers(self, values: Sequence[object], least: int, most: int) -> tuple[float, ...]:
        """Convert `least` to `most` finite numbers from data to floats."""
        numbers = tuple(float(value) for value in values if _is_number(value))
        if len(numbers) < len(values) or not least <= len(numbers) <= most:
            self._raise_impossible(f"{least} to {most} finite numbers", values)
        return numbers

    def _make_column_weights(
        self, words: Iterable[str], kind: WeightKind = "indicator"
    ) -> tuple[GuaranteedWeight, ...]:
        """Return the columns themselves as weights, with the words for each."""
        return tuple(
            GuaranteedWeight(name, kind, own, tuple(float(name == column) for column in self.names))
            for name, own in zip(self.names, words, strict=True)
        )


@dataclass(frozen=True)
class _StatisticTerm(Term[float]):
    """A term of one statistic."""

    statistic: Statistic

    @property
    def statistics(self) -> tuple[Statistic, ...]:
        return (self.statistic,)

    def _raise_single_value(self, value: float) -> NoReturn:
        msg = (
            f"{self.text} needs at least two different values, but {self.statistic.words} is "
            f"{format_number(value)} for every prompt of the fit split; use another statistic"
        )
        raise FeatureError(msg)


@dataclass(frozen=True)
class _CountTerm(_StatisticTerm):
    """A term of one statistic and a count, `function(statistic, count)`."""

    function: ClassVar[str]
    sums_to_one: ClassVar[bool] = True
    count: int  # of bins or knots requested, at least 2

    @cached_property
    def text(self) -> str:
        return f"{self.function}({self.statistic.text}, {self.count})"


def _build_indicators(which: IntArray, width: int) -> FloatArray:
    """Build the (N, width) columns of a partition from (N,) part numbers; zeros for a negative number."""
    return np.asarray(which[:, None] == np.arange(width), dtype=np.float64)


def _is_number(value: object) -> TypeGuard[float]:
    # NaN fails this test as well.
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= LARGEST_NUMBER


@dataclass(frozen=True)
class Constant(Term[float]):
    """A column of ones. It lists no weight, because every map lists that of the constant first."""

    learns: ClassVar[str] = ""
    sums_to_one: ClassVar[bool] = True
    text: ClassVar[str] = "1"
    names: ClassVar[tuple[str, ...]] = ("1",)
    weights: ClassVar[tuple[GuaranteedWeight, ...]] = ()

    def transform(self, draws: CandidateBatch) -> FloatArray:
        """Compute (N, 1) ones."""
        return np.ones((len(draws), 1))


@dataclass(frozen=True)
class Polynomial(_StatisticTerm):
    """Columns T, T^2, ..., T^k of a statistic T clipped to the range [lo, hi] of the fit split.

    With the constant, which the map adds, `mean_score^2` is the paper's [1, T, T^2]. Powers span no
    indicator: their non-negative functions are smooth bumps such as the Bernstein polynomials on [lo, hi].
    Without the clipping even these would turn negative beyond the fitted range, and the guarantee would not
    cover them. `fit` learns lo and hi.
    """

    learns: ClassVar[str] = "range"
    sums_to_one: ClassVar[bool] = False
    degree: int  # k, from 1 to 10

    @property
    def text(self) -> str:
        """The feature text, such as `mean_score^2`, or `mean_score` for degree 1."""
        return self.names[-1]

    @property
    def names(self) -> tuple[str, ...]:
        """One name per power, such as `mean_score`, `mean_score^2`."""
        base = self.statistic.text
        return (base, *(f"{base}^{power}" for power in range(2, self.degree + 1)))

    def learn(self, draws: CandidateBatch) -> tuple[float, ...]:
        """Find the range on the fit split; raise a FeatureError if powers are nearly dependent on it."""
        values = self.statistic.compute_values(draws)
        lo, hi = float(values.min()), float(values.max())
        if lo == hi:
            self._raise_single_value(lo)
        return self._check_resolution(lo, hi)

    def check_learned(self, values: Sequence[object]) -> tuple[float, ...]:
        """Check two numbers."""
        return self._check_numbers(values, 2, 2)

    def transform(self, draws: CandidateBatch) -> FloatArray:
        """Compute the (N, k) powers."""
        base = np.clip(self.statistic.compute_values(draws), self.learned[0], self.learned[1])
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
                f"{format_number(lo + (hi - lo) * index / self.degree)} "
                f"(within [{format_number(lo)}, {format_number(hi)}])",
                tuple(map(float, own)),
                float(of_constant),
            )
            for index, (of_constant, *own) in enumerate(compute_bernstein_coefficients(lo, hi, self.degree))
        )

    def _check_resolution(self, lo: float, hi: float) -> tuple[float, float]:
        """Return the range; reject it if features @ coefficients could be off by 1e-9 or numbers overflow.

        Powers over a range that is narrow compared with its distance from zero are nearly multiples of each
        other, and Bernstein polynomials are then small differences of huge numbers. Each of the k + 1
        products T^j c_j of at most 2 k roundings is off by at most 2 (k + 1) eps of its size, and their sum
        by k eps more: 4 (k + 1) eps bounds both.
        """
        far = Fraction(max(abs(lo), abs(hi)))
        rows = compute_bernstein_coefficients(lo, hi, self.degree)
        size = max(sum(abs(c) * far**power for power, c in enumerate(row)) for row in rows)
        rounding = 4 * (self.degree + 1) * Fraction(sys.float_info.epsilon) * size
        largest = max(far**self.degree, *(abs(c) for row in rows for c in row))
        if rounding > _LARGEST_ROUNDING or largest > _LARGEST_COEFFICIENT:
            msg = (
                f"{self.text} cannot be computed accurately: on [{lo!r}, {hi!r}] the powers of "
                f"{self.statistic.words} are nearly dependent or too large; use a lower degree or "
                f"hat({self.statistic.text}, 5)"
            )
            raise FeatureError(msg)
        return lo, hi


def compute_bernstein_coefficients(lo: float, hi: float, degree: int) -> list[list[Fraction]]:
    """Compute the Bernstein polynomials on [lo, hi] as polynomials in T, exactly: rows of coefficients.

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
class Bins(_CountTerm):
    """Indicators of the half-open bins [c_i, c_(i+1)) between cut-offs; the outer bins are unbounded.

    The cut-offs are values of the fit split, so that each bin holds prompts of it. If the statistic takes few
    values, cut-offs coincide and are merged: there are then fewer bins than requested.
    """

    learns: ClassVar[str] = "cuts"
    function: ClassVar[str] = "bins"

    @cached_property
    def names(self) -> tuple[str, ...]:
        """One name per bin, such as `bins(max_score, 5)[0]`."""
        return tuple(f"{self.text}[{index}]" for index in range(len(self.learned) + 1))

    def learn(self, draws: CandidateBatch) -> tuple[float, ...]:
        """Compute the cut-offs; raise a FeatureError if ties leave fewer than two bins.

        The N sorted values of the fit split are divided into `count` runs whose sizes differ by at most one.
        Run i begins at place floor(i N / count), and the value there is cut-off i. Integers avoid any
        rounding. Duplicates are dropped, as is a cut-off at the smallest value: nothing would lie below it.
        """
        ordered = np.sort(self.statistic.compute_values(draws))
        starts = [index * len(ordered) // self.count for index in range(1, self.count)]
        cuts = sorted({float(ordered[start]) for start in starts} - {float(ordered[0])})
        if not cuts:
            value = format_number(float(ordered[0]))
            msg = (
                f"{self.text} has only one bin: {self.statistic.words} is {value} for nearly all "
                f"{len(ordered)} prompts of the fit split; use more bins or another statistic, or "
                "remove the term"
            )
            raise FeatureError(msg)
        return tuple(cuts)

    def check_learned(self, values: Sequence[object]) -> tuple[float, ...]:
        """Check numbers, fewer than the bins requested."""
        return self._check_numbers(values, 1, self.count - 1)

    def transform(self, draws: CandidateBatch) -> FloatArray:
        """Compute the (N, number of bins) indicators."""
        which = np.searchsorted(np.array(self.learned), self.statistic.compute_values(draws), side="right")
        return _build_indicators(which.astype(np.int64), len(self.learned) + 1)

    @property
    def weights(self) -> tuple[GuaranteedWeight, ...]:
        """One weight per bin."""
        cuts = [format_number(cut) for cut in self.learned]
        inner = [f"lies in [{lo}, {hi})" for lo, hi in pairwise(cuts)]
        places = [f"is below {cuts[0]}", *inner, f"is at least {cuts[-1]}"]
        return self._make_column_weights(f"prompts whose {self.statistic.words} {place}" for place in places)


@dataclass(frozen=True)
class Hat(_CountTerm):
    """One column per knot: 1 at the knot, falling linearly to 0 at its neighbours (linear B-splines).

    The statistic is clipped to the range of the knots, so that columns are non-negative and sum to one for
    every prompt. Unlike powers they are local: the guarantee holds near each knot, and the threshold moves
    continuously in between.
    """

    learns: ClassVar[str] = "knots"
    function: ClassVar[str] = "hat"

    @cached_property
    def names(self) -> tuple[str, ...]:
        """One name per knot, such as `hat(mean_score, 5)[2]`."""
        return tuple(f"{self.text}[{index}]" for index in range(len(self.learned)))

    def learn(self, draws: CandidateBatch) -> tuple[float, ...]:
        """Compute the knots; raise a FeatureError if ties leave fewer than two.

        They are the values of the fit split at `count` equally spaced probabilities from 0 (its smallest) to
        1 (its largest): the distinct values at places floor(i (N - 1) / (count - 1)) of its N sorted values.
        """
        ordered = np.sort(self.statistic.compute_values(draws))
        places = [index * (len(ordered) - 1) // (self.count - 1) for index in range(self.count)]
        knots = sorted({float(ordered[place]) for place in places})
        if len(knots) == 1:
            self._raise_single_value(knots[0])
        return tuple(knots)

    def check_learned(self, values: Sequence[object]) -> tuple[float, ...]:
        """Check at least two numbers, at most as many as the knots requested."""
        return self._check_numbers(values, 2, self.count)

    def transform(self, draws: CandidateBatch) -> FloatArray:
        """Compute the (N, number of knots) hat functions; at most two per row are positive."""
        knots = np.array(self.learned)
        # Not np.clip, which takes as long as everything else here for a single prompt.
        values = np.minimum(np.maximum(self.statistic.compute_values(draws), knots[0]), knots[-1])
        right = np.minimum(np.maximum(np.searchsorted(knots, values, side="right"), 1), len(knots) - 1)
        share = (values - knots[right - 1]) / (knots[right] - knots[right - 1])
        columns = np.zeros((len(values), len(knots)))
        rows = np.arange(len(values))
        columns[rows, right - 1] = 1.0 - share
        columns[rows, right] = share
        return columns

    @property
    def weights(self) -> tuple[GuaranteedWeight, ...]:
        """One weight per hat function."""
        knots = [format_number(knot) for knot in self.learned]
        near = f"prompts weighted by how near their {self.statistic.words} is to"
        words = []
        for index, knot in enumerate(knots):
            beyond = {0: " or less", len(knots) - 1: " or more"}.get(index, "")
            ends = " and ".join(knots[max(index - 1, 0) : index] + knots[index + 1 : index + 2])
            words.append(f"{near} {knot}{beyond} (falling to zero at {ends})")
        return self._make_column_weights(words, "hat")


@dataclass(frozen=True)
class Hard(Term[float]):
    """The two groups of the paper's TriviaQA experiment, `hard(entropy, max_score, 0.925)`.

    Each statistic is replaced by its rank: how many of the N fit prompts have at most this value. A prompt is
    hard if the largest of its ranks reaches R, the q-quantile of these largest ranks over the fit split (as
    `numpy.quantile` places it, among N values at (N - 1) q). Ranks never decrease in the value, so "rank of
    s_j reaches R" means that s_j is at least the R-th smallest value of s_j on the fit split, c_j:

        hard  <=>  max_j rank_j >= R  <=>  s_1 >= c_1 or s_2 >= c_2 or ...

    Only the cut-offs c_j are stored, and no rank is ever divided or rounded. Tied prompts share the largest
    rank among them; they are hard together or easy together, so that ties at a cut-off make the hard group
    larger.
    """

    learns: ClassVar[str] = "cuts"
    sums_to_one: ClassVar[bool] = True
    parts: tuple[Statistic, ...]  # the statistics s_j
    fraction: str  # q as decimal text, between 0 and 1

    @property
    def text(self) -> str:
        """The feature text, such as `hard(entropy, max_score, 0.925)`."""
        return f"hard({', '.join(part.text for part in self.parts)}, {self.fraction})"

    @property
    def statistics(self) -> tuple[Statistic, ...]:
        """The statistics s_j."""
        return self.parts

    @property
    def names(self) -> tuple[str, ...]:
        """Two names, such as `hard(entropy, 0.9)=easy`, `hard(entropy, 0.9)=hard`."""
        return f"{self.text}=easy", f"{self.text}=hard"

    def learn(self, draws: CandidateBatch) -> tuple[float, ...]:
        """Compute the cut-offs; raise a FeatureError if ties leave no easy prompt."""
        values = [part.compute_values(draws) for part in self.parts]
        ordered = [np.sort(column) for column in values]
        ranks = [np.searchsorted(o, v, side="right") for o, v in zip(ordered, values, strict=True)]
        largest = np.sort(np.max(ranks, axis=0))
        # No rank lies between two order statistics: reaching a quantile in between is reaching the upper one.
        reach = int(largest[ceil((len(largest) - 1) * Fraction(self.fraction))])
        if reach == int(largest[0]):
            msg = (
                f"{self.text} makes every prompt of the fit split hard, because of ties; use statistics "
                f"with more distinct values than {join_names([part.text for part in self.parts])}, or a "
                "larger fraction"
            )
            raise FeatureError(msg)
        return tuple(float(column[reach - 1]) for column in ordered)

    def check_learned(self, values: Sequence[object]) -> tuple[float, ...]:
        """Check one number per statistic."""
        return self._check_numbers(values, len(self.parts), len(self.parts))

    def transform(self, draws: CandidateBatch) -> FloatArray:
        """Compute the (N, 2) indicators of easy and hard."""
        reached = [
            part.compute_values(draws) >= cut for part, cut in zip(self.parts, self.learned, strict=True)
        ]
        return _build_indicators(np.any(reached, axis=0).astype(np.int64), 2)

    @property
    def weights(self) -> tuple[GuaranteedWeight, ...]:
        """Two weights: easy prompts and hard prompts."""
        pairs = [(part.words, format_number(cut)) for part, cut in zip(self.parts, self.learned, strict=True)]
        easy = " and ".join(f"whose {words} is below {cut}" for words, cut in pairs)
        hard = " or ".join(f"whose {words} is at least {cut}" for words, cut in pairs)
        return self._make_column_weights((f"prompts {easy}", f"prompts {hard}"))


Category: TypeAlias = str | int | bool


@dataclass(frozen=True)
class Group(Term[Category]):
    """Indicators of the categories of the fit split and of the calibration prompts.

    A category that none of these prompts has is unknown. `transform` rejects it, unless asked to leave the
    prompt in no group; the caller then has to flag the prompt, as `CalibrationArtifact.solve` does.

    *Why calibration prompts may add categories.* Let G be the categories of the fit split, the N calibration
    prompts and the new prompt. The map with one column for each category in G treats these N + 1 prompts
    alike (it reads neither scores nor labels), so the guarantee holds for it. If the new prompt's category is
    known without that prompt, this map is the one in use. If not, the prompt is flagged, which keeps the
    guarantee. So the map in use keeps the guarantee whenever the symmetric one does. Prompts held out for
    evaluation or certificates add no categories: what is measured on them must not depend on them.

    `fit` learns the categories: booleans, numbers, texts, each ascending (`1`, `True` and `"1"` differ).
    """

    learns: ClassVar[str] = "categories"
    sums_to_one: ClassVar[bool] = True
    key: str  # the metadata key

    @property
    def text(self) -> str:
        """The feature text, such as `group(topic)`."""
        return f"group({format_key(self.key)})"

    @property
    def metadata_keys(self) -> tuple[str, ...]:
        """The metadata key of the groups."""
        return (self.key,)

    @property
    def names(self) -> tuple[str, ...]:
        """One name per category, such as `group(topic)=capital`."""
        return tuple(f"{self.text}={format_category(category)}" for category in self.learned)

    def learn(self, draws: CandidateBatch) -> tuple[Category, ...]:
        """Find the categories of the fit split."""
        return _sort_categories(self._read_categories(draws))

    def check_learned(self, values: Sequence[object]) -> tuple[Category, ...]:
        """Check one or more categories."""
        categories = [value for value in values if isinstance(value, (str, int))]
        if not values or len(categories) < len(values):
            self._raise_impossible("one or more texts, whole numbers or booleans", values)
        return tuple(categories)

    def with_categories_of(self, draws: CandidateBatch) -> Group:
        """Return the fitted term with the categories of more prompts added."""
        return replace(self, learned=_sort_categories([*self.learned, *self._read_categories(draws)]))

    def transform(self, draws: CandidateBatch, *, allow_unknown: bool = False) -> FloatArray:
        """Compute the (N, number of categories) indicators.

        A prompt of an unknown category gets zeros with `allow_unknown`, and otherwise raises a FeatureError.
        """
        places = {_add_type(category): place for place, category in enumerate(self.learned)}
        which = []
        for row, category in enumerate(self._read_categories(draws)):
            place = places.get(_add_type(category), -1)
            if place < 0 and not allow_unknown:
                msg = (
                    f"{self.key} of prompt {row} is {_describe_category(category)}, but {self.text} was "
                    f"fitted with {join_names([*map(_describe_category, self.learned)], MAX_LISTED)}. "
                    "Calibrate with such prompts as well, or call rare categories 'other' in the metadata"
                )
                raise FeatureError(msg, row)
            which.append(place)
        return _build_indicators(np.array(which, dtype=np.int64), len(self.learned))

    @property
    def weights(self) -> tuple[GuaranteedWeight, ...]:
        """One weight per category."""
        whose = f"prompts whose {format_key(self.key)} is"
        return self._make_column_weights(
            f"{whose} {_describe_category(category)}" for category in self.learned
        )

    def _read_categories(self, draws: CandidateBatch) -> list[Category]:
        """Read the category of each prompt from its metadata."""
        categories: list[Category] = []
        for row, entries in enumerate(draws.metadata):
            value = get_metadata(row, entries, self.key)
            if not isinstance(value, (str, int)):
                msg = (
                    f"metadata {self.key!r} of prompt {row} is {value!r}; {self.text} needs a text, a whole "
                    f"number or a boolean. For numeric values use bins(meta({format_key(self.key)}), 5)"
                )
                raise FeatureError(msg, row)
            categories.append(value)
        return categories


def _add_type(category: Category) -> tuple[str, Category]:
    # In Python, 1 == True; as categories they are different.
    kind = "bool" if isinstance(category, bool) else "int" if isinstance(category, int) else "str"
    return kind, category


def _sort_categories(categories: Sequence[Category]) -> tuple[Category, ...]:
    return tuple(category for _, category in sorted({_add_type(category) for category in categories}))


def _describe_category(category: Category) -> str:
    return f"'{category}'" if isinstance(category, str) else format_category(category)
