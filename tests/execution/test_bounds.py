"""`ConcurrencyLimiter` and `CallLimits`: the limit holds, every waiter is served, and no permit is lost."""

from __future__ import annotations

import asyncio
import gc
import random
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.callbacks import BaseCallbackHandler, CallbackManager, CallbackManagerForChainRun
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import ensure_config, var_child_runnable_config

from langchain_cfc.errors import InputError, ServingTimeoutError
from langchain_cfc.execution import (
    CallLimits,
    ConcurrencyLimiter,
    add_tags,
    apply_config_limits,
    apply_limits,
    get_current_limits,
)
from langchain_cfc.execution.limits import find_limiter, make_child_config, share_limiter
from tests.concurrency import PATIENCE, ConcurrencyCounter, wait_until, wait_until_async
from tests.lengths import repetitions


class Listener(BaseCallbackHandler):
    """A listener."""


def make_run_manager(*handlers: BaseCallbackHandler) -> CallbackManagerForChainRun:
    """The manager of a run that these listen to."""
    run = CallbackManager(handlers=list(handlers), inheritable_handlers=list(handlers)).on_chain_start({}, {})
    assert isinstance(run, CallbackManagerForChainRun)
    return run


def count_waiting(limit: ConcurrencyLimiter) -> int:
    """Return the number of waiting calls."""
    return len(limit._waiting)


def is_free(limit: ConcurrencyLimiter) -> bool:
    """Whether every place is free, and there are no more of them than there were."""
    return limit._free == limit.size and not limit._waiting


async def hold_permit(limit: ConcurrencyLimiter, gauge: ConcurrencyCounter) -> None:
    with await CallLimits(limit).aacquire_permit(), gauge.counted():
        await asyncio.sleep(0)


# ---- never more than there are places


@pytest.mark.parametrize("size", [1, 3])
def test_limiter_is_shared_by_threads_and_event_loops(size: int) -> None:
    limit, gauge = ConcurrencyLimiter(size), ConcurrencyCounter()

    def thread() -> None:
        for _ in range(100):
            with CallLimits(limit).acquire_permit(), gauge.counted():
                time.sleep(0)

    async def tasks() -> None:
        await asyncio.gather(*(hold_permit(limit, gauge) for _ in range(100)))

    with ThreadPoolExecutor(7) as executor:
        started = [executor.submit(thread) for _ in range(4)]
        started += [executor.submit(asyncio.run, tasks()) for _ in range(3)]
        for one in started:
            one.result(PATIENCE)
    assert gauge.passed == 700
    assert gauge.most <= size
    assert is_free(limit)


@pytest.mark.parametrize("size", [2, 4])
def test_limiter_lets_all_its_permits_be_held_at_once(size: int) -> None:
    """The control: the gauge sees as many as there are places, and the limit is no tighter."""
    limit, gauge, meeting = ConcurrencyLimiter(size), ConcurrencyCounter(), threading.Barrier(size)

    def thread(_: int) -> None:
        with CallLimits(limit).acquire_permit(), gauge.counted():
            meeting.wait(PATIENCE)

    with ThreadPoolExecutor(size) as executor:
        list(executor.map(thread, range(size)))
    assert gauge.most == size


@pytest.mark.parametrize("size", [0, -1, 2.5, "3", None])
def test_limiter_refuses_sizes_that_are_no_positive_integer(size: Any) -> None:
    with pytest.raises(InputError, match="expected a whole number of at least 1, or None"):
        ConcurrencyLimiter(size)


def test_call_limits_without_limiter_never_wait() -> None:
    async def inside() -> bool:
        with await CallLimits().aacquire_permit(), await CallLimits().aacquire_permit():
            return True

    with CallLimits().acquire_permit(), CallLimits().acquire_permit():
        assert asyncio.run(inside())


# ---- first come, first served


def test_limiter_serves_threads_and_tasks_in_order_of_arrival() -> None:
    limit, served = ConcurrencyLimiter(1), []

    def thread(number: int) -> None:
        with CallLimits(limit).acquire_permit():
            served.append(number)

    async def task(number: int) -> None:
        with await CallLimits(limit).aacquire_permit():
            served.append(number)

    limit.acquire()
    with ThreadPoolExecutor(10) as executor:
        for number in range(10):
            executor.submit(asyncio.run, task(number)) if number % 2 else executor.submit(thread, number)
            wait_until(lambda: count_waiting(limit) == number + 1)  # noqa: B023 - asked at once
        assert served == []
        limit.release()
    assert served == list(range(10))
    assert is_free(limit)


