"""Runnables that are broken on purpose, each in one way: the suite must find it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator
from itertools import count
from typing import Any, ClassVar

from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig

from langchain_cfc import CFCError, CFCResult, CFCRunnable
from tests.fakes import N


class Broken(CFCRunnable):
    """Serves as ever, with places to go wrong at."""

    def heard(self, config: RunnableConfig | None) -> RunnableConfig | None:
        """Return the config that it passes on."""
        return config

    def asked(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments that it passes on."""
        return arguments

    def changed(self, result: CFCResult) -> Any:
        """Return the result that it gives its caller."""
        return result

    def failed(self, error: CFCError) -> Any:
        """Return or raise what its caller gets for an error."""
        raise error

    def before(self, prompt: Any, config: RunnableConfig | None) -> None:
        """Run before each call."""

    async def abefore(self, prompt: Any, config: RunnableConfig | None) -> None:
        """Asynchronous counterpart of the function above."""

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:  # noqa: A002 - LangChain's name
        self.before(input, config)
        try:
            return self.changed(super().invoke(input, self.heard(config), **self.asked(kwargs)))
        except CFCError as error:
            return self.failed(error)

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:  # noqa: A002 - LangChain's name
        await self.abefore(input, config)
        try:
            return self.changed(await super().ainvoke(input, self.heard(config), **self.asked(kwargs)))
        except CFCError as error:
            return self.failed(error)


class Short(Broken):
    """Returns one candidate fewer."""

    def changed(self, result: CFCResult) -> Any:
        return result.model_copy(update={"candidates": result.candidates[:-1]})


class Shuffled(Broken):
    """Returns texts in other slots than those that they were drawn for, where it shows them all."""

    def changed(self, result: CFCResult) -> Any:
        if not self.show_rejected:
            return result
        others = (*result.candidates[1:], result.candidates[0])
        moved = [
            one.model_copy(update={"text": other.text})
            for one, other in zip(result.candidates, others, strict=True)
        ]
        return result.model_copy(update={"candidates": tuple(moved)})


class Overcounting(Broken):
    """Counts the usage of a request once for each candidate."""

    def changed(self, result: CFCResult) -> Any:
        usage = {name: N * count for name, count in (result.usage or {}).items() if isinstance(count, int)}
        return result.model_copy(update={"usage": usage})


class Unplain(Broken):
    """Returns a result that holds a message."""

    def changed(self, result: CFCResult) -> Any:
        return result.model_copy(update={"usage": {"said": AIMessage("lima")}})


class Annotated(CFCResult):
    """A result with a field that no schema knows."""

    note: str = "certified"


class Talkative(Broken):
    """Returns more than its schema allows."""

    def changed(self, result: CFCResult) -> Any:
        return Annotated(**{name: getattr(result, name) for name in CFCResult.model_fields})


class Telling(Broken):
    """Streams what it rejected."""

    def stream(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Iterator[Any]:  # noqa: A002 - LangChain's name
        yield self._telling().invoke(input, config, **kwargs)

    async def astream(
        self,
        input: Any,  # noqa: A002 - LangChain's name
        config: RunnableConfig | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[Any]:
        yield await self._telling().ainvoke(input, config, **kwargs)

    def _telling(self) -> Broken:
        # Only the piece tells; callbacks see the result as it should be.
        return Told(**{name: getattr(self, name) for name in type(self).model_fields})


class Told(Broken):
    """Says what it rejected where it says the best answer."""

    def changed(self, result: CFCResult) -> Any:
        return result.model_copy(update={"best": "not quito, and not bogota"})


class Loud(Broken):
    """Draws once more with a model that streams, for everyone to see."""

    def before(self, prompt: Any, config: RunnableConfig | None) -> None:
        for _ in range(N):
            self.generator.invoke(prompt, _without(config, "run_id"))

    async def abefore(self, prompt: Any, config: RunnableConfig | None) -> None:
        for _ in range(N):
            await self.generator.ainvoke(prompt, _without(config, "run_id"))


class Swallowing(Broken):
    """Makes nothing of an error."""

    def failed(self, error: CFCError) -> Any:
        del error


class Untyped(Broken):
    """Raises errors that are not the package's."""

    def failed(self, error: CFCError) -> Any:
        raise RuntimeError(str(error)) from error


class Causeless(Broken):
    """Raises errors that do not say what they came from."""

    def failed(self, error: CFCError) -> Any:
        raise type(error)(str(error)) from None


class Deaf(Broken):
    """Drops the callbacks of its config."""

    def heard(self, config: RunnableConfig | None) -> RunnableConfig | None:
        return _without(config, "callbacks")


class Untagged(Broken):
    """Drops the tags of its config."""

    def heard(self, config: RunnableConfig | None) -> RunnableConfig | None:
        return _without(config, "tags")


class Greedy(Broken):
    """Keeps to no limit."""

    def __init__(self, **fields: Any) -> None:
        super().__init__(**{**fields, "max_concurrency": None})

    def heard(self, config: RunnableConfig | None) -> RunnableConfig | None:
        return _without(_without(config, "max_concurrency"), "configurable")


class Stubborn(Broken):
    """Serves at its own level, whatever is asked for."""

    def asked(self, arguments: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in arguments.items() if name != "alpha"}


class Keeping(Broken):
    """Keeps every second result for ever."""

    def changed(self, result: CFCResult) -> Any:
        if next(self._numbers) % 2:
            self._kept.append(result)
        return result

    _numbers: ClassVar[Iterator[int]] = count()
    _kept: ClassVar[list[CFCResult]] = []


class Hanging(Broken):
    """Does not come to an end on an event loop, for a while that is longer than anyone waits."""

    async def abefore(self, prompt: Any, config: RunnableConfig | None) -> None:
        del prompt, config
        await asyncio.sleep(60)


class Lingering(Broken):
    """Leaves a thread and a task behind."""

    def before(self, prompt: Any, config: RunnableConfig | None) -> None:
        del prompt, config
        threading.Thread(target=time.sleep, args=(4.0,), daemon=True).start()

    async def abefore(self, prompt: Any, config: RunnableConfig | None) -> None:
        del prompt, config
        self._tasks.add(asyncio.ensure_future(asyncio.sleep(4.0)))

    # The event loop alone would forget them.
    _tasks: ClassVar[set[asyncio.Future[None]]] = set()


def _without(config: RunnableConfig | None, key: str) -> RunnableConfig | None:
    return config and RunnableConfig(**{name: value for name, value in config.items() if name != key})  # type: ignore[typeddict-item]  # a part of a config
