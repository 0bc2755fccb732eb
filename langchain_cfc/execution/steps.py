"""Flows: one description of a sequence of calls, carried out by sync or by async calls.

LangChain wants both paths to be real: `asyncio.run` inside a sync call breaks clients that live on another
loop, and a sync call inside an async one blocks the loop. So that nothing is written twice, a flow is a
generator that yields the `Step`s to be called and is sent their results.
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
    adispatch_custom_event,
    dispatch_custom_event,
)
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.config import (
    ContextThreadPoolExecutor,
    run_in_executor,
    var_child_runnable_config,
)
from langchain_core.runnables.utils import Input, Output, is_async_callable

from langchain_cfc._internal.text import quote
from langchain_cfc.errors import (
    CFCError,
    DescriptionError,
    DrawError,
    ServingTimeoutError,
    SplitterError,
    VerifierError,
)
from langchain_cfc.execution.limits import (
    CallLimits,
    RunManager,
    apply_config_limits,
    current_limits,
    make_child_config,
    set_context_variable,
)

T = TypeVar("T")


@dataclass(frozen=True)
class Step:
    """A call that a flow waits for: `run` makes it in a thread, `arun` on an event loop."""

    run: Callable[[], Any]
    arun: Callable[[], Awaitable[Any]]


Steps: TypeAlias = Generator[Step, Any, T]

# More than ever wait at once; threads are only started as they are needed.
_MOST_THREADS = 1000
_THREADS: ContextVar[ThreadPoolExecutor | None] = ContextVar("langchain_cfc_threads", default=None)


def run_flow(steps: Steps[T]) -> T:
    """Carry a flow out by sync calls and return its result; what a call raises is raised where it yielded."""
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
    """Carry a flow out by async calls; see `run_flow`."""
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
    """Return a step that calls with each of some items, concurrently as far as the limits allow.

    The step gives a list in the order of the items, with the result or the exception of each call. Where the
    deadline lets a call start no more, the step itself raises the `ServingTimeoutError`. With `hold_permits`
    False, no permits are acquired: the calls acquire their own.
    """
    return Step(
        partial(_call_each, run, items, hold_permits=hold_permits),
        partial(_acall_each, arun, items, hold_permits=hold_permits),
    )


def unwrap_outcomes(outcomes: Sequence[Any]) -> list[Any]:
    """Return the results that `call_each` gave, or raise the first exception among them."""
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome
    return list(outcomes)


def map_distinct(texts: Sequence[str], flow: Callable[[list[str]], Steps[Iterable[T]]]) -> Steps[list[T]]:
    """Run a flow once with the distinct texts, in their order, and return its result for each text."""
    distinct = list(dict.fromkeys(texts))
    by_text = dict(zip(distinct, (yield from flow(distinct)), strict=True))
    return [by_text[text] for text in texts]


def _call_each(run: Callable[[Any], Any], items: Sequence[Any], *, hold_permits: bool) -> list[Any]:
    limits = current_limits() if hold_permits else CallLimits()
    one = partial(_call, run, limits)
    pool = _THREADS.get()
    most = len(items) if limits.limiter is None else min(limits.limiter.size, len(items))
    if most <= 1:  # one after the other needs no thread
        return [copy_context().run(one, item) for item in items]
    if pool is None or most < len(items):
        with ContextThreadPoolExecutor(most) as executor:
            return list(executor.map(one, items))
    futures = []
    for item in items:
        context = copy_context()
        # Flows inside the call get threads of their own, since waiting for shared ones in one may deadlock.
        context.run(_THREADS.set, None)
        futures.append(pool.submit(context.run, one, item))
    return [future.result() for future in futures]


@contextmanager
def _shared_threads() -> Iterator[None]:
    """Share threads between the calls of a flow and of flows inside it; starting them costs more than a flow.

    There is one for each call, where LangChain has few more than there are cores: these wait for servers.
    """
    if _THREADS.get() is not None:
        yield
        return
    pool = ThreadPoolExecutor(_MOST_THREADS, "cfc")
    token = _THREADS.set(pool)
    try:
        yield
    finally:
        _THREADS.reset(token)
        pool.shutdown(wait=False)


async def _acall_each(
    arun: Callable[[Any], Awaitable[Any]], items: Sequence[Any], *, hold_permits: bool
) -> list[Any]:
    limits = current_limits() if hold_permits else CallLimits()
    if len(items) == 1:
        return [await asyncio.ensure_future(_acall(arun, limits, items[0]))]
    tasks = [asyncio.ensure_future(_acall(arun, limits, item)) for item in items]
    # With return_exceptions it waits for all of them, so that none goes on when this is cancelled.
    await asyncio.gather(*tasks, return_exceptions=True)
    return [task.result() for task in tasks]


def _call(run: Callable[[Any], Any], limits: CallLimits, item: Any) -> Any:
    # A permit that could not be acquired in time is no outcome of the call, and ends the flow.
    with limits.permit():
        try:
            return run(item)
        except Exception as error:  # noqa: BLE001 - an outcome like any other; the flow looks at it
            return error


async def _acall(arun: Callable[[Any], Awaitable[Any]], limits: CallLimits, item: Any) -> Any:
    if limits.attempts is not None:
        return await limits.attempts.aoutcome(arun, item, limits)
    with await limits.apermit():
        try:
            return await arun(item)
        except Exception as error:  # noqa: BLE001 - an outcome like any other; the flow looks at it
            return error


class Progress:
    """Dispatches custom events such as `cfc:drawn` to the handlers of a run, if any handler takes them.

    Args:
        run_manager: Of the run that the events belong to; None where there is no run.

    Attributes:
        has_listeners: Whether any handler takes custom events.
    """

    def __init__(self, run_manager: RunManager | None = None) -> None:
        handlers = [] if run_manager is None else run_manager.handlers
        self.has_listeners = any(not handler.ignore_custom_event for handler in handlers)
        self._config = RunnableConfig()
        if run_manager is not None and self.has_listeners:
            self._config["callbacks"] = run_manager.get_child()

    def dispatch(self, name: str, data: Mapping[str, Any]) -> None:
        """Dispatch a custom event; only where `has_listeners`."""
        dispatch_custom_event(name, dict(data), config=self._config)

    async def adispatch(self, name: str, data: Mapping[str, Any]) -> None:
        """Dispatch a custom event, asynchronously."""
        await adispatch_custom_event(name, dict(data), config=self._config)

    def report(self, name: str, data: Mapping[str, Any]) -> Steps[None]:
        """Dispatch a custom event as a part of a flow, if any handler takes it."""
        if self.has_listeners:
            yield Step(lambda: self.dispatch(name, data), lambda: self.adispatch(name, data))


class FlowRunnable(Runnable[Input, Output], ABC):
    """A Runnable that is written as one flow for the sync and the async path.

    The calls of the flow acquire permits within the limits of the prompt that is served, call by call.
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
        """Run as a part of a larger flow: in a run of its own, if any handler listens to chain runs."""
        # What the environment asks for, such as tracers, is only known once LangChain has made a manager.
        # A run without listeners costs more than many a flow.
        callbacks = config.get("callbacks")
        handlers = [] if callbacks is None else CallbackManager.configure(callbacks).handlers
        if all(handler.ignore_chain for handler in handlers):
            return (yield from self.flow(given, config))
        output: Output = yield Step(lambda: self.invoke(given, config), lambda: self.ainvoke(given, config))
        return output

    def invoke(self, input: Input, config: RunnableConfig | None = None, **kwargs: Any) -> Output:  # noqa: A002 - LangChain's name
        """Carry the flow out."""
        return self._call_with_config(self._run, input, config, **kwargs)

    async def ainvoke(self, input: Input, config: RunnableConfig | None = None, **kwargs: Any) -> Output:  # noqa: A002 - LangChain's name
        """Carry the flow out, asynchronously."""
        return await self._acall_with_config(self._arun, input, config, **kwargs)

    def _run(self, given: Input, run_manager: CallbackManagerForChainRun, config: RunnableConfig) -> Output:
        child = make_child_config(config, run_manager)
        with apply_config_limits(config, child):
            return run_flow(self.flow(given, child))

    async def _arun(
        self, given: Input, run_manager: AsyncCallbackManagerForChainRun, config: RunnableConfig
    ) -> Output:
        child = make_child_config(config, run_manager)
        with apply_config_limits(config, child):
            return await arun_flow(self.flow(given, child))


