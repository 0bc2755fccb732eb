"""Flows: sequences of calls that are written once and run either synchronously or asynchronously.

LangChain needs a real implementation of both paths: `asyncio.run` inside a sync call breaks clients that
belong to another loop, and a sync call inside an async one blocks the loop. To avoid writing everything
twice, a flow is a generator that yields the `Step`s to call and receives their results.
"""

from __future__ import annotations

import asyncio
import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, TypeVar

from langchain_core.callbacks import (
    AsyncCallbackManagerForChainRun,
    CallbackManager,
    CallbackManagerForChainRun,
)
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.config import (
    ContextThreadPoolExecutor,
    run_in_executor,
    var_child_runnable_config,
)
from langchain_core.runnables.utils import Input, Output, is_async_callable

from langchain_cfc.errors import CFCError, ServingTimeoutError
from langchain_cfc.execution.failures import describe_error, is_own_error
from langchain_cfc.execution.limits import (
    CallLimits,
    apply_config_limits,
    get_current_limits,
    make_child_config,
)
from langchain_cfc.support.text import withholds_quotes

T = TypeVar("T")


@dataclass(frozen=True)
class Step:
    """A call that a flow waits for: `run` makes it synchronously, `arun` on an event loop."""

    run: Callable[[], Any]
    arun: Callable[[], Awaitable[Any]]


Steps: TypeAlias = Generator[Step, Any, T]

# More than are ever needed at once; threads are only started on demand.
_MAX_THREADS = 1000
_THREADS: ContextVar[ThreadPoolExecutor | None] = ContextVar("langchain_cfc_threads", default=None)


def run_flow(steps: Steps[T]) -> T:
    """Run a flow with sync calls and return its result; errors of a call are raised inside the flow."""
    resume: Callable[[], Step] = partial(next, steps)
    try:
        with _shared_threads():
            while True:
                step = resume()
                try:
                    resume = partial(steps.send, step.run())
                except Exception as error:  # noqa: BLE001 - the flow decides what a failure means
                    resume = partial(steps.throw, error)
    except StopIteration as end:
        result: T = end.value
        return result


async def arun_flow(steps: Steps[T]) -> T:
    """Run a flow with async calls and return its result; see `run_flow`."""
    resume: Callable[[], Step] = partial(next, steps)
    try:
        while True:
            step = resume()
            try:
                resume = partial(steps.send, await step.arun())
            except Exception as error:  # noqa: BLE001 - the flow decides what a failure means
                resume = partial(steps.throw, error)
    except StopIteration as end:
        result: T = end.value
        return result


def call_each(
    run: Callable[[Any], Any],
    arun: Callable[[Any], Awaitable[Any]],
    items: Sequence[Any],
    *,
    hold_permits: bool = True,
) -> Step:
    """Return a step that makes one call per item, as concurrently as the limits allow.

    The step's result is a list in the order of the items, with the result or the exception of each call. If
    the deadline passes before a call can start, the step itself raises a `ServingTimeoutError`. If
    `hold_permits` is False, the step acquires no permits, because the calls acquire their own.
    """
    return Step(
        partial(_call_each, run, items, hold_permits=hold_permits),
        partial(_acall_each, arun, items, hold_permits=hold_permits),
    )


def unwrap_outcomes(outcomes: Sequence[Any]) -> list[Any]:
    """Return the results of `call_each`, or raise the first exception among them."""
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome
    return list(outcomes)


def map_distinct(texts: Sequence[str], flow: Callable[[list[str]], Steps[Iterable[T]]]) -> Steps[list[T]]:
    """Run a flow once on the distinct texts, in order of appearance, and return its result for each text."""
    distinct = list(dict.fromkeys(texts))
    by_text = dict(zip(distinct, (yield from flow(distinct)), strict=True))
    return [by_text[text] for text in texts]


def _call_each(run: Callable[[Any], Any], items: Sequence[Any], *, hold_permits: bool) -> list[Any]:
    limits = get_current_limits() if hold_permits else CallLimits()
    one = partial(_call_in_permit, run, limits)
    pool = _THREADS.get()
    most = len(items) if limits.limiter is None else min(limits.limiter.size, len(items))
    if most <= 1:  # sequential calls need no threads
        return [copy_context().run(one, item) for item in items]
    if pool is None or most < len(items):
        with ContextThreadPoolExecutor(most) as executor:
            return list(executor.map(one, items))
    futures = []
    for item in items:
        context = copy_context()
        # Flows inside the call get their own threads: waiting in a shared thread for others may deadlock.
        context.run(_THREADS.set, None)
        futures.append(pool.submit(context.run, one, item))
    return [future.result() for future in futures]


