"""Load in an open loop, and what the benchmark reports of slow servers."""

from __future__ import annotations

import asyncio
import time
from itertools import pairwise
from statistics import median

import pytest

from integrations.server.benchmarks.load import DELAY, measure
from integrations.server.tests.loading import draw_arrivals, run_open_loop

STALL = 0.3
SECONDS = 0.8


def test_draw_arrivals_follows_a_poisson_process() -> None:
    due = draw_arrivals(100.0, 100.0, 50, seed=1)
    assert due == draw_arrivals(100.0, 100.0, 50, seed=1) != draw_arrivals(100.0, 100.0, 50, seed=2)
    count = sum(map(len, due))
    # Poisson with mean 10,000: five standard deviations, which one in a million exceeds.
    assert abs(count - 10_000) < 500
    merged = sorted(time for times in due for time in times)
    gaps = [after - before for before, after in pairwise(merged)]
    # Exponential: the median gap is log 2 of the mean, 6.93 ms, within five of its standard errors of 0.1 ms.
    assert abs(median(gaps) - 0.00693) < 0.0005
    # Anybody's: 200 each, within five standard deviations.
    assert all(130 < len(times) < 270 for times in due)


def test_open_loop_counts_waiting_behind_a_stall() -> None:
    from_sent: list[float] = []

    async def ask(_: int, which: int) -> None:
        began = time.perf_counter()
        await asyncio.sleep(STALL if which == 0 else 0.0)
        from_sent.append(time.perf_counter() - began)

    from_due = asyncio.run(run_open_loop([[0.01 * number for number in range(40)]], ask))
    # Some thirty were due while the first stalled: half of them waited for more than half of it.
    assert sum(taken > STALL / 2 for taken in from_due) >= 12
    # Who counts from when they were sent sees one slow request.
    assert sum(taken > STALL / 2 for taken in from_sent) == 1


@pytest.mark.long
def test_load_report_names_a_slower_server() -> None:
    load = measure(rounds=6, seconds=SECONDS, saturated=1.0)
    # All were asked at the same times, half as often as the server could answer.
    asked = [[len(one) for one in rounds] for rounds in load.rounds.values()]
    assert asked == [asked[0]] * 4
    for count, most in zip(asked[0], load.saturation["server"], strict=True):
        # Poisson, within five standard deviations.
        assert abs(count - SECONDS * most / 2) < 5 * (SECONDS * most / 2) ** 0.5
    # Whatever else runs here makes requests slower and none faster, so the fastest is what it costs: twenty
    # milliseconds in the one; HTTP, checks and JSON in the other; and nothing costs next to nothing.
    fastest = {side: min(map(min, rounds)) for side, rounds in load.rounds.items()}
    assert fastest["nothing"] < fastest["chain"] < fastest["server"] < fastest["delayed"]
    assert fastest["delayed"] > DELAY
    assert min(load.saturation["chain"]) > 0.0
