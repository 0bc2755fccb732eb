"""The run: every problem of the grid, ours and every peer on it, and then who answers right."""

from __future__ import annotations

import importlib.metadata
import itertools
import math
import os
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.agreement import agreement
from benchmarks.exactness import OTHER_END, REFERENCE, SIZES, judged
from benchmarks.ours import measured
from benchmarks.paired import Answers, Worker
from benchmarks.peers import ELSEWHERE, LINEAR, RIDGE
from benchmarks.problems import KINDS, FloatArray, Problem, made
from benchmarks.results import Cell, Exactness, PeerFigures, Results, Times
from benchmarks.worker import versions


@dataclass(frozen=True)
class Plan:
    """What to measure.

    Attributes:
        kinds: Kinds of problems.
        dimensions: Numbers of features d.
        sizes: Numbers of calibration prompts N, growing.
        ridges: Penalties; 0 is the linear programme.
        peers: Names of the peers, none to measure ours alone.
        exactness: Prompts of each small problem in the comparison of who answers right; 0 leaves it out.
        draws: Data sets of each kind, size and number of features in that comparison.
        small: Numbers of features in it.
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
    peers: tuple[str, ...] = (*LINEAR, *RIDGE)
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
        """Kind, d, penalty and N of each cell, small ones first within a series."""
        return list(itertools.product(self.kinds, self.dimensions, self.ridges, self.sizes))


@dataclass
class History:
    """How long each peer took on smaller problems of a series, to leave out what would not end.

    Attributes:
        limit: Seconds that a step may take.
    """

    limit: float
    _slowest: dict[tuple[object, ...], list[tuple[int, float]]] = field(
        default_factory=lambda: defaultdict(list)
    )

    def hopeless(self, series: tuple[object, ...], size: int) -> str | None:
        """Why not to try a size: two smaller ones point beyond the limit, growth at least linear."""
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

    def note(self, series: tuple[object, ...], size: int, answers: Answers) -> None:
        """Remember the slowest step."""
        steps = [answers.prepared or 0.0, *answers.seconds, answers.at_least or 0.0]
        if max(steps) > 0:
            self._slowest[series].append((size, max(steps)))


class Run:
    """One run of a plan; `results` grows while it goes.

    Args:
        plan: The plan.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._history = History(plan.limit)
        self._cells: list[Cell] = []
        self._exactness: list[Exactness] = []
        self._failures: list[str] = []
        names = {*plan.peers, REFERENCE, OTHER_END} if plan.exactness else set(plan.peers)
        self._workers = {name: Worker(name, plan.peer_python) for name in sorted(names)}

    @property
    def results(self) -> Results:
        """What is known so far."""
        here = versions() | {"langchain-cfc": importlib.metadata.version("langchain-cfc")}
        elsewhere = (worker.versions for name, worker in self._workers.items() if name.startswith(ELSEWHERE))
        return Results(
            versions=here,
            peer_versions=next((found for found in elsewhere if found), {}),
            cores=os.cpu_count() or 1,
            limit=self.plan.limit,
            cells=self._cells,
            exactness=self._exactness,
            failures=self._failures,
        )

    def go(self) -> Iterator[Results]:
        """Measure, and give the results so far after each cell and at the end."""
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
                problem = made(kind, d, size, self.plan.batch, ridge=ridge)
                file = folder / "problem.npz"
                problem.save(file)
                progress.update(task, description=f"{at}: ours")
                try:
                    ours, thresholds = measured(
                        problem, file, runs=self.plan.runs, queries=self.plan.queries, limit=self.plan.limit
                    )
                except Exception as error:  # noqa: BLE001 - hours of other measurements are not to be lost
                    self._failures.append(f"{at}: {type(error).__name__}: {error}")
                    progress.advance(task)
                    continue
                peers = {}
                for name in self._peers(ridge):
                    progress.update(task, description=f"{at}: {name}")
                    peers[name] = self._peer(name, (name, kind, d, ridge), problem, file, thresholds)
                self._cells.append(Cell(kind=kind, d=d, n=size, ridge=ridge, ours=ours, peers=peers))
                progress.advance(task)
                yield self.results
            if self.plan.exactness:
                for kind, size in itertools.product(KINDS, SIZES):
                    progress.update(task, description=f"who answers right: {kind}, N = {size}")
                    problems = [
                        made(kind, d, size, self.plan.exactness, draw=draw)
                        for d, draw in itertools.product(self.plan.small, range(self.plan.draws))
                    ]
                    self._exactness += judged(self._workers, kind, size, problems, folder)
                    progress.advance(task)
            yield self.results

    def _peers(self, ridge: float) -> list[str]:
        return [name for name in self.plan.peers if (name in RIDGE) == (ridge > 0)]

    def _peer(
        self, name: str, series: tuple[object, ...], problem: Problem, file: Path, ours: FloatArray
    ) -> PeerFigures:
        size = len(problem.scores)
        reason = self._history.hopeless(series, size)
        if reason is not None:
            return PeerFigures(stopped=reason)
        answers = self._workers[name].ask(
            file, count=self.plan.queries, enough=self.plan.limit / 6, limit=self.plan.limit
        )
        self._history.note(series, size, answers)
        return PeerFigures(
            prepare=answers.prepared,
            query=Times.of(answers.seconds) if answers.seconds else None,
            agreement=agreement(ours, answers.values) if answers.values else None,
            stopped=answers.stopped,
            at_least=answers.at_least,
        )
