"""Flows run by sync and async calls, and `call_each`: order, failures, context and threads."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from langchain_cfc.errors import ServingTimeoutError
from langchain_cfc.execution import (
    CallLimits,
    ConcurrencyLimiter,
    Step,
    Steps,
    apply_limits,
    arun_flow,
    call_each,
    get_current_limits,
    run_flow,
    unwrap_outcomes,
)
from tests.concurrency import PATIENCE, ConcurrencyCounter, wait_until_async
from tests.execution.flows import Run, one_step, run_async, run_sync

WHO = contextvars.ContextVar("who", default="no one")


def make_async(function: Callable[[Any], Any]) -> Callable[[Any], Awaitable[Any]]:
    async def called(item: Any) -> Any:
        await asyncio.sleep(0)
        return function(item)

    return called


def run_each(run: Run, function: Callable[[Any], Any], items: Sequence[Any], **settings: Any) -> list[Any]:
    found: list[Any] = run(one_step(call_each(function, make_async(function), items, **settings)))
    return found


def raise_error(error: BaseException) -> Any:
    raise error


# ---- flows


def test_flow_receives_the_outcome_of_each_step(run: Run) -> None:
    def flow() -> Steps[list[int]]:
        first = yield call_each(lambda x: x + 1, make_async(lambda x: x + 1), [1])
        second = yield call_each(lambda x: x * 2, make_async(lambda x: x * 2), first)
        return [*first, *second]

    assert run(flow()) == [2, 4]


def test_flow_without_steps_returns_its_result(run: Run) -> None:
    def flow() -> Steps[str]:
        return "done"
        yield

    assert run(flow()) == "done"


def make_failing_step(error: Exception) -> Step:
    async def arun() -> Any:
        raise error

    return Step(lambda: raise_error(error), arun)


def test_flow_can_catch_the_error_of_a_step(run: Run) -> None:
    def flow() -> Steps[str]:
        try:
            yield make_failing_step(LookupError("lost"))
        except LookupError as error:
            return f"caught {error}"
        return "not raised"

    assert run(flow()) == "caught lost"


def test_flow_raises_the_error_that_it_does_not_catch(run: Run) -> None:
    error = LookupError("lost")
    with pytest.raises(LookupError) as raised:
        run(one_step(make_failing_step(error)))
    assert raised.value is error


def test_stop_iteration_of_a_step_does_not_end_the_flow(run: Run) -> None:
    with pytest.raises(RuntimeError):
        run(one_step(make_failing_step(StopIteration("no result"))))


# ---- each


def test_call_each_returns_results_in_the_order_of_the_items(run: Run) -> None:
    """The first item ends last: it waits for all others."""
    others = threading.Semaphore(0)

    def sync(item: int) -> int:
        if item == 0:
            assert all(others.acquire(timeout=PATIENCE) for _ in range(4))
        else:
            others.release()
        return item * item

    async def tasks(item: int) -> int:
        if item == 0:
            for _ in range(4):
                await wait_until_async(lambda: others.acquire(blocking=False))
        else:
            others.release()
        return item * item

    assert run(one_step(call_each(sync, tasks, range(5)))) == [0, 1, 4, 9, 16]


@pytest.mark.parametrize("items", [[], [3], [3, 4]])
def test_call_each_takes_any_number_of_items(run: Run, items: list[int]) -> None:
    assert run_each(run, str, items) == [str(item) for item in items]


class OddError(Exception):
    """An exception without a text."""

    def __str__(self) -> str:
        msg = "no text"
        raise RuntimeError(msg)


def test_call_each_returns_exceptions_in_their_places(run: Run) -> None:
    errors = [LookupError("a"), OddError(), TimeoutError("c")]

    def function(item: int) -> int:
        return item if item == 1 else raise_error(errors[item - 2])

    found = run_each(run, function, range(1, 5))
    assert found[0] == 1
    assert all(got is expected for got, expected in zip(found[1:], errors, strict=True))
    with pytest.raises(LookupError, match="a"):
        unwrap_outcomes(found)
    assert unwrap_outcomes(found[:1]) == [1]


@pytest.mark.parametrize("size", [1, 3])
def test_call_each_returns_stop_iteration_as_an_outcome(run: Run, size: int) -> None:
    found = run_each(run, lambda item: raise_error(StopIteration(item)), range(size))
    # A coroutine that raises it raises a RuntimeError in its place; that is Python's rule.
    assert all(isinstance(one, StopIteration if run is run_sync else RuntimeError) for one in found)
    assert len(found) == size


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("error", [GeneratorExit, asyncio.CancelledError, KeyboardInterrupt, SystemExit])
def test_call_each_raises_base_exceptions_and_frees_its_permits(
    error: type[BaseException], size: int, run: Run
) -> None:
    limit = ConcurrencyLimiter(2)
    with apply_limits(CallLimits(limit)), pytest.raises(error):
        run_each(run, lambda item: item or raise_error(error()), range(size))
    assert limit._free == 2


@pytest.mark.parametrize("size", [1, 3])
def test_call_each_copies_the_context_into_every_call(size: int, run: Run) -> None:
    def function(item: int) -> str:
        seen = WHO.get()
        WHO.set(f"item {item}")
        return seen

    token = WHO.set("me")
    try:
        assert run_each(run, function, range(size)) == ["me"] * size
        assert WHO.get() == "me"
    finally:
        WHO.reset(token)


@pytest.mark.parametrize("size", [1, 3])
def test_call_each_uses_no_more_threads_than_permits(size: int) -> None:
    seen: set[int] = set()
    gauge, meeting = ConcurrencyCounter(), threading.Barrier(size)

    def function(_: int) -> None:
        with gauge.counted():
            seen.add(threading.get_ident())
            meeting.wait(PATIENCE)

    with apply_limits(CallLimits(ConcurrencyLimiter(size))):
        run_each(run_sync, function, range(3 * size))
    assert len(seen) == gauge.most == size
    # One after the other needs no thread of its own.
    assert (seen == {threading.get_ident()}) is (size == 1)


def test_call_each_without_limit_runs_all_at_once() -> None:
    meeting = threading.Barrier(40)
    assert sorted(run_each(run_sync, lambda _: meeting.wait(PATIENCE), range(40))) == list(range(40))


def test_nested_call_each_does_not_deadlock(run: Run) -> None:
    gauge = ConcurrencyCounter()

    def leaf(item: int) -> int:
        with gauge.counted():
            return item

    def branch(item: int) -> list[int]:
        return run_flow(one_step(call_each(leaf, make_async(leaf), range(item))))

    async def abranch(item: int) -> list[int]:
        return await arun_flow(one_step(call_each(leaf, make_async(leaf), range(item))))

    with apply_limits(CallLimits(ConcurrencyLimiter(2))):
        found = run(one_step(call_each(branch, abranch, range(6))))
    assert found == [list(range(item)) for item in range(6)]
    assert gauge.most <= 2


def test_call_each_without_hold_permits_holds_none(run: Run) -> None:
    limit = ConcurrencyLimiter(1)

    def function(_: int) -> bool:
        return get_current_limits().limiter is limit and limit._free == 1

    with apply_limits(CallLimits(limit)):
        assert run_each(run, function, range(3), hold_permits=False) == [True] * 3
        assert run_each(run, function, range(3)) == [False] * 3


def test_call_each_raises_at_the_deadline(run: Run) -> None:
    """As an outcome it would be repeated, or reported as a failure of the model."""
    started: list[int] = []
    limit = ConcurrencyLimiter(1)

    def function(item: int) -> None:
        started.append(item)
        deadline = get_current_limits().deadline
        assert deadline is not None
        while time.monotonic() < deadline:
            time.sleep(0.001)

    with apply_limits(CallLimits(limit, time.monotonic() + 0.05)), pytest.raises(ServingTimeoutError):
        run_each(run, function, range(5))
    assert len(started) <= 1
    assert limit._free == 1


# ---- cancellation


def test_cancelled_call_each_waits_until_every_call_has_ended() -> None:
    """Also for those that take their time to clean up: their places are free when it is over."""
    limit, gauge = ConcurrencyLimiter(3), ConcurrencyCounter()

    async def call(item: int) -> None:
        with gauge.counted():
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                for _ in range(10 * item):
                    await asyncio.sleep(0)

    async def inside() -> None:
        with apply_limits(CallLimits(limit)):
            task = asyncio.create_task(arun_flow(one_step(call_each(raise_error, call, range(6)))))
        await wait_until_async(lambda: gauge.inside == 3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (gauge.inside, gauge.passed, limit._free) == (0, 3, 3)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(inside())


def test_call_each_waits_for_the_others_if_one_call_is_cancelled() -> None:
    ended: list[int] = []

    async def call(item: int) -> None:
        if item == 0:
            raise asyncio.CancelledError
        for _ in range(10):
            await asyncio.sleep(0)
        ended.append(item)

    async def inside() -> None:
        with pytest.raises(asyncio.CancelledError):
            await arun_flow(one_step(call_each(raise_error, call, range(3))))
        assert ended == [1, 2]
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(inside())


def test_arun_flow_does_not_block_the_loop() -> None:
    """Two flows that wait for each other: one after the other they would stand still."""

    async def inside() -> list[Any]:
        events = [asyncio.Event(), asyncio.Event()]

        async def call(item: int) -> int:
            events[item].set()
            await asyncio.wait_for(events[1 - item].wait(), PATIENCE)
            return item

        return await asyncio.gather(
            *(arun_flow(one_step(call_each(raise_error, call, [item]))) for item in (0, 1))
        )

    assert asyncio.run(inside()) == [[0], [1]]


def test_run_sync_uses_threads_and_run_async_a_loop() -> None:
    """The control of every test above that runs both ways."""

    async def loop(_: int) -> bool:
        return asyncio.get_running_loop().is_running()

    step = call_each(lambda _: "thread", loop, [0])
    assert run_sync(one_step(step)) == ["thread"]
    assert run_async(one_step(step)) == [True]
