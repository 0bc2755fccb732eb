"""`Worker`: an actor that runs the stages of prompts, with clients of its own."""

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
from langchain_cfc_ray.rate_limits import create_cluster_retry_policy

Factory: TypeAlias = str | Callable[[], Components]


@dataclass(frozen=True)
class WorkerSettings:
    """Settings that every worker of a run gets.

    Attributes:
        factory: What creates the components, on the worker.
        call_policy: Limits and retries of calls on the whole cluster.
        config: LangChain config that all runs inherit.
    """

    factory: Factory
    call_policy: CallPolicy
    config: RunnableConfig | None


# The name of a journal's method, and its arguments.
Event: TypeAlias = tuple[str, tuple[Any, ...]]


class StreamJournal:
    """The journal of a stage on a worker: notes travel to the driver, which alone writes the store.

    Args:
        drawn: Stored candidates by slot.
        context: Digest of the prepared input that they were drawn for.
    """

    def __init__(self, drawn: Mapping[int, DrawnCandidate], context: str | None) -> None:
        self.drawn = drawn
        self.context = context
        self._events: asyncio.Queue[Event | None] = asyncio.Queue()

    def resume(self, context: str) -> Mapping[int, DrawnCandidate]:
        """Return the candidates that need not be drawn again for the prepared input with this digest."""
        self._events.put_nowait(("resume", (context,)))
        return self.drawn if context == self.context else {}

    def save_draw(self, slot: int, draw: DrawnCandidate, usage: Usage) -> None:
        """Store a candidate, and the usage of the stage so far."""
        self._events.put_nowait(("save_draw", (slot, draw, usage)))

    def discard_draws(self) -> None:
        """Delete all stored candidates, because the sampler refused them."""
        self._events.put_nowait(("discard_draws", ()))

    def announce(self, requests: int) -> None:
        """Note that so many further requests may follow, as those of another wave of draws."""
        self._events.put_nowait(("announce", (requests,)))

    def record_lost_request(self) -> None:
        """Note that a request failed that may have been answered."""
        self._events.put_nowait(("record_lost_request", ()))

    async def flush(self) -> None:
        """Do nothing: a round trip to the driver before every request would take longer than the request."""

    async def stream(self, work: Coroutine[Any, Any, Outcome]) -> AsyncIterator[Event | Outcome]:
        """Run a stage; yield its notes as they come, and then its outcome."""
        task = asyncio.ensure_future(work)
        task.add_done_callback(lambda _: self._events.put_nowait(None))
        try:
            while (event := await self._events.get()) is not None:
                yield event
            yield await task
        finally:
            task.cancel()


class Worker:
    """Runs the stages of prompts in a process of its own; clients are created there and never travel.

    Args:
        settings: Settings of all workers.
        concurrency: Maximum number of concurrent calls of this worker.
        limiter_name: Name of the actor with the rate limiters; None if there is no rate limit.
    """

    def __init__(self, settings: WorkerSettings, concurrency: int, limiter_name: str | None) -> None:
        self._settings = settings
        self._concurrency = concurrency
        self._limiter_name = limiter_name

    @cached_property
    def _executor(self) -> LocalExecutor:
        settings = self._settings
        retry_policy = create_cluster_retry_policy(settings.call_policy, self._limiter_name)
        limiter = ConcurrencyLimiter(self._concurrency)
        return LocalExecutor(_create_components(settings.factory), limiter, retry_policy, settings.config)

    async def start(self) -> dict[str, Any] | CFCError:
        """Create the components; return the configuration, or the error if that fails."""
        try:
            return self._executor.configuration
        except CFCError as error:
            return error

    async def draw(
        self, example: Example, drawn: Mapping[int, DrawnCandidate], context: str | None
    ) -> AsyncIterator[Event | Outcome]:
        """Draw n candidates, except for those that are stored; yield the notes, then the outcome."""
        journal = StreamJournal(drawn, context)
        async for event in journal.stream(self._executor.draw(example, journal)):
            yield event

    async def split(self, answer: DrawnCandidate) -> AsyncIterator[Event | Outcome]:
        """Split the first answer of a prompt into claims; yield the notes, then the outcome."""
        journal = StreamJournal({}, None)
        async for event in journal.stream(self._executor.split(answer, journal)):
            yield event

    async def score(
        self, example: Example, draws: Sequence[DrawnCandidate], answers: Sequence[DrawnCandidate] | None
    ) -> AsyncIterator[Event | Outcome]:
        """Score the candidates or claims of a prompt; yield the notes, then the outcome."""
        journal = StreamJournal({}, None)
        async for event in journal.stream(self._executor.score(example, draws, journal, answers)):
            yield event

    async def label(
        self, example: Example, draws: Sequence[DrawnCandidate]
    ) -> AsyncIterator[Event | Outcome]:
        """Label the candidates of a prompt; yield the notes, then the outcome."""
        journal = StreamJournal({}, None)
        async for event in journal.stream(self._executor.label(example, draws, journal)):
            yield event


def _create_components(factory: Factory) -> Components:
    try:
        create = pkgutil.resolve_name(factory) if isinstance(factory, str) else factory
        components = create()
    except CFCError:
        raise
    except Exception as error:
        msg = f"the factory {factory} failed on a worker with {type(error).__name__}: {error}"
        raise InputError(msg) from error
    if not isinstance(components, Components):
        msg = f"the factory {factory} returned a {type(components).__name__}; expected collect.Components"
        raise InputError(msg)
    return components
