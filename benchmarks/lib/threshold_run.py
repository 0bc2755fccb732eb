"""The run of `thresholds.py`: every problem of the grid by our rule and every peer, then exactness.

Exactness is judged on many small problems, with atoms, ties and integer ranks. The measure is HiGHS with
theta just below tau, which gives the smallest value over the optimal face. HiGHS with theta just above tau
gives the largest, so that an answer elsewhere on the face can be told from one beyond it.
"""

from __future__ import annotations

import importlib.metadata
import itertools
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.lib.peer_process import ROOT, Answers, PeerProcess
from benchmarks.lib.peer_worker import find_peer_versions
from benchmarks.lib.peers import LINEAR_PEERS, RIDGE_PEERS, SEPARATE_PACKAGES
from benchmarks.lib.problems import KINDS, FloatArray, Problem, make_problem, make_rule
from benchmarks.lib.threshold_results import (
    Cell,
    Exactness,
    OwnFigures,
    PeerFigures,
    Results,
    cap_thresholds,
    compare_thresholds,
    count_outside,
)
from benchmarks.lib.timing import Times, pause_garbage_collection, time_call
from langchain_cfc.errors import OutsideCertifiedRegionError
from langchain_cfc.thresholds import ConditionalThreshold, _windows

SEEN = 20  # prompts that are asked again and again
SIZES = (199, 200)
REFERENCE, OTHER_END = "scipy", "scipy above"
JUDGED_PEERS = (
    "highspy",
    "cvxpy",
    "conditionalconformal exact",
    "conditionalconformal bisection",
    "mapie exact",
    "mapie bisection",
)
EXACTNESS_LIMIT = 2.0  # seconds for an answer that takes milliseconds


@dataclass(frozen=True)
class Plan:
    """What a run measures, and how often.

    Attributes:
        kinds: Kinds of problems.
        dimensions: Numbers of features d.
        sizes: Numbers of calibration prompts N, growing.
        ridges: Penalties; 0 is the linear programme.
        peers: Names of the peers, none to measure ours alone.
        exactness: Prompts of each small problem; 0 leaves exactness out.
        draws: Data sets of each kind, size and number of features of small problems.
        small: Numbers of features of small problems.
        batch: Prompts in a batch.
        queries: Single prompts, of ours and, time permitting, of each peer.
        runs: Repetitions of what takes long.
        limit: Seconds that one step of a peer may take.
        peer_python: Interpreter of the peers' own environment.
    """

    kinds: tuple[str, ...] = ("continuous", "tied", "groups", "atoms")
    dimensions: tuple[int, ...] = (1, 3, 10, 20)
    sizes: tuple[int, ...] = (1_000, 10_000, 100_000, 1_000_000)
    ridges: tuple[float, ...] = (0.0,)
    peers: tuple[str, ...] = (*LINEAR_PEERS, *RIDGE_PEERS)
    exactness: int = 25
    draws: int = 10
    small: tuple[int, ...] = (1, 2, 3, 5, 10, 20)
    batch: int = 10_000
    queries: int = 200
    runs: int = 5
    limit: float = 60.0
    peer_python: Path | None = None

    @property
    def problems(self) -> list[tuple[str, int, float, int]]:
        """Kind, d, penalty and N of each cell, small ones first within a series.

        Ridge needs a constant column that the peer leaves unpenalised, and `atoms` has none.
        """
        cells = itertools.product(self.kinds, self.dimensions, self.ridges, self.sizes)
        return [cell for cell in cells if not (cell[0] == "atoms" and cell[2])]


@dataclass
class History:
    """How long peers took on smaller problems of a series, to skip steps beyond the limit."""

    limit: float
    _slowest: dict[tuple[object, ...], list[tuple[int, float]]] = field(
        default_factory=lambda: defaultdict(list)
    )

    def find_reason_to_skip(self, series: tuple[object, ...], size: int) -> str | None:
        """Extrapolate from two smaller sizes, with at least linear growth; None if below the limit."""
        known = self._slowest[series][-2:]
        if not known:
            return None
        last, seconds = known[-1]
        growth = 1.0
        if len(known) > 1:
            growth = max(1.0, math.log(seconds / known[0][1]) / math.log(last / known[0][0]))
        if seconds * (size / last) ** growth <= self.limit:
            return None
        took = f"{seconds:.3g} s" if seconds < self.limit else f"over {self.limit:g} s"
        return f"too slow: {took} at N = {last:,}, limit {self.limit:g} s"

    def add(self, series: tuple[object, ...], size: int, answers: Answers) -> None:
        """Add the slowest step of a size."""
        steps = [answers.prepared or 0.0, *answers.seconds, answers.at_least or 0.0]
        if max(steps) > 0:
            self._slowest[series].append((size, max(steps)))


