"""`RayBench`: prompts worked on by actors of a Ray cluster."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import ray
from langchain_core.runnables import RunnableConfig
from ray import cloudpickle
from ray.exceptions import ActorDiedError, RayError, RayTaskError

from langchain_cfc.collect import CallPolicy, Journal, Outcome, Usage
from langchain_cfc.errors import CFCError, CollectionError, InputError
from langchain_cfc.extend import DrawnCandidate
from langchain_cfc.records import Example
from langchain_cfc_ray.turns import begun_limiter
from langchain_cfc_ray.worker import Factory, Orders, Worker

if TYPE_CHECKING:
    from typing_extensions import Self

# Seconds without any actor after which a prompt fails; an autoscaler takes minutes to bring a node.
PATIENCE = 600.0
# Seconds between two questions to an actor whether it is back.
_PAUSE = 1.0
# A prompt that has taken so many workers with it will take the next one as well.
MOST_DEATHS = 4
# Prompts that one actor takes at a time, more than there ever are: those of actors that died are its as well.
_AT_ONCE = 1000


@dataclass(eq=False)
class _Hand:
    """An actor, and how many prompts it has.

    Attributes:
        actor: The handle.
        load: Prompts that it works on.
    """

    actor: Any
    load: int = 0


class RayBench:
    """Works on prompts by actors of a Ray cluster: `async with RayBench(...) as bench:`.

    Each prompt goes to the actor that has the fewest. When an actor, its process or its node dies, the
    prompts that it had go to others at once, and it is given new ones when Ray has started it again.

    Args:
        factory: What makes the parts, on each actor: an import path `MODULE:NAME`, or a function or bound
            method that can be pickled.
        pace: How calls are made: concurrency and rates are those of the whole cluster.
        actors: Number of actors, at least 1 and at most `pace.concurrency`.
        each: Ray's options of each actor, such as `num_cpus`, `num_gpus`, `resources` and `runtime_env`.
        config: LangChain config that all runs inherit; it is pickled.
        patience: Seconds to wait for a first actor, and for one to come back where all have died.

    Raises:
        InputError: If a setting cannot be used, or the factory cannot be sent.
    """

    def __init__(
        self,
        factory: Factory,
        pace: CallPolicy,
        *,
        actors: int,
        each: Mapping[str, Any] | None = None,
        config: RunnableConfig | None = None,
        patience: float = PATIENCE,
    ) -> None:
        if not isinstance(actors, int) or not 1 <= actors <= pace.concurrency:  # type: ignore[redundant-expr]  # files hold anything
            msg = (
                f"actors is {actors!r}; expected a whole number from 1 to the concurrency of "
                f"{pace.concurrency}, which they share"
            )
            raise InputError(msg)
        self._orders = Orders(factory, pace, config)
        _check_travels(self._orders)
        self._pace = pace
        self._size = actors
        self._each = dict(each or {})
        self._patience = patience
        self._hands: list[_Hand] = []
        self._ready: set[_Hand] = set()
        self._limiters: list[Any] = []
        self._waiting: set[asyncio.Task[None]] = set()
        self._somebody = asyncio.Event()
        self._refusal: CFCError | None = None
        self._configuration: dict[str, Any] | None = None

    async def __aenter__(self) -> Self:
        turns = self._limiter()
        # Shares of the cluster's places, as equal as can be.
        bounds = [number * self._pace.concurrency // self._size for number in range(self._size + 1)]
        try:
            for first, last in pairwise(bounds):
                self._hands.append(_Hand(self._begun(last - first, turns)))
            for hand in self._hands:
                self._wait_for(hand)
            await self._least_busy()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *exception: object) -> None:
        """End all actors, and with them the calls that nobody waits for any more."""
        for task in self._waiting:
            task.cancel()
        await asyncio.gather(*self._waiting, return_exceptions=True)
        for actor in (*(hand.actor for hand in self._hands), *self._limiters):
            with suppress(RayError):  # of a cluster that is gone itself
                ray.kill(actor)
        self._hands, self._limiters, self._ready = [], [], set()

    @property
    def configuration(self) -> dict[str, Any]:
        """Whatever makes other records, as plain data; all actors say the same."""
        if self._configuration is None:
            msg = "no actor has begun yet: use it as `async with RayBench(...) as bench:`"
            raise InputError(msg)
        return self._configuration

    async def draw(self, example: Example, journal: Journal) -> Outcome:
        """Draw n candidates, but for those that the journal knows."""
        return await self._done("draw", journal, lambda: (example, dict(journal.drawn), journal.context))

    async def score(self, example: Example, draws: Sequence[DrawnCandidate], journal: Journal) -> Outcome:
        """Score them."""
        return await self._done("score", journal, lambda: (example, draws))

    async def label(self, example: Example, draws: Sequence[DrawnCandidate], journal: Journal) -> Outcome:
        """Label them, tell their answers apart and describe the prompt."""
        return await self._done("label", journal, lambda: (example, draws))

    def _limiter(self) -> str | None:
        """The name of an actor that gives out turns."""
        begun = begun_limiter(self._pace)
        if begun is None:
            return None
        name, limiter = begun
        self._limiters.append(limiter)
        return name

    def _begun(self, places: int, turns: str | None) -> Any:
        """An actor, which Ray starts again wherever there is room should it die."""
        options = {
            "scheduling_strategy": "SPREAD",
            **self._each,
            "max_restarts": -1,
            # What was in flight goes to another at once, instead of waiting for this one to be back.
            "max_task_retries": 0,
            "max_concurrency": max(_AT_ONCE, 2 * self._pace.concurrency),
        }
        return ray.remote(Worker).options(**options).remote(self._orders, places, turns)

    async def _done(self, stage: str, journal: Journal, given: Callable[[], tuple[Any, ...]]) -> Outcome:
        """A stage of a prompt, by whoever has the least to do; by another one where that one dies.

        Raises:
            CFCError: If nobody can do it, which is no fault of the prompt and ends the run.
        """
        error: CFCError | None = None
        for _ in range(MOST_DEATHS):
            hand = await self._least_busy()
            hand.load += 1
            try:
                return await _outcome(getattr(hand.actor, stage).remote(*given()), journal)
            except RayTaskError as failure:
                msg = f"the worker failed with {failure.cause!r:.200}"
                return Outcome(CollectionError(msg), Usage())
            except RayError as death:
                error = CollectionError(f"{MOST_DEATHS} workers died while at it, the last one so: {death}")
                self._lose(hand)
                # What was in flight may have been answered: at most what is missing.
                for _ in range(self.configuration["n"] - len(journal.drawn) if stage == "draw" else 1):
                    journal.lose()
            finally:
                hand.load -= 1
        return Outcome(error, Usage())

    async def _least_busy(self) -> _Hand:
        """Whoever has the fewest prompts, of those that can be reached.

        Raises:
            CollectionError: If nobody can be for longer than there is patience.
            CFCError: If an actor cannot make its parts, or has made others than the rest.
        """
        try:
            if not self._somebody.is_set():
                await asyncio.wait_for(self._somebody.wait(), self._patience)
        except asyncio.TimeoutError:
            msg = (
                f"no actor could be reached for {self._patience:g} seconds: the cluster has "
                f"{ray.available_resources()} left, and each of {self._size} actors asks for {self._each}"
            )
            raise CollectionError(msg) from None
        if self._refusal is not None:
            raise self._refusal
        return min(self._ready, key=lambda hand: hand.load)

    def _lose(self, hand: _Hand) -> None:
        """Give an actor nothing more until it is back."""
        if hand in self._ready:
            self._ready.discard(hand)
            if not self._ready:
                self._somebody.clear()
            self._wait_for(hand)

    def _wait_for(self, hand: _Hand) -> None:
        task = asyncio.ensure_future(self._until_ready(hand))
        self._waiting.add(task)
        task.add_done_callback(self._waiting.discard)

    async def _until_ready(self, hand: _Hand) -> None:
        """Give an actor prompts as soon as it has made its parts, and they are those of all others."""
        said = await self._opened(hand)
        if self._configuration is None and not isinstance(said, CFCError):
            self._configuration = said
        if isinstance(said, CFCError):
            self._refusal = said
        elif said != self._configuration:
            self._refusal = InputError(_contrast(self._configuration, said))
        else:
            self._ready.add(hand)
        self._somebody.set()

    async def _opened(self, hand: _Hand) -> dict[str, Any] | CFCError:
        while True:
            try:
                said: dict[str, Any] | CFCError = await hand.actor.opened.remote()
            except ActorDiedError as error:
                if self._configuration is None:  # it never began, so what it is made with does not work
                    return CollectionError(f"an actor could not be started: {error}")
            except RayTaskError as error:
                return CollectionError(f"an actor could not begin: {error.cause!r:.500}")
            except RayError:
                pass  # on its way back
            else:
                return said
            await asyncio.sleep(_PAUSE)


async def _outcome(stream: Any, journal: Journal) -> Outcome:
    """What came of a stage, whose events are noted in the journal as they come."""
    async for reference in stream:
        event = await reference
        if isinstance(event, Outcome):
            return event
        name, arguments = event
        getattr(journal, name)(*arguments)
    msg = "the worker ended without an outcome"
    raise CollectionError(msg)


def _check_travels(orders: Orders) -> None:
    try:
        cloudpickle.dumps(orders)
    except Exception as error:
        msg = (
            f"the factory or the config cannot be sent to other machines: {error}. Give the factory's import "
            "path, and make clients, locks and files in it"
        )
        raise InputError(msg) from error


def _contrast(one: Mapping[str, Any] | None, other: Mapping[str, Any]) -> str:
    known = one or {}
    different = [name for name in {**known, **other} if known.get(name, math.nan) != other.get(name)]
    listed = "; ".join(f"{name}: {known.get(name)!r:.80} and {other.get(name)!r:.80}" for name in different)
    return (
        f"two actors have made different parts ({listed}), and their records would not be exchangeable: let "
        "all nodes have the same code and settings"
    )
