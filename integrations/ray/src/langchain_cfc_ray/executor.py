"""`RayExecutor`: run the stages of prompts on actors of a Ray cluster."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import ray
from langchain_cfc_collect import CallPolicy, Journal, Outcome, Usage
from langchain_core.runnables import RunnableConfig
from ray import cloudpickle
from ray.exceptions import ActorDiedError, RayError, RayTaskError

from langchain_cfc.errors import CFCError, CollectionError, InputError
from langchain_cfc.extend import DrawnCandidate
from langchain_cfc.records import Example
from langchain_cfc_ray.rate_limits import start_limiter
from langchain_cfc_ray.worker import Event, Factory, Job, StreamJournal, Worker, WorkerSettings

if TYPE_CHECKING:
    from typing_extensions import Self

# Seconds without any actor after which a prompt fails; an autoscaler takes minutes to start a node.
PATIENCE = 600.0
# Seconds between two checks whether an actor is back.
_RESTART_SECONDS = 1.0
# After this many dead workers, a prompt is assumed to be the cause and fails.
MAX_DEATHS = 4
# Maximum number of stages in one message to an actor, and the seconds to wait for more of them.
_MAX_CHUNK = 64
_CHUNK_SECONDS = 0.005
# Maximum concurrent calls on one actor; large, because prompts of dead actors move to the others.
_MAX_CONCURRENCY = 1000


@dataclass(eq=False)
class _PendingJob:
    """A stage of a prompt that runs on an actor, or is about to be sent to it."""

    stage: str
    arguments: tuple[Any, ...]
    journal: Journal
    outcome: asyncio.Future[Outcome]

    def describe(self) -> Job:
        """Return the job for the worker, with a journal in the current state of this one."""
        is_draw = self.stage == "draw"
        drawn = dict(self.journal.drawn) if is_draw else {}
        return self.stage, self.arguments, StreamJournal(drawn, self.journal.context if is_draw else None)

    def take(self, event: Event | Outcome) -> None:
        """Apply an event to the journal, or complete the job with an outcome."""
        if self.outcome.done():  # its caller was cancelled
            return
        if isinstance(event, Outcome):
            self.outcome.set_result(event)
        else:
            name, arguments = event
            getattr(self.journal, name)(*arguments)


class _Actor:
    """An actor with the stages of prompts that run on it; stages are sent in chunks."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle
        self.load = 0
        self._waiting: list[_PendingJob] = []
        self._sending: set[asyncio.Task[None]] = set()

    async def run(self, stage: str, arguments: tuple[Any, ...], journal: Journal) -> Outcome:
        """Return the outcome of a stage; raise a `RayError` if the actor dies meanwhile."""
        loop = asyncio.get_running_loop()
        job = _PendingJob(stage, arguments, journal, loop.create_future())
        self._waiting.append(job)
        if len(self._waiting) == 1:
            loop.call_later(_CHUNK_SECONDS, self._send)
        elif len(self._waiting) == _MAX_CHUNK:
            self._send()
        self.load += 1
        try:
            return await job.outcome
        finally:
            self.load -= 1

    def _send(self) -> None:
        jobs, self._waiting = self._waiting, []
        if jobs:  # empty if they were already sent in a full chunk
            task = asyncio.ensure_future(self._run_chunk(jobs))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    async def _run_chunk(self, jobs: Sequence[_PendingJob]) -> None:
        failure: Exception = CollectionError("the worker ended without an outcome")
        try:
            async for reference in self.handle.run.remote([job.describe() for job in jobs]):
                for number, event in await reference:
                    jobs[number].take(event)
        except Exception as error:  # noqa: BLE001 - raised where the jobs are awaited
            failure = error
        for job in jobs:
            if not job.outcome.done():
                job.outcome.set_exception(failure)


