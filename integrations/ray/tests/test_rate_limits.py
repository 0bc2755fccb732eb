"""One rate limit for the whole cluster.

A limiter of rate r and burst b lets through at most r T + b calls in any T seconds. They are noted where they
begin, up to D seconds later than they were let through, so that at most r (T + D) + b are noted in T seconds.
Tokens are settled once a prompt is drawn: b is then what is under way, n calls for each prompt.
"""

from __future__ import annotations

import asyncio
import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from langchain_cfc_collect.collecting import CallPolicy, CollectionOptions, acollect
from langchain_cfc_ray import RayExecutor
from langchain_cfc_ray.rate_limits import ClusterRateLimiter, ClusterTokenRateLimiter, start_limiter

from integrations.ray.tests.working import (
    TOKENS,
    N,
    check_records_once,
    count_begun,
    examples,
    make_noting_parts,
    quiet,
    read_calls,
)
from tests.concurrency import wait_until, wait_until_async

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("cluster")]

PROMPTS, ACTORS, CONCURRENCY = 30, 3, 3
# So slow that three times as much is in reach of a busy machine, where the control has to show.
RATE = 5
WINDOW, DELAY = 8.0, 2.0
UNDER_WAY = CallPolicy(CONCURRENCY).prompts_at_once * N
PACES = {
    "requests": (CallPolicy(CONCURRENCY, requests_per_second=RATE), RATE),
    "tokens": (CallPolicy(CONCURRENCY, tokens_per_second=RATE * TOKENS), UNDER_WAY),
}


class OneLimiterEach(RayExecutor):
    """A wrong limiter, under which every actor has the whole rate."""

    def _start_actor(self, concurrency: int, limiter_name: str | None) -> Any:
        del limiter_name
        return super()._start_actor(concurrency, self._start_limiter())


def count_busiest(log: Path) -> int:
    """Most calls that were begun within some seconds."""
    times = [call.at for call in read_calls(log) if not call.ended]
    return max(sum(start <= time <= start + WINDOW for time in times) for start in times)


async def collect_with(executor: RayExecutor, where: str, pace: CallPolicy) -> None:
    async with executor:
        ended = await acollect(
            examples(PROMPTS), executor, where, CollectionOptions(call_policy=pace, on_notice=quiet)
        )
    assert ended.complete


@pytest.mark.parametrize("limited", PACES)
def test_rate_limit_holds_for_all_actors_together(limited: str, tmp_path: Path) -> None:
    pace, burst = PACES[limited]
    found = {}
    for kind in (RayExecutor, OneLimiterEach):
        log = tmp_path / kind.__name__
        executor = kind(partial(make_noting_parts, log, 0.005), pace, actors=ACTORS)
        asyncio.run(collect_with(executor, f"{log}.db", pace))
        check_records_once(f"{log}.db", PROMPTS)
        found[kind] = count_busiest(log)
    law = RATE * (WINDOW + DELAY) + burst
    # Nor is it much slower than it may be.
    assert RATE * WINDOW / 2 <= found[RayExecutor] <= law
    assert found[OneLimiterEach] > law


def test_killed_limiter_is_replaced(tmp_path: Path) -> None:
    pace, burst = PACES["requests"]
    log, where = tmp_path / "log", str(tmp_path / "store.db")
    executor = RayExecutor(partial(make_noting_parts, log, 0.005), pace, actors=ACTORS)

    async def run() -> None:
        going = asyncio.ensure_future(collect_with(executor, where, pace))
        await wait_until_async(lambda: sum(count_begun(log).values()) > PROMPTS)
        process = await executor._limiters[0].__ray_call__.remote(lambda limiter: os.getpid())  # noqa: ARG005 - Ray hands it over
        os.kill(process, signal.SIGKILL)
        await asyncio.wait_for(going, 60)

    asyncio.run(run())
    check_records_once(where, PROMPTS)
    # No call was made twice, and none without its turn: a new limiter begins with none to give away.
    assert sum(count_begun(log).values()) == PROMPTS * N
    assert count_busiest(log) <= RATE * (WINDOW + DELAY) + burst


def test_cluster_rate_limiter_acquires_with_and_without_blocking() -> None:
    begun_one = start_limiter(CallPolicy(requests_per_second=0.5, tokens_per_second=1.0))
    assert begun_one is not None
    _, limiter = begun_one
    requests, tokens = ClusterRateLimiter(limiter, 0), ClusterTokenRateLimiter(limiter, 1)
    assert not requests.acquire(blocking=False)
    assert requests.acquire()
    assert not requests.acquire(blocking=False)
    assert tokens.acquire(blocking=False)
    tokens.settle(1, 60)
    # The call is not awaited, so a turn or two may still come.
    wait_until(lambda: not tokens.acquire(blocking=False))


def test_start_limiter_returns_none_without_rate() -> None:
    assert start_limiter(CallPolicy()) is None
