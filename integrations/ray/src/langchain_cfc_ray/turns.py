"""One rate limit for a whole cluster: an actor that gives out the turns, and limiters that ask it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import uuid4

import ray
from langchain_core.rate_limiters import BaseRateLimiter
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from langchain_cfc.collect import CallPolicy
from langchain_cfc.extend import RetryPolicy, TokenTurns

# Beyond the calls that wait for their turns: those that say what they took.
_SPARE = 64


class Limiter:
    """Gives out the turns of all calls, as an actor.

    Args:
        pace: Its rates are those of the whole cluster.
    """

    def __init__(self, pace: CallPolicy) -> None:
        self._turns = pace.repeated.turns

    async def take(self, number: int, *, blocking: bool) -> bool:
        """Wait for a turn of one of the limiters."""
        return await self._turns[number].aacquire(blocking=blocking)

    async def settle(self, number: int, calls: int, tokens: int) -> None:
        """Say what calls took."""
        turn = self._turns[number]
        if isinstance(turn, TokenTurns):
            turn.settle(calls, tokens)


class ClusterTurns(BaseRateLimiter):
    """Turns that an actor gives out.

    Args:
        limiter: The actor, a `Limiter`.
        number: Which of its limiters.
    """

    def __init__(self, limiter: Any, number: int) -> None:
        self._limiter = limiter
        self._number = number

    def acquire(self, *, blocking: bool = True) -> bool:
        """Wait for a turn in a thread."""
        return bool(ray.get(self._limiter.take.remote(self._number, blocking=blocking)))

    async def aacquire(self, *, blocking: bool = True) -> bool:
        """Wait for a turn on an event loop."""
        return bool(await self._limiter.take.remote(self._number, blocking=blocking))


class ClusterTokenTurns(ClusterTurns, TokenTurns):
    """The same for tokens, which are settled once a call has answered."""

    def settle(self, calls: int, tokens: int) -> None:
        """Say what calls took; nobody waits for it to be heard."""
        self._limiter.settle.remote(self._number, calls, tokens)


def begun_limiter(pace: CallPolicy) -> tuple[str, Any] | None:
    """The actor that gives out the turns of a cluster, and the name that others find it by.

    It stays beside the driver, without which there is nothing to wait for. Should it die all the same, Ray
    starts it again and asks it again for every turn that it had not given out.

    Args:
        pace: Its rates are those of the whole cluster.

    Returns:
        Name and handle; None where there is no rate to keep.
    """
    if not pace.repeated.turns:
        return None
    # Actors that Ray starts again are made of the same arguments, and handles do not keep among those.
    name = f"langchain-cfc-turns-{uuid4().hex}"
    beside = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
    options = {
        "name": name,
        "num_cpus": 0,
        "max_restarts": -1,
        "max_task_retries": -1,
        "max_concurrency": pace.concurrency + _SPARE,
        "scheduling_strategy": beside,
    }
    return name, ray.remote(Limiter).options(**options).remote(pace)


def repeated_on_cluster(pace: CallPolicy, name: str | None) -> RetryPolicy:
    """How each call is made where the turns are those of a cluster.

    Args:
        pace: How calls are made.
        name: Of the actor that gives out the turns; None where there is no rate to keep.
    """
    made = pace.repeated
    if name is None:
        return made
    limiter = ray.get_actor(name)
    turns = [
        ClusterTokenTurns(limiter, number) if isinstance(turn, TokenTurns) else ClusterTurns(limiter, number)
        for number, turn in enumerate(made.turns)
    ]
    return replace(made, turns=tuple(turns))
