"""`Pool`: labelled prompts, and what all splits of them share; `Split`: one way to divide them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, TypeAlias, TypeVar

import numpy as np

from langchain_cfc._arrays import BoolArray, FloatArray, IntArray
from langchain_cfc.calibration.combining import fit_combination
from langchain_cfc.draws import Draws, LabelledDraws
from langchain_cfc.features import FeatureMap, measured, naming
from langchain_cfc.records import with_scores
from langchain_cfc.set_rules import parse_set_rule
from langchain_cfc.thresholds.rows import unique_rows

# `development` is all that is not `test`: the paper calibrates on all of it, feature maps included.
T = TypeVar("T")
Rows: TypeAlias = Literal["fit", "calibration", "development", "test"]


class Pool:
    """Labelled prompts, with what does not depend on how they are split.

    Args:
        labelled: N labelled prompts; of a cluster, one.
        measure: Whether to compute every statistic once, for feature maps to look up.
    """

    def __init__(self, labelled: LabelledDraws, *, measure: bool = True) -> None:
        self.labelled = replace(labelled, draws=measured(labelled.draws)) if measure else labelled
        self._levels: dict[str, FloatArray] = {}
        self._success: dict[tuple[str, float], FloatArray] = {}

    @property
    def draws(self) -> Draws:
        """The candidates."""
        return self.labelled.draws

    @property
    def correct(self) -> BoolArray:
        """(N, n) which of them are correct."""
        return self.labelled.correct

    @cached_property
    def attainable(self) -> BoolArray:
        """(N,) whether a prompt has a correct candidate."""
        return np.asarray(self.correct.any(axis=1), dtype=np.bool_)

    def levels(self, set_rule: str) -> FloatArray:
        """(N, n) entry levels under a set rule."""
        if set_rule not in self._levels:
            self._levels[set_rule] = parse_set_rule(set_rule).levels(self.draws)
        return self._levels[set_rule]

    def success_scores(self, set_rule: str, cap: float) -> FloatArray:
        """(N,) success scores under a set rule, `cap` without a correct candidate."""
        key = set_rule, cap
        if key not in self._success:
            self._success[key] = parse_set_rule(set_rule).success_scores(self.labelled, cap)
        return self._success[key]

    def combined(self, names: Sequence[str], fitted_on: IntArray) -> Pool:
        """The same prompts, scored by a combination of verifiers.

        Args:
            names: Verifiers whose raw outputs the prompts hold.
            fitted_on: (m,) rows that the combination is fitted on.

        Returns:
            The prompts with its scores.

        Raises:
            CalibrationError: If all candidates of these rows are correct, or all wrong.
        """
        labelled = self.labelled
        raw = np.stack([labelled.raw[name] for name in names], axis=-1)
        combination = fit_combination(names, raw[fitted_on], labelled.take(fitted_on))
        return Pool(with_scores(labelled, combination.score_all(raw)))

    def features(self, text: str, fitted_on: IntArray) -> FloatArray:
        """(N, d) features of all prompts.

        Args:
            text: The feature map.
            fitted_on: (m,) rows that it is fitted on.

        Returns:
            The features.

        Raises:
            FeatureError: If the map cannot be fitted there, or a prompt has a category unknown there.
        """
        feature_map = FeatureMap.parse(text)
        ids = self.labelled.ids
        if feature_map.needs_fit:
            with naming([ids[row] for row in fitted_on.tolist()]):
                feature_map = feature_map.fit(self.draws.take(fitted_on))
        with naming(ids):
            return feature_map.transform(self.draws)


@dataclass(frozen=True, eq=False)
class Split:
    """One division of a pool, and what methods that are run on it share.

    Attributes:
        pool: The prompts.
        fit: Rows that feature maps are fitted on.
        calibration: Rows that calibrate.
        test: Rows that are tested on.
        features_text: The feature map of methods that name none of their own.
        set_rule: The set rule of such methods.
        made: Features and thresholds already made, by what they were made from; methods share them.
    """

    pool: Pool
    fit: IntArray
    calibration: IntArray
    test: IntArray
    features_text: str
    set_rule: str
    made: dict[tuple[object, ...], Any] = field(default_factory=dict)

    @cached_property
    def development(self) -> IntArray:
        """All rows that are not tested on."""
        return np.sort(np.concatenate([self.fit, self.calibration]))

    @cached_property
    def test_draws(self) -> Draws:
        """The candidates tested on."""
        return self.pool.draws.take(self.test)

    @cached_property
    def all_drawn(self) -> IntArray:
        """(m,) n for every prompt tested on."""
        return np.full(len(self.test), self.pool.draws.n, dtype=np.int64)

    @cached_property
    def test_correct(self) -> BoolArray:
        """(m, n) which of them are correct."""
        return self.pool.correct[self.test]

    def rows(self, name: Rows) -> IntArray:
        """The rows of a part."""
        found: IntArray = getattr(self, name)
        return found

    def once(self, key: tuple[object, ...], make: Callable[[], T]) -> T:
        """What was made for a key, made now if it is the first to ask."""
        if key not in self.made:
            self.made[key] = make()
        found: T = self.made[key]
        return found

    def test_levels(self, set_rule: str) -> FloatArray:
        """(m, n) entry levels of the candidates tested on."""
        return self.once(("levels", set_rule), lambda: self.pool.levels(set_rule)[self.test])

    def features(self, text: str, fitted_on: Rows) -> FloatArray:
        """(N, d) features of all prompts of the pool, by a map fitted on one part; see `Pool.features`."""
        return self.once(
            ("features", text, fitted_on), lambda: self.pool.features(text, self.rows(fitted_on))
        )

    def distinct_test_features(self, text: str, fitted_on: Rows) -> tuple[FloatArray, IntArray]:
        """(k, d) different features of the prompts tested on, and (m,) which of them each prompt has."""

        def make() -> tuple[FloatArray, IntArray]:
            features = self.features(text, fitted_on)[self.test]
            first, place = unique_rows(features)
            return features[first], place

        return self.once(("distinct features", text, fitted_on), make)