Target: TypeAlias = Runnable[Any, Any] | Callable[[Any], Any]


class Call:
    """A function or Runnable, plain or async, called with one value or with several.

    A call holds a permit, and whatever it calls itself shares that permit; a flow acquires permits itself,
    for each of its calls.

    Args:
        part: What it is, for messages: `verifier`, `answer extractor`, `metadata function`.
        target: What to call.
        failure: The error that its failures become; one of this type that it raises itself passes.
    """

    def __init__(self, part: str, target: Target, failure: type[CFCError]) -> None:
        self._part = part
        self._target = target
        self._failure = failure

    def invoke_one(self, value: Any, config: RunnableConfig) -> Steps[Any]:
        """Call with one value; models that a function calls inherit the config.

        Raises:
            CFCError: Of the type given, if the target fails, or is async where nothing can wait for it.
        """
        if not isinstance(self._target, FlowRunnable):
            return (yield from self.invoke_each([value], config))[0]
        with self._convert_errors():
            return (yield from self._target.steps(value, config))

    def invoke_each(self, values: Sequence[Any], config: RunnableConfig) -> Steps[list[Any]]:
        """Call with each value, concurrently."""
        run, arun = partial(self._run, config), partial(self._arun, config)
        with self._convert_errors():
            hold_permits = not isinstance(self._target, FlowRunnable)
            return unwrap_outcomes((yield call_each(run, arun, values, hold_permits=hold_permits)))

    def invoke_cheaply(self, values: Sequence[Any], config: RunnableConfig) -> Steps[list[Any]]:
        """Call with each value; a plain function one by one, which costs less than a thread for each call."""
        if isinstance(self._target, Runnable) or inspect.iscoroutinefunction(self._target):
            return (yield from self.invoke_each(values, config))
        with self._convert_errors():
            results: list[Any] = yield Step(
                partial(self._run_all, config, values), partial(self._arun_all, config, values)
            )
        return results

    def _run(self, config: RunnableConfig, value: Any) -> Any:
        if isinstance(self._target, Runnable):
            return self._refuse_awaitable(self._target.invoke(value, config))
        # Runnables that a function calls without a config take it from there. Each call has its own context.
        var_child_runnable_config.set(config)
        return self._refuse_awaitable(self._target(value))

    async def _arun(self, config: RunnableConfig, value: Any) -> Any:
        if isinstance(self._target, Runnable):
            return await _await_if_needed(await self._target.ainvoke(value, config))
        var_child_runnable_config.set(config)  # as above
        if inspect.iscoroutinefunction(self._target):
            return await self._target(value)
        return await _await_if_needed(await run_in_executor(config, self._target, value))

    def _run_all(self, config: RunnableConfig, values: Sequence[Any]) -> list[Any]:
        function: Any = self._target
        limits = current_limits()
        results = []
        with limits.permit(), set_context_variable(var_child_runnable_config, config):
            for value in values:
                limits.check_deadline()
                results.append(self._refuse_awaitable(function(value)))
        return results

    async def _arun_all(self, config: RunnableConfig, values: Sequence[Any]) -> list[Any]:
        """Call in one thread, off the loop, and await awaitable results on it."""
        function: Any = self._target
        limits = current_limits()
        results: list[Any] = []

        def run_all() -> None:
            for value in values:
                limits.check_deadline()
                results.append(function(value))  # results before a failure must be closed

        with await limits.apermit(), set_context_variable(var_child_runnable_config, config):
            try:
                await run_in_executor(config, run_all)
                return [await _await_if_needed(one) for one in results]
            finally:
                _close_coroutines(results)

    @contextmanager
    def _convert_errors(self) -> Iterator[None]:
        try:
            yield
        except (self._failure, ServingTimeoutError):
            raise
        except Exception as error:
            msg = f"the {self._part} failed with {describe_error(error)}"
            raise self._failure(msg) from error

    def _refuse_awaitable(self, result: Any) -> Any:
        if not inspect.isawaitable(result):
            return result
        _close_coroutines([result])
        msg = f"the {self._part} is async: use ainvoke, or pass a plain function"
        raise self._failure(msg)


