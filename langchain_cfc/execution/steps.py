"""One description of a flow, carried out by sync or by async calls.

LangChain wants both paths to be real: `asyncio.run` inside a sync call breaks clients that live on another
loop, and a sync call inside an async one blocks the loop. So that nothing is written twice, a flow is a
generator that yields what is to be called and is sent what came of it.
"""

from __future__ import annotations

import asyncio
import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
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

from langchain_cfc._internal.text import quote
from langchain_cfc.errors import CFCError, DescriptionError, DrawError, ServingTimeoutError, VerifierError
from langchain_cfc.execution.limits import (
    CallLimits,
    apply_config_limits,
    current_limits,
    make_child_config,
    set_context_variable,
)

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


def run_flow(steps: Steps[T]) -> T:
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


async def arun_flow(steps: Steps[T]) -> T:
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


def call_each(
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
        lambda: _each(run, items, current_limits() if hold_places else CallLimits()),
        lambda: _aeach(arun, items, current_limits() if hold_places else CallLimits()),
    )


def unwrap_outcomes(outcomes: Sequence[Any]) -> list[Any]:
    """What was returned.

    Args:
        outcomes: What `call_each` gave.

    Raises:
        Exception: The first that it gave, if there is one.
    """
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome
    return list(outcomes)


def _each(run: Callable[[Any], Any], items: Sequence[Any], within: CallLimits) -> list[Any]:
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
        with set_context_variable(_THREADS, pool):
            yield
    finally:
        pool.shutdown(wait=False)


def _apart(one: Callable[[Any], Any], item: Any) -> Any:
    """Call in one of the threads. Flows in it get their own: to wait here for these might wait for ever."""
    with set_context_variable(_THREADS, None):
        return one(item)


async def _aeach(
    arun: Callable[[Any], Awaitable[Any]], items: Sequence[Any], within: CallLimits
) -> list[Any]:
    if len(items) == 1:
        return [await asyncio.ensure_future(_aoutcome(arun, within, items[0]))]
    tasks = [asyncio.ensure_future(_aoutcome(arun, within, item)) for item in items]
    # Told to return exceptions, it waits for all of them, so that none goes on when this is cancelled.
    await asyncio.gather(*tasks, return_exceptions=True)
    return [task.result() for task in tasks]


def _outcome(run: Callable[[Any], Any], within: CallLimits, item: Any) -> Any:
    # That no place could be had in time is no outcome of the call, and ends the flow.
    with within.held():
        try:
            return run(item)
        except Exception as error:  # noqa: BLE001 - an outcome like any other; the flow looks at it
            return error


async def _aoutcome(arun: Callable[[Any], Awaitable[Any]], within: CallLimits, item: Any) -> Any:
    if within.attempts is not None:
        return await within.attempts.aoutcome(arun, item, within)
    with _NOTHING if within.free else await within.aheld():
        try:
            return await arun(item)
        except Exception as error:  # noqa: BLE001 - an outcome like any other; the flow looks at it
            return error


class FlowRunnable(Runnable[Input, Output], ABC):
    """A Runnable that is written as a flow.

    What the flow calls takes its places within the bounds of the prompt that is served, call by call.
    """

    @abstractmethod
    def flow(self, given: Input, config: RunnableConfig) -> Steps[Output]:
        """What is done.

        Args:
            given: What it is invoked with.
            config: Config for whatever is called.

        Returns:
            What it is invoked for.
        """

    def steps(self, given: Input, config: RunnableConfig) -> Steps[Output]:
        """The same as a part of something larger: in a run of its own, where anybody hears of it."""
        if not _heard(config):
            return (yield from self.flow(given, config))
        found: Output = yield Step(lambda: self.invoke(given, config), lambda: self.ainvoke(given, config))
        return found

    def invoke(self, input: Input, config: RunnableConfig | None = None, **kwargs: Any) -> Output:  # noqa: A002 - LangChain's name
        """Carry the flow out."""
        return self._call_with_config(self._run, input, config, **kwargs)

    async def ainvoke(self, input: Input, config: RunnableConfig | None = None, **kwargs: Any) -> Output:  # noqa: A002 - LangChain's name
        """The same as `invoke`, asynchronously."""
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


def _heard(config: RunnableConfig) -> bool:
    """Whether anybody would hear of a run; to tell nobody costs more than many a flow."""
    callbacks = config.get("callbacks")
    if callbacks is None:
        return False
    # Whom the environment asks for, such as tracers, is only known once LangChain has made a manager.
    return any(not handler.ignore_chain for handler in CallbackManager.configure(callbacks).handlers)


Target: TypeAlias = Runnable[Any, Any] | Callable[[Any], Any]


_PLAIN = (float, int, str, list, dict)


