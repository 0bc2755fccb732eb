"""`Protocol`: what is done on every split; `Comparison`: a protocol on a pool of prompts."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from multiprocessing import get_context
from typing import Any, TypeAlias, TypeVar

import numpy as np

from langchain_cfc._internal.arrays import FloatArray, IntArray
from langchain_cfc.calibration.checks import check_answers
from langchain_cfc.candidates import LabelledBatch
from langchain_cfc.errors import CalibrationError, InputError
from langchain_cfc.experiments.methods import CAP, Method, Pool, Split
from langchain_cfc.experiments.metrics import (
    Groups,
    Outcomes,
    Slabs,
    figures,
    group_figures,
    groups_of,
    properties,
    slab_bins,
)
from langchain_cfc.features import FeatureMap, name_records_in_errors
from langchain_cfc.records import Provenance
from langchain_cfc.splits import Part, SplitPlan, split_plan


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


@dataclass(frozen=True)
class Protocol:
    """What is done on every split.

    Attributes:
        methods: The methods.
        alphas: Error levels as decimal texts.
        features: The feature map of methods that name none of their own.
        set_rule: The set rule of such methods.
        groups: Feature text of the groups that coverage is looked at in. Bins and categories are those of all
            prompts; `hard(...)` is cut on the development prompts, as the paper does.
        combine: Names of verifiers whose raw outputs become the scores, by a combination that each split
            fits anew; None for the recorded scores. Groups and slabs are those of recorded scores all the
            same, so that protocols can be compared.
        splits: Number of splits.
        seed: What they are drawn by.
        test: Share of the prompts held out.
        fit: Share of the others that fits feature maps.
    """

    methods: tuple[Method, ...]
    alphas: tuple[str, ...]
    features: str
    set_rule: str
    groups: str
    combine: tuple[str, ...] | None
    splits: int
    seed: str
    test: float
    fit: float


@dataclass(frozen=True, eq=False)
class Comparison:
    """A protocol on a pool of prompts.

    Attributes:
        pool: The prompts, of each cluster one.
        protocol: The protocol.
    """

    pool: Pool
    protocol: Protocol

    @classmethod
    def on(cls, labelled: LabelledBatch, protocol: Protocol) -> Comparison:
        """The comparison on labelled prompts; of each cluster, one prompt takes part.

        In the order of their ids: rounding follows the order, and a file's shall not change a bit.
        """
        alone = split_plan(protocol.seed, fit=0.0, test=0.0).one_per_cluster(labelled).tolist()
        return cls(Pool(labelled.take(np.array(sorted(alone, key=labelled.ids.__getitem__)))), protocol)

    def check(self, provenance: Provenance | None = None) -> None:
        """Refuse what would fail in every split, before any is measured.

        Args:
            provenance: Header of the records, which may name an answer extractor.

        Raises:
            InputError: If groups are no groups, labels make no sense under a set rule, or answers cannot be
                told apart where they must be.
            FeatureError: If a feature map does not suit the prompts.
        """
        labelled = self.pool.labelled
        asks = FeatureMap.parse(self.protocol.groups).needs_answers
        for method in self.protocol.methods:
            features, set_rule = self._read_by(method)
            asks = asks or FeatureMap.parse(features).needs_answers or set_rule.startswith("unique")
            asks = asks or method.tells_answers_apart
        check_answers(labelled, provenance, needed=asks and labelled.draws.answer_codes is not None)
        _ = self.groups
        for features, set_rule in {self._read_by(method) for method in self.protocol.methods}:
            self.pool.features(features, np.arange(len(labelled)))
            self.pool.success_scores(set_rule, CAP)

    def _read_by(self, method: Method) -> tuple[str, str]:
        return method.reads(self.protocol.features, self.protocol.set_rule)

    @cached_property
    def groups(self) -> Groups:
        """The groups, cut on all prompts."""
        with name_records_in_errors(self.pool.labelled.ids):
            return groups_of(self.protocol.groups, self.pool.draws, self.pool.draws)

    @cached_property
    def _needed(self) -> tuple[Part, ...]:
        """The parts that no split may leave empty."""
        maps = {self._read_by(method)[0] for method in self.protocol.methods}
        fitted = self.protocol.combine is not None or any(FeatureMap.parse(one).needs_fit for one in maps)
        return ("fit", "calibration", "test") if fitted else ("calibration", "test")

    @cached_property
    def properties(self) -> tuple[Groups, ...]:
        """Groups along everything that is known of prompts."""
        return properties(self.pool.draws)

    @cached_property
    def _bins(self) -> IntArray | None:
        return slab_bins(self.pool.draws)

    def plan(self, number: int) -> SplitPlan:
        """What assigns prompts to the parts of a split."""
        protocol = self.protocol
        return split_plan(f"{protocol.seed}/{number}", fit=protocol.fit, test=protocol.test)

    def measured(self, number: int) -> Measured:
        """The figures of split `number`, from 0."""
        rows = self.plan(number).rows(self.pool.labelled)
        for part in self._needed:
            if len(rows[part]) == 0:
                msg = (
                    f"the {part} part of split {number} is empty: bring more records, or change "
                    "test_fraction and fit_fraction"
                )
                raise CalibrationError(msg)
        protocol, draws = self.protocol, self.pool.draws
        pool = self.pool if protocol.combine is None else self.pool.combined(protocol.combine, rows["fit"])
        split = Split(
            pool,
            rows["fit"],
            rows["calibration"],
            rows["test"],
            protocol.features,
            protocol.set_rule,
        )
        groups = self.groups
        if groups.text.startswith("hard("):
            groups = groups_of(groups.text, draws.take(split.development), draws)
        slabs = None
        if self._bins is not None:
            # Ids are hashed anew for each split; which half a prompt is in has nothing to do with it.
            half = self.plan(number).uniforms("slab", [self.pool.labelled.ids[row] for row in split.test])
            slabs = Slabs(self._bins[split.test], half < 0.5)  # noqa: PLR2004
        return measure(
            split, protocol.methods, protocol.alphas, groups, properties=self.properties, slabs=slabs
        )


Found = TypeVar("Found")
Progress: TypeAlias = Callable[[Iterable[Any], int], Iterable[Any]]


def no_progress(items: Iterable[Any], total: int) -> Iterable[Any]:
    """No progress shown."""
    del total
    return items


def each_split(
    measured: Callable[[int], Found],
    splits: int,
    jobs: int = 1,
    progress: Progress = no_progress,
) -> list[Found]:
    """The figures of every split, in order, whatever the number of processes.

    Args:
        measured: What measures one split; it is sent to the processes.
        splits: Number of splits.
        jobs: Number of processes; 1 for this one.
        progress: Wraps the splits while they are measured; is told how many there are.

    Returns:
        The figures.

    Raises:
        InputError: If the number of processes is below 1.
        CalibrationError: If a process was ended from outside.
    """
    if jobs < 1:
        msg = f"jobs must be a whole number of processes, at least 1; got {jobs!r}"
        raise InputError(msg)
    if jobs == 1 or splits == 1:
        return list(progress(map(measured, range(splits)), splits))
    with _one_thread_each(), ProcessPoolExecutor(jobs, get_context("spawn"), _remember, (measured,)) as pool:
        try:
            return list(progress(pool.map(_recalled, range(splits)), splits))
        except BrokenProcessPool as error:
            msg = "a process was ended from outside, perhaps for lack of memory: take fewer jobs"
            raise CalibrationError(msg) from error
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


_MEASURED: list[Callable[[int], Any]] = []


def _remember(measured: Callable[[int], Any]) -> None:
    """Sent once to each process, not with each split."""
    _MEASURED.append(measured)


def _recalled(number: int) -> Any:
    return _MEASURED[0](number)


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """Processes started meanwhile do not fight for cores with threads of their linear algebra."""
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
