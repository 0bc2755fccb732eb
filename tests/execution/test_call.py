"""`Call`: whatever goes wrong in the user's own code becomes one typed error."""

from __future__ import annotations

import asyncio
import copy
import pickle
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
from langchain_core.runnables import RunnableConfig, RunnableLambda

from langchain_cfc.errors import DescriptionError, ServingError, ServingTimeoutError, VerifierError
from langchain_cfc.execution import (
    Call,
    CallLimits,
    ConcurrencyLimiter,
    FlowRunnable,
    Step,
    Steps,
    Target,
    apply_limits,
    arun_flow,
    current_limits,
    describe_error,
    run_flow,
)
from tests.concurrency import PATIENCE, ConcurrencyCounter, fail_if_stuck

CONFIG = RunnableConfig(tags=["mine"])


def twice(value: int) -> int:
    return 2 * value


async def atwice(value: int) -> int:
    await asyncio.sleep(0)
    return 2 * value


def looks_plain(value: int) -> Any:
    return atwice(value)


class Flow(FlowRunnable[Any, Any]):
    """A flow that calls a function, and takes no place for that."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function

    def flow(self, given: Any, config: RunnableConfig) -> Steps[Any]:
        del config

        async def called() -> Any:
            return self._function(given)

        return (yield Step(lambda: self._function(given), called))


class Twice:
    """Something that can be called."""

    def __call__(self, value: int) -> int:
        return 2 * value


class AsyncTwice:
    """The same, async."""

    async def __call__(self, value: int) -> int:
        return await atwice(value)


def by_run(call: Call, value: Any) -> Any:
    return run_flow(call.invoke_one(value, CONFIG))


def by_arun(call: Call, value: Any) -> Any:
    return asyncio.run(arun_flow(call.invoke_one(value, CONFIG)))


def each_by_run(call: Call, values: Sequence[Any]) -> list[Any]:
    return run_flow(call.invoke_each(values, CONFIG))


def each_by_arun(call: Call, values: Sequence[Any]) -> list[Any]:
    return asyncio.run(arun_flow(call.invoke_each(values, CONFIG)))


def all_by_run(call: Call, values: Sequence[Any]) -> list[Any]:
    return run_flow(call.invoke_cheaply(values, CONFIG))


def all_by_arun(call: Call, values: Sequence[Any]) -> list[Any]:
    return asyncio.run(arun_flow(call.invoke_cheaply(values, CONFIG)))


both_ways = pytest.mark.parametrize("run", [by_run, by_arun])
with_several = pytest.mark.parametrize("run", [each_by_run, each_by_arun, all_by_run, all_by_arun])
asynchronously = pytest.mark.parametrize("run", [each_by_arun, all_by_arun])
Run = Callable[[Call, Any], Any]


def call_of(target: Target, failure: type[ServingError] = VerifierError) -> Call:
    return Call("verifier", target, failure)


@both_ways
@pytest.mark.parametrize("target", [twice, Twice(), partial(twice), RunnableLambda(twice), lambda v: v * 2])
def test_plain_targets_run_both_ways(target: Target, run: Run) -> None:
    assert run(call_of(target), 21) == 42


@pytest.mark.parametrize(
    "target", [atwice, AsyncTwice(), partial(atwice), RunnableLambda(atwice), looks_plain]
)
def test_async_targets_are_awaited(target: Target) -> None:
    assert by_arun(call_of(target), 21) == 42


@pytest.mark.parametrize("target", [atwice, AsyncTwice(), partial(atwice), looks_plain])
def test_async_targets_are_refused_where_nothing_can_wait(target: Target) -> None:
    # Were the coroutine not closed, its "never awaited" warning would fail this test.
    with pytest.raises(VerifierError, match="the verifier is async: use ainvoke, or pass a plain function"):
        by_run(call_of(target), 21)


def test_a_future_is_refused_as_well() -> None:
    async def inside() -> None:
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        with pytest.raises(VerifierError, match="is async"):
            by_run(call_of(lambda _: future), 21)

    asyncio.run(inside())


@both_ways
@pytest.mark.parametrize("wrap", [lambda f: f, RunnableLambda])
def test_a_failure_is_typed_named_and_chained(wrap: Callable[[Any], Target], run: Run) -> None:
    def fail(_: Any) -> Any:
        msg = "out of range"
        raise LookupError(msg)

    with pytest.raises(DescriptionError) as failure:
        run(Call("metadata function", wrap(fail), DescriptionError), 1)
    assert str(failure.value) == "the metadata function failed with LookupError: out of range"
    assert isinstance(failure.value.__cause__, LookupError)


def test_an_async_failure_is_typed_as_well() -> None:
    async def fail(_: Any) -> Any:
        await asyncio.sleep(0)
        msg = "out of range"
        raise LookupError(msg)

    with pytest.raises(VerifierError, match="failed with LookupError: out of range") as failure:
        by_arun(call_of(fail), 1)
    assert isinstance(failure.value.__cause__, LookupError)


@both_ways
def test_its_own_error_passes_untouched(run: Run) -> None:
    own = VerifierError("mine")

    def fail(_: Any) -> Any:
        raise own

    with pytest.raises(VerifierError) as failure:
        run(call_of(fail), 1)
    assert failure.value is own
    # An error that is its own cause would send whoever follows the chain in circles.
    assert failure.value.__cause__ is None


@both_ways
def test_another_parts_error_is_one_of_this_part(run: Run) -> None:
    def fail(_: Any) -> Any:
        msg = "inner"
        raise DescriptionError(msg)

    with pytest.raises(VerifierError, match="failed with DescriptionError: inner"):
        run(call_of(fail), 1)


@both_ways
@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError])
def test_what_ends_a_program_is_not_caught(stop: type[BaseException], run: Run) -> None:
    def end(_: Any) -> Any:
        raise stop

    with pytest.raises(stop):
        run(call_of(end), 1)


def test_cancellation_is_not_caught() -> None:
    async def wait(_: Any) -> None:
        await asyncio.sleep(3600)

    async def inside() -> None:
        task = asyncio.create_task(arun_flow(call_of(wait).invoke_one(1, CONFIG)))
        await asyncio.sleep(0)
        task.cancel()
        await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(inside())


@both_ways
@pytest.mark.parametrize("target", [3, "text", None])
def test_what_cannot_be_called_fails_like_the_rest(target: Any, run: Run) -> None:
    with pytest.raises(VerifierError, match="failed with TypeError"):
        run(call_of(target), 1)


@both_ways
def test_runnables_see_the_config(run: Run) -> None:
    seen: list[Any] = []

    def look(value: Any, config: RunnableConfig) -> Any:
        manager: Any = config["callbacks"]
        seen.append(manager.tags)
        return value

    assert run(call_of(RunnableLambda(look)), 1) == 1
    assert seen == [["mine"]]


def tags_seen(value: Any) -> Any:
    """What a Runnable sees that is called without a config."""
    seen: list[Any] = []

    def look(one: Any, config: RunnableConfig) -> Any:
        manager: Any = config["callbacks"]
        seen.append(manager.tags)
        return one

    RunnableLambda(look).invoke(value)
    return seen[0]


async def atags_seen(value: Any) -> Any:
    await asyncio.sleep(0)
    return tags_seen(value)


@both_ways
def test_runnables_called_in_a_function_inherit_the_config(run: Run) -> None:
    assert run(call_of(tags_seen), 1) == ["mine"]
    # And only there.
    assert tags_seen(1) == []


def test_so_do_those_called_in_an_async_function() -> None:
    async def both() -> list[Any]:
        return [await arun_flow(call_of(atags_seen).invoke_one(1, CONFIG)), await atags_seen(1)]

    assert asyncio.run(both()) == [["mine"], []]


@both_ways
def test_a_failure_leaves_no_config_behind(run: Run) -> None:
    with pytest.raises(VerifierError):
        run(call_of(lambda _: 1 // 0), 1)
    assert tags_seen(1) == []


def test_a_plain_function_leaves_the_event_loop_free() -> None:
    """It waits for something that only the running loop can do: blocking the loop would never end."""
    done = threading.Event()

    async def inside() -> Any:
        asyncio.get_running_loop().call_soon(done.set)
        return await arun_flow(call_of(lambda _: done.wait(PATIENCE)).invoke_one(1, CONFIG))

    assert asyncio.run(inside()) is True


# ---- several values


@with_several
@pytest.mark.parametrize("target", [twice, Twice(), RunnableLambda(twice)])
@pytest.mark.parametrize("values", [[], [21], [3, 1, 2]])
def test_several_values_in_their_order(target: Target, values: list[int], run: Run) -> None:
    assert run(call_of(target), values) == [2 * value for value in values]


@asynchronously
@pytest.mark.parametrize("target", [atwice, AsyncTwice(), RunnableLambda(atwice), looks_plain])
def test_several_values_of_async_targets(target: Target, run: Run) -> None:
    assert run(call_of(target), [3, 1, 2]) == [6, 2, 4]


@pytest.mark.parametrize("run", [each_by_run, all_by_run])
@pytest.mark.parametrize("target", [atwice, AsyncTwice(), looks_plain])
def test_several_values_of_async_targets_are_refused_where_nothing_can_wait(target: Target, run: Run) -> None:
    with pytest.raises(VerifierError, match="the verifier is async"):
        run(call_of(target), [1, 2, 3])


@with_several
@pytest.mark.parametrize("wrap", [lambda f: f, RunnableLambda])
def test_one_failure_among_several_is_the_one_error(wrap: Callable[[Any], Target], run: Run) -> None:
    with pytest.raises(VerifierError, match="failed with ZeroDivisionError"):
        run(call_of(wrap(lambda value: 1 // value)), [1, 0, 2])


@asynchronously
@pytest.mark.parametrize("early", [False, True])
def test_a_failure_leaves_no_coroutine_behind(early: bool, run: Run) -> None:
    """Neither one that was made before the failure, nor one after it: its warning would fail this test."""

    async def later(value: int) -> float:
        await asyncio.sleep(0)
        return 1 / value

    def target(value: int) -> Any:
        return 1 / value if early and value == 0 else later(value)

    with pytest.raises(VerifierError, match="failed with ZeroDivisionError"):
        run(call_of(target), [1, 0, 2])


@with_several
def test_runnables_called_for_several_values_inherit_the_config(run: Run) -> None:
    assert run(call_of(tags_seen), [1, 2]) == [["mine"]] * 2
    assert tags_seen(1) == []


def test_all_takes_a_plain_function_one_by_one_and_each_at_the_same_time() -> None:
    def gauged(call: Callable[[Call, Any], Any], parties: int) -> int:
        gauge, meeting = ConcurrencyCounter(), threading.Barrier(parties)

        def target(_: int) -> None:
            with gauge.counted():
                meeting.wait(PATIENCE)

        call(call_of(target), range(4))
        return gauge.most

    assert gauged(all_by_run, 1) == gauged(all_by_arun, 1) == 1
    assert gauged(each_by_run, 4) == gauged(each_by_arun, 4) == 4


# ---- failures of odd kinds


class TextlessError(Exception):
    def __str__(self) -> str:
        raise LookupError


class NumberedError(Exception):
    def __str__(self) -> str:
        return 7  # type: ignore[return-value]  # noqa: PLE0307 - some do


ODD = [TextlessError(), NumberedError(), StopIteration(1), StopAsyncIteration(), RecursionError(), OSError()]


@pytest.mark.parametrize("run", [by_run, by_arun])
@pytest.mark.parametrize("wrap", [lambda f: f, RunnableLambda])
@pytest.mark.parametrize("error", ODD, ids=lambda error: type(error).__name__)
def test_odd_failures_are_typed_too(error: Exception, wrap: Callable[[Any], Target], run: Run) -> None:
    def fail(_: Any) -> Any:
        raise error

    with pytest.raises(VerifierError, match="the verifier failed with ") as failure:
        run(call_of(wrap(fail)), 1)
    causes = [failure.value.__cause__, failure.value.__cause__ and failure.value.__cause__.__cause__]
    assert error in causes


@with_several
@pytest.mark.parametrize("error", ODD, ids=lambda error: type(error).__name__)
def test_so_are_those_among_several(error: Exception, run: Run) -> None:
    def fail(value: int) -> Any:
        if value == 1:
            raise error
        return value

    with pytest.raises(VerifierError, match="the verifier failed with "):
        run(call_of(fail), [0, 1, 2])


def test_a_failure_is_described_by_type_and_text() -> None:
    assert describe_error(LookupError("lost")) == "LookupError: lost"
    assert describe_error(TextlessError()) == "TextlessError"
    assert describe_error(NumberedError()) == "NumberedError"


@both_ways
def test_a_timeout_passes_as_it_is(run: Run) -> None:
    late = ServingTimeoutError("late")

    def fail(_: Any) -> Any:
        raise late

    with pytest.raises(ServingTimeoutError) as failure:
        run(call_of(fail), 1)
    assert failure.value is late


@both_ways
def test_the_servers_own_timeout_is_a_failure_like_any_other(run: Run) -> None:
    def fail(_: Any) -> Any:
        msg = "the server's"
        raise TimeoutError(msg)

    with pytest.raises(VerifierError, match="failed with TimeoutError: the server's"):
        run(call_of(fail), 1)


# ---- places


@pytest.mark.parametrize(
    ("run", "value"),
    [
        (by_run, 0),
        (by_arun, 0),
        (each_by_run, range(5)),
        (each_by_arun, range(5)),
        (all_by_run, range(5)),
        (all_by_arun, range(5)),
    ],
)
@pytest.mark.parametrize("flows", [False, True])
def test_what_a_call_calls_itself_shares_its_place(run: Run, value: Any, flows: bool) -> None:
    """With one place in all, whoever took a second one would wait for ever."""
    limit, gauge = ConcurrencyLimiter(1), ConcurrencyCounter()

    def leaf(item: int) -> int:
        with gauge.counted():
            return item

    def target(_: Any) -> list[int]:
        assert limit._free == (1 if flows else 0)
        return each_by_run(call_of(leaf), range(3))

    def nested() -> Any:
        with apply_limits(CallLimits(limit)):
            return run(call_of(Flow(target) if flows else target), value)

    found = fail_if_stuck(nested)
    assert found == ([0, 1, 2] if value == 0 else [[0, 1, 2]] * 5)
    assert gauge.most == 1
    assert limit._free == 1


@with_several
def test_no_value_is_taken_after_the_deadline(run: Run) -> None:
    taken: list[int] = []

    def target(value: int) -> None:
        taken.append(value)
        deadline = current_limits().deadline
        assert deadline is not None
        while time.monotonic() < deadline:
            time.sleep(0.001)

    with (
        apply_limits(CallLimits(ConcurrencyLimiter(1), time.monotonic() + 0.05)),
        pytest.raises(ServingTimeoutError),
    ):
        run(call_of(target), range(5))
    assert len(taken) <= 1


# ---- copies


def pickled(call: Call) -> Call:
    again: Call = pickle.loads(pickle.dumps(call))  # noqa: S301 - its own
    return again


@both_ways
@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickled])
@pytest.mark.parametrize("target", [twice, Twice(), partial(twice)])
def test_a_call_can_be_copied_and_pickled_with_its_target(
    target: Target, copied: Callable[[Call], Call], run: Run
) -> None:
    call = copied(call_of(target, DescriptionError))
    assert run(call, 21) == 42
    with pytest.raises(DescriptionError, match="the verifier failed with TypeError"):
        run(call, None)
