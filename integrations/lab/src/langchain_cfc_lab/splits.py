"""Measure methods on one split of the prompts, and on many splits in one or several processes."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from multiprocessing import active_children, get_context
from typing import Any, Literal, TypeAlias, TypeVar

import numpy as np

from langchain_cfc.calibration.checks import check_answers
from langchain_cfc.candidates import LabelledBatch
from langchain_cfc.errors import CalibrationError, InputError
from langchain_cfc.features import FeatureMap, name_records_in_errors
from langchain_cfc.records import Provenance
from langchain_cfc.records.splits import Part, SplitPlan, make_split_plan
from langchain_cfc.set_rules import parse_set_rule
from langchain_cfc.support.arrays import FloatArray, IntArray
from langchain_cfc_lab.methods import Method, Pool, Split
from langchain_cfc_lab.metrics import (
    Groups,
    Outcomes,
    Slabs,
    compute_claims_figures,
    compute_figures,
    compute_group_figures,
    compute_slab_bins,
    make_groups,
    make_property_groups,
)

ResultT = TypeVar("ResultT")
GroupedOn: TypeAlias = Literal["all", "test"]
Progress: TypeAlias = Callable[[Iterable[Any], int], Iterable[Any]]
# The function that a worker process runs for each split; sent to each worker only once.
_WORKER_TASK: list[Callable[[int], Any]] = []
# Longest delay of an interrupt, in seconds.
_POLL_SECONDS = 0.1


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
    slabs: Slabs | None = None,
) -> SplitResult:
    """Run every method at every level on a split; `groups` and `properties` group all prompts of the pool."""
    outcomes = Outcomes.from_outputs(
        [one.make_sets(split, alpha) for one in methods for alpha in alphas],
        split.test_correct,
        parse_set_rule(split.set_rule),
    )
    of_test = groups.take(split.test)
    attainable = split.pool.attainable
    reach = {
        name: np.tile(groups.take(rows).compute_means(attainable[rows]), (len(outcomes.kept), 1))
        for name, rows in (("attainable", split.test), ("predicted_attainable", split.development))
    }
    along = [one.take(split.test).compute_means(outcomes.kept) for one in properties]
    of_claims = compute_claims_figures(outcomes) if split.pool.labelled.unit == "claims" else {}
    return SplitResult(
        figures=compute_figures(outcomes, of_test, slabs) | of_claims,
        groups=compute_group_figures(outcomes, of_test) | reach,
        group_sizes=of_test.sizes,
        properties=np.concatenate(along, axis=1) if along else np.empty((len(outcomes.kept), 0)),
        attainable=float(attainable[split.test].mean()),
        calibrated=len(split.calibration),
        tested=len(split.test),
    )


@dataclass(frozen=True)
class ComparisonSettings:
    """The settings that are the same for every split."""

    methods: tuple[Method, ...]
    alphas: tuple[str, ...]  # decimal texts
    features: str  # feature map of methods that have none of their own
    set_rule: str  # set rule of methods that have none of their own
    # Feature text of the groups in which coverage is measured. Bins and categories are made as `group_on`
    # says; `hard(...)` is cut on the development prompts, as in the paper.
    groups: str
    splits: int  # number of splits
    seed: str
    test: float  # share of the prompts held out
    fit: float  # share of the remaining prompts that fits feature maps
    group_on: GroupedOn = "all"  # whether groups are made from all prompts or from each split's test prompts


@dataclass(frozen=True, eq=False)
class Comparison:
    """Settings applied to a pool of prompts, one from each cluster."""

    pool: Pool
    settings: ComparisonSettings

    @classmethod
    def from_labelled(cls, labelled: LabelledBatch, settings: ComparisonSettings) -> Comparison:
        """Set up a comparison on one prompt from each cluster.

        The prompts are sorted by id, so that rounding errors do not depend on the order of a file.
        """
        chosen = make_split_plan(settings.seed, fit=0.0, test=0.0).select_one_per_cluster(labelled).tolist()
        return cls(Pool(labelled.take(np.array(sorted(chosen, key=labelled.ids.__getitem__)))), settings)

    def check(self, provenance: Provenance | None = None) -> None:
        """Raise errors that would occur in every split, before any split is measured."""
        labelled, methods = self.pool.labelled, self.settings.methods
        maps = [self.settings.groups, *(features for features, _ in self._inputs)]
        asks = (
            any(FeatureMap.parse(one).needs_answers for one in maps)
            or any(parse_set_rule(set_rule).needs_answers for _, set_rule in self._inputs)
            or any(method.distinguishes_answers for method in methods)
        )
        check_answers(labelled, provenance, needed=asks and labelled.draws.answer_codes is not None)
        _ = self.groups
        for features, set_rule in self._inputs:
            self.pool.compute_features(features, np.arange(len(labelled)))
            self.pool.compute_success_scores(set_rule)

    @cached_property
    def _inputs(self) -> list[tuple[str, str]]:
        """The distinct pairs of feature map and set rule that the methods use."""
        settings = self.settings
        several = (one.get_inputs(settings.features, settings.set_rule) for one in settings.methods)
        return list(dict.fromkeys(several))

    @cached_property
    def groups(self) -> Groups:
        """The groups, with bins and categories made from all prompts."""
        with name_records_in_errors(self.pool.labelled.ids):
            return make_groups(self.settings.groups, self.pool.draws, self.pool.draws)

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

    @cached_property
    def _slab_bins(self) -> IntArray | None:
        return compute_slab_bins(self.pool.draws)

    def make_plan(self, number: int) -> SplitPlan:
        """Return the plan that assigns prompts to the parts of split `number`."""
        settings = self.settings
        return make_split_plan(f"{settings.seed}/{number}", fit=settings.fit, test=settings.test)

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
        settings, draws = self.settings, self.pool.draws
        split = Split(
            self.pool,
            rows["fit"],
            rows["calibration"],
            rows["test"],
            settings.features,
            settings.set_rule,
        )
        groups = self.groups
        if groups.text.startswith("hard("):
            groups = make_groups(groups.text, draws.take(split.development), draws)
        elif settings.group_on == "test":
            groups = make_groups(groups.text, split.test_candidates, draws)
        slabs = None
        if self._slab_bins is not None:
            # A separate hash of the id assigns prompts to halves, independently of the split's parts.
            half = self.make_plan(number).draw_uniforms(
                "slab", [self.pool.labelled.ids[row] for row in split.test]
            )
            slabs = Slabs(self._slab_bins[split.test], half < 0.5)  # noqa: PLR2004
        return measure_methods(
            split, settings.methods, settings.alphas, groups, properties=self.properties, slabs=slabs
        )


def check_count(number: object, name: str, what: str) -> int:
    """Return `number` as an int; raise an InputError unless it is a whole number of at least 1."""
    if isinstance(number, bool) or not isinstance(number, (int, np.integer)) or number < 1:
        msg = f"{name} must be a whole number of {what}, at least 1; got {number!r}"
        raise InputError(msg)
    return int(number)


def check_seed(seed: int) -> None:
    """Raise an InputError for a seed below 0."""
    if seed < 0:
        msg = f"seed must be a whole number, at least 0; got {seed}"
        raise InputError(msg)


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
    others = set(active_children())
    with (
        _limit_threads(),
        _defer_interrupts() as raise_interrupt,
        ProcessPoolExecutor(jobs, get_context("spawn"), _store_task, (measure,)) as pool,
    ):
        try:
            return list(show(_collect_results(pool, splits, raise_interrupt), splits))
        except BrokenProcessPool as error:
            raise_interrupt()  # the interrupt may have ended a worker that was still starting
            msg = "a worker process was killed, perhaps for lack of memory: use fewer jobs"
            raise CalibrationError(msg) from error
        except BaseException:
            # Wait neither for running tasks nor for workers that are still starting.
            for worker in set(active_children()) - others:
                worker.terminate()
            pool.shutdown(cancel_futures=True)
            raise


def _collect_results(
    pool: ProcessPoolExecutor, splits: int, raise_interrupt: Callable[[], None]
) -> Iterator[Any]:
    """Yield the figures of every split in order."""
    futures = [pool.submit(_run_task, number) for number in range(splits)]
    futures.reverse()  # popping from the end releases each result once it is yielded
    while futures:
        future = futures.pop()
        while not wait([future], _POLL_SECONDS).done:
            raise_interrupt()
        raise_interrupt()
        yield future.result()


@contextmanager
def _defer_interrupts() -> Iterator[Callable[[], None]]:
    """Defer interrupts, and yield a function that raises a deferred one.

    A `KeyboardInterrupt` at an arbitrary point of the main thread may leave a lock of the pool held for ever.
    """
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler) or threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    came: list[int] = []

    def raise_interrupt() -> None:
        if came:
            handler(came.pop(), None)

    signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield raise_interrupt
    finally:
        signal.signal(signal.SIGINT, handler)
    raise_interrupt()


def _store_task(measure: Callable[[int], Any]) -> None:
    """Initialise a worker: store the task once for all splits, and leave interrupts to the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _WORKER_TASK.append(measure)


def _run_task(number: int) -> Any:
    return _WORKER_TASK[0](number)


@contextmanager
def _limit_threads() -> Iterator[None]:
    """Limit processes started in this context to one thread of linear algebra each."""
    name = "OPENBLAS_NUM_THREADS"
    before = os.environ.get(name)
    os.environ[name] = before or "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
