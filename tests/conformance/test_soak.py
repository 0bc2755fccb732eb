"""A small soak, and its findings for runnables that are broken on purpose."""

from __future__ import annotations

from dataclasses import replace

import pytest

from . import broken
from .soaking import KINDS, Plan, slope, soak

# Nothing goes wrong but the runnable.
FAULTLESS = Plan(invocations=24, concurrency=8, rounds=2, share=0.0)


@pytest.mark.long
def test_soak_with_every_fault_finds_no_violation() -> None:
    # More often than in the large one. Of 180 prompts by one request each, all pass with a chance below 1e-4:
    # no client tries again where a body is malformed, which happens to 0.94^2 * 0.06 of them.
    found = soak(Plan(invocations=360, concurrency=32, rounds=9, share=0.06))
    assert found.violations == []
    assert not found.hung
    # Both ways to end were seen, else the soak would show less than it says.
    ends = {end for _, end in found.outcomes}
    assert {"answered", "DrawError"} <= ends
    assert sum(found.outcomes.values()) == 360
    assert len({way for way, _ in found.outcomes}) == 12


@pytest.mark.long
def test_soak_without_faults_answers_every_prompt() -> None:
    found = soak(FAULTLESS)
    assert found.violations == []
    assert {end for _, end in found.outcomes} == {"answered"}
    assert found.counts["requests, clients and server"] == str(12 * 3 + 12)


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (broken.Short, "another number of candidates than n"),
        (broken.Loud, "a rejected text was streamed"),
        (broken.Loud, "a request asked for a stream"),
        (broken.Overcounting, "a result's usage is not what was paid"),
        (broken.Lingering, "tasks were left"),
    ],
)
def test_soak_finds_each_broken_runnable(kind: type[broken.Broken], said: str) -> None:
    assert any(one.startswith(said) for one in soak(FAULTLESS, kind).violations)


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (broken.Swallowing, "neither a result nor an error"),
        (broken.Untyped, "an error that is not the package's: RuntimeError"),
        (broken.Causeless, "an error without a cause"),
    ],
)
def test_soak_finds_untyped_and_swallowed_errors(kind: type[broken.Broken], said: str) -> None:
    # Where each kind strikes one in three, a body is malformed, or a status an error twice, for more than
    # half of the prompts by one request: that none of the 12 fails has a chance below 1e-4.
    found = soak(replace(FAULTLESS, share=1 / 3), kind)
    assert any(one.startswith(said) for one in found.violations)


@pytest.mark.long
def test_soak_finds_calls_that_hang() -> None:
    found = soak(replace(FAULTLESS, patience=3.0), broken.Hanging)
    assert found.hung
    assert found.violations == ["a call did not come to an end (6 times)"]


@pytest.mark.long
def test_soak_finds_memory_growth() -> None:
    plan = Plan(invocations=192, concurrency=16, rounds=8, share=0.0)
    (said,) = soak(plan, broken.Keeping).violations
    assert said.startswith("memory grew by")
    assert soak(plan, broken.Broken).violations == []


def test_slope_is_the_median_over_pairs_of_rounds() -> None:
    steady = [(100.0 * turn, 7.0 + 3.0 * turn) for turn in range(9)]
    assert slope(steady) == pytest.approx(0.03)
    # A cache that fills up once does not move it.
    jumped = [(x, 5.0 + 1000.0 * (turn > 0)) for turn, (x, _) in enumerate(steady)]
    assert slope(jumped) == 0.0


def test_kinds_of_faults_are_distinct() -> None:
    assert len(set(KINDS)) == len(KINDS) == 11
