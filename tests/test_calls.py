"""`Call`: whatever goes wrong in the user's own code becomes one typed error."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from langchain_core.runnables import RunnableConfig, RunnableLambda

from langchain_cfc.calls import Call, Target
from langchain_cfc.errors import DescriptionError, ServingError, VerifierError

CONFIG = RunnableConfig(tags=["mine"])


def twice(value: int) -> int:
    return 2 * value


async def atwice(value: int) -> int:
    await asyncio.sleep(0)
    return 2 * value


def looks_plain(value: int) -> Any:
    return atwice(value)


class Twice:
    """Something that can be called."""

    def __call__(self, value: int) -> int:
        return 2 * value


class AsyncTwice:
    """The same, async."""

    async def __call__(self, value: int) -> int:
        return await atwice(value)


def by_run(call: Call, value: Any) -> Any:
    return call.run(value, CONFIG)


def by_arun(call: Call, value: Any) -> Any:
    return asyncio.run(call.arun(value, CONFIG))


both_ways = pytest.mark.parametrize("run", [by_run, by_arun])
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
            call_of(lambda _: future).run(21, CONFIG)

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
@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_what_ends_a_program_is_not_caught(stop: type[BaseException], run: Run) -> None:
    def end(_: Any) -> Any:
        raise stop

    with pytest.raises(stop):
        run(call_of(end), 1)


def test_cancellation_is_not_caught() -> None:
    async def wait(_: Any) -> None:
        await asyncio.sleep(3600)

    async def inside() -> None:
        task = asyncio.create_task(call_of(wait).arun(1, CONFIG))
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
        return [await call_of(atags_seen).arun(1, CONFIG), await atags_seen(1)]

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
        return await call_of(lambda _: done.wait(timeout=30)).arun(1, CONFIG)

    assert asyncio.run(inside()) is True
