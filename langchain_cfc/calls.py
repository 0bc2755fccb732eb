"""Calling what the user's own code holds, so that whatever goes wrong in it becomes one typed error."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.config import run_in_executor, var_child_runnable_config

from langchain_cfc.errors import ServingError

Target: TypeAlias = Runnable[Any, Any] | Callable[[Any], Any]


class Call:
    """A function or Runnable, plain or async, called with one value.

    Args:
        part: What it is, for messages: `verifier`, `answer extractor`, `metadata function`.
        target: What to call.
        failure: The error that its failures become; one of this type that it raises itself passes.
    """

    def __init__(self, part: str, target: Target, failure: type[ServingError]) -> None:
        self._part = part
        self._target = target
        self._failure = failure

    def run(self, value: Any, config: RunnableConfig) -> Any:
        """What the target makes of a value; models that a function calls inherit the config.

        Raises:
            ServingError: Of the type given, if the target fails or is async.
        """
        try:
            with _inherited(config):
                found = (
                    self._target.invoke(value, config)
                    if isinstance(self._target, Runnable)
                    else self._target(value)
                )
        except self._failure:
            raise
        except Exception as error:
            raise self._failed(error) from error
        if inspect.isawaitable(found):
            if inspect.iscoroutine(found):
                found.close()  # it will never be awaited, and must not warn about that later
            msg = f"the {self._part} is async: use ainvoke, or pass a plain function"
            raise self._failure(msg)
        return found

    async def arun(self, value: Any, config: RunnableConfig) -> Any:
        """The same, awaited where the target is async; a plain function runs in a thread, off the loop."""
        try:
            with _inherited(config):
                if isinstance(self._target, Runnable):
                    found = await self._target.ainvoke(value, config)
                elif inspect.iscoroutinefunction(self._target):
                    found = self._target(value)
                else:
                    found = await run_in_executor(config, self._target, value)
                # What does not look async may be: RunnableLambda(lambda x: judge(x)), or an object with
                # __call__.
                return await found if inspect.isawaitable(found) else found
        except self._failure:
            raise
        except Exception as error:
            raise self._failed(error) from error

    def _failed(self, error: Exception) -> ServingError:
        return self._failure(f"the {self._part} failed with {type(error).__name__}: {error}")


@contextmanager
def _inherited(config: RunnableConfig) -> Iterator[None]:
    """Give a config to every Runnable that is called meanwhile without one, as children of this run."""
    token = var_child_runnable_config.set(config)
    try:
        yield
    finally:
        var_child_runnable_config.reset(token)
