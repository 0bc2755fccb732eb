"""Groups of prompts that figures are looked at in: one row of 0 and 1 per prompt, one column per group."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from langchain_cfc._arrays import BoolArray, FloatArray, IntArray
from langchain_cfc.draws import Draws
from langchain_cfc.errors import FeatureError, InputError
from langchain_cfc.features import FeatureMap
from langchain_cfc.features.bases import Group

BINS = 5
MOST_CATEGORIES = 30


@dataclass(frozen=True, eq=False)
class Groups:
    """Disjoint groups of prompts.

    Attributes:
        text: The feature text that they come from.
        names: Name of each of G groups.
        words: The same for people.
        member: (N, G) 1.0 where a prompt is in a group.
    """

    text: str
    names: tuple[str, ...]
    words: tuple[str, ...]
    member: FloatArray

    @cached_property
    def sizes(self) -> FloatArray:
        """(G,) number of prompts in each."""
        return np.asarray(self.member.sum(axis=0), dtype=np.float64)

    def take(self, rows: IntArray) -> Groups:
        """The same groups of some of the prompts."""
        return Groups(self.text, self.names, self.words, self.member[rows])

    def means(self, values: FloatArray | IntArray | BoolArray) -> FloatArray:
        """Mean values of each group.

        Args:
            values: (..., N) values of prompts.

        Returns:
            (..., G) means, NaN for a group without prompts.
        """
        numbers = values.astype(np.float64)
        # Whole numbers add up exactly. Of others the order of additions decides the last bit, and in a matrix
        # product that depends on the number of threads; `einsum` adds one after the other.
        whole = values.dtype.kind != "f"
        sums = numbers @ self.member if whole else np.einsum("...n,ng->...g", numbers, self.member)
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(sums / self.sizes, dtype=np.float64)


def groups_of(text: str, fitted_on: Draws, draws: Draws) -> Groups:
    """The groups of a feature text.

    Args:
        text: One term that splits prompts into groups: `bins(mean_score, 5)`, `group(topic)` or
            `hard(entropy, max_score, 0.925)`.
        fitted_on: Prompts that cut-offs are learned from.
        draws: N prompts.

    Returns:
        Their groups; bins keep their place in the name, whatever their cut-offs, so that those of several
        splits can be told together.

    Raises:
        InputError: If the text is something else.
        FeatureError: If it cannot be fitted, or meets an unknown category.
    """
    parsed = FeatureMap.parse(text)
    kind = parsed.text.partition("(")[0]
    if len(parsed.terms) != 1 or kind not in {"bins", "group", "hard"}:
        msg = (
            f"groups must be one term that splits prompts, such as bins(mean_score, 5), group(topic) or "
            f"hard(max_score, 0.8); got {text!r}"
        )
        raise InputError(msg)
    fitted = parsed.fit(fitted_on)
    weights = fitted.guaranteed_weights()[1:]
    count = len(weights)
    words = tuple(weight.words for weight in weights)
    if kind == "bins":
        (statistic,) = parsed.terms[0].statistics
        words = tuple(f"{statistic.words}: {place + 1} of {count}" for place in range(count))
    elif kind == "hard":
        words = "easy prompts", "hard prompts"
    return Groups(parsed.text, tuple(weight.name for weight in weights), words, fitted.transform(draws))


def properties(draws: Draws) -> tuple[Groups, ...]:
    """Groups along every property that the prompts are known to have.

    Args:
        draws: N prompts, measured.

    Returns:
        Equal-frequency bins of every statistic, and the categories of every metadata key that has few.
    """
    texts = [f"bins({name}, {BINS})" for name in draws.measured if not name.startswith("meta(")]
    found = (_groups_or_none(text, draws) for text in [*texts, *_categories(draws)])
    return tuple(groups for groups in found if groups is not None)


def _groups_or_none(text: str, draws: Draws) -> Groups | None:
    """The groups, or None where nearly all prompts are alike."""
    try:
        return groups_of(text, draws, draws)
    except FeatureError:
        return None


def _categories(draws: Draws) -> list[str]:
    """`group(key)` for each metadata key that all prompts have and that holds few categories."""
    if not len(draws) or not draws.metadata[0]:
        return []
    texts = []
    for key in draws.metadata[0]:
        # 1 and True are different categories, and equal to Python.
        values = {(type(entries.get(key)), entries.get(key)) for entries in draws.metadata}
        if (type(None), None) not in values and 1 < len(values) <= MOST_CATEGORIES:
            texts.append(Group(key).text)
    return texts
