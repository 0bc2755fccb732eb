"""The promises over worlds whose truth is a finite sum: agents with dependent turns, and every way to run.

A world is a law of runs: the difficulty of a task, which all turns of a run share, and what earlier turns
did decide how likely the next action is right. Scores have few values. So the wrong share of unattended
runs, and of the calls before a run leaves the path, is at any cut a finite sum over all runs that can be. A
certificate is false if the true rate at its cut is above the promised one.

For each world a rate is promised that the second cut just does not keep, and one artifact is calibrated on m
independent runs. If false certificates have probability at most delta, more of them than `find_limit` says
are found with probability at most 1e-4 (exact binomial tail).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pytest
from langchain_cfc_agents import RecordedRun, Turn, make_run_records, read_outcome, record_runs
from scipy.stats import binom

from integrations.agents.tests.office import (
    Clerk,
    Desk,
    agent_at,
    asked,
    guarding,
    is_right,
    make_runs,
    recording,
    task,
)
from langchain_cfc import CalibrationArtifact, calibrate
from langchain_cfc.candidates import CandidateBatch
from langchain_cfc.decision import decide
from langchain_cfc.errors import UnattainableTargetError

# In some random worlds good scores mean little.
pytestmark = pytest.mark.filterwarnings(
    "ignore:correct candidates score worse:langchain_cfc.errors.CFCWarning"
)

DELTA = 0.1
SETUP = {"generator": {"id": "world", "max_turns": 4}, "verifier": {"id": "score"}}
CALL = {"name": "act", "args": {}}
SCORES = (0.1, 0.3, 0.5)


class Step(NamedTuple):
    """What a turn may do: its score, and whether its action is wrong."""

    score: float
    wrong: bool


Steps: TypeAlias = tuple[Step, ...]


@cache
def list_paths(world: int, retry: float = 1.0) -> tuple[tuple[Steps, float], ...]:
    """All runs of a random world with their probabilities; actions scored above `retry` are drawn again."""
    draw = np.random.default_rng([57, world])
    idle, hard, stop = draw.uniform([0.0, 0.2, 0.2], [0.5, 0.5, 0.8])
    # How often an action with a score is wrong, for easy and hard tasks; more often after a wrong action.
    # Hard tasks seldom have the best score, and then it says little.
    wrong = draw.uniform(0.5, 1.0, (2, 3)) * np.array([[0.02, 0.3, 0.6], [0.9, 0.9, 0.9]])
    scores = draw.dirichlet(np.ones(3), 2) * np.array([[1.0, 1.0, 1.0], [0.02, 1.0, 1.0]])
    scores *= np.array(SCORES) <= retry
    scores /= scores.sum(axis=1, keepdims=True)
    found: dict[Steps, float] = {(): idle}

    def extend(is_hard: int, path: Steps, probability: float) -> None:
        bad = np.minimum(1.0, wrong[is_hard] * (1.5 if any(step.wrong for step in path) else 1.0))
        last = 1.0 if len(path) == 2 else stop
        for place, is_wrong in product(range(3), (False, True)):
            longer = (*path, Step(SCORES[place], is_wrong))
            share = probability * scores[is_hard, place] * (bad[place] if is_wrong else 1.0 - bad[place])
            if share:
                found[longer] = found.get(longer, 0.0) + share * last
                if last < 1.0:
                    extend(is_hard, longer, share * (1.0 - last))

    for is_hard, share in enumerate((1.0 - hard, hard)):
        extend(is_hard, (), (1.0 - idle) * share)
    return tuple(found.items())


def rate_of_runs(world: int, cut: float, retry: float = 1.0) -> float:
    """The wrong share of the runs that go through unattended at a cut."""
    runs = [
        (share, any(step.wrong for step in path))
        for path, share in list_paths(world, retry)
        if path and max(step.score for step in path) <= cut
    ]
    return float(sum(share for share, wrong in runs if wrong) / sum(share for share, _ in runs))


def rate_of_calls(world: int, cut: float) -> float:
    """The mean wrong share of the calls before a run leaves the path, of runs with such a call."""
    total = shares = 0.0
    for path, share in list_paths(world):
        stop = next((place for place, step in enumerate(path) if step.score > cut), len(path))
        if stop:
            total += share
            shares += share * sum(step.wrong for step in path[:stop]) / stop
    return shares / total


TRUTHS = {"run": rate_of_runs, "call": rate_of_calls}


def choose_rate(world: int, per: Any) -> str:
    """A rate that the second cut does not keep, but only just."""
    return f"{TRUTHS[per](world, SCORES[1]) - 0.001:.4f}"


def make_run(name: str, path: Steps, **fields: Any) -> RecordedRun:
    turns = tuple(
        Turn(place=place, score=step.score, calls=(CALL,), guarded=True) for place, step in enumerate(path)
    )
    right = [not step.wrong for step in path]
    given = {"turns": turns, "right": right, "setup": SETUP, **fields}
    return RecordedRun(id=name, prompt=[{"role": "user", "content": name}], **given)


Recording: TypeAlias = Callable[[np.random.Generator, int, int], list[RecordedRun]]


def draw_paths(draw: np.random.Generator, world: int, m: int) -> list[Steps]:
    paths, shares = zip(*list_paths(world), strict=True)
    return [paths[one] for one in draw.choice(len(paths), m, p=np.array(shares) / sum(shares))]


def record_in_sandbox(draw: np.random.Generator, world: int, m: int) -> list[RecordedRun]:
    """Runs that always go on."""
    return [make_run(str(at), path) for at, path in enumerate(draw_paths(draw, world, m))]


def record_with_people(draw: np.random.Generator, world: int, m: int) -> list[RecordedRun]:
    """Runs that a person watches: the first wrong action is corrected, and all goes well from there on."""
    runs = []
    for at, path in enumerate(draw_paths(draw, world, m)):
        first = next((place for place, step in enumerate(path) if step.wrong), None)
        run = make_run(str(at), path if first is None else path[: first + 1])
        fates = ["approved" if one != first else "edited" for one in range(len(run.turns))]
        turns = tuple(
            turn.model_copy(update={"fate": fate}) for turn, fate in zip(run.turns, fates, strict=True)
        )
        runs.append(run.model_copy(update={"turns": turns, "right": None}))
    return runs


def record_as_right(draw: np.random.Generator, world: int, m: int) -> list[RecordedRun]:
    """A control: corrected runs count as right."""
    return [
        run.model_copy(
            update={
                "right": True,
                "turns": tuple(turn.model_copy(update={"fate": "executed"}) for turn in run.turns),
            }
        )
        for run in record_with_people(draw, world, m)
    ]


def record_idle_runs(draw: np.random.Generator, world: int, m: int) -> list[RecordedRun]:
    """A control: runs without a call count, as right with the best score."""
    idle = (Step(SCORES[0], wrong=False),)
    return [make_run(str(at), path or idle) for at, path in enumerate(draw_paths(draw, world, m))]


def record_shared(draw: np.random.Generator, world: int, m: int) -> list[RecordedRun]:
    """A control: twenty runs share an environment, where all go as the first one, as if independent."""
    paths = [path for path in draw_paths(draw, world, m // 20) for _ in range(20)]
    return [make_run(str(at), path) for at, path in enumerate(paths)]


def record_shared_by_cluster(draw: np.random.Generator, world: int, m: int) -> list[RecordedRun]:
    """The same runs, with the environment as their cluster."""
    return [
        run.model_copy(update={"cluster": str(at // 20)})
        for at, run in enumerate(record_shared(draw, world, 5 * m))
    ]


def calibrate_on(runs: Sequence[RecordedRun], per: Any, rate: str) -> CalibrationArtifact | None:
    records, provenance, _ = make_run_records(runs, per=per)
    unit: dict[str, Any] = {"unit": "claims"} if per == "call" else {}
    try:
        return calibrate(records, provenance=provenance, max_wrong_rate=rate, delta=str(DELTA), **unit)
    except UnattainableTargetError:
        return None


def list_certified(record: Recording, per: Any, worlds: int, m: int = 200) -> list[tuple[int, float, float]]:
    """The worlds with a certificate, with its cut and rate."""
    found = []
    for world in range(worlds):
        rate = choose_rate(world, per)
        artifact = calibrate_on(record(np.random.default_rng([7, world]), world, m), per, rate)
        if artifact is not None:
            found.append((world, artifact.certified_bot.certificates[0].cut, float(rate)))
    return found


def count_false(record: Recording, per: Any, worlds: int) -> int:
    """How many certificates are false."""
    return sum(TRUTHS[per](world, cut) > rate for world, cut, rate in list_certified(record, per, worlds))


def find_limit(worlds: int) -> int:
    return int(binom.isf(1e-4, worlds, DELTA))


per_run_and_call = pytest.mark.parametrize("per", ["run", "call"])
LAWS = [record_in_sandbox, record_with_people]
CONTROLS = [record_as_right, record_idle_runs, record_shared]


@per_run_and_call
@pytest.mark.parametrize("record", LAWS)
def test_false_certificates_are_rare(record: Recording, per: Any) -> None:
    assert count_false(record, per, 20) <= find_limit(20) < 10


@per_run_and_call
def test_law_fails_if_corrected_runs_count_as_right(per: Any) -> None:
    assert count_false(record_as_right, per, 20) > find_limit(20)


@pytest.mark.long
@per_run_and_call
@pytest.mark.parametrize("record", [*LAWS, record_shared_by_cluster])
def test_false_certificates_are_rare_in_many_worlds(record: Recording, per: Any) -> None:
    worlds = 200 if record is record_shared_by_cluster else 2000
    assert count_false(record, per, worlds) <= find_limit(worlds)


@pytest.mark.long
@per_run_and_call
@pytest.mark.parametrize("record", CONTROLS)
def test_law_fails_for_runs_that_are_recorded_wrongly(record: Recording, per: Any) -> None:
    assert count_false(record, per, 200) > find_limit(200)


@pytest.mark.long
def test_law_fails_if_runs_with_refusals_count_as_unattended() -> None:
    # After a refusal the model tries until an action passes: hard tasks pass too, with wrong actions.
    found = list_certified(record_in_sandbox, "run", 60, 1000)
    assert sum(rate_of_runs(world, cut) > rate for world, cut, rate in found) <= find_limit(60)
    assert sum(rate_of_runs(world, cut, retry=cut) > rate for world, cut, rate in found) > find_limit(60)


def rate_of_all(world: int, cut: float) -> float:
    """The share of the runs with a call that go through unattended at a cut with a wrong one."""
    runs = [one for one in list_paths(world) if one[0]]
    wrong = [
        share
        for path, share in runs
        if max(step.score for step in path) <= cut and any(step.wrong for step in path)
    ]
    return sum(wrong) / sum(share for _, share in runs)


def compute_excess(record: Recording, worlds: int) -> tuple[float, float]:
    """By how much the wrong share of all runs exceeds a rate, on average over worlds, with its error."""
    excess = []
    for world in range(worlds):
        records, provenance, _ = make_run_records(record(np.random.default_rng([8, world]), world, 100))
        rate = round(0.5 * rate_of_all(world, 1.0), 4)
        artifact = calibrate(records, provenance=provenance, max_wrong_of_all=rate, allow_unattainable=True)
        served = decide(artifact, CandidateBatch.from_arrays(np.array(SCORES)[:, None])).answered
        cut = max((score for score, runs in zip(SCORES, served, strict=True) if runs), default=0.0)
        excess.append(rate_of_all(world, cut) - rate)
    return float(np.mean(excess)), float(np.std(excess) / np.sqrt(worlds))


@pytest.mark.long
def test_wrong_share_of_all_runs_is_kept_on_average() -> None:
    excess, error = compute_excess(record_in_sandbox, 400)
    assert excess <= 3.72 * error  # a normal tail of 1e-4
    wrong, error = compute_excess(record_as_right, 400)
    assert wrong > 3.72 * error


def test_served_run_is_the_recorded_one_until_it_leaves_the_path(tmp_path: Path) -> None:
    examples = [task(f"task {place}", (0.99, 0.6)[place % 2], 0.99) for place in range(24)]
    # One draw after the other, since ties are broken by their order.
    config: Any = {"max_concurrency": 1}
    agent = agent_at(Desk(), Clerk(), recording()).with_config(config)
    runs = record_runs(agent, examples, tmp_path / "runs.jsonl", label=is_right)
    artifact = calibrate_on(make_runs(runs[0].setup), "run", "0.1")
    assert artifact is not None
    cut = artifact.certified_bot.certificates[0].cut
    agent = agent_at(Desk(), Clerk(), guarding(artifact, otherwise="refuse")).with_config(config)
    unattended = 0
    for run, example in zip(runs, examples, strict=True):
        state = agent.invoke(asked(example))
        scores = [turn.score for turn in run.turns]
        stop = next((place for place, score in enumerate(scores) if score > cut), len(scores))
        served = state["cfc_run"]["turns"]
        assert [(one["score"], one["calls"]) for one in served[:stop]] == [
            (one.score, list(one.calls)) for one in run.turns[:stop]
        ]
        assert read_outcome(state).unattended == (stop == len(scores))
        assert read_outcome(state).promised_calls == stop
        unattended += stop == len(scores)
    assert 4 < unattended < 20