@contextmanager
def _shared_threads() -> Iterator[None]:
    """Share one thread pool between the steps of a flow, because starting threads costs more than a flow.

    There is one thread per call, whereas LangChain's default is little more than the number of cores: these
    threads only wait for servers.
    """
    if _THREADS.get() is not None:
        yield
        return
    pool = ThreadPoolExecutor(_MAX_THREADS, "cfc")
    token = _THREADS.set(pool)
    try:
        yield
    finally:
        _THREADS.reset(token)
        pool.shutdown(wait=False)


async def _acall_each(
    arun: Callable[[Any], Awaitable[Any]], items: Sequence[Any], *, hold_permits: bool
) -> list[Any]:
    limits = get_current_limits() if hold_permits else CallLimits()
    if len(items) == 1:
        return [await asyncio.ensure_future(_acall_in_permit(arun, limits, items[0]))]
    tasks = [asyncio.ensure_future(_acall_in_permit(arun, limits, item)) for item in items]
    # With `return_exceptions`, this waits for all tasks, even if it is cancelled, so that none goes on.
    await asyncio.gather(*tasks, return_exceptions=True)
    return [task.result() for task in tasks]


def _call_in_permit(run: Callable[[Any], Any], limits: CallLimits, item: Any) -> Any:
    # Failing to acquire a permit in time is not an outcome of the call: it raises and ends the step.
    with limits.acquire_permit():
        try:
            return run(item)
        except Exception as error:  # noqa: BLE001 - an outcome like any other; the flow handles it
            return error


async def _acall_in_permit(arun: Callable[[Any], Awaitable[Any]], limits: CallLimits, item: Any) -> Any:
    if limits.attempts is not None:
        return await limits.attempts(arun, item, limits)
    with await limits.aacquire_permit():
        try:
            return await arun(item)
        except Exception as error:  # noqa: BLE001 - an outcome like any other; the flow handles it
            return error


class FlowRunnable(Runnable[Input, Output], ABC):
    """A Runnable that is written as a single flow for the sync and the async path.

    Each call of the flow acquires its own permit, within the limits of the prompt that is being served.
    """

    @abstractmethod
    def flow(self, given: Input, config: RunnableConfig) -> Steps[Output]:
        """Compute the output for an input.

        Args:
            given: The input.
            config: Config for all calls of the flow.

        Returns:
            A generator of steps that returns the output.
        """

    def steps(self, given: Input, config: RunnableConfig) -> Steps[Output]:
        """Run as part of a larger flow: as a child run if any handler listens to chain runs, else inline."""
        # A run without listeners costs more than many flows do. Handlers that the environment asks for, such
        # as tracers, are only known once LangChain has made a manager, which is expensive.
        callbacks = config.get("callbacks")
        if isinstance(callbacks, list):
            callbacks = CallbackManager.configure(callbacks)
        if callbacks is None or all(handler.ignore_chain for handler in callbacks.handlers):
            return (yield from self.flow(given, config))
        output: Output = yield Step(lambda: self.invoke(given, config), lambda: self.ainvoke(given, config))
        return output

    def invoke(self, input: Input, config: RunnableConfig | None = None, **kwargs: Any) -> Output:  # noqa: A002 - LangChain's name
        """Run the flow."""
        return self._call_with_config(self._run, input, config, **kwargs)

    async def ainvoke(self, input: Input, config: RunnableConfig | None = None, **kwargs: Any) -> Output:  # noqa: A002 - LangChain's name
        """Run the flow asynchronously."""
        return await self._acall_with_config(self._arun, input, config, **kwargs)

    def _run(
        self, given: Input, run_manager: CallbackManagerForChainRun, config: RunnableConfig, **kwargs: Any
    ) -> Output:
        child = make_child_config(config, run_manager)
        with apply_config_limits(config, child):
            return run_flow(self.flow(given, child, **kwargs))

    async def _arun(
        self,
        given: Input,
        run_manager: AsyncCallbackManagerForChainRun,
        config: RunnableConfig,
        **kwargs: Any,
    ) -> Output:
        child = make_child_config(config, run_manager)
        with apply_config_limits(config, child):
            return await arun_flow(self.flow(given, child, **kwargs))