# ---- those who do not wait any more


@pytest.mark.parametrize("when", ["waiting", "woken"])
@pytest.mark.parametrize("followed", [False, True])
def test_limiter_keeps_its_permits_when_a_waiting_task_is_cancelled(when: str, followed: bool) -> None:
    """Cancelled in line; when it was given its place, but did not go on."""
    limit, gauge = ConcurrencyLimiter(1), ConcurrencyCounter()

    async def inside() -> None:
        limit.acquire()
        first = asyncio.create_task(hold_permit(limit, gauge))
        await wait_until_async(lambda: count_waiting(limit) == 1)
        others = [asyncio.create_task(hold_permit(limit, gauge))] if followed else []
        await wait_until_async(lambda: count_waiting(limit) == 1 + followed)
        if when != "waiting":
            limit.release()
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        if when == "waiting":
            assert count_waiting(limit) == followed
            limit.release()
        await asyncio.wait_for(asyncio.gather(*others), PATIENCE)

    asyncio.run(inside())
    assert gauge.passed == followed
    assert is_free(limit)


def test_permit_given_to_a_cancelled_task_goes_to_the_next_waiter() -> None:
    limit, served = ConcurrencyLimiter(1), threading.Event()

    def thread() -> None:
        with CallLimits(limit).acquire_permit():
            served.set()

    async def inside(executor: ThreadPoolExecutor) -> None:
        limit.acquire()
        task = asyncio.create_task(hold_permit(limit, ConcurrencyCounter()))
        await wait_until_async(lambda: count_waiting(limit) == 1)
        executor.submit(thread)
        await wait_until_async(lambda: count_waiting(limit) == 2)
        # The loop stands still here, so the task cannot hear of its place before it is cancelled.
        executor.submit(limit.release).result(PATIENCE)
        assert not served.is_set()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with ThreadPoolExecutor(2) as executor:
        asyncio.run(inside(executor))
        assert served.wait(PATIENCE)
    assert is_free(limit)


def test_permit_raises_at_the_deadline_and_leaves_the_queue() -> None:
    limit = ConcurrencyLimiter(1)
    limit.acquire()
    with pytest.raises(ServingTimeoutError, match="before a call could start"):
        CallLimits(limit, time.monotonic() + 0.02).acquire_permit()
    assert count_waiting(limit) == 0
    limit.release()
    assert is_free(limit)


@pytest.mark.parametrize("seconds", [PATIENCE, 1e12])
def test_permit_is_given_to_a_thread_before_its_deadline(seconds: float) -> None:
    limit, entered = ConcurrencyLimiter(1), threading.Event()

    def thread() -> None:
        with CallLimits(limit, time.monotonic() + seconds).acquire_permit():
            entered.set()

    limit.acquire()
    with ThreadPoolExecutor(1) as executor:
        waiting = executor.submit(thread)
        wait_until(lambda: count_waiting(limit) == 1 or waiting.done())
        assert not entered.is_set()
        limit.release()
        waiting.result(PATIENCE)
    assert entered.is_set()


def test_permit_after_the_deadline_raises_although_permits_are_free() -> None:
    limit, late = ConcurrencyLimiter(1), time.monotonic()
    with pytest.raises(ServingTimeoutError):
        CallLimits(limit, late).acquire_permit()
    with pytest.raises(ServingTimeoutError):
        asyncio.run(CallLimits(limit, late).aacquire_permit())
    with pytest.raises(ServingTimeoutError):
        CallLimits(None, late).acquire_permit()
    assert is_free(limit)


