"""`Worker`: an actor that works on prompts, with clients of its own."""

from __future__ import annotations

import asyncio
import pkgutil
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

from langchain_core.runnables import RunnableConfig

from langchain_cfc.collect import CallPolicy, Components, LocalExecutor, Outcome, Usage
from langchain_cfc.errors import CFCError, InputError
from langchain_cfc.extend import ConcurrencyLimiter, DrawnCandidate
from langchain_cfc.records import Example
from langchain_cfc_ray.turns import repeated_on_cluster

Factory: TypeAlias = str | Callable[[], Components]


@dataclass(frozen=True)
class Orders:
    """What a worker is told when it begins.

    Attributes:
        factory: What makes the parts, there.
        pace: How calls are made on the whole cluster.
        config: LangChain config that all runs inherit.
    """

    factory: Factory
    pace: CallPolicy
    config: RunnableConfig | None


# The name of a journal's method, and its arguments.
Event: TypeAlias = tuple[str, tuple[Any, ...]]


class StreamJournal:
    """The journal of a stage on a worker: what is noted travels to the driver, which alone writes the store.

    Args:
        drawn: Candidates that are drawn already, by slot.
        context: Digest of what was prepared for the requests that drew them.
    """

    def __init__(self, drawn: Mapping[int, DrawnCandidate], context: str | None) -> None:
        self.drawn = drawn
        self.context = context
        self._events: asyncio.Queue[Event | None] = asyncio.Queue()

    def resume(self, context: str) -> Mapping[int, DrawnCandidate]:
        """Candidates that need not be drawn again."""
        self._events.put_nowait(("resume", (context,)))
        return self.drawn if context == self.context else {}

    def keep(self, slot: int, draw: DrawnCandidate, paid: Usage) -> None:
        """Take in a candidate, and what the stage took so far."""
        self._events.put_nowait(("keep", (slot, draw, paid)))

    def discard(self) -> None:
        """Drop all candidates that are there, which were refused."""
        self._events.put_nowait(("discard", ()))

    def lose(self) -> None:
        """Take in that a request failed which may have been answered."""
        self._events.put_nowait(("lose", ()))

    async def flushed(self) -> None:
        """Wait for nothing: a round to the driver before every request would take longer than the request."""

    async def stream(self, work: Coroutine[Any, Any, Outcome]) -> AsyncIterator[Event | Outcome]:
        """Do something, and yield what is noted meanwhile, and what came of it at last."""
        task = asyncio.ensure_future(work)
        task.add_done_callback(lambda _: self._events.put_nowait(None))
        try:
            while (event := await self._events.get()) is not None:
                yield event
            yield await task
        finally:
            task.cancel()


class Worker:
    """Works on prompts in a process of its own; clients are made there and never travel.

    Args:
        orders: What it is told.
        places: How many calls it makes at once.
        turns: Name of the actor that gives out the turns; None where there is no rate to keep.
    """

    def __init__(self, orders: Orders, places: int, turns: str | None) -> None:
        self._orders = orders
        self._places = places
        self._turns = turns

    @cached_property
    def _bench(self) -> LocalExecutor:
        orders = self._orders
        repeated = repeated_on_cluster(orders.pace, self._turns)
        return LocalExecutor(_made(orders.factory), ConcurrencyLimiter(self._places), repeated, orders.config)

    async def opened(self) -> dict[str, Any] | CFCError:
        """Make the parts: what they say of themselves, or why they cannot be made."""
        try:
            return self._bench.configuration
        except CFCError as error:
            return error

    async def draw(
        self, example: Example, drawn: Mapping[int, DrawnCandidate], context: str | None
    ) -> AsyncIterator[Event | Outcome]:
        """Draw n candidates, but for those that are drawn: each as soon as it is there, then the outcome."""
        journal = StreamJournal(drawn, context)
        async for event in journal.stream(self._bench.draw(example, journal)):
            yield event

    async def score(
        self, example: Example, draws: Sequence[DrawnCandidate]
    ) -> AsyncIterator[Event | Outcome]:
        """Score them."""
        journal = StreamJournal({}, None)
        async for event in journal.stream(self._bench.score(example, draws, journal)):
            yield event

    async def label(
        self, example: Example, draws: Sequence[DrawnCandidate]
    ) -> AsyncIterator[Event | Outcome]:
        """Label them, tell their answers apart and describe the prompt."""
        journal = StreamJournal({}, None)
        async for event in journal.stream(self._bench.label(example, draws, journal)):
            yield event


def _made(factory: Factory) -> Components:
    try:
        found = pkgutil.resolve_name(factory) if isinstance(factory, str) else factory
        parts = found()
    except CFCError:
        raise
    except Exception as error:
        msg = f"the factory {factory} failed on a worker with {type(error).__name__}: {error}"
        raise InputError(msg) from error
    if not isinstance(parts, Components):
        msg = f"the factory {factory} returned a {type(parts).__name__}; expected collect.Parts"
        raise InputError(msg)
    return parts