Target: TypeAlias = Runnable[Any, Any] | Callable[[Any], Any]


class Call:
    """Calls a function or Runnable, plain or async, with one value or with several.

    A call holds a permit, which its nested calls share. A `FlowRunnable` instead acquires a permit for each
    of its own calls.

    Args:
        part: The target's role, for messages: `verifier`, `answer extractor`, `metadata function`.
        target: The function or Runnable.
        failure: The error type that its errors are converted to; errors of this type pass unchanged, unless
            they may quote what is to be withheld.
    """

    def __init__(self, part: str, target: Target, failure: type[CFCError]) -> None:
        self._part = part
        self._target = target
        self._failure = failure

    def invoke_one(self, value: Any, config: RunnableConfig) -> Steps[Any]:
        """Return the target's result for one value; models that a function calls inherit the config.

        Raises:
            CFCError: Of type `failure`, if the target fails, or is async but called synchronously.
        """
        if not isinstance(self._target, FlowRunnable):
            return (yield from self.invoke_each([value], config))[0]
        with self._convert_errors():
            return (yield from self._target.steps(value, config))

    def invoke_each(self, values: Sequence[Any], config: RunnableConfig) -> Steps[list[Any]]:
        """Return the target's results for several values, called concurrently."""
        run, arun = partial(self._run, config), partial(self._arun, config)
        with self._convert_errors():
            hold_permits = not isinstance(self._target, FlowRunnable)
            return unwrap_outcomes((yield call_each(run, arun, values, hold_permits=hold_permits)))

    def _run(self, config: RunnableConfig, value: Any) -> Any:
        if isinstance(self._target, Runnable):
            return self._refuse_awaitable(self._target.invoke(value, config))
        # Runnables that the function calls without a config inherit this one. Each call has its own context.
        var_child_runnable_config.set(config)
        return self._refuse_awaitable(self._target(value))

    async def _arun(self, config: RunnableConfig, value: Any) -> Any:
        if isinstance(self._target, Runnable):
            return await _await_if_needed(await self._target.ainvoke(value, config))
        var_child_runnable_config.set(config)  # as above
        if inspect.iscoroutinefunction(self._target):
            return await self._target(value)
        return await _await_if_needed(await run_in_executor(config, self._target, value))

    @contextmanager
    def _convert_errors(self) -> Iterator[None]:
        try:
            yield
        except ServingTimeoutError:
            raise
        except Exception as error:
            if isinstance(error, self._failure) and (is_own_error(error) or not withholds_quotes()):
                raise
            msg = f"the {self._part} failed with {describe_error(error)}"
            raise self._failure(msg) from error

    def _refuse_awaitable(self, result: Any) -> Any:
        if not inspect.isawaitable(result):
            return result
        if inspect.iscoroutine(result):
            result.close()  # so that Python does not warn that it was not awaited
        msg = f"the {self._part} is async: use ainvoke, or pass a plain function"
        raise self._failure(msg)


async def _await_if_needed(result: Any) -> Any:
    """Await results of callables that do not look async, such as `RunnableLambda(lambda x: judge(x))`."""
    return await result if inspect.isawaitable(result) else result


def call_by_keys(function: Callable[..., Any], keys: Sequence[str] | None) -> Callable[[Any], Any]:
    """Return a function of a single mapping that calls `function` with its values; async if that is.

    `keys` are the keys of the positional arguments, in order; None passes the whole mapping by keyword.
    """
    # Not a closure, because closures cannot be pickled.
    return partial(_acall_by_keys if is_async_callable(function) else _call_by_keys, function, keys)


def _call_by_keys(function: Callable[..., Any], keys: Sequence[str] | None, given: Mapping[str, Any]) -> Any:
    return function(**given) if keys is None else function(*map(given.__getitem__, keys))


async def _acall_by_keys(
    function: Callable[..., Awaitable[Any]], keys: Sequence[str] | None, given: Mapping[str, Any]
) -> Any:
    return await _call_by_keys(function, keys, given)
