"""Flows with a deadline: they end in time, start nothing later, and report the right error."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from langchain_cfc.errors import ServingTimeoutError, VerifierError
from langchain_cfc.execution import (
    CallLimits,
    ConcurrencyLimiter,
    apply_limits,
    arun_flow,
    call_each,
    run_flow,
)
from langchain_cfc.execution.limits import arun_with_timeout, run_with_timeout
from tests.concurrency import PATIENCE, ConcurrencyCounter, wait_until, wait_until_async
from tests.execution.flows import one_step

WHO = contextvars.ContextVar("who", default="no one")


def time_in_thread(function: Callable[[], Any], seconds: float) -> Any:
    return run_with_timeout(function, seconds)


def time_on_loop(function: Callable[[], Any], seconds: float) -> Any:
    async def awaited() -> Any:
        return function()

    async def inside() -> Any:
        return await arun_with_timeout(awaited(), seconds)

    return asyncio.run(inside())


both_ways = pytest.mark.parametrize("timed", [time_in_thread, time_on_loop])
Timed = Callable[[Callable[[], Any], float], Any]


@both_ways
@pytest.mark.parametrize("seconds", [PATIENCE, 1e12])
def test_run_with_timeout_returns_a_result_in_time(timed: Timed, seconds: float) -> None:
    def slow() -> str:
        time.sleep(0.01)  # not ready at once, so that it is waited for
        return "done"

    assert timed(slow, seconds) == "done"


@both_ways
@pytest.mark.parametrize(
    "error", [VerifierError("mine"), TimeoutError("the server's"), ServingTimeoutError("an inner one's")]
)
def test_run_with_timeout_raises_inner_errors_unchanged(error: Exception, timed: Timed) -> None:
    """A TimeoutError of its own says nothing about this one's time."""

    def fail() -> Any:
        raise error

    with pytest.raises(type(error)) as raised:
        timed(fail, PATIENCE)
    assert raised.value is error


@both_ways
@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit, asyncio.CancelledError])
def test_run_with_timeout_raises_base_exceptions(stop: type[BaseException], timed: Timed) -> None:
    def end() -> Any:
        raise stop

    with pytest.raises(stop):
        timed(end, PATIENCE)


@both_ways
def test_run_with_timeout_copies_the_context(timed: Timed) -> None:
    token = WHO.set("me")
    try:
        assert timed(WHO.get, PATIENCE) == "me"
    finally:
        WHO.reset(token)


def test_arun_with_timeout_of_none_awaits() -> None:
    async def done() -> str:
        await asyncio.sleep(0)
        return "done"

    assert asyncio.run(arun_with_timeout(done(), None)) == "done"


# ---- too late, in threads


def test_run_with_timeout_raises_while_the_call_goes_on() -> None:
    released, threads = threading.Event(), []

    def call() -> None:
        threads.append(threading.current_thread())
        released.wait(PATIENCE)

    with pytest.raises(ServingTimeoutError, match=r"not decided within 0\.02 seconds; nothing was answered"):
        run_with_timeout(call, 0.02)
    # It came back first: only the next line ends that call.
    assert not released.is_set()
    wait_until(lambda: bool(threads))
    assert threads[0].is_alive()
    released.set()
    threads[0].join(PATIENCE)
    assert not threads[0].is_alive()


@pytest.mark.parametrize(("seconds", "started"), [(0.2, 2), (PATIENCE, 6)])
def test_flow_with_timeout_starts_no_call_after_the_deadline(seconds: float, started: int) -> None:
    """With time enough all six start: the control."""
    limit, gauge, released = ConcurrencyLimiter(2), ConcurrencyCounter(), threading.Event()
    over: list[BaseException | None] = []

    def call(_: int) -> None:
        with gauge.counted():
            released.wait(PATIENCE)

    def flow() -> None:
        try:
            run_flow(one_step(call_each(call, fail_async, range(6))))
        except ServingTimeoutError as error:
            over.append(error)
        else:
            over.append(None)

    if seconds == PATIENCE:
        released.set()
    with apply_limits(CallLimits(limit, time.monotonic() + seconds)):
        if released.is_set():
            run_with_timeout(flow, seconds)
        else:
            with pytest.raises(ServingTimeoutError):
                run_with_timeout(flow, seconds)
    released.set()
    wait_until(lambda: bool(over))
    assert (over[0] is None) == (started == 6)
    assert gauge.passed == started or (gauge.passed < started == 2)
    assert limit._free == 2


async def fail_async(_: Any) -> Any:
    pytest.fail("not the async way")


# ---- too late, on a loop


def test_arun_with_timeout_cancels_calls_and_frees_permits() -> None:
    limit, gauge, cancelled = ConcurrencyLimiter(2), ConcurrencyCounter(), []

    async def call(item: int) -> None:
        with gauge.counted():
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                cancelled.append(item)
                raise

    async def inside() -> None:
        with (
            apply_limits(CallLimits(limit)),
            pytest.raises(ServingTimeoutError, match=r"not decided within 0\.2 seconds"),
        ):
            await arun_with_timeout(arun_flow(one_step(call_each(partial(pytest.fail), call, range(5)))), 0.2)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(inside())
    assert set(cancelled) <= {0, 1}
    assert len(cancelled) == gauge.passed
    assert gauge.inside == 0
    assert limit._free == 2


async def ignore_cancellation() -> str:
    for _ in range(30):
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0.1)
    return "late"


async def block_the_loop() -> str:
    time.sleep(0.3)  # noqa: ASYNC251 - as careless verifiers do
    return "late"


async def fail_when_cancelled() -> str:
    try:
        return str(await asyncio.get_running_loop().create_future())
    finally:
        msg = "while it was cleaning up"
        raise VerifierError(msg)


@pytest.mark.parametrize("late", [ignore_cancellation, block_the_loop, fail_when_cancelled])
def test_arun_with_timeout_answers_nothing_late(late: Callable[[], Awaitable[str]]) -> None:
    async def inside() -> float:
        began = time.monotonic()
        with pytest.raises(ServingTimeoutError, match=r"not decided within 0\.05 seconds"):
            await arun_with_timeout(late(), 0.05)
        return time.monotonic() - began

    assert asyncio.run(inside()) < 2  # `ignore_cancellation` takes three seconds


def test_cancelled_arun_with_timeout_raises_cancelled_error() -> None:
    gauge = ConcurrencyCounter()

    async def call() -> None:
        with gauge.counted():
            await asyncio.get_running_loop().create_future()

    async def inside(awaited: Awaitable[None]) -> None:
        task = asyncio.create_task(timed(awaited))
        await wait_until_async(lambda: gauge.inside == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def timed(awaited: Awaitable[None]) -> None:
        await arun_with_timeout(awaited, PATIENCE)

    asyncio.run(inside(call()))
    assert gauge.inside == 0
