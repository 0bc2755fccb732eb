"""Measure methods on one split of the prompts, and on many splits in one or several processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias, TypeVar

import numpy as np

from langchain_cfc.calibration.checks import check_answers
from langchain_cfc.candidates import LabelledBatch
from langchain_cfc.errors import CalibrationError, InputError
from langchain_cfc.features import FeatureMap, name_records_in_errors
from langchain_cfc.records.splits import Part, SplitPlan, make_split_plan
from langchain_cfc.set_rules import parse_set_rule
from langchain_cfc.support.arrays import FloatArray
from langchain_cfc_lab.methods import Method, Pool, Split
from langchain_cfc_lab.metrics import (
    Groups,
    Outcomes,
    compute_claims_figures,
    compute_figures,
    compute_group_figures,
    make_groups,
    make_property_groups,
)

ResultT = TypeVar("ResultT")
Progress: TypeAlias = Callable[[Iterable[Any], int], Iterable[Any]]


@dataclass(frozen=True, eq=False)
class SplitResult:
    """The figures of one split. Runs are methods x levels, with levels as the inner loop."""

    figures: dict[str, FloatArray]  # (E,) values by name of the figure
    groups: dict[str, FloatArray]  # (E, G) values by name of the group figure
    group_sizes: FloatArray  # (G,) number of test prompts in each group
    # (E, P) kept promise of the groups of all properties, one property after the other
    properties: FloatArray
    attainable: float  # attainable coverage of the test prompts
    calibrated: int  # number of calibration prompts
    tested: int  # number of test prompts


def measure_methods(
    split: Split,
    methods: Sequence[Method],
    alphas: Sequence[str],
    groups: Groups,
    *,
    properties: Sequence[Groups] = (),
) -> SplitResult:
    """Run every method at every level on a split; `groups` and `properties` group all prompts of the pool."""
    outcomes = Outcomes.from_outputs(
        [one.make_sets(split, alpha) for one in methods for alpha in alphas],
        split.test_correct,
        rule := parse_set_rule(split.set_rule),
    )
    of_test = groups.take(split.test)
    # Every question may stay unanswered.
    attainable = split.pool.attainable | (rule.option == "max_wrong_of_all")
    along = [one.take(split.test).compute_means(outcomes.kept) for one in properties]
    of_claims = compute_claims_figures(outcomes) if split.pool.labelled.unit == "claims" else {}
    return SplitResult(
        figures=compute_figures(outcomes, of_test) | of_claims,
        groups=compute_group_figures(outcomes, of_test),
        group_sizes=of_test.sizes,
        properties=np.concatenate(along, axis=1) if along else np.empty((len(outcomes.kept), 0)),
        attainable=float(attainable[split.test].mean()),
        calibrated=len(split.calibration),
        tested=len(split.test),
    )


def make_pool(labelled: LabelledBatch, seed: str) -> Pool:
    """Return a pool of one prompt from each cluster.

    The prompts are sorted by id, so that rounding errors do not depend on the order of a file.
    """
    chosen = make_split_plan(seed, fit=0.0, test=0.0).select_one_per_cluster(labelled).tolist()
    return Pool(labelled.take(np.array(sorted(chosen, key=labelled.ids.__getitem__))))


@dataclass(frozen=True, eq=False)
class Comparison:
    """A pool of prompts, one from each cluster, and the settings that are the same for every split."""

    pool: Pool
    methods: tuple[Method, ...]
    alphas: tuple[str, ...]  # decimal texts
    features: str  # feature map of methods that have none of their own
    set_rule: str  # set rule of methods that have none of their own
    # Feature text of the groups in which coverage is measured. Bins and categories are made from all
    # prompts; `hard(...)` is cut on the development prompts, as in the paper.
    group_text: str
    seed: str
    test: float  # share of the prompts held out
    fit: float  # share of the remaining prompts that fits feature maps

    def check(self) -> None:
        """Raise errors that would occur in every split, before any split is measured."""
        labelled = self.pool.labelled
        maps = [self.group_text, *(features for features, _ in self._inputs)]
        asks = (
            any(FeatureMap.parse(one).needs_answers for one in maps)
            or any(parse_set_rule(set_rule).needs_answers for _, set_rule in self._inputs)
            or any(method.distinguishes_answers for method in self.methods)
        )
        check_answers(labelled, needed=asks and labelled.draws.answer_codes is not None)
        _ = self.groups
        for features, set_rule in self._inputs:
            self.pool.compute_features(features, np.arange(len(labelled)))
            self.pool.compute_success_scores(set_rule)

    @cached_property
    def _inputs(self) -> list[tuple[str, str]]:
        """The distinct pairs of feature map and set rule that the methods use."""
        return list(dict.fromkeys(one.get_inputs(self.features, self.set_rule) for one in self.methods))

    @cached_property
    def groups(self) -> Groups:
        """The groups, with bins and categories made from all prompts."""
        with name_records_in_errors(self.pool.labelled.ids):
            return make_groups(self.group_text, self.pool.draws, self.pool.draws)

    @cached_property
    def _required_parts(self) -> tuple[Part, ...]:
        """The parts that must not be empty in any split."""
        maps = [FeatureMap.parse(features) for features, _ in self._inputs]
        fitted = any(one.needs_fit for one in maps)
        return ("fit", "calibration", "test") if fitted else ("calibration", "test")

    @cached_property
    def properties(self) -> tuple[Groups, ...]:
        """Groups by every known property of the prompts."""
        return make_property_groups(self.pool.draws)

    def make_plan(self, number: int) -> SplitPlan:
        """Return the plan that assigns prompts to the parts of split `number`."""
        return make_split_plan(f"{self.seed}/{number}", fit=self.fit, test=self.test)

    def measure_split(self, number: int) -> SplitResult:
        """Return the figures of split `number`, counted from 0."""
        rows = self.make_plan(number).list_rows(self.pool.labelled)
        for part in self._required_parts:
            if len(rows[part]) == 0:
                msg = (
                    f"the {part} part of split {number} is empty: add more records, or change test_fraction "
                    "and fit_fraction"
                )
                raise CalibrationError(msg)
        draws = self.pool.draws
        split = Split(self.pool, rows["fit"], rows["calibration"], rows["test"], self.features, self.set_rule)
        groups = self.groups
        if groups.text.startswith("hard("):
            groups = make_groups(groups.text, draws.take(split.development), draws)
        return measure_methods(split, self.methods, self.alphas, groups, properties=self.properties)


def check_count(number: object, name: str, what: str) -> int:
    """Return `number` as an int; raise an InputError unless it is a whole number of at least 1."""
    if isinstance(number, bool) or not isinstance(number, (int, np.integer)) or number < 1:
        msg = f"{name} must be a whole number of {what}, at least 1; got {number!r}"
        raise InputError(msg)
    return int(number)


def measure_splits(
    measure: Callable[[int], ResultT],
    splits: int,
    jobs: int = 1,
    progress: Progress | None = None,
) -> list[ResultT]:
    """Return the figures of all splits in order, for any number of processes; 1 runs in this process."""
    jobs = check_count(jobs, "jobs", "processes")
    show = progress or (lambda found, _: found)
    if jobs == 1 or splits == 1:
        return list(show(map(measure, range(splits)), splits))
    from joblib import Parallel, delayed, parallel_config  # late: one process needs none of it

    with parallel_config("loky", n_jobs=jobs, inner_max_num_threads=1):
        found = Parallel(return_as="generator", max_nbytes=None)(map(delayed(measure), range(splits)))
        try:
            return list(show(found, splits))
        except BrokenProcessPool as error:
            msg = "a worker process was killed, perhaps for lack of memory: use fewer jobs"
            raise CalibrationError(msg) from error