def test_permit_that_comes_after_the_deadline_is_given_back() -> None:
    limit, deadline = ConcurrencyLimiter(1), time.monotonic() + 0.05

    async def inside() -> None:
        limit.acquire()
        task = asyncio.create_task(entering())
        await wait_until_async(lambda: count_waiting(limit) == 1 or task.done())
        await wait_until_async(lambda: time.monotonic() >= deadline)
        limit.release()
        with pytest.raises(ServingTimeoutError):
            await task

    async def entering() -> None:
        with await CallLimits(limit, deadline).aacquire_permit():
            pytest.fail("a call started after the deadline")

    asyncio.run(inside())
    assert is_free(limit)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Ctrl-C interrupts, also where it was ignored when the tests began."""
    usual = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, usual)


@pytest.mark.skipif(sys.platform == "win32", reason="signals cannot be sent to a thread there")
@pytest.mark.usefixtures("interruptible")
def test_interrupted_thread_leaves_the_queue() -> None:
    limit, waiter = ConcurrencyLimiter(1), threading.get_ident()

    def interrupt() -> None:
        wait_until(lambda: count_waiting(limit) == 1)
        signal.pthread_kill(waiter, signal.SIGINT)

    limit.acquire()
    with ThreadPoolExecutor(1) as executor:
        executor.submit(interrupt)
        with pytest.raises(KeyboardInterrupt):
            limit.acquire()
    assert count_waiting(limit) == 0
    limit.release()
    assert is_free(limit)


@pytest.mark.parametrize(
    "error", [ValueError, KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError]
)
def test_permit_is_given_back_after_every_kind_of_error(error: type[BaseException]) -> None:
    limit = ConcurrencyLimiter(2)

    async def inside() -> None:
        with pytest.raises(error), await CallLimits(limit).aacquire_permit():
            raise error

    with pytest.raises(error), CallLimits(limit).acquire_permit():
        raise error
    asyncio.run(inside())
    assert is_free(limit)


# ---- event loops that are closed over their tasks


def close_loop_over_waiter(limit: ConcurrencyLimiter, gauge: ConcurrencyCounter, *, given: bool) -> None:
    """Close a loop over a task in line, before or after its place was given."""
    loop = asyncio.new_event_loop()
    loop.create_task(hold_permit(limit, gauge))  # noqa: RUF006 - forgotten on purpose
    loop.run_until_complete(wait_until_async(lambda: count_waiting(limit) == 1))
    if given:
        limit.release()
    loop.close()


def test_limiter_skips_waiting_tasks_of_closed_loops() -> None:
    limit, gauge = ConcurrencyLimiter(1), ConcurrencyCounter()
    limit.acquire()
    close_loop_over_waiter(limit, gauge, given=False)
    with ThreadPoolExecutor(1) as executor:
        next_one = executor.submit(limit.acquire)
        wait_until(lambda: count_waiting(limit) == 2)
        limit.release()
        next_one.result(PATIENCE)
    limit.release()
    gc.collect()
    assert gauge.passed == 0
    assert is_free(limit)


def test_permit_given_to_a_task_of_a_closed_loop_is_recovered() -> None:
    limit, gauge = ConcurrencyLimiter(1), ConcurrencyCounter()
    limit.acquire()
    close_loop_over_waiter(limit, gauge, given=True)
    gc.collect()
    assert gauge.passed == 0
    assert is_free(limit)


def test_permit_held_by_a_task_of_a_closed_loop_is_recovered() -> None:
    limit, gauge = ConcurrencyLimiter(1), ConcurrencyCounter()

    async def for_ever() -> None:
        with await CallLimits(limit).aacquire_permit(), gauge.counted():
            await asyncio.get_running_loop().create_future()

    loop = asyncio.new_event_loop()
    loop.create_task(for_ever())  # noqa: RUF006 - forgotten on purpose
    loop.run_until_complete(wait_until_async(lambda: gauge.inside == 1))
    loop.close()
    gc.collect()
    assert gauge.inside == 0
    assert is_free(limit)
    assert get_current_limits() == CallLimits()


def test_release_is_possible_while_the_lock_is_held() -> None:
    """The collector runs wherever it likes, in the very thread that is at the line too."""
    limit = ConcurrencyLimiter(2)
    limit.acquire()
    limit.acquire()
    with limit._lock:
        limit.release()
    limit.release()
    assert is_free(limit)


# ---- whatever the order of events


@settings(max_examples=repetitions(200, share=0.3))
@given(size=st.integers(1, 3), events=st.lists(st.tuples(st.sampled_from("aaclss"), st.integers(0, 9))))
def test_limiter_keeps_its_permits_under_any_order_of_events(
    size: int, events: list[tuple[str, int]]
) -> None:
    """Tasks ask, are cancelled, let go, and the loop goes on a step, as drawn."""
    limit, served = ConcurrencyLimiter(size), []

    async def one(number: int, go: asyncio.Event) -> None:
        with await CallLimits(limit).aacquire_permit():
            served.append(number)
            inside.add(number)
            try:
                await go.wait()
            finally:
                inside.remove(number)

    async def play() -> None:
        tasks: list[tuple[asyncio.Task[None], asyncio.Event]] = []
        for event, which in events:
            task, go = tasks[which % len(tasks)] if tasks else (None, None)
            if event == "a":
                tasks.append((asyncio.create_task(one(len(tasks), own := asyncio.Event())), own))
            elif event == "s":
                await asyncio.sleep(0)
            elif task is not None and go is not None:
                task.cancel() if event == "c" else go.set()
            assert len(inside) <= size
        for _, go in tasks:
            go.set()
        await asyncio.wait_for(asyncio.gather(*(task for task, _ in tasks), return_exceptions=True), PATIENCE)

    inside: set[int] = set()
    asyncio.run(play())
    if size == 1:
        # Of several places, one given later may be entered earlier: who waited has yet to be woken.
        assert served == sorted(served)
    assert is_free(limit)


@pytest.mark.parametrize("seed", range(3))
def test_limiter_is_free_after_thousands_of_operations(seed: int) -> None:
    """Threads with short deadlines, and loops whose tasks are cancelled at random moments."""
    limit, gauge = ConcurrencyLimiter(3), ConcurrencyCounter()

    def thread(number: int) -> None:
        chance = random.Random(f"{seed}/{number}")  # noqa: S311 - a seed makes it the same again
        for _ in range(250):
            patience = chance.choice([0.0, 0.0005, PATIENCE])
            try:
                with CallLimits(limit, time.monotonic() + patience).acquire_permit(), gauge.counted():
                    time.sleep(chance.choice([0, 0.0002]))
            except ServingTimeoutError:
                assert patience < PATIENCE

    async def loop(number: int) -> None:
        chance = random.Random(f"{seed}/{number}")  # noqa: S311 - as above
        for _ in range(25):
            tasks = [asyncio.create_task(hold_permit(limit, gauge)) for _ in range(20)]
            for task in tasks:
                await asyncio.sleep(0)
                if chance.random() < 0.5:
                    task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    with ThreadPoolExecutor(6) as executor:
        started = [executor.submit(thread, number) for number in range(4)]
        started += [executor.submit(asyncio.run, loop(number)) for number in (4, 5)]
        for one in started:
            one.result(PATIENCE)
    assert gauge.passed > 500
    assert gauge.most <= 3
    assert is_free(limit)


# ---- bounds within bounds


def test_calls_inside_a_permit_share_that_permit() -> None:
    limit = ConcurrencyLimiter(1)

    async def inside() -> None:
        with (
            apply_limits(CallLimits(limit)),
            await get_current_limits().aacquire_permit(),
            await get_current_limits().aacquire_permit(),
        ):
            assert get_current_limits().limiter is not limit

    with apply_limits(CallLimits(limit)):
        with get_current_limits().acquire_permit(), get_current_limits().acquire_permit():
            assert get_current_limits().limiter not in {limit, None}
        assert get_current_limits().limiter is limit
    asyncio.run(inside())
    assert is_free(limit)


def test_limiter_inside_a_permit_has_size_one() -> None:
    with CallLimits(ConcurrencyLimiter(2)).acquire_permit():
        inner = get_current_limits().limiter
    assert inner is not None
    assert inner.size == 1


def test_nested_permits_of_one_limiter_take_one_permit() -> None:
    limit, other = ConcurrencyLimiter(1), ConcurrencyLimiter(1)
    with CallLimits(limit).acquire_permit(), apply_limits(CallLimits(other)):
        assert get_current_limits().limiter is other
        with (
            get_current_limits().acquire_permit(),
            apply_limits(CallLimits(limit)),
            get_current_limits().acquire_permit(),
        ):
            assert limit._free == 0
    assert is_free(limit)
    assert is_free(other)


@pytest.mark.parametrize(("outer", "inner", "both"), [(1.0, 2.0, 1.0), (2.0, 1.0, 1.0), (None, 1.0, 1.0)])
def test_apply_limits_keeps_the_earlier_deadline(outer: float | None, inner: float, both: float) -> None:
    with apply_limits(CallLimits(None, outer)):
        with apply_limits(CallLimits(None, inner)):
            assert get_current_limits().deadline == both
        with apply_limits(CallLimits()):
            assert get_current_limits().deadline == outer
    assert get_current_limits() == CallLimits()


# ---- limits in configs


def test_share_limiter_gives_all_configs_of_a_batch_one_limiter() -> None:
    configs = share_limiter({"max_concurrency": 3, "configurable": {"mine": 1}}, 2)
    one, other = map(find_limiter, configs)
    assert one is other
    assert one is not None
    assert one.size == 3
    for config in configs:
        assert make_child_config(config, make_run_manager())["configurable"] == {"mine": 1}
    assert find_limiter(share_limiter({"max_concurrency": 3}, 1)[0]) is not one


def test_share_limiter_without_max_concurrency_gives_no_limiter() -> None:
    (config,) = share_limiter(None, 1)
    assert find_limiter(config) is None
    assert share_limiter({"max_concurrency": 3}, 0) == []


def test_share_limiter_keeps_separate_configs() -> None:
    given_ones = [RunnableConfig(max_concurrency=2, tags=["a"]), RunnableConfig(tags=["b"])]
    configs = share_limiter(given_ones, 2)
    assert [config["tags"] for config in configs] == [["a"], ["b"]]
    assert find_limiter(configs[0]) is find_limiter(configs[1]) is not None
    assert "configurable" not in given_ones[0]


def test_find_limiter_makes_a_limiter_from_max_concurrency() -> None:
    limit = find_limiter(RunnableConfig(max_concurrency=2))
    assert limit is not None
    assert limit.size == 2


@pytest.mark.parametrize("most", [0, -3, 1.5])
def test_share_limiter_and_find_limiter_refuse_invalid_max_concurrency(most: Any) -> None:
    with pytest.raises(InputError, match="max_concurrency"):
        share_limiter({"max_concurrency": most}, 2)
    with pytest.raises(InputError, match="max_concurrency"):
        find_limiter({"max_concurrency": most})


def test_find_limiter_prefers_the_permit_of_the_call_to_the_config() -> None:
    """That number was inherited: counting it again would multiply it."""
    limit = ConcurrencyLimiter(4)
    (config,) = share_limiter({"max_concurrency": 4}, 1)
    with apply_limits(CallLimits(limit)):
        assert find_limiter(config) is limit
        with get_current_limits().acquire_permit():
            place = find_limiter(config)
            assert place is get_current_limits().limiter
            assert place is not limit
    assert find_limiter(config) is not limit


def test_apply_limits_hides_the_limiter_from_inherited_configs() -> None:
    (config,) = share_limiter({"max_concurrency": 1, "configurable": {"mine": 1}}, 1)
    token = var_child_runnable_config.set(config)
    try:
        assert len(ensure_config()["configurable"]) == 2  # what LangChain would hand on
        with apply_limits(CallLimits(find_limiter(config))):
            assert ensure_config()["configurable"] == {"mine": 1}
        assert var_child_runnable_config.get() is config
    finally:
        var_child_runnable_config.reset(token)


def test_apply_config_limits_uses_max_concurrency_of_the_config() -> None:
    with apply_config_limits({"max_concurrency": 2}):
        limit = get_current_limits().limiter
        assert limit is not None
        assert limit.size == 2
        with apply_config_limits({"max_concurrency": 5}):
            assert get_current_limits().limiter is limit
    with apply_config_limits({}):
        assert get_current_limits().limiter is None


def test_add_tags_does_not_read_the_surrounding_config() -> None:
    token = var_child_runnable_config.set(RunnableConfig(tags=["around"], configurable={"around": 1}))
    try:
        assert add_tags({"tags": ["a"]}, "b") == {"tags": ["a", "b"]}
        assert add_tags({}, "b") == {"tags": ["b"]}
    finally:
        var_child_runnable_config.reset(token)


def test_make_child_config_hands_on_callbacks_to_listeners() -> None:
    listener, config = (
        Listener(),
        RunnableConfig(tags=["mine"], run_name="one", run_id=uuid4(), recursion_limit=7),
    )
    run = make_run_manager(listener)
    child = make_child_config(config, run, "more")
    callbacks: Any = child.pop("callbacks")
    assert callbacks.parent_run_id == run.run_id
    assert callbacks.handlers == [listener]
    assert child == {"tags": ["mine", "more"], "recursion_limit": 7}


def test_make_child_config_without_listeners_hands_on_no_callbacks() -> None:
    config = RunnableConfig(tags=["mine"], callbacks=CallbackManager(handlers=[]))
    child = make_child_config(config, make_run_manager())
    assert child == {"tags": ["mine"], "callbacks": None}
    # Nor does LangChain add it again, under the bounds that the flow runs in.
    with apply_limits(CallLimits(), child):
        assert ensure_config(child)["callbacks"] is None
