"""`Progress`: custom events for handlers that accept them, in order, by sync and async calls."""

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


class EventRecorder(BaseCallbackHandler):
    """Records the events of a handler, and of which run they are."""

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


class AsyncEventRecorder(AsyncCallbackHandler):
    """Asynchronous counterpart of the class above."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Any]] = []

    async def on_custom_event(self, name: str, data: Any, **kwargs: Any) -> None:
        del kwargs
        self.events.append((name, data))


class NoCustomEvents(EventRecorder):
    """A handler that wants no custom events."""

    @property
    def ignore_custom_event(self) -> bool:
        return True


def report_events(progress: Progress) -> Steps[None]:
    for name, data in EVENTS:
        yield from progress.report(name, data)


class Reporter(Runnable[Any, bool]):
    """Tells all events of a run; returns whether anyone listens."""

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> bool:  # noqa: A002
        return self._call_with_config(self._run, input, config, **kwargs)

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> bool:  # noqa: A002
        return await self._acall_with_config(self._arun, input, config, **kwargs)

    def _run(self, _: Any, run_manager: Any) -> bool:
        progress = Progress(run_manager)
        run_flow(report_events(progress))
        return progress.has_listeners

    async def _arun(self, _: Any, run_manager: Any) -> bool:
        progress = Progress(run_manager)
        await arun_flow(report_events(progress))
        return progress.has_listeners


def report_sync(handlers: list[BaseCallbackHandler]) -> bool:
    return Reporter().invoke(0, {"callbacks": handlers})


def report_async(handlers: list[BaseCallbackHandler]) -> bool:
    return asyncio.run(Reporter().ainvoke(0, {"callbacks": handlers}))


both_ways = pytest.mark.parametrize("tell", [report_sync, report_async])
Tell = Callable[[list[BaseCallbackHandler]], bool]


@both_ways
def test_progress_reports_all_events_in_order_for_its_run(tell: Tell) -> None:
    handler = EventRecorder()
    assert tell([handler])
    assert handler.events == EVENTS
    assert handler.runs == set(handler.started)


def test_progress_reports_to_async_handlers() -> None:
    handler = AsyncEventRecorder()
    assert report_async([handler])
    assert handler.events == EVENTS


@both_ways
def test_progress_without_listeners_reports_nothing(tell: Tell) -> None:
    assert not tell([])
    deaf = NoCustomEvents()
    assert not tell([deaf])
    assert deaf.started
    assert deaf.events == []


@both_ways
def test_progress_reports_to_one_listener_among_others(tell: Tell) -> None:
    deaf, handler = NoCustomEvents(), EventRecorder()
    assert tell([deaf, handler])
    assert (deaf.events, handler.events) == ([], EVENTS)


@both_ways
def test_progress_data_cannot_be_changed_by_a_handler(tell: Tell) -> None:
    class Vandal(EventRecorder):
        def on_custom_event(self, name: str, data: Any, **kwargs: Any) -> None:
            del name, kwargs
            data.clear()

    before = [(name, dict(data)) for name, data in EVENTS]
    assert tell([Vandal()])
    assert before == EVENTS


def test_progress_without_a_run_reports_nothing() -> None:
    handler = EventRecorder()

    def alone(_: Any) -> None:
        run_flow(report_events(Progress()))
        asyncio.run(arun_flow(report_events(Progress())))

    RunnableLambda(alone).invoke(0, {"callbacks": [handler]})
    assert handler.started
    assert handler.events == []
