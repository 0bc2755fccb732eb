"""`Worker`: an actor that runs the stages of prompts, with its own clients."""

from __future__ import annotations

import asyncio
import pkgutil
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

from langchain_cfc_collect import CallPolicy, Components, LocalExecutor, Outcome, Usage
from langchain_core.runnables import RunnableConfig

from langchain_cfc.errors import CFCError, CollectionError, InputError
from langchain_cfc.extend import ConcurrencyLimiter, DrawnCandidate
from langchain_cfc_ray.rate_limits import create_cluster_retry_policy

Factory: TypeAlias = str | Callable[[], Components]


@dataclass(frozen=True)
class WorkerSettings:
    """Settings that every worker of a run gets.

    Attributes:
        factory: Creates the components on the worker.
        call_policy: Limits and retries of calls on the whole cluster.
        config: LangChain config that all runs inherit.
    """

    factory: Factory
    call_policy: CallPolicy
    config: RunnableConfig | None


# A call of a journal: the name of the method, and its arguments.
Event: TypeAlias = tuple[str, tuple[Any, ...]]
# A stage of a prompt: the name of an executor's method, its arguments except the journal, and the journal.
Job: TypeAlias = tuple[str, tuple[Any, ...], "StreamJournal"]
# Seconds to wait for further events before a message: the cost of a message hardly depends on its size.
_BATCH_SECONDS = 0.01


class StreamJournal:
    """The journal of a stage on a worker; it sends its events to the driver, which alone writes the store.

    Args:
        drawn: Stored candidates by slot.
        context: Digest of the prepared input that they were drawn for.
    """

    def __init__(self, drawn: Mapping[int, DrawnCandidate], context: str | None) -> None:
        self.drawn = drawn
        self.context = context
        self._send_event: Callable[[Event], object] = _ignore_event

    def connect(self, send_event: Callable[[Event], object]) -> None:
        """Send all events to a function from now on."""
        self._send_event = send_event

    def resume(self, context: str) -> Mapping[int, DrawnCandidate]:
        """Return the stored candidates if they were drawn for the prepared input with this digest."""
        self._send_event(("resume", (context,)))
        return self.drawn if context == self.context else {}

    def save_draw(self, slot: int, draw: DrawnCandidate, usage: Usage) -> None:
        """Store a candidate, and the usage of the stage so far."""
        self._send_event(("save_draw", (slot, draw, usage)))

    def discard_draws(self) -> None:
        """Delete all stored candidates, because the sampler rejected them."""
        self._send_event(("discard_draws", ()))

    def announce(self, requests: int) -> None:
        """Record that up to `requests` more requests may follow, for example another wave of draws."""
        self._send_event(("announce", (requests,)))

    def record_lost_request(self) -> None:
        """Record that a failed request may still have been answered and billed."""
        self._send_event(("record_lost_request", ()))

    async def flush(self) -> None:
        """Do nothing, because a round trip to the driver before every request would take too long."""


def _ignore_event(event: Event) -> None:
    """Ignore an event, as a journal that is not connected does."""
    del event


class Worker:
    """Runs the stages of prompts in its own process, where it also creates its clients.

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
    def executor(self) -> LocalExecutor:
        """The executor of the stages, with the components that the factory creates in this process."""
        settings = self._settings
        retry_policy = create_cluster_retry_policy(settings.call_policy, self._limiter_name)
        limiter = ConcurrencyLimiter(self._concurrency)
        return LocalExecutor(_create_components(settings.factory), limiter, retry_policy, settings.config)

    async def start(self) -> dict[str, Any] | CFCError:
        """Create the components; return the configuration, or the error if that fails."""
        try:
            return self.executor.configuration
        except CFCError as error:
            return error

    async def run(self, jobs: Sequence[Job]) -> AsyncIterator[list[tuple[int, Event | Outcome]]]:
        """Run stages of several prompts concurrently; yield events and outcomes with their job numbers."""
        events: asyncio.Queue[tuple[int, Event | Outcome]] = asyncio.Queue()
        tasks = [asyncio.ensure_future(self._run_job(number, job, events)) for number, job in enumerate(jobs)]
        left = len(jobs)
        try:
            while left:
                batch = [await events.get()]
                await asyncio.sleep(_BATCH_SECONDS)
                while not events.empty():
                    batch.append(events.get_nowait())
                left -= sum(isinstance(event, Outcome) for _, event in batch)
                yield batch
        finally:
            for task in tasks:
                task.cancel()

    async def _run_job(
        self, number: int, job: Job, events: asyncio.Queue[tuple[int, Event | Outcome]]
    ) -> None:
        stage, arguments, journal = job
        journal.connect(lambda event: events.put_nowait((number, event)))
        try:
            outcome = await _STAGES[stage](self.executor, journal, *arguments)
        except Exception as error:  # noqa: BLE001 - returned as an outcome, which the driver reports
            outcome = Outcome(CollectionError(f"the worker failed with {error!r:.200}"), Usage())
        events.put_nowait((number, outcome))


_STAGES: Mapping[str, Callable[..., Awaitable[Outcome]]] = {
    "draw": lambda executor, journal, example: executor.draw(example, journal),
    "split": lambda executor, journal, answer: executor.split(answer, journal),
    "score": lambda executor, journal, example, draws, answers: executor.score(
        example, draws, journal, answers
    ),
    "label": lambda executor, journal, example, draws: executor.label(example, draws, journal),
}


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
