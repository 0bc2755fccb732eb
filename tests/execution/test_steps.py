"""Flows carried out both ways, and `call_each`: order, failures, context and threads."""

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
    current_limits,
    run_flow,
    unwrap_outcomes,
)
from tests.concurrency import PATIENCE, ConcurrencyCounter, wait_until_async
from tests.execution.flows import Run, one_step, run_async, run_sync

WHO = contextvars.ContextVar("who", default="nobody")


def as_async(function: Callable[[Any], Any]) -> Callable[[Any], Awaitable[Any]]:
    async def called(item: Any) -> Any:
        await asyncio.sleep(0)
        return function(item)

    return called


def each_of(run: Run, function: Callable[[Any], Any], items: Sequence[Any], **settings: Any) -> list[Any]:
    found: list[Any] = run(one_step(call_each(function, as_async(function), items, **settings)))
    return found


def fail(error: BaseException) -> Any:
    raise error


# ---- flows


def test_a_flow_is_sent_what_came_of_each_step(run: Run) -> None:
    def flow() -> Steps[list[int]]:
        first = yield call_each(lambda x: x + 1, as_async(lambda x: x + 1), [1])
        second = yield call_each(lambda x: x * 2, as_async(lambda x: x * 2), first)
        return [*first, *second]

    assert run(flow()) == [2, 4]


def test_a_flow_without_steps_returns_at_once(run: Run) -> None:
    def flow() -> Steps[str]:
        return "done"
        yield

    assert run(flow()) == "done"


def failing_step(error: Exception) -> Step:
    async def arun() -> Any:
        raise error

    return Step(lambda: fail(error), arun)


def test_a_failed_step_is_raised_where_the_flow_yielded_it(run: Run) -> None:
    def flow() -> Steps[str]:
        try:
            yield failing_step(LookupError("lost"))
        except LookupError as error:
            return f"caught {error}"
        return "not raised"

    assert run(flow()) == "caught lost"


def test_what_a_flow_does_not_catch_is_raised(run: Run) -> None:
    error = LookupError("lost")
    with pytest.raises(LookupError) as raised:
        run(one_step(failing_step(error)))
    assert raised.value is error


def test_a_stop_iteration_of_a_step_does_not_pass_for_the_end_of_the_flow(run: Run) -> None:
    with pytest.raises(RuntimeError):
        run(one_step(failing_step(StopIteration("no result"))))


# ---- each


def test_results_come_in_the_order_of_the_items(run: Run) -> None:
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
def test_any_number_of_items(run: Run, items: list[int]) -> None:
    assert each_of(run, str, items) == [str(item) for item in items]


class OddError(Exception):
    """An exception without a text."""

    def __str__(self) -> str:
        msg = "no text"
        raise RuntimeError(msg)


def test_exceptions_are_outcomes_in_their_places(run: Run) -> None:
    errors = [LookupError("a"), OddError(), TimeoutError("c")]

    def function(item: int) -> int:
        return item if item == 1 else fail(errors[item - 2])

    found = each_of(run, function, range(1, 5))
    assert found[0] == 1
    assert all(got is expected for got, expected in zip(found[1:], errors, strict=True))
    with pytest.raises(LookupError, match="a"):
        unwrap_outcomes(found)
    assert unwrap_outcomes(found[:1]) == [1]


@pytest.mark.parametrize("size", [1, 3])
def test_stop_iteration_is_an_outcome_too(run: Run, size: int) -> None:
    found = each_of(run, lambda item: fail(StopIteration(item)), range(size))
    # A coroutine that raises it raises a RuntimeError in its place; that is Python's rule.
    assert all(isinstance(one, StopIteration if run is run_sync else RuntimeError) for one in found)
    assert len(found) == size


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("error", [GeneratorExit, asyncio.CancelledError, KeyboardInterrupt, SystemExit])
def test_what_is_no_exception_passes_and_leaves_no_place_held(
    error: type[BaseException], size: int, run: Run
) -> None:
    limit = ConcurrencyLimiter(2)
    with apply_limits(CallLimits(limit)), pytest.raises(error):
        each_of(run, lambda item: item or fail(error()), range(size))
    assert limit._free == 2


@pytest.mark.parametrize("size", [1, 3])
def test_the_context_reaches_every_call_and_nothing_comes_back(size: int, run: Run) -> None:
    def function(item: int) -> str:
        seen = WHO.get()
        WHO.set(f"item {item}")
        return seen

    token = WHO.set("me")
    try:
        assert each_of(run, function, range(size)) == ["me"] * size
        assert WHO.get() == "me"
    finally:
        WHO.reset(token)


