"""`FeatureMap`: parsed and fitted feature text, and the columns in which thresholds are linear."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from langchain_cfc.candidates import CandidateBatch
from langchain_cfc.errors import FeatureError, NotFittedError
from langchain_cfc.features.adaptive import AdaptiveAlpha
from langchain_cfc.features.parser import parse_terms
from langchain_cfc.features.terms import Bins, Constant, Group, Term
from langchain_cfc.features.weights import GuaranteedWeight
from langchain_cfc.support.arrays import BoolArray, FloatArray


@dataclass(frozen=True, repr=False)
class FeatureMap:
    """The paper's feature map Phi: created by `parse`, and fitted on a split that is used for nothing else.

    `fit` learns cut-offs, knots, ranges and categories. Learned from the calibration prompts, they would
    break the exchangeability that the guarantee needs, so the caller passes a separate split. The constant is
    always in the span: if no term's columns sum to one, a column `1` comes first.

    Attributes:
        terms: The terms of the feature text, in its order.
        adaptive_alpha: The error level of each prompt, whose columns come last; None for a fixed level.

    Examples:
        >>> years = [{"year": 1}, {"year": 2}, {"year": 4}]
        >>> draws = CandidateBatch.from_arrays([[0.0, 0.4], [0.2, 0.6], [0.9, 0.5]], metadata=years)
        >>> features = FeatureMap.parse("max_score^2 + bins(meta(year),2)").fit(draws)
        >>> features
        FeatureMap('max_score^2 + bins(meta(year), 2)', fitted=True)
        >>> features.names
        ('max_score', 'max_score^2', 'bins(meta(year), 2)[0]', 'bins(meta(year), 2)[1]')
        >>> features.transform(draws).round(2).tolist()
        [[0.4, 0.16, 1.0, 0.0], [0.6, 0.36, 0.0, 1.0], [0.9, 0.81, 0.0, 1.0]]
        >>> [weight.words for weight in features.list_guaranteed_weights()[-2:]]
        ['prompts whose year is below 2', 'prompts whose year is at least 2']
    """

    terms: tuple[Term[Any], ...]
    adaptive_alpha: AdaptiveAlpha | None = None

    @classmethod
    def parse(cls, text: str) -> FeatureMap:
        """Parse feature text; `langchain_cfc.features.parser` describes the grammar.

        Args:
            text: Such as `mean_score^2 + group(topic)`.

        Returns:
            The map, not fitted.

        Raises:
            FeatureError: If the text does not follow the grammar; the message shows where.

        Examples:
            >>> FeatureMap.parse('hat( meta("year"),5 )+mean_score').text
            'hat(meta(year), 5) + mean_score'
        """
        return cls(parse_terms(text))

    def __repr__(self) -> str:
        return f"FeatureMap({self.text!r}, fitted={self.fitted})"

    @property
    def text(self) -> str:
        """The canonical feature text; parsing it gives the same map, without adaptive levels."""
        return " + ".join(term.text for term in self.terms)

    @property
    def needs_fit(self) -> bool:
        """Whether the map learns anything from a fit split; false only for the map `1`."""
        return any(term.learns for term in self.terms)

    @property
    def has_disjoint_groups(self) -> bool:
        """Whether every prompt is in one of disjoint groups: the map is `1`, `group(...)` or `bins(...)`."""
        return len(self.terms) == 1 and isinstance(self.terms[0], (Bins, Constant, Group))

    @property
    def fitted(self) -> bool:
        """Whether `transform` can be called."""
        return all(term.fitted for term in self.terms)

    @property
    def needs_answers(self) -> bool:
        """Whether the map reads the candidates' answers in addition to their scores."""
        return any(statistic.needs_answers for term in self.terms for statistic in term.statistics)

    @property
    def metadata_keys(self) -> tuple[str, ...]:
        """The distinct metadata keys that every prompt must have."""
        return tuple(dict.fromkeys(key for term in self.terms for key in term.metadata_keys))

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the d columns; raises a NotFittedError before `fit`."""
        return tuple(name for part in self._fitted_parts for name in part.names)

    @property
    def dimension(self) -> int:
        """The number of columns, d."""
        return len(self.names)

    def fit(self, draws: CandidateBatch) -> FeatureMap:
        """Fit the terms on the fit split.

        Args:
            draws: Prompts of the fit split, which must not be used for calibration.

        Returns:
            A new, fitted map.

        Raises:
            FeatureError: If there are no prompts, answers or metadata are missing, or a statistic has a
                single value.

        Examples:
            >>> FeatureMap.parse("mean_score").fit(CandidateBatch.from_arrays([[0.25], [0.75]])).to_data()
            {'text': 'mean_score', 'terms': [{'range': [0.25, 0.75]}]}
        """
        if self.needs_fit and len(draws) == 0:
            msg = f"{self.text} cannot be fitted on 0 prompts; put more of the records in the fit split"
            raise FeatureError(msg)
        return replace(self, terms=tuple(term.fit(draws) for term in self.terms))

    def with_categories_of(self, draws: CandidateBatch) -> FeatureMap:
        """Return the fitted map with the categories of more prompts added; see `Group` for why that is sound.

        Args:
            draws: The calibration prompts, of which only metadata is read.

        Raises:
            NotFittedError: If the map is not fitted.
            FeatureError: If metadata is missing or is not a category.
        """
        terms = self._fitted_terms
        return replace(
            self,
            terms=tuple(one.with_categories_of(draws) if isinstance(one, Group) else one for one in terms),
        )

    def transform(self, draws: CandidateBatch, *, allow_unknown: bool = False) -> FloatArray:
        """Compute the features of prompts. No bit of a prompt's row depends on the other prompts.

        Args:
            draws: The candidates of N prompts.
            allow_unknown: Whether to put a prompt of an unknown category into no group of its term, so that
                the caller must flag it (see `find_unknown_keys`), instead of raising an error.

        Returns:
            (N, d) features, in C order.

        Raises:
            NotFittedError: If the map is not fitted.
            FeatureError: If answers or metadata are missing, or a category is unknown.

        Examples:
            >>> fitted = FeatureMap.parse("mean_score").fit(CandidateBatch.from_arrays([[0.25], [0.75]]))
            >>> outside = CandidateBatch.from_arrays([[0.5], [1.0]])
            >>> fitted.transform(outside).tolist()  # clipped to the fitted range
            [[1.0, 0.5], [1.0, 0.75]]
        """
        blocks = [
            term.transform(draws, allow_unknown=allow_unknown)
            if isinstance(term, Group)
            else term.transform(draws)
            for term in self._fitted_parts
        ]
        return np.ascontiguousarray(np.concatenate(blocks, axis=1))

    def has_unknown_category(self, features: FloatArray) -> BoolArray:
        """Return (N,) which rows from `transform` with `allow_unknown` have an unknown category."""
        if features.ndim != 2 or features.shape[1] != len(self.names):  # noqa: PLR2004 - a table
            msg = f"expected features of shape (N, {len(self.names)}), got {features.shape}"
            raise FeatureError(msg)
        unknown = np.zeros(len(features), dtype=np.bool_)
        for _, columns in self._groups:
            unknown |= ~features[:, columns].any(axis=1)
        return unknown

    def find_unknown_keys(self, features: FloatArray) -> tuple[str, ...]:
        """Return the metadata keys of the unknown categories of one prompt, from its (d,) features."""
        return tuple(key for key, columns in self._groups if not features[columns].any())

    @cached_property
    def _groups(self) -> tuple[tuple[str, slice], ...]:
        """The metadata key and the columns of each `group` term."""
        groups, start = [], 0
        for term in self._fitted_terms:
            end = start + len(term.names)
            if isinstance(term, Group):
                groups.append((term.key, slice(start, end)))
            start = end
        return tuple(groups)

    def list_guaranteed_weights(self) -> tuple[GuaranteedWeight, ...]:
        """Return the named reweightings that the guarantee covers.

        Returns:
            The constant ("all prompts"), then the non-negative functions of each term.

        Raises:
            NotFittedError: If the map is not fitted.
        """
        weights = [GuaranteedWeight("1", "constant", "all prompts", (0.0,) * self.dimension, 1.0)]
        start = 0
        for part in self._fitted_parts:
            end = start + len(part.names)
            before, after = (0.0,) * start, (0.0,) * (self.dimension - end)
            weights += [
                replace(one, coefficients=(*before, *one.coefficients, *after)) for one in part.weights
            ]
            start = end
        return tuple(weights)

    def compute_weights(self, features: FloatArray) -> FloatArray:
        """Compute the (N, g) values of all `list_guaranteed_weights` for prompts with (N, d) features."""
        coefficients, of_constant = self._weight_arrays
        return np.asarray(features @ coefficients.T + of_constant, dtype=np.float64)

    @cached_property
    def _weight_arrays(self) -> tuple[FloatArray, FloatArray]:
        weights = self.list_guaranteed_weights()
        return np.array([one.coefficients for one in weights]), np.array([one.of_constant for one in weights])

    def to_data(self) -> dict[str, Any]:
        """Return the text and the learned values, ready for JSON.

        Returns:
            `{"text": str, "terms": [...]}` with one object per term, empty for the term `1`, and
            `adaptive_alpha` if levels are adaptive.

        Raises:
            NotFittedError: If the map is not fitted.
        """
        self._require_fitted()
        adaptive = self.adaptive_alpha
        levels = {} if adaptive is None else {"adaptive_alpha": adaptive.to_data()}
        return {"text": self.text, "terms": [term.to_data() for term in self.terms], **levels}

    @classmethod
    def from_data(cls, data: object) -> FeatureMap:
        """Return the fitted map from the result of `to_data`, with bit-identical features.

        Args:
            data: `{"text": str, "terms": [...]}`, and perhaps `adaptive_alpha`.

        Returns:
            The fitted map.

        Raises:
            FeatureError: If a field is missing, unknown or of the wrong type, or a value is impossible.
        """
        if not isinstance(data, Mapping) or set(data) - {"adaptive_alpha"} != {"text", "terms"}:
            msg = f"a feature map is stored as an object with the fields text and terms, got {data!r}"
            raise FeatureError(msg)
        unfitted, stored = parse_terms(data["text"]), data["terms"]
        if not isinstance(stored, list) or len(stored) != len(unfitted):
            msg = f"the terms of {data['text']} must be a list of {len(unfitted)} objects, got {stored!r}"
            raise FeatureError(msg)
        adaptive = AdaptiveAlpha.from_data(data["adaptive_alpha"]) if "adaptive_alpha" in data else None
        fitted = tuple(term.from_data(values) for term, values in zip(unfitted, stored, strict=True))
        return cls(fitted, adaptive)

    @cached_property
    def _fitted_terms(self) -> tuple[Term[Any], ...]:
        """The terms of the columns, with the constant first if it is not in the span of the others."""
        self._require_fitted()
        return self.terms if any(term.sums_to_one for term in self.terms) else (Constant(), *self.terms)

    @cached_property
    def _fitted_parts(self) -> tuple[Term[Any] | AdaptiveAlpha, ...]:
        """Everything that has columns, in the order of the columns."""
        return (
            self._fitted_terms if self.adaptive_alpha is None else (*self._fitted_terms, self.adaptive_alpha)
        )

    def _require_fitted(self) -> None:
        if not self.fitted:
            msg = f"the feature map {self.text} is not fitted; call fit with the prompts of a fit split first"
            raise NotFittedError(msg)


@contextmanager
def name_records_in_errors(ids: Sequence[str]) -> Iterator[None]:
    """Replace row numbers by record ids in errors raised in the block of a `with` statement.

    Args:
        ids: The record ids of the rows that are fitted or transformed in the block.

    Raises:
        FeatureError: With `record <id>` in place of `prompt <row>`.
    """
    try:
        yield
    except FeatureError as error:
        if error.row is None:
            raise
        msg = str(error).replace(f"prompt {error.row}", f"record {ids[error.row]!r}")
        raise FeatureError(msg) from error
