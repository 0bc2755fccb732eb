"""The term `group(key)`: one indicator per category of the prompt's metadata."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, TypeAlias

import numpy as np

from langchain_cfc._arrays import FloatArray
from langchain_cfc.draws import Draws, Scalar
from langchain_cfc.errors import FeatureError
from langchain_cfc.features._text import listed, written_category, written_key
from langchain_cfc.features.bases.term import Term, indicators, own_columns
from langchain_cfc.features.statistics import Statistic, metadata_value
from langchain_cfc.features.weights import GuaranteedWeight

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

    def learn(self, draws: Draws) -> tuple[Category, ...]:
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

    def with_categories_of(self, draws: Draws) -> Group:
        """Return the fitted term with the categories of more prompts."""
        return replace(self, learned=_in_order([*self.learned, *self._categories(draws)]))

    def transform(self, draws: Draws, *, allow_unknown: bool = False) -> FloatArray:
        """(N, number of categories) indicators.

        Args:
            draws: N prompts.
            allow_unknown: Whether a prompt of an unknown category gets zeros, in place of a FeatureError.
        """
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

    def _categories(self, draws: Draws) -> list[Category]:
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