@pytest.mark.parametrize("size", [1, 3])
def test_no_more_threads_than_places(size: int) -> None:
    seen: set[int] = set()
    gauge, meeting = ConcurrencyCounter(), threading.Barrier(size)

    def function(_: int) -> None:
        with gauge.counted():
            seen.add(threading.get_ident())
            meeting.wait(PATIENCE)

    with apply_limits(CallLimits(ConcurrencyLimiter(size))):
        each_of(run_sync, function, range(3 * size))
    assert len(seen) == gauge.most == size
    # One after the other needs no thread of its own.
    assert (seen == {threading.get_ident()}) is (size == 1)


def test_without_a_limit_all_run_at_once() -> None:
    meeting = threading.Barrier(40)
    assert sorted(each_of(run_sync, lambda _: meeting.wait(PATIENCE), range(40))) == list(range(40))


def test_each_within_each_stands_not_still(run: Run) -> None:
    gauge = ConcurrencyCounter()

    def leaf(item: int) -> int:
        with gauge.counted():
            return item

    def branch(item: int) -> list[int]:
        return run_flow(one_step(call_each(leaf, as_async(leaf), range(item))))

    async def abranch(item: int) -> list[int]:
        return await arun_flow(one_step(call_each(leaf, as_async(leaf), range(item))))

    with apply_limits(CallLimits(ConcurrencyLimiter(2))):
        found = run(one_step(call_each(branch, abranch, range(6))))
    assert found == [list(range(item)) for item in range(6)]
    assert gauge.most <= 2


def test_what_asks_for_places_itself_holds_none(run: Run) -> None:
    limit = ConcurrencyLimiter(1)

    def function(_: int) -> bool:
        return current_limits().limiter is limit and limit._free == 1

    with apply_limits(CallLimits(limit)):
        assert each_of(run, function, range(3), hold_permits=False) == [True] * 3
        assert each_of(run, function, range(3)) == [False] * 3


def test_the_deadline_ends_the_flow_and_is_no_outcome(run: Run) -> None:
    """As an outcome it would be repeated, or reported as a failure of the model."""
    started: list[int] = []
    limit = ConcurrencyLimiter(1)

    def function(item: int) -> None:
        started.append(item)
        deadline = current_limits().deadline
        assert deadline is not None
        while time.monotonic() < deadline:
            time.sleep(0.001)

    with apply_limits(CallLimits(limit, time.monotonic() + 0.05)), pytest.raises(ServingTimeoutError):
        each_of(run, function, range(5))
    assert len(started) <= 1
    assert limit._free == 1


# ---- cancellation


def test_cancellation_ends_all_and_waits_for_all() -> None:
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
            task = asyncio.create_task(arun_flow(one_step(call_each(fail, call, range(6)))))
        await wait_until_async(lambda: gauge.inside == 3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (gauge.inside, gauge.passed, limit._free) == (0, 3, 3)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(inside())


def test_a_cancellation_from_inside_leaves_nothing_running() -> None:
    ended: list[int] = []

    async def call(item: int) -> None:
        if item == 0:
            raise asyncio.CancelledError
        for _ in range(10):
            await asyncio.sleep(0)
        ended.append(item)

    async def inside() -> None:
        with pytest.raises(asyncio.CancelledError):
            await arun_flow(one_step(call_each(fail, call, range(3))))
        assert ended == [1, 2]
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(inside())


def test_an_async_flow_leaves_the_loop_free() -> None:
    """Two flows that wait for each other: one after the other they would stand still."""

    async def inside() -> list[Any]:
        events = [asyncio.Event(), asyncio.Event()]

        async def call(item: int) -> int:
            events[item].set()
            await asyncio.wait_for(events[1 - item].wait(), PATIENCE)
            return item

        return await asyncio.gather(*(arun_flow(one_step(call_each(fail, call, [item]))) for item in (0, 1)))

    assert asyncio.run(inside()) == [[0], [1]]


def test_both_ways_are_two_ways() -> None:
    """The control of every test above that runs both ways."""

    async def loop(_: int) -> bool:
        return asyncio.get_running_loop().is_running()

    step = call_each(lambda _: "thread", loop, [0])
    assert run_sync(one_step(step)) == ["thread"]
    assert run_async(one_step(step)) == [True]