def _close_coroutines(results: Sequence[Any]) -> None:
    """Close coroutines that will not be awaited, which would warn about that later."""
    for one in results:
        if inspect.iscoroutine(one):
            one.close()


_PLAIN = (float, int, str, list, dict)


async def _await_if_needed(result: Any) -> Any:
    """Await what does not look async but is: `RunnableLambda(lambda x: judge(x))`, or a `__call__`."""
    # Whether a value is plain is found out faster than whether it can be awaited.
    return result if isinstance(result, _PLAIN) or not inspect.isawaitable(result) else await result


def call_by_keys(function: Callable[..., Any], keys: Sequence[str] | None) -> Callable[[Any], Any]:
    """Make a function of one mapping, which holds its arguments; async if it is.

    `keys` are those of its positional arguments, in their order; None passes all of the mapping by keyword.
    """
    # No closure, because closures cannot be pickled.
    return partial(_acall_by_keys if is_async_callable(function) else _call_by_keys, function, keys)


def _call_by_keys(function: Callable[..., Any], keys: Sequence[str] | None, given: Mapping[str, Any]) -> Any:
    return function(**given) if keys is None else function(*map(given.__getitem__, keys))


async def _acall_by_keys(
    function: Callable[..., Awaitable[Any]], keys: Sequence[str] | None, given: Mapping[str, Any]
) -> Any:
    return await _call_by_keys(function, keys, given)


# These errors may quote a model's answer, or code that failed on one.
_QUOTING = (DrawError, SplitterError, VerifierError, DescriptionError)


@contextmanager
def redact_errors() -> Iterator[None]:
    """Redact errors that may quote candidates: LangGraph writes errors into checkpoints and streams."""
    try:
        yield
    except _QUOTING as error:
        # The constructor of a user's own subclass is unknown.
        kind = next(one for one in _QUOTING if isinstance(error, one))
        cause = f" ({type(error.__cause__).__name__})" if error.__cause__ is not None else ""
        msg = (
            f"no decision: {kind.__name__}{cause}; its words may quote candidates, and are left to the error "
            "that this one was raised from (`__cause__`), out of checkpoints and streams"
        )
        raise kind(msg) from error


def describe_error(error: BaseException) -> str:
    """Return type and text of an exception, quoted for messages; the type alone if its `__str__` fails."""
    try:
        return f"{type(error).__name__}: {quote(str(error))}"
    except Exception:  # noqa: BLE001 - a `__str__` of the user's own may fail like all else
        return type(error).__name__
