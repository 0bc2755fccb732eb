"""Who answers right: every method on many small problems, atoms, ties and integer ranks among them.

The measure is HiGHS with theta just below tau, the smallest value over the optimal face. HiGHS with theta
just above tau gives the largest, so that an answer elsewhere on the face can be told from one beyond it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.agreement import agreement, capped, outside
from benchmarks.ours import answer, rule_for
from benchmarks.paired import Worker
from benchmarks.problems import FloatArray, Problem
from benchmarks.results import Exactness

SIZES = (199, 200)
REFERENCE, OTHER_END = "scipy", "scipy above"
METHODS = (
    "highspy",
    "cvxpy",
    "conditionalconformal exact",
    "conditionalconformal bisection",
    "mapie exact",
    "mapie bisection",
)
PATIENCE = 2.0  # seconds for an answer that takes milliseconds


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

    def row(self, kind: str, size: int, method: str) -> Exactness:
        low, high = np.concatenate(self.low), np.concatenate(self.high)
        known = ~np.isnan(low)  # HiGHS answers all of them, but who knows
        answers = [answer for answer, there in zip(self.answers, known, strict=True) if there]
        return Exactness(
            kind=kind,
            n=size,
            method=method,
            agreement=agreement(low[known], answers),
            outside=outside(answers, low[known], high[known]),
            errors=dict(self.errors),
        )


def judged(
    workers: Mapping[str, Worker], kind: str, size: int, problems: Sequence[Problem], folder: Path
) -> list[Exactness]:
    """Judge ours and every peer that is there.

    Args:
        workers: Peers by name, the two ends of the face among them.
        kind: Kind of the problems.
        size: Their number of calibration prompts.
        problems: The problems.
        folder: Where problems are put down for the peers.
    """
    tallies = {"ours": _Tally()} | {name: _Tally() for name in METHODS if name in workers}
    file = folder / "small.npz"
    for problem in problems:
        problem.save(file)
        asked = {
            name: workers[name].ask(file, count=len(problem.prompts), enough=3600.0, limit=PATIENCE)
            for name in (REFERENCE, OTHER_END, *METHODS)
            if name in workers
        }
        low, high = (capped(asked[name].values) for name in (REFERENCE, OTHER_END))
        tallies["ours"].add(_ours(problem, tallies["ours"].errors), low, high)
        for name, answers in asked.items():
            if name in tallies and workers[name].missing is None:
                none: list[float | None] = [None] * len(problem.prompts)
                tallies[name].add(answers.values or none, low, high)
                tallies[name].errors.update(answers.errors)
    return [tally.row(kind, size, name) for name, tally in tallies.items() if tally.answers]


def _ours(problem: Problem, errors: Counter[str]) -> list[float | None]:
    try:
        rule = rule_for(problem).fit(problem.features, problem.scores)
        return [answer(rule, phi) for phi in problem.prompts]
    except Exception as error:  # noqa: BLE001 - counted like any peer's
        errors[type(error).__name__] += 1
        return [None] * len(problem.prompts)
