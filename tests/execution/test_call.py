"""`Call`: any error in the user's own code becomes one typed error."""

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
    describe_error,
    get_current_limits,
    run_flow,
)
from tests.concurrency import PATIENCE, ConcurrencyCounter, fail_if_stuck

CONFIG = RunnableConfig(tags=["mine"])


def double(value: int) -> int:
    return 2 * value


async def adouble(value: int) -> int:
    await asyncio.sleep(0)
    return 2 * value


def double_in_coroutine(value: int) -> Any:
    return adouble(value)


class Flow(FlowRunnable[Any, Any]):
    """A flow that calls a function, and takes no place for that."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function

    def flow(self, given: Any, config: RunnableConfig) -> Steps[Any]:
        del config

        async def called() -> Any:
            return self._function(given)

        return (yield Step(lambda: self._function(given), called))


class Doubler:
    """Something that can be called."""

    def __call__(self, value: int) -> int:
        return 2 * value


class AsyncDoubler:
    """Asynchronous counterpart of the class above."""

    async def __call__(self, value: int) -> int:
        return await adouble(value)


def invoke_one(call: Call, value: Any) -> Any:
    return run_flow(call.invoke_one(value, CONFIG))


def ainvoke_one(call: Call, value: Any) -> Any:
    return asyncio.run(arun_flow(call.invoke_one(value, CONFIG)))


def invoke_each(call: Call, values: Sequence[Any]) -> list[Any]:
    return run_flow(call.invoke_each(values, CONFIG))


def ainvoke_each(call: Call, values: Sequence[Any]) -> list[Any]:
    return asyncio.run(arun_flow(call.invoke_each(values, CONFIG)))


both_ways = pytest.mark.parametrize("run", [invoke_one, ainvoke_one])
with_several = pytest.mark.parametrize("run", [invoke_each, ainvoke_each])
Run = Callable[[Call, Any], Any]


def make_call(target: Target, failure: type[ServingError] = VerifierError) -> Call:
    return Call("verifier", target, failure)


@both_ways
@pytest.mark.parametrize(
    "target", [double, Doubler(), partial(double), RunnableLambda(double), lambda v: v * 2]
)
def test_call_runs_plain_targets_sync_and_async(target: Target, run: Run) -> None:
    assert run(make_call(target), 21) == 42


@pytest.mark.parametrize(
    "target", [adouble, AsyncDoubler(), partial(adouble), RunnableLambda(adouble), double_in_coroutine]
)
def test_call_awaits_async_targets(target: Target) -> None:
    assert ainvoke_one(make_call(target), 21) == 42


@pytest.mark.parametrize("target", [adouble, AsyncDoubler(), partial(adouble), double_in_coroutine])
def test_sync_call_refuses_async_targets(target: Target) -> None:
    # Were the coroutine not closed, its "never awaited" warning would fail this test.
    with pytest.raises(VerifierError, match="the verifier is async: use ainvoke, or pass a plain function"):
        invoke_one(make_call(target), 21)


def test_sync_call_refuses_futures() -> None:
    async def inside() -> None:
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        with pytest.raises(VerifierError, match="is async"):
            invoke_one(make_call(lambda _: future), 21)

    asyncio.run(inside())


@both_ways
@pytest.mark.parametrize("wrap", [lambda f: f, RunnableLambda])
def test_call_failure_is_typed_named_and_chained(wrap: Callable[[Any], Target], run: Run) -> None:
    def fail(_: Any) -> Any:
        msg = "out of range"
        raise LookupError(msg)

    with pytest.raises(DescriptionError) as failure:
        run(Call("metadata function", wrap(fail), DescriptionError), 1)
    assert str(failure.value) == "the metadata function failed with LookupError: out of range"
    assert isinstance(failure.value.__cause__, LookupError)


def test_async_call_failure_is_typed_and_chained() -> None:
    async def fail(_: Any) -> Any:
        await asyncio.sleep(0)
        msg = "out of range"
        raise LookupError(msg)

    with pytest.raises(VerifierError, match="failed with LookupError: out of range") as failure:
        ainvoke_one(make_call(fail), 1)
    assert isinstance(failure.value.__cause__, LookupError)


@both_ways
def test_call_does_not_wrap_its_own_error_type(run: Run) -> None:
    own = VerifierError("mine")

    def fail(_: Any) -> Any:
        raise own

    with pytest.raises(VerifierError) as failure:
        run(make_call(fail), 1)
    assert failure.value is own
    # An error that is its own cause would make the chain of causes endless.
    assert failure.value.__cause__ is None


@both_ways
def test_call_wraps_the_error_type_of_another_part(run: Run) -> None:
    def fail(_: Any) -> Any:
        msg = "inner"
        raise DescriptionError(msg)

    with pytest.raises(VerifierError, match="failed with DescriptionError: inner"):
        run(make_call(fail), 1)


@both_ways
@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError])
def test_call_does_not_catch_errors_that_end_a_program(stop: type[BaseException], run: Run) -> None:
    def end(_: Any) -> Any:
        raise stop

    with pytest.raises(stop):
        run(make_call(end), 1)


def test_call_does_not_catch_cancellation() -> None:
    async def wait(_: Any) -> None:
        await asyncio.sleep(3600)

    async def inside() -> None:
        task = asyncio.create_task(arun_flow(make_call(wait).invoke_one(1, CONFIG)))
        await asyncio.sleep(0)
        task.cancel()
        await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(inside())


@both_ways
@pytest.mark.parametrize("target", [3, "text", None])
def test_call_of_something_not_callable_is_a_typed_error(target: Any, run: Run) -> None:
    with pytest.raises(VerifierError, match="failed with TypeError"):
        run(make_call(target), 1)


@both_ways
def test_call_hands_its_config_to_runnables(run: Run) -> None:
    seen: list[Any] = []

    def look(value: Any, config: RunnableConfig) -> Any:
        manager: Any = config["callbacks"]
        seen.append(manager.tags)
        return value

    assert run(make_call(RunnableLambda(look)), 1) == 1
    assert seen == [["mine"]]


def find_tags(value: Any) -> Any:
    """Return the tags that a Runnable sees if it is called without a config."""
    seen: list[Any] = []

    def look(one: Any, config: RunnableConfig) -> Any:
        manager: Any = config["callbacks"]
        seen.append(manager.tags)
        return one

    RunnableLambda(look).invoke(value)
    return seen[0]


async def afind_tags(value: Any) -> Any:
    await asyncio.sleep(0)
    return find_tags(value)


@both_ways
def test_runnables_called_in_a_target_inherit_the_config(run: Run) -> None:
    assert run(make_call(find_tags), 1) == ["mine"]
    # And only there.
    assert find_tags(1) == []


def test_runnables_called_in_an_async_target_inherit_the_config() -> None:
    async def both() -> list[Any]:
        return [await arun_flow(make_call(afind_tags).invoke_one(1, CONFIG)), await afind_tags(1)]

    assert asyncio.run(both()) == [["mine"], []]


@both_ways
def test_failed_call_leaves_no_config_behind(run: Run) -> None:
    with pytest.raises(VerifierError):
        run(make_call(lambda _: 1 // 0), 1)
    assert find_tags(1) == []


def test_async_call_of_a_plain_function_does_not_block_the_loop() -> None:
    """It waits for something that only the running loop can do: blocking the loop would never end."""
    done = threading.Event()

    async def inside() -> Any:
        asyncio.get_running_loop().call_soon(done.set)
        return await arun_flow(make_call(lambda _: done.wait(PATIENCE)).invoke_one(1, CONFIG))

    assert asyncio.run(inside()) is True


# ---- several values


@with_several
@pytest.mark.parametrize("target", [double, Doubler(), RunnableLambda(double)])
@pytest.mark.parametrize("values", [[], [21], [3, 1, 2]])
def test_call_returns_results_in_the_order_of_its_values(target: Target, values: list[int], run: Run) -> None:
    assert run(make_call(target), values) == [2 * value for value in values]


@pytest.mark.parametrize("target", [adouble, AsyncDoubler(), RunnableLambda(adouble), double_in_coroutine])
def test_async_call_returns_results_in_the_order_of_its_values(target: Target) -> None:
    assert ainvoke_each(make_call(target), [3, 1, 2]) == [6, 2, 4]


@pytest.mark.parametrize("target", [adouble, AsyncDoubler(), double_in_coroutine])
def test_sync_call_with_several_values_refuses_async_targets(target: Target) -> None:
    with pytest.raises(VerifierError, match="the verifier is async"):
        invoke_each(make_call(target), [1, 2, 3])


@with_several
@pytest.mark.parametrize("wrap", [lambda f: f, RunnableLambda])
def test_failure_of_one_value_among_several_is_the_error(wrap: Callable[[Any], Target], run: Run) -> None:
    with pytest.raises(VerifierError, match="failed with ZeroDivisionError"):
        run(make_call(wrap(lambda value: 1 // value)), [1, 0, 2])


@with_several
def test_runnables_called_for_several_values_inherit_the_config(run: Run) -> None:
    assert run(make_call(find_tags), [1, 2]) == [["mine"]] * 2
    assert find_tags(1) == []


def test_invoke_each_is_concurrent() -> None:
    def gauged(call: Callable[[Call, Any], Any]) -> int:
        gauge, meeting = ConcurrencyCounter(), threading.Barrier(4)

        def target(_: int) -> None:
            with gauge.counted():
                meeting.wait(PATIENCE)

        call(make_call(target), range(4))
        return gauge.most

    assert gauged(invoke_each) == gauged(ainvoke_each) == 4


# ---- failures of odd kinds


class TextlessError(Exception):
    def __str__(self) -> str:
        raise LookupError


class NumberedError(Exception):
    def __str__(self) -> str:
        return 7  # type: ignore[return-value]  # noqa: PLE0307 - some do


ODD_ERRORS = [
    TextlessError(),
    NumberedError(),
    StopIteration(1),
    StopAsyncIteration(),
    RecursionError(),
    OSError(),
]


@pytest.mark.parametrize("run", [invoke_one, ainvoke_one])
@pytest.mark.parametrize("wrap", [lambda f: f, RunnableLambda])
@pytest.mark.parametrize("error", ODD_ERRORS, ids=lambda error: type(error).__name__)
def test_odd_failures_are_typed(error: Exception, wrap: Callable[[Any], Target], run: Run) -> None:
    def fail(_: Any) -> Any:
        raise error

    with pytest.raises(VerifierError, match="the verifier failed with ") as failure:
        run(make_call(wrap(fail)), 1)
    causes = [failure.value.__cause__, failure.value.__cause__ and failure.value.__cause__.__cause__]
    assert error in causes


@with_several
@pytest.mark.parametrize("error", ODD_ERRORS, ids=lambda error: type(error).__name__)
def test_odd_failures_among_several_values_are_typed(error: Exception, run: Run) -> None:
    def fail(value: int) -> Any:
        if value == 1:
            raise error
        return value

    with pytest.raises(VerifierError, match="the verifier failed with "):
        run(make_call(fail), [0, 1, 2])


def test_describe_error_names_type_and_text() -> None:
    assert describe_error(LookupError("lost")) == "LookupError: lost"
    assert describe_error(TextlessError()) == "TextlessError"
    assert describe_error(NumberedError()) == "NumberedError"


@both_ways
def test_call_does_not_wrap_serving_timeout_error(run: Run) -> None:
    late = ServingTimeoutError("late")

    def fail(_: Any) -> Any:
        raise late

    with pytest.raises(ServingTimeoutError) as failure:
        run(make_call(fail), 1)
    assert failure.value is late


@both_ways
def test_call_wraps_a_timeout_error_of_the_target(run: Run) -> None:
    def fail(_: Any) -> Any:
        msg = "the server's"
        raise TimeoutError(msg)

    with pytest.raises(VerifierError, match="failed with TimeoutError: the server's"):
        run(make_call(fail), 1)


# ---- places


@pytest.mark.parametrize(
    ("run", "value"),
    [
        (invoke_one, 0),
        (ainvoke_one, 0),
        (invoke_each, range(5)),
        (ainvoke_each, range(5)),
    ],
)
@pytest.mark.parametrize("flows", [False, True])
def test_calls_inside_a_call_share_its_permit(run: Run, value: Any, flows: bool) -> None:
    """With one place in all, a call that took a second one would wait for ever."""
    limit, gauge = ConcurrencyLimiter(1), ConcurrencyCounter()

    def leaf(item: int) -> int:
        with gauge.counted():
            return item

    def target(_: Any) -> list[int]:
        assert limit._free == (1 if flows else 0)
        return invoke_each(make_call(leaf), range(3))

    def nested() -> Any:
        with apply_limits(CallLimits(limit)):
            return run(make_call(Flow(target) if flows else target), value)

    found = fail_if_stuck(nested)
    assert found == ([0, 1, 2] if value == 0 else [[0, 1, 2]] * 5)
    assert gauge.most == 1
    assert limit._free == 1


@with_several
def test_call_takes_no_value_after_the_deadline(run: Run) -> None:
    taken: list[int] = []

    def target(value: int) -> None:
        taken.append(value)
        deadline = get_current_limits().deadline
        assert deadline is not None
        while time.monotonic() < deadline:
            time.sleep(0.001)

    with (
        apply_limits(CallLimits(ConcurrencyLimiter(1), time.monotonic() + 0.05)),
        pytest.raises(ServingTimeoutError),
    ):
        run(make_call(target), range(5))
    assert len(taken) <= 1


# ---- copies


def pickle_call(call: Call) -> Call:
    again: Call = pickle.loads(pickle.dumps(call))  # noqa: S301 - its own
    return again


@both_ways
@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle_call])
@pytest.mark.parametrize("target", [double, Doubler(), partial(double)])
def test_copied_and_pickled_calls_run_their_target(
    target: Target, copied: Callable[[Call], Call], run: Run
) -> None:
    call = copied(make_call(target, DescriptionError))
    assert run(call, 21) == 42
    with pytest.raises(DescriptionError, match="the verifier failed with TypeError"):
        run(call, None)
