"""One description of a flow, carried out by sync or by async calls.

LangChain wants both paths to be real: `asyncio.run` inside a sync call breaks clients that live on another
loop, and a sync call inside an async one blocks the loop. So that nothing is written twice, a flow is a
generator that yields what is to be called and is sent what came of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, TypeVar

from langchain_core.runnables.config import ContextThreadPoolExecutor

from langchain_cfc.calls.bounds import Bounds, bounds, setting

T = TypeVar("T")


@dataclass(frozen=True)
class Step:
    """Something to be called.

    Attributes:
        run: How, in a thread.
        arun: How, on an event loop.
    """

    run: Callable[[], Any]
    arun: Callable[[], Awaitable[Any]]


Steps: TypeAlias = Generator[Step, Any, T]

# More than ever wait at once; threads are only started as they are needed.
_MOST_THREADS = 1000
_NOTHING = nullcontext()
_THREADS: ContextVar[ThreadPoolExecutor | None] = ContextVar("langchain_cfc_threads", default=None)


def complete(steps: Steps[T]) -> T:
    """Carry a flow out by sync calls.

    Args:
        steps: The flow; what a call raises is raised where it yielded.

    Returns:
        What the flow returns.
    """
    go_on: Callable[[], Step] = partial(next, steps)
    try:
        with _threads():
            while True:
                go_on = _after(steps, go_on())
    except StopIteration as end:
        result: T = end.value
        return result


async def acomplete(steps: Steps[T]) -> T:
    """The same by async calls."""
    go_on: Callable[[], Step] = partial(next, steps)
    try:
        while True:
            go_on = await _aafter(steps, go_on())
    except StopIteration as end:
        result: T = end.value
        return result


def _after(steps: Steps[Any], step: Step) -> Callable[[], Step]:
    """How the flow goes on after a step: with what was returned, or with the exception."""
    try:
        return partial(steps.send, step.run())
    except Exception as error:  # noqa: BLE001 - the flow decides what a failure means
        return partial(steps.throw, error)


async def _aafter(steps: Steps[Any], step: Step) -> Callable[[], Step]:
    try:
        return partial(steps.send, await step.arun())
    except Exception as error:  # noqa: BLE001 - the flow decides what a failure means
        return partial(steps.throw, error)


def each(
    run: Callable[[Any], Any],
    arun: Callable[[Any], Awaitable[Any]],
    items: Sequence[Any],
    *,
    hold_places: bool = True,
) -> Step:
    """Call with each of some items, at the same time as far as the bounds allow.

    Args:
        run: What to call in a thread.
        arun: What to call on an event loop.
        items: What to call it with.
        hold_places: False for what asks for places itself, for each of its calls.

    Returns:
        A step that gives a list in the order of the items, with what was returned or the exception. Where the
        deadline lets a call start no more, the step itself raises the `ServingTimeoutError`.
    """
    return Step(
        lambda: _each(run, items, bounds() if hold_places else Bounds()),
        lambda: _aeach(arun, items, bounds() if hold_places else Bounds()),
    )


def succeeded(outcomes: Sequence[Any]) -> list[Any]:
    """What was returned.

    Args:
        outcomes: What `each` gave.

    Raises:
        Exception: The first that it gave, if there is one.
    """
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome
    return list(outcomes)


def _each(run: Callable[[Any], Any], items: Sequence[Any], within: Bounds) -> list[Any]:
    one = partial(_outcome, run, within)
    if len(items) <= 1:
        return [copy_context().run(one, item) for item in items]
    pool, most = _THREADS.get(), len(items) if within.limit is None else within.limit.size
    if pool is None or most < len(items):
        with ContextThreadPoolExecutor(min(most, len(items))) as executor:
            return list(executor.map(one, items))
    futures = [pool.submit(copy_context().run, _apart, one, item) for item in items]
    return [future.result() for future in futures]


@contextmanager
def _threads() -> Iterator[None]:
    """Threads for the calls of a flow and of those inside it; to start and end them costs more than a flow.

    There is one for each call, where LangChain has few more than there are cores: these wait for servers.
    """
    if _THREADS.get() is not None:
        yield
        return
    pool = ThreadPoolExecutor(_MOST_THREADS, "cfc")
    try:
        with setting(_THREADS, pool):
            yield
    finally:
        pool.shutdown(wait=False)


def _apart(one: Callable[[Any], Any], item: Any) -> Any:
    """Call in one of the threads. Flows in it get their own: to wait here for these might wait for ever."""
    with setting(_THREADS, None):
        return one(item)


async def _aeach(arun: Callable[[Any], Awaitable[Any]], items: Sequence[Any], within: Bounds) -> list[Any]:
    if len(items) == 1:
        return [await asyncio.ensure_future(_aoutcome(arun, within, items[0]))]
    tasks = [asyncio.ensure_future(_aoutcome(arun, within, item)) for item in items]
    # Told to return exceptions, it waits for all of them, so that none goes on when this is cancelled.
    await asyncio.gather(*tasks, return_exceptions=True)
    return [task.result() for task in tasks]


def _outcome(run: Callable[[Any], Any], within: Bounds, item: Any) -> Any:
    # That no place could be had in time is no outcome of the call, and ends the flow.
    with within.held():
        try:
            return run(item)
        except Exception as error:  # noqa: BLE001 - an outcome like any other; the flow looks at it
            return error


async def _aoutcome(arun: Callable[[Any], Awaitable[Any]], within: Bounds, item: Any) -> Any:
    if within.attempts is not None:
        return await within.attempts.aoutcome(arun, item, within)
    with _NOTHING if within.free else await within.aheld():
        try:
            return await arun(item)
        except Exception as error:  # noqa: BLE001 - an outcome like any other; the flow looks at it
            return error