class Call:
    """A function or Runnable, plain or async, called with one value or with several.

    A call holds a place within the bounds, and whatever it calls itself shares that place; a flow asks for
    places itself, for each of its calls.

    Args:
        part: What it is, for messages: `verifier`, `answer extractor`, `metadata function`.
        target: What to call.
        failure: The error that its failures become; one of this type that it raises itself passes.
    """

    def __init__(self, part: str, target: Target, failure: type[CFCError]) -> None:
        self._part = part
        self._target = target
        self._failure = failure

    def one(self, value: Any, config: RunnableConfig) -> Steps[Any]:
        """What the target makes of a value; models that a function calls inherit the config.

        Raises:
            CFCError: Of the type given, if the target fails, or is async where nothing can wait for it.
        """
        if not isinstance(self._target, FlowRunnable):
            return (yield from self.each([value], config))[0]
        with self._typed():
            return (yield from self._target.steps(value, config))

    def each(self, values: Sequence[Any], config: RunnableConfig) -> Steps[list[Any]]:
        """What the target makes of each value, at the same time."""
        run, arun = partial(self._run, config), partial(self._arun, config)
        with self._typed():
            hold_places = not isinstance(self._target, FlowRunnable)
            return unwrap_outcomes((yield call_each(run, arun, values, hold_places=hold_places)))

    def all(self, values: Sequence[Any], config: RunnableConfig) -> Steps[list[Any]]:
        """The same; a plain function takes them one by one, for it costs less than a thread would."""
        if isinstance(self._target, Runnable) or inspect.iscoroutinefunction(self._target):
            return (yield from self.each(values, config))
        with self._typed():
            found: list[Any] = yield Step(
                partial(self._run_all, config, values), partial(self._arun_all, config, values)
            )
        return found

    def _run(self, config: RunnableConfig, value: Any) -> Any:
        if isinstance(self._target, Runnable):
            return self._waited(self._target.invoke(value, config))
        # Runnables that a function calls without a config take it from there.
        with set_context_variable(var_child_runnable_config, config):
            return self._waited(self._target(value))

    async def _arun(self, config: RunnableConfig, value: Any) -> Any:
        if isinstance(self._target, Runnable):
            return await _awaited(await self._target.ainvoke(value, config))
        with set_context_variable(var_child_runnable_config, config):
            if inspect.iscoroutinefunction(self._target):
                return await self._target(value)
            return await _awaited(await run_in_executor(config, self._target, value))

    def _run_all(self, config: RunnableConfig, values: Sequence[Any]) -> list[Any]:
        with current_limits().held():
            return [self._run(config, value) for value in _in_time(values)]

    async def _arun_all(self, config: RunnableConfig, values: Sequence[Any]) -> list[Any]:
        """Called in one thread, off the loop, and awaited on it."""
        function: Any = self._target
        found: list[Any] = []

        def run_all() -> None:
            for value in _in_time(values):
                found.append(function(value))  # noqa: PERF401 - what was found before a failure counts

        with await current_limits().aheld(), set_context_variable(var_child_runnable_config, config):
            try:
                await run_in_executor(config, run_all)
                return [await _awaited(one) for one in found]
            finally:
                _close(found)

    @contextmanager
    def _typed(self) -> Iterator[None]:
        """Turn failures into the one error."""
        try:
            yield
        except (self._failure, ServingTimeoutError):
            raise
        except Exception as error:
            msg = f"the {self._part} failed with {describe_error(error)}"
            raise self._failure(msg) from error

    def _waited(self, found: Any) -> Any:
        """What was returned; refused where it would have to be awaited."""
        if not inspect.isawaitable(found):
            return found
        _close([found])
        msg = f"the {self._part} is async: use ainvoke, or pass a plain function"
        raise self._failure(msg)


# These may quote the words of a model's answer, or of code that failed on one.
_QUOTING = (DrawError, VerifierError, DescriptionError)


@contextmanager
def redact_errors() -> Iterator[None]:
    """Errors whose own words quote nobody: LangGraph writes those into checkpoints and streams."""
    try:
        yield
    except _QUOTING as error:
        # Of a kind of the user's own nobody knows what it is made of.
        kind = next(one for one in _QUOTING if isinstance(error, one))
        cause = f" ({type(error.__cause__).__name__})" if error.__cause__ is not None else ""
        msg = (
            f"no decision: {kind.__name__}{cause}; its words may quote candidates, and are left to the error "
            "that this one was raised from (`__cause__`), out of checkpoints and streams"
        )
        raise kind(msg) from error


def describe_error(error: BaseException) -> str:
    """Type and text of an exception, quoted for messages; the type alone where it has no text to give."""
    try:
        return f"{type(error).__name__}: {quote(str(error))}"
    except Exception:  # noqa: BLE001 - a `__str__` of the user's own may fail like all else
        return type(error).__name__


def _in_time(values: Sequence[Any]) -> Iterator[Any]:
    """Each value, as long as calls may start."""
    for value in values:
        current_limits().check()
        yield value


def _close(found: Sequence[Any]) -> None:
    """Coroutines that will not be awaited must not warn about that later; to others it does nothing."""
    for one in found:
        if inspect.iscoroutine(one):
            one.close()


async def _awaited(found: Any) -> Any:
    """What does not look async may be: `RunnableLambda(lambda x: judge(x))`, an object with `__call__`."""
    # To ask of anything whether it can be awaited takes longer than to see that it is plain.
    return found if isinstance(found, _PLAIN) or not inspect.isawaitable(found) else await found


def call_by_keys(function: Callable[..., Any], names: Sequence[str]) -> Callable[[Any], Any]:
    """A function as one of a mapping that holds its arguments by name, async if it is.

    Args:
        function: What to call.
        names: Under which names the mapping holds its arguments, in their order.

    Returns:
        A function of one mapping.
    """
    # No closure, for those cannot be pickled.
    return partial(_acalled if is_async_callable(function) else _called, function, names)


def _called(function: Callable[..., Any], names: Sequence[str], given: Mapping[str, Any]) -> Any:
    return function(*(given[name] for name in names))


async def _acalled(
    function: Callable[..., Awaitable[Any]], names: Sequence[str], given: Mapping[str, Any]
) -> Any:
    return await function(*(given[name] for name in names))
