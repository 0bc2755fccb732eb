"""Calling what the user's own code holds, so that whatever goes wrong in it becomes one typed error."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeAlias

from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.config import run_in_executor, var_child_runnable_config
from langchain_core.runnables.utils import is_async_callable

from langchain_cfc._text import quote
from langchain_cfc.calls.bounds import bounds, setting
from langchain_cfc.calls.flow import FlowRunnable
from langchain_cfc.calls.steps import Step, Steps, each, succeeded
from langchain_cfc.errors import CFCError, DescriptionError, DrawError, ServingTimeoutError, VerifierError

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
            return succeeded((yield each(run, arun, values, hold_places=hold_places)))

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
        with setting(var_child_runnable_config, config):
            return self._waited(self._target(value))

    async def _arun(self, config: RunnableConfig, value: Any) -> Any:
        if isinstance(self._target, Runnable):
            return await _awaited(await self._target.ainvoke(value, config))
        with setting(var_child_runnable_config, config):
            if inspect.iscoroutinefunction(self._target):
                return await self._target(value)
            return await _awaited(await run_in_executor(config, self._target, value))

    def _run_all(self, config: RunnableConfig, values: Sequence[Any]) -> list[Any]:
        with bounds().held():
            return [self._run(config, value) for value in _in_time(values)]

    async def _arun_all(self, config: RunnableConfig, values: Sequence[Any]) -> list[Any]:
        """Called in one thread, off the loop, and awaited on it."""
        function: Any = self._target
        found: list[Any] = []

        def run_all() -> None:
            for value in _in_time(values):
                found.append(function(value))  # noqa: PERF401 - what was found before a failure counts

        with await bounds().aheld(), setting(var_child_runnable_config, config):
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
            msg = f"the {self._part} failed with {described(error)}"
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
def unquoted() -> Iterator[None]:
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


def described(error: BaseException) -> str:
    """Type and text of an exception, quoted for messages; the type alone where it has no text to give."""
    try:
        return f"{type(error).__name__}: {quote(str(error))}"
    except Exception:  # noqa: BLE001 - a `__str__` of the user's own may fail like all else
        return type(error).__name__


def _in_time(values: Sequence[Any]) -> Iterator[Any]:
    """Each value, as long as calls may start."""
    for value in values:
        bounds().check()
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


def by_name(function: Callable[..., Any], names: Sequence[str]) -> Callable[[Any], Any]:
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