class ThresholdRun:
    """One run of a plan; `results` grows during `run`."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._history = History(plan.limit)
        self._cells: list[Cell] = []
        self._exactness: list[Exactness] = []
        self._failures: list[str] = []
        names = {*plan.peers, REFERENCE, OTHER_END} if plan.exactness else set(plan.peers)
        self._workers = {name: PeerProcess(name, plan.peer_python) for name in sorted(names)}

    @property
    def results(self) -> Results:
        """The results so far."""
        here = find_peer_versions() | {"langchain-cfc": importlib.metadata.version("langchain-cfc")}
        elsewhere = (
            worker.versions for name, worker in self._workers.items() if name.startswith(SEPARATE_PACKAGES)
        )
        return Results(
            versions=here,
            peer_versions=next((found for found in elsewhere if found), {}),
            cores=os.cpu_count() or 1,
            limit=self.plan.limit,
            cells=self._cells,
            exactness=self._exactness,
            failures=self._failures,
        )

    def run(self) -> Iterator[Results]:
        """Measure, and yield the results so far after each cell and at the end."""
        small = len(KINDS) * len(SIZES) if self.plan.exactness else 0
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            progress = stack.enter_context(Progress(*columns, console=Console(stderr=True)))
            for worker in self._workers.values():
                stack.callback(worker.close)
            task = progress.add_task("start", total=len(self.plan.problems) + small)
            for kind, d, ridge, size in self.plan.problems:
                at = f"{kind}, d = {d}, N = {size:,}" + (f", ridge {ridge:g}" if ridge else "")
                problem = make_problem(kind, d, size, self.plan.batch, ridge=ridge)
                file = folder / "problem.npz"
                problem.save(file)
                progress.update(task, description=f"{at}: ours")
                try:
                    ours, thresholds = measure_ours(
                        problem, file, runs=self.plan.runs, queries=self.plan.queries, limit=self.plan.limit
                    )
                except Exception as error:  # noqa: BLE001 - keep hours of other measurements
                    self._failures.append(f"{at}: {type(error).__name__}: {error}")
                    progress.advance(task)
                    continue
                peers = {}
                for name in self.plan.peers:
                    if (name in RIDGE_PEERS) != (ridge > 0):
                        continue
                    progress.update(task, description=f"{at}: {name}")
                    peers[name] = self._measure_peer(name, (name, kind, d, ridge), problem, file, thresholds)
                self._cells.append(Cell(kind=kind, d=d, n=size, ridge=ridge, ours=ours, peers=peers))
                progress.advance(task)
                yield self.results
            if self.plan.exactness:
                for kind, size in itertools.product(KINDS, SIZES):
                    progress.update(task, description=f"exactness: {kind}, N = {size}")
                    problems = [
                        make_problem(kind, d, size, self.plan.exactness, draw=draw)
                        for d, draw in itertools.product(self.plan.small, range(self.plan.draws))
                    ]
                    self._exactness += judge_exactness(self._workers, kind, size, problems, folder)
                    progress.advance(task)
            yield self.results

    def _measure_peer(
        self, name: str, series: tuple[object, ...], problem: Problem, file: Path, ours: FloatArray
    ) -> PeerFigures:
        size = len(problem.scores)
        reason = self._history.find_reason_to_skip(series, size)
        if reason is not None:
            return PeerFigures(stopped=reason)
        answers = self._workers[name].ask(
            file, count=self.plan.queries, enough=self.plan.limit / 6, limit=self.plan.limit
        )
        self._history.add(series, size, answers)
        return PeerFigures(
            prepare=answers.prepared,
            query=Times.of(answers.seconds) if answers.seconds else None,
            agreement=compare_thresholds(ours, answers.values) if answers.values else None,
            stopped=answers.stopped,
            at_least=answers.at_least,
        )


def compute_threshold(rule: ConditionalThreshold, phi: FloatArray) -> float:
    """Return a threshold, or NaN where the rule refuses because it kept too few prompts."""
    try:
        return rule.threshold(phi)
    except OutsideCertifiedRegionError:
        return float("nan")


class LeastWork:
    """The least work of any threshold: one product, a box check around zero and a dot product."""

    def __init__(self, d: int) -> None:
        self.matrix, self.beta = np.eye(d), np.ones(d)

    def threshold(self, phi: FloatArray) -> float:
        """Do the work, and return some number."""
        row = np.asarray(phi, dtype=float)
        if np.abs(self.matrix @ row).max() <= 1e9:  # noqa: PLR2004 - any box
            return float(self.beta @ row)
        return float("inf")


def count_artifact_bytes(state: Mapping[str, FloatArray]) -> int:
    """Count the bytes of a state in an artifact's file, where arrays are base64 of doubles."""
    frame = json.dumps({name: {"shape": list(array.shape), "float64": ""} for name, array in state.items()})
    return len(frame) + sum(4 * ((array.size * 8 + 2) // 3) for array in state.values())


def _measure_peak_memory(file: Path, limit: float) -> tuple[int | None, int | None]:
    """Measure the peak memory of fitting in its own process; None where that takes too long."""
    command = [sys.executable, "-m", "benchmarks.lib.memory", str(file)]
    try:
        answer = subprocess.run(  # noqa: S603 - our own module in this interpreter
            command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=10 * limit
        )
    except subprocess.TimeoutExpired:
        return None, None
    peaks = json.loads(answer.stdout)
    return peaks["traced"], peaks["resident"]


def measure_ours(
    problem: Problem, file: Path, *, runs: int, queries: int, limit: float
) -> tuple[OwnFigures, FloatArray]:
    """Measure our rule on a problem, which `file` holds as .npz; all prompts are the batch.

    Series of calls stop after a sixth of `limit` seconds, and a batch that would take longer than the limit
    is skipped. Returns the figures, and the thresholds of the first prompts, each by a rule just restored.
    """
    calibrate, fit, sort = [], [], []
    with pause_garbage_collection():
        for _ in range(runs):
            start = time.perf_counter()
            rule = make_rule(problem).fit(problem.features, problem.scores)
            fit.append(time.perf_counter() - start)
            compute_threshold(rule, problem.mean)
            calibrate.append(time.perf_counter() - start)
            sort.append(time_call(lambda: np.sort(problem.scores)))
            if sum(calibrate) > limit / 6:
                break
        state = rule.get_state_data()
        restore, first, alone = _time_first_answers(rule, state, problem.prompts[:queries], limit / 6)
        cold = _time_cold_answers(rule.restore(state), problem.mean, problem.prompts[: len(alone)])
        warm_rule = rule.restore(state)
        compute_threshold(warm_rule, problem.mean)
        fresh = [
            time_call(partial(compute_threshold, warm_rule, phi)) for phi in problem.prompts[: len(alone)]
        ]
        known = problem.prompts[: len(alone)][~np.isnan(alone)]
        warm, reference = _time_warm_answers(warm_rule, known[:SEEN], runs, float(np.median(fresh)))
    size, stopped, refused = len(problem.prompts), None, int(np.isnan(alone).sum())
    batch_cold = batch_again = batch_agreement = None
    if float(np.median(fresh)) * size > limit:
        stopped = f"the batch would take over {limit:g} s"
    else:
        with pause_garbage_collection():
            batch_rule = rule.restore(state)
            start = time.perf_counter()
            solved = batch_rule.solve(problem.prompts)
            batch_cold = time.perf_counter() - start
            batch_again = time_call(lambda: batch_rule.solve(problem.prompts))
        refused = int(solved.outside.sum())
        together = np.where(solved.outside, np.nan, solved.values)
        batch_agreement = compare_thresholds(alone, together[: len(alone)])
    fitted = np.array([compute_threshold(rule, phi) for phi in problem.prompts[: len(alone)]])
    differ = (fitted != alone) & ~(np.isnan(fitted) & np.isnan(alone))
    traced, resident = _measure_peak_memory(file, limit)
    figures = OwnFigures(
        calibrate=Times.of(calibrate),
        fit=Times.of(fit),
        sort=Times.of(sort),
        restore=Times.of(restore),
        first=Times.of(first),
        cold=Times.of(cold),
        fresh=Times.of(fresh),
        warm=Times.of(warm),
        reference=Times.of(reference),
        batch=size,
        batch_cold=batch_cold,
        batch_again=batch_again,
        batch_agreement=batch_agreement,
        refused=refused,
        artifact=count_artifact_bytes(state),
        differ_restored=int(differ.sum()),
        peak_traced=traced,
        peak_resident=resident,
        input=problem.bytes,
        stopped=stopped,
    )
    return figures, alone


def _time_first_answers(
    rule: ConditionalThreshold, state: Mapping[str, FloatArray], prompts: FloatArray, enough: float
) -> tuple[list[float], list[float], FloatArray]:
    """Return the seconds to restore a rule and to answer a first prompt, and the answers."""
    restore: list[float] = []
    first: list[float] = []
    answers: list[float] = []
    for phi in prompts:
        start = time.perf_counter()
        restored = rule.restore(state)
        middle = time.perf_counter()
        answers.append(compute_threshold(restored, phi))
        first.append(time.perf_counter() - middle)
        restore.append(middle - start)
        if sum(restore) + sum(first) > enough:
            break
    return restore, first, np.array(answers)


def _time_cold_answers(rule: ConditionalThreshold, mean: FloatArray, prompts: FloatArray) -> list[float]:
    """Return the seconds per threshold of a rule that remembers nothing."""
    memory = _windows.CACHE_SIZE
    _windows.CACHE_SIZE = 0
    try:
        compute_threshold(rule, mean)
        return [time_call(partial(compute_threshold, rule, phi)) for phi in prompts]
    finally:
        _windows.CACHE_SIZE = memory


def _time_warm_answers(
    rule: ConditionalThreshold, prompts: FloatArray, runs: int, expected: float
) -> tuple[list[float], list[float]]:
    """Return the seconds per call for prompts seen before, and of the reference, in turn."""
    least = LeastWork(prompts.shape[1])
    passes = max(1, min(50, int(0.2 / (expected * len(prompts)))))
    rows = list(prompts) * passes

    def measure_call(threshold: Callable[[FloatArray], float]) -> float:
        start = time.perf_counter()
        for row in rows:
            threshold(row)
        return (time.perf_counter() - start) / len(rows)

    warm, reference = [], []
    for _ in range(max(3, runs)):
        warm.append(measure_call(rule.threshold))
        reference.append(measure_call(least.threshold))
    return warm, reference


@dataclass
class _Tally:
    low: list[FloatArray] = field(default_factory=list)
    high: list[FloatArray] = field(default_factory=list)
    answers: list[float | None] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)

    def add(self, answers: Sequence[float | None], low: FloatArray, high: FloatArray) -> None:
        asked = min(len(answers), len(low), len(high))
        self.low.append(low[:asked])
        self.high.append(high[:asked])
        self.answers.extend(answers[:asked])

    def make_row(self, kind: str, size: int, method: str) -> Exactness:
        low, high = np.concatenate(self.low), np.concatenate(self.high)
        known = ~np.isnan(low)  # HiGHS should answer all of them
        answers = [one for one, is_known in zip(self.answers, known, strict=True) if is_known]
        return Exactness(
            kind=kind,
            n=size,
            method=method,
            agreement=compare_thresholds(low[known], answers),
            outside=count_outside(answers, low[known], high[known]),
            errors=dict(self.errors),
        )


def judge_exactness(
    workers: Mapping[str, PeerProcess], kind: str, size: int, problems: Sequence[Problem], folder: Path
) -> list[Exactness]:
    """Judge our rule and every available peer on problems of a kind, passed to peers in a folder."""
    tallies = {"ours": _Tally()} | {name: _Tally() for name in JUDGED_PEERS if name in workers}
    file = folder / "small.npz"
    for problem in problems:
        problem.save(file)
        asked = {
            name: workers[name].ask(file, count=len(problem.prompts), enough=3600.0, limit=EXACTNESS_LIMIT)
            for name in (REFERENCE, OTHER_END, *JUDGED_PEERS)
            if name in workers
        }
        low, high = (cap_thresholds(asked[name].values) for name in (REFERENCE, OTHER_END))
        tallies["ours"].add(_compute_thresholds(problem, tallies["ours"].errors), low, high)
        for name, answers in asked.items():
            if name in tallies and workers[name].missing is None:
                none: list[float | None] = [None] * len(problem.prompts)
                tallies[name].add(answers.values or none, low, high)
                tallies[name].errors.update(answers.errors)
    return [tally.make_row(kind, size, name) for name, tally in tallies.items() if tally.answers]


def _compute_thresholds(problem: Problem, errors: Counter[str]) -> list[float | None]:
    try:
        rule = make_rule(problem).fit(problem.features, problem.scores)
        return [compute_threshold(rule, phi) for phi in problem.prompts]
    except Exception as error:  # noqa: BLE001 - counted like an error of a peer
        errors[type(error).__name__] += 1
        return [None] * len(problem.prompts)
