"""Times of our own rule on one problem, through its public interface."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.agreement import agreement
from benchmarks.paired import ROOT
from benchmarks.problems import ALPHA, CAP, FloatArray, Problem
from benchmarks.results import OwnFigures, Times
from langchain_cfc.errors import OutsideCertifiedRegionError
from langchain_cfc.thresholds import ConditionalThreshold, _windows

SEEN = 20  # prompts that are asked again and again


def rule_for(problem: Problem) -> ConditionalThreshold:
    """Our rule, not yet fitted."""
    settings: dict[str, Any] = {"ridge": problem.ridge} if problem.ridge else {}
    return ConditionalThreshold(alpha=ALPHA, cap=CAP, **settings)


def seconds_of(call: Callable[[], object]) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


@contextmanager
def quiet() -> Iterator[None]:
    """No garbage collection while something is timed."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def answer(rule: ConditionalThreshold, phi: FloatArray) -> float:
    """A threshold, or NaN where the rule refuses because it kept too little to know."""
    try:
        return rule.threshold(phi)
    except OutsideCertifiedRegionError:
        return float("nan")


class Reference:
    """The least that any threshold could cost: one product, a box check around zero and a dot product."""

    def __init__(self, d: int) -> None:
        self.matrix, self.beta = np.eye(d), np.ones(d)

    def threshold(self, phi: FloatArray) -> float:
        """Some number."""
        row = np.asarray(phi, dtype=float)
        if np.abs(self.matrix @ row).max() <= 1e9:  # noqa: PLR2004 - any box
            return float(self.beta @ row)
        return float("inf")


def artifact_bytes(state: Mapping[str, FloatArray]) -> int:
    """Bytes of a state in an artifact's file: each array as base64 of its doubles, with name and shape."""
    frame = json.dumps({name: {"shape": list(array.shape), "float64": ""} for name, array in state.items()})
    return len(frame) + sum(4 * ((array.size * 8 + 2) // 3) for array in state.values())


def _peaks(file: Path, limit: float) -> tuple[int | None, int | None]:
    """Peak memory of fitting, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.memory", str(file)]
    try:
        answer = subprocess.run(  # noqa: S603 - our own module in this interpreter
            command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=10 * limit
        )
    except subprocess.TimeoutExpired:
        return None, None
    peaks = json.loads(answer.stdout)
    return peaks["traced"], peaks["resident"]


def measured(
    problem: Problem, file: Path, *, runs: int, queries: int, limit: float
) -> tuple[OwnFigures, FloatArray]:
    """Measure ours.

    Args:
        problem: The problem; all its prompts are the batch.
        file: The same as .npz.
        runs: Repetitions of what takes long.
        queries: Single prompts to ask.
        limit: Seconds that the batch may be expected to take; series of calls stop at a sixth of it.

    Returns:
        The figures, and the thresholds of the first prompts, each by a rule just restored.
    """
    calibrate, fit, sort = [], [], []
    with quiet():
        for _ in range(runs):
            start = time.perf_counter()
            rule = rule_for(problem).fit(problem.features, problem.scores)
            fit.append(time.perf_counter() - start)
            answer(rule, problem.mean)
            calibrate.append(time.perf_counter() - start)
            sort.append(seconds_of(lambda: np.sort(problem.scores)))
            if sum(calibrate) > limit / 6:
                break
        state = rule.state_data()
        restore, first, alone = _first(rule, state, problem.prompts[:queries], limit / 6)
        cold = _searches(rule.restore(state), problem.mean, problem.prompts[: len(alone)])
        warm_rule = rule.restore(state)
        answer(warm_rule, problem.mean)
        fresh = [seconds_of(partial(answer, warm_rule, phi)) for phi in problem.prompts[: len(alone)]]
        known = problem.prompts[: len(alone)][~np.isnan(alone)]
        warm, reference = _warm(warm_rule, known[:SEEN], runs, float(np.median(fresh)))
    size, stopped, refused = len(problem.prompts), None, int(np.isnan(alone).sum())
    batch_cold = batch_again = batch_agreement = None
    if float(np.median(fresh)) * size > limit:
        stopped = f"the batch would take over {limit:g} s"
    else:
        with quiet():
            batch_rule = rule.restore(state)
            start = time.perf_counter()
            solved = batch_rule.solve(problem.prompts)
            batch_cold = time.perf_counter() - start
            batch_again = seconds_of(lambda: batch_rule.solve(problem.prompts))
        refused = int(solved.outside.sum())
        together = np.where(solved.outside, np.nan, solved.values)
        batch_agreement = agreement(alone, together[: len(alone)])
    fitted = np.array([answer(rule, phi) for phi in problem.prompts[: len(alone)]])
    differ = (fitted != alone) & ~(np.isnan(fitted) & np.isnan(alone))
    traced, resident = _peaks(file, limit)
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
        artifact=artifact_bytes(state),
        differ_restored=int(differ.sum()),
        peak_traced=traced,
        peak_resident=resident,
        input=problem.bytes,
        stopped=stopped,
    )
    return figures, alone


def _first(
    rule: ConditionalThreshold, state: Mapping[str, FloatArray], prompts: FloatArray, enough: float
) -> tuple[list[float], list[float], FloatArray]:
    """Seconds to restore and to answer a first prompt, and the answers."""
    restore: list[float] = []
    first: list[float] = []
    answers: list[float] = []
    for phi in prompts:
        start = time.perf_counter()
        restored = rule.restore(state)
        middle = time.perf_counter()
        answers.append(answer(restored, phi))
        first.append(time.perf_counter() - middle)
        restore.append(middle - start)
        if sum(restore) + sum(first) > enough:
            break
    return restore, first, np.array(answers)


def _searches(rule: ConditionalThreshold, mean: FloatArray, prompts: FloatArray) -> list[float]:
    """Seconds per threshold of a rule that remembers nothing."""
    memory = _windows.CACHE_SIZE
    _windows.CACHE_SIZE = 0
    try:
        answer(rule, mean)
        return [seconds_of(partial(answer, rule, phi)) for phi in prompts]
    finally:
        _windows.CACHE_SIZE = memory


def _warm(
    rule: ConditionalThreshold, prompts: FloatArray, runs: int, expected: float
) -> tuple[list[float], list[float]]:
    """Seconds per call of prompts seen before and of the reference, in turns."""
    least = Reference(prompts.shape[1])
    passes = max(1, min(50, int(0.2 / (expected * len(prompts)))))
    rows = list(prompts) * passes

    def per_call(threshold: Callable[[FloatArray], float]) -> float:
        start = time.perf_counter()
        for row in rows:
            threshold(row)
        return (time.perf_counter() - start) / len(rows)

    warm, reference = [], []
    for _ in range(max(3, runs)):
        warm.append(per_call(rule.threshold))
        reference.append(per_call(least.threshold))
    return warm, reference