class RayExecutor:
    """Runs the stages of prompts on actors of a Ray cluster: `async with RayExecutor(...) as executor:`.

    Each prompt goes to the actor with the fewest prompts. When an actor, its process or its node dies, its
    prompts move to other actors at once; it gets new prompts when Ray has restarted it.

    Args:
        factory: Creates the components on each actor: an import path `MODULE:NAME`, or a function or bound
            method that can be pickled.
        call_policy: Limits and retries of calls; concurrency and rates apply to the whole cluster.
        actors: Number of actors, at least 1 and at most `call_policy.concurrency`.
        each: Ray options for each actor, such as `num_cpus`, `num_gpus`, `resources` and `runtime_env`.
        config: LangChain config that all runs inherit; it is pickled.
        patience: Seconds to wait for the first actor, and for any actor to come back if all have died.

    Raises:
        InputError: If a setting cannot be used, or the factory cannot be pickled.
    """

    def __init__(
        self,
        factory: Factory,
        call_policy: CallPolicy,
        *,
        actors: int,
        each: Mapping[str, Any] | None = None,
        config: RunnableConfig | None = None,
        patience: float = PATIENCE,
    ) -> None:
        if not isinstance(actors, int) or not 1 <= actors <= call_policy.concurrency:  # type: ignore[redundant-expr]  # files hold anything
            msg = (
                f"actors is {actors!r}; expected a whole number from 1 to the concurrency of "
                f"{call_policy.concurrency}, which they share"
            )
            raise InputError(msg)
        self._settings = WorkerSettings(factory, call_policy, config)
        check_picklable(self._settings)
        self._call_policy = call_policy
        self._size = actors
        self._each = dict(each or {})
        self._patience = patience
        self._actors: list[_Actor] = []
        self._ready: set[_Actor] = set()
        self._limiters: list[Any] = []
        self._starting: set[asyncio.Task[None]] = set()
        self._any_ready = asyncio.Event()
        self._start_error: CFCError | None = None
        self._configuration: dict[str, Any] | None = None

    async def __aenter__(self) -> Self:
        limiter_name = self._start_limiter()
        # The actors share the concurrency as equally as possible.
        bounds = [number * self._call_policy.concurrency // self._size for number in range(self._size + 1)]
        try:
            for first, last in pairwise(bounds):
                self._actors.append(_Actor(self._start_actor(last - first, limiter_name)))
            for actor in self._actors:
                self._await_start(actor)
            await self._await_actor()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *exception: object) -> None:
        """End all actors, and with them the calls in flight."""
        for task in self._starting:
            task.cancel()
        await asyncio.gather(*self._starting, return_exceptions=True)
        for handle in (*(actor.handle for actor in self._actors), *self._limiters):
            with suppress(RayError):  # the cluster may have ended
                ray.kill(handle)
        self._actors, self._limiters, self._ready = [], [], set()

    @property
    def configuration(self) -> dict[str, Any]:
        """Everything that affects records, as plain data; the same on all actors."""
        if self._configuration is None:
            msg = "no actor has started yet: use it as `async with RayExecutor(...) as executor:`"
            raise InputError(msg)
        return self._configuration

    async def draw(self, example: Example, journal: Journal) -> Outcome:
        """Draw n candidates, except for those that the journal already holds."""
        return await self._run("draw", journal, example)

    async def split(self, answer: DrawnCandidate, journal: Journal) -> Outcome:
        """Split the first answer of a prompt into claims."""
        return await self._run("split", journal, answer)

    async def score(
        self,
        example: Example,
        draws: Sequence[DrawnCandidate],
        journal: Journal,
        answers: Sequence[DrawnCandidate] | None = None,
    ) -> Outcome:
        """Score the candidates of a prompt, or the claims of its first answer."""
        return await self._run("score", journal, example, draws, answers)

    async def label(self, example: Example, draws: Sequence[DrawnCandidate], journal: Journal) -> Outcome:
        """Label the candidates of a prompt, extract their answers and compute its metadata."""
        return await self._run("label", journal, example, draws)

    def _start_limiter(self) -> str | None:
        """Start the actor with the rate limiters and return its name; None if there is no rate limit."""
        started = start_limiter(self._call_policy)
        if started is None:
            return None
        name, limiter = started
        self._limiters.append(limiter)
        return name

    def _start_actor(self, concurrency: int, limiter_name: str | None) -> Any:
        """Start an actor, which Ray restarts on any node if it dies."""
        options = {
            "scheduling_strategy": "SPREAD",
            **self._each,
            "max_restarts": -1,
            # Prompts in flight move to another actor at once instead of waiting for this one.
            "max_task_retries": 0,
            "max_concurrency": max(_MAX_CONCURRENCY, 2 * self._call_policy.concurrency),
        }
        return ray.remote(Worker).options(**options).remote(self._settings, concurrency, limiter_name)

    async def _run(self, stage: str, journal: Journal, *arguments: Any) -> Outcome:
        """Run a stage of a prompt on the least busy actor, and on another one if that dies.

        Raises `CFCError` if no actor is available, which is not the prompt's fault and ends the run.
        """
        error: CFCError | None = None
        for _ in range(MAX_DEATHS):
            actor = await self._await_actor()
            try:
                return await actor.run(stage, arguments, journal)
            except RayTaskError as failure:
                msg = f"the worker failed with {failure.cause!r:.200}"
                return Outcome(CollectionError(msg), Usage())
            except RayError as death:
                error = CollectionError(
                    f"{MAX_DEATHS} workers died while running this, the last one with: {death}"
                )
                self._drop(actor)
                # Requests in flight may have been answered and billed: at most one per missing candidate.
                for _ in range(self.configuration["n"] - len(journal.drawn) if stage == "draw" else 1):
                    journal.record_lost_request()
        return Outcome(error, Usage())

    async def _await_actor(self) -> _Actor:
        """Return the ready actor with the fewest prompts.

        Raises `CollectionError` if none becomes ready in time, and `CFCError` if an actor could not create
        its components, or created different ones than the other actors.
        """
        try:
            if not self._any_ready.is_set():
                await asyncio.wait_for(self._any_ready.wait(), self._patience)
        except asyncio.TimeoutError:
            msg = (
                f"no actor became ready in {self._patience:g} seconds: the cluster has "
                f"{ray.available_resources()} left, and each of {self._size} actors requests {self._each}"
            )
            raise CollectionError(msg) from None
        if self._start_error is not None:
            raise self._start_error
        return min(self._ready, key=lambda actor: actor.load)

    def _drop(self, actor: _Actor) -> None:
        """Stop using an actor until it has been restarted."""
        if actor in self._ready:
            self._ready.discard(actor)
            if not self._ready:
                self._any_ready.clear()
            self._await_start(actor)

    def _await_start(self, actor: _Actor) -> None:
        task = asyncio.ensure_future(self._add_when_started(actor))
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)

    async def _add_when_started(self, actor: _Actor) -> None:
        """Use an actor as soon as it has created its components, if they equal those of the others."""
        started = await self._start_worker(actor)
        if self._configuration is None and not isinstance(started, CFCError):
            self._configuration = started
        if isinstance(started, CFCError):
            self._start_error = started
        elif started != self._configuration:
            self._start_error = InputError(explain_difference(self._configuration, started))
        else:
            self._ready.add(actor)
        self._any_ready.set()

    async def _start_worker(self, actor: _Actor) -> dict[str, Any] | CFCError:
        while True:
            try:
                started: dict[str, Any] | CFCError = await actor.handle.start.remote()
            except ActorDiedError as error:
                if self._configuration is None:  # no actor has started yet, so the settings do not work
                    return CollectionError(f"an actor could not be started: {error}")
            except RayTaskError as error:
                return CollectionError(f"an actor could not be set up: {error.cause!r:.500}")
            except RayError:
                pass  # Ray is restarting it
            else:
                return started
            await asyncio.sleep(_RESTART_SECONDS)


def check_picklable(settings: WorkerSettings) -> None:
    """Raise an `InputError` if the settings cannot be sent to other machines."""
    try:
        cloudpickle.dumps(settings)
    except Exception as error:
        msg = (
            f"the factory or the config cannot be sent to other machines: {error}. Give the factory's "
            "import path, and create clients, locks and files in it"
        )
        raise InputError(msg) from error


def explain_difference(one: Mapping[str, Any] | None, other: Mapping[str, Any]) -> str:
    """Return a message that explains how the configurations of two actors differ."""
    known = one or {}
    different = [name for name in {**known, **other} if known.get(name, math.nan) != other.get(name)]
    listed = "; ".join(f"{name}: {known.get(name)!r:.80} and {other.get(name)!r:.80}" for name in different)
    return (
        f"two actors created different components ({listed}), so their records would not be exchangeable: "
        "use the same code and settings on all nodes"
    )
