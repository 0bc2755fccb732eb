"""`FeatureMap`: feature text, fitted, turned into the columns that thresholds are linear in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from langchain_cfc._internal.arrays import BoolArray, FloatArray
from langchain_cfc.candidates import CandidateBatch
from langchain_cfc.errors import FeatureError, NotFittedError
from langchain_cfc.features.parser import parse_terms
from langchain_cfc.features.terms import Constant, Group, GuaranteedWeight, Term


@dataclass(frozen=True, repr=False)
class FeatureMap:
    """The paper's feature map Phi: made by `parse`, fitted on a split that is used for nothing else.

    Cut-offs, knots, ranges and categories are learned by `fit`. Learned on the calibration prompts, they
    would break the exchangeability that the promise rests on, so the caller passes a separate split. The
    constant is always in the span: where the columns of no term sum to one, a column `1` comes first.

    Attributes:
        terms: The terms of the feature text, in its order.

    Example:
        >>> years = [{"year": 1}, {"year": 2}, {"year": 4}]
        >>> draws = Draws.of([[0.0, 0.4], [0.2, 0.6], [0.9, 0.5]], metadata=years)
        >>> features = FeatureMap.parse("max_score^2 + bins(meta(year),2)").fit(draws)
        >>> features
        FeatureMap('max_score^2 + bins(meta(year), 2)', fitted=True)
        >>> features.names
        ('max_score', 'max_score^2', 'bins(meta(year), 2)[0]', 'bins(meta(year), 2)[1]')
        >>> features.transform(draws).round(2).tolist()
        [[0.4, 0.16, 1.0, 0.0], [0.6, 0.36, 0.0, 1.0], [0.9, 0.81, 0.0, 1.0]]
        >>> [weight.words for weight in features.guaranteed_weights()[-2:]]
        ['prompts whose year is below 2', 'prompts whose year is at least 2']
    """

    terms: tuple[Term[Any], ...]

    @classmethod
    def parse(cls, text: str) -> FeatureMap:
        """Read feature text; `langchain_cfc.features.parser` holds the grammar.

        Args:
            text: Such as `mean_score^2 + group(topic)`.

        Returns:
            The map, not fitted.

        Raises:
            FeatureError: If the text does not follow the grammar; the message shows where.

        Example:
            >>> FeatureMap.parse('hat( meta("year"),5 )+mean_score').text
            'hat(meta(year), 5) + mean_score'
            >>> FeatureMap.parse("bins(mean_scor, 5)")
            Traceback (most recent call last):
            langchain_cfc.errors.FeatureError: unknown name 'mean_scor', at character 6 of the features
                bins(mean_scor, 5)
                     ^
            expected a statistic (mean_score, ... or meta(KEY)); did you mean 'mean_score'?
        """
        return cls(parse_terms(text))

    def __repr__(self) -> str:
        """Its text, and whether it is fitted."""
        return f"FeatureMap({self.text!r}, fitted={self.fitted})"

    @property
    def text(self) -> str:
        """The canonical feature text; parsing it gives the same map."""
        return " + ".join(term.text for term in self.terms)

    @property
    def needs_fit(self) -> bool:
        """Whether there is anything to learn from a fit split; only for the map `1` there is not."""
        return any(term.learns for term in self.terms)

    @property
    def fitted(self) -> bool:
        """Whether `transform` can be called."""
        return all(term.fitted for term in self.terms)

    @property
    def needs_answers(self) -> bool:
        """Whether the map reads the candidates' answers, beside their scores."""
        return any(statistic.needs_answers for term in self.terms for statistic in term.statistics)

    @property
    def metadata_keys(self) -> tuple[str, ...]:
        """The metadata keys that every prompt must have, each once."""
        return tuple(dict.fromkeys(key for term in self.terms for key in term.metadata_keys))

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the d columns."""
        return tuple(name for term in self._fitted_terms for name in term.names)

    @property
    def dimension(self) -> int:
        """The number of columns, d."""
        return len(self.names)

    def fit(self, draws: CandidateBatch) -> FeatureMap:
        """Learn whatever the terms learn.

        Args:
            draws: Prompts of the fit split, which must not be used for calibration.

        Returns:
            A new, fitted map.

        Raises:
            FeatureError: If there are no prompts, answers or metadata are missing, or a term finds a single
                value.

        Example:
            >>> FeatureMap.parse("mean_score").fit(Draws.of([[0.25], [0.75]])).to_data()
            {'text': 'mean_score', 'terms': [{'range': [0.25, 0.75]}]}
        """
        if self.needs_fit and len(draws) == 0:
            msg = f"{self.text} cannot be fitted on 0 prompts; give the fit split more of the records"
            raise FeatureError(msg)
        return replace(self, terms=tuple(term.fit(draws) for term in self.terms))

    def with_categories_of(self, draws: CandidateBatch) -> FeatureMap:
        """Return the fitted map with the categories of more prompts; see `Group` for why that is sound.

        Args:
            draws: Prompts whose metadata is read, and nothing else: those that calibrate.

        Raises:
            NotFittedError: If the map is not fitted.
            FeatureError: If metadata is missing, or no category.
        """
        terms = self._fitted_terms
        return replace(
            self,
            terms=tuple(one.with_categories_of(draws) if isinstance(one, Group) else one for one in terms),
        )

    def transform(self, draws: CandidateBatch, *, allow_unknown: bool = False) -> FloatArray:
        """Compute the features. A prompt's row does not depend on the others, to the last bit.

        Args:
            draws: The candidates of N prompts.
            allow_unknown: Whether a prompt of a category that the map does not know belongs to none of its
                groups; `unknown_keys` then names it, and it has to be flagged. Else it is refused.

        Returns:
            (N, d) features, in C order.

        Raises:
            NotFittedError: If the map is not fitted.
            FeatureError: If answers or metadata are missing, or a category is not known.

        Example:
            >>> fitted = FeatureMap.parse("mean_score").fit(Draws.of([[0.25], [0.75]]))
            >>> fitted.transform(Draws.of([[0.5], [1.0]])).tolist()  # clipped to the fitted range
            [[1.0, 0.5], [1.0, 0.75]]
        """
        blocks = [
            term.transform(draws, allow_unknown=allow_unknown)
            if isinstance(term, Group)
            else term.transform(draws)
            for term in self._fitted_terms
        ]
        return np.ascontiguousarray(np.concatenate(blocks, axis=1))

    def has_unknown_category(self, features: FloatArray) -> BoolArray:
        """Tell which prompts have a category that the map does not know."""
        if features.ndim != 2 or features.shape[1] != self.dimension:  # noqa: PLR2004 - a table
            msg = f"expected features of shape (N, {self.dimension}), got {features.shape}"
            raise FeatureError(msg)
        unknown = np.zeros(len(features), dtype=np.bool_)
        for _, columns in self._groups:
            unknown |= ~features[:, columns].any(axis=1)
        return unknown

    def unknown_keys(self, features: FloatArray) -> tuple[str, ...]:
        """Return the metadata keys under which one prompt has a category that the map does not know."""
        return tuple(key for key, columns in self._groups if not features[columns].any())

    @cached_property
    def _groups(self) -> tuple[tuple[str, slice], ...]:
        """Metadata key and columns of each `group` term."""
        groups, start = [], 0
        for term in self._fitted_terms:
            end = start + len(term.names)
            if isinstance(term, Group):
                groups.append((term.key, slice(start, end)))
            start = end
        return tuple(groups)

    def guaranteed_weights(self) -> tuple[GuaranteedWeight, ...]:
        """The reweightings that the promise covers and that have a name.

        Returns:
            The constant ("all prompts"), then the non-negative functions of each term.

        Raises:
            NotFittedError: If the map is not fitted.
        """
        constant = self._constant()
        ones = tuple(constant.tolist())
        weights = [GuaranteedWeight("1", "constant", "all prompts", ones, 1.0, ones)]
        start = 0
        for term in self._fitted_terms:
            weights += [_placed(weight, constant, start) for weight in term.weights]
            start += len(term.names)
        return tuple(weights)

    def to_data(self) -> dict[str, Any]:
        """Text and learned values, ready for JSON.

        Returns:
            `{"text": str, "terms": [...]}` with one object per term, empty for the term `1`.

        Raises:
            NotFittedError: If the map is not fitted.
        """
        self._require_fitted()
        return {"text": self.text, "terms": [term.to_data() for term in self.terms]}

    @classmethod
    def from_data(cls, data: object) -> FeatureMap:
        """The fitted map out of what `to_data` returned; its features are the same to the last bit.

        Args:
            data: `{"text": str, "terms": [...]}`.

        Returns:
            The fitted map.

        Raises:
            FeatureError: If a field is missing, unknown or ill-typed, or a value cannot have been learned.
        """
        if not isinstance(data, Mapping) or set(data) != {"text", "terms"}:
            msg = f"a feature map is stored as an object with the fields text and terms, got {data!r}"
            raise FeatureError(msg)
        unfitted, stored = parse_terms(data["text"]), data["terms"]
        if not isinstance(stored, list) or len(stored) != len(unfitted):
            msg = f"the terms of {data['text']} are {len(unfitted)} objects in a list, got {stored!r}"
            raise FeatureError(msg)
        return cls(tuple(term.from_data(values) for term, values in zip(unfitted, stored, strict=True)))

    @cached_property
    def _fitted_terms(self) -> tuple[Term[Any], ...]:
        """The terms whose columns are the features, with the constant in front where the span lacks it."""
        self._require_fitted()
        return self.terms if any(term.sums_to_one for term in self.terms) else (Constant(), *self.terms)

    def _require_fitted(self) -> None:
        if not self.fitted:
            msg = f"the feature map {self.text} is not fitted; call fit with the draws of a fit split first"
            raise NotFittedError(msg)

    def _constant(self) -> FloatArray:
        """(d,) the function 1 in the map's columns: the sum of the first term that sums to one."""
        terms = self._fitted_terms
        chosen = next(term for term in terms if term.sums_to_one)
        return np.concatenate([np.full(len(term.names), float(term is chosen)) for term in terms])


def _placed(weight: GuaranteedWeight, constant: FloatArray, start: int) -> GuaranteedWeight:
    """A term's weight, given in the constant and its own columns, in the columns of the whole map."""
    of_constant, *own = weight.coefficients
    coefficients = of_constant * constant
    coefficients[start : start + len(own)] += own
    return replace(
        weight,
        coefficients=tuple(coefficients.tolist()),
        of_constant=of_constant,
        constant=tuple(constant.tolist()),
    )


@contextmanager
def naming(ids: Sequence[str]) -> Iterator[None]:
    """Give the id of a record to errors that speak of its row.

    Args:
        ids: The ids of the rows that are fitted or transformed meanwhile.

    Raises:
        FeatureError: With `record <id>` in place of `prompt <row>`.
    """
    try:
        yield
    except FeatureError as error:
        if error.row is None:
            raise
        name = f"record {ids[error.row]!r}"
        raise error.naming(name) from error
