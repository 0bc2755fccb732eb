"""`Progress`: custom events for handlers that want them, in order, both ways."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

import pytest
from langchain_core.callbacks import AsyncCallbackHandler, BaseCallbackHandler
from langchain_core.runnables import Runnable, RunnableConfig, RunnableLambda

from langchain_cfc.execution import Progress, Steps, arun_flow, run_flow

EVENTS: list[tuple[str, Mapping[str, Any]]] = [
    ("cfc:drawn", {"slot": 1}),
    ("cfc:drawn", {"slot": 0}),
    ("cfc:scored", {"scores": [0.1, 0.9]}),
]


class Told(BaseCallbackHandler):
    """What a handler was told, and for which run."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Any]] = []
        self.runs: set[UUID] = set()
        self.started: list[UUID] = []

    def on_chain_start(self, *args: Any, run_id: UUID, **kwargs: Any) -> None:
        del args, kwargs
        self.started.append(run_id)

    def on_custom_event(self, name: str, data: Any, *, run_id: UUID, **kwargs: Any) -> None:
        del kwargs
        self.events.append((name, data))
        self.runs.add(run_id)


class AsyncTold(AsyncCallbackHandler):
    """The same, async."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Any]] = []

    async def on_custom_event(self, name: str, data: Any, **kwargs: Any) -> None:
        del kwargs
        self.events.append((name, data))


class Deaf(Told):
    """A handler that wants no custom events."""

    @property
    def ignore_custom_event(self) -> bool:
        return True


def flow(progress: Progress) -> Steps[None]:
    for name, data in EVENTS:
        yield from progress.report(name, data)


class Telling(Runnable[Any, bool]):
    """Tells all events of a run; returns whether anyone listens."""

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> bool:  # noqa: A002
        return self._call_with_config(self._run, input, config, **kwargs)

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> bool:  # noqa: A002
        return await self._acall_with_config(self._arun, input, config, **kwargs)

    def _run(self, _: Any, run_manager: Any) -> bool:
        progress = Progress(run_manager)
        run_flow(flow(progress))
        return progress.has_listeners

    async def _arun(self, _: Any, run_manager: Any) -> bool:
        progress = Progress(run_manager)
        await arun_flow(flow(progress))
        return progress.has_listeners


def tell_sync(handlers: list[BaseCallbackHandler]) -> bool:
    return Telling().invoke(0, {"callbacks": handlers})


def tell_async(handlers: list[BaseCallbackHandler]) -> bool:
    return asyncio.run(Telling().ainvoke(0, {"callbacks": handlers}))


both_ways = pytest.mark.parametrize("tell", [tell_sync, tell_async])
Tell = Callable[[list[BaseCallbackHandler]], bool]


@both_ways
def test_a_handler_is_told_everything_in_order_for_its_run(tell: Tell) -> None:
    handler = Told()
    assert tell([handler])
    assert handler.events == EVENTS
    assert handler.runs == set(handler.started)


def test_an_async_handler_is_told_as_well() -> None:
    handler = AsyncTold()
    assert tell_async([handler])
    assert handler.events == EVENTS


@both_ways
def test_who_does_not_listen_is_not_told_and_costs_nothing(tell: Tell) -> None:
    assert not tell([])
    deaf = Deaf()
    assert not tell([deaf])
    assert deaf.started
    assert deaf.events == []


@both_ways
def test_one_listener_among_deaf_ones_is_told(tell: Tell) -> None:
    deaf, handler = Deaf(), Told()
    assert tell([deaf, handler])
    assert (deaf.events, handler.events) == ([], EVENTS)


@both_ways
def test_what_a_handler_does_to_the_data_changes_nothing(tell: Tell) -> None:
    class Vandal(Told):
        def on_custom_event(self, name: str, data: Any, **kwargs: Any) -> None:
            del name, kwargs
            data.clear()

    before = [(name, dict(data)) for name, data in EVENTS]
    assert tell([Vandal()])
    assert before == EVENTS


def test_without_a_run_no_event_is_sent() -> None:
    handler = Told()

    def alone(_: Any) -> None:
        run_flow(flow(Progress()))
        asyncio.run(arun_flow(flow(Progress())))

    RunnableLambda(alone).invoke(0, {"callbacks": [handler]})
    assert handler.started
    assert handler.events == []
