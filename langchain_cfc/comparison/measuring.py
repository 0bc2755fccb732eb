"""One split measured: every method at every level on the same test prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from langchain_cfc._arrays import FloatArray
from langchain_cfc.comparison.groups import Groups
from langchain_cfc.comparison.methods import Method
from langchain_cfc.comparison.metrics import Outcomes, Slabs, figures, group_figures
from langchain_cfc.comparison.pool import Split


@dataclass(frozen=True, eq=False)
class Measured:
    """The figures of one split. Runs are methods x levels, levels running faster.

    Attributes:
        figures: (E,) by name of a figure.
        groups: (E, G) by name of a figure of groups.
        group_sizes: (G,) number of test prompts in each group.
        properties: (E, P) kept promise of the groups of every property, one property after the other.
        foretold: (1 + G,) attainable coverage of all development prompts, and of those in each group.
        attainable: (1 + G,) the same of test prompts.
        calibrated: Number of calibration prompts.
        tested: Number of test prompts.
    """

    figures: dict[str, FloatArray]
    groups: dict[str, FloatArray]
    group_sizes: FloatArray
    properties: FloatArray
    foretold: FloatArray
    attainable: FloatArray
    calibrated: int
    tested: int


def measure(
    split: Split,
    methods: Sequence[Method],
    alphas: Sequence[str],
    groups: Groups,
    *,
    properties: Sequence[Groups] = (),
    slabs: Slabs | None = None,
) -> Measured:
    """Run every method at every level.

    Args:
        split: The split.
        methods: The methods.
        alphas: Error levels as decimal texts.
        groups: Groups of all prompts of the pool.
        properties: More groups of them.
        slabs: Places of the test prompts along directions of their statistics.

    Returns:
        The figures.

    Raises:
        FeatureError: If a feature map does not suit the split.
        InputError: If the records do not hold what a method needs.
    """
    seen = Outcomes.of([one.make(split, alpha) for one in methods for alpha in alphas], split.test_correct)
    of_test = groups.take(split.test)
    along = [one.take(split.test).means(seen.kept) for one in properties]
    return Measured(
        figures=figures(seen, of_test, slabs),
        groups=group_figures(seen, of_test),
        group_sizes=of_test.sizes,
        properties=np.concatenate(along, axis=1) if along else np.empty((len(seen.kept), 0)),
        foretold=_attainable(split, groups.take(split.development), "development"),
        attainable=_attainable(split, of_test, "test"),
        calibrated=len(split.calibration),
        tested=len(split.test),
    )


def _attainable(split: Split, groups: Groups, part: str) -> FloatArray:
    found = split.pool.attainable[split.test if part == "test" else split.development]
    return np.concatenate([[found.mean()], groups.means(found)])
