"""Rate limits for a whole cluster: an actor that holds the rate limiters, and limiters that call it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import uuid4

import ray
from langchain_cfc_collect import CallPolicy, RetryPolicy, TokenRateLimiter
from langchain_core.rate_limiters import BaseRateLimiter
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

# Concurrent requests to the actor in addition to waiting ones: those that settle tokens.
_SPARE_CALLS = 64


class LimiterActor:
    """The actor that holds the rate limiters for all calls of a cluster."""

    def __init__(self, policy: CallPolicy) -> None:
        self._limiters = policy.create_retry_policy().rate_limiters

    async def acquire(self, number: int, *, blocking: bool) -> bool:
        """Wait until limiter `number` lets a call through; without `blocking`, return whether it does now."""
        return await self._limiters[number].aacquire(blocking=blocking)

    async def settle(self, number: int, calls: int, tokens: int) -> None:
        """Report the tokens of finished calls to limiter `number`."""
        limiter = self._limiters[number]
        if isinstance(limiter, TokenRateLimiter):
            limiter.settle(calls, tokens)


class ClusterRateLimiter(BaseRateLimiter):
    """A rate limiter that delegates to one of the limiters of a `LimiterActor`, by its number."""

    def __init__(self, actor: Any, number: int) -> None:
        self._actor = actor
        self._number = number

    def acquire(self, *, blocking: bool = True) -> bool:
        """Wait in a thread until a call may start; return False instead of waiting if not `blocking`."""
        return bool(ray.get(self._actor.acquire.remote(self._number, blocking=blocking)))

    async def aacquire(self, *, blocking: bool = True) -> bool:
        """Do the same as `acquire` on an event loop."""
        return bool(await self._actor.acquire.remote(self._number, blocking=blocking))


class ClusterTokenRateLimiter(ClusterRateLimiter, TokenRateLimiter):
    """A `ClusterRateLimiter` for tokens, whose number is reported when a call has been answered."""

    def settle(self, calls: int, tokens: int) -> None:
        """Report the tokens of finished calls, without waiting for the actor."""
        self._actor.settle.remote(self._number, calls, tokens)


def start_limiter(policy: CallPolicy) -> tuple[str, Any] | None:
    """Start the actor that holds the rate limiters of a cluster; return its name and handle.

    It runs on the driver's node, without which the run would end anyway. If it dies, Ray restarts it and
    repeats unanswered requests. None if the policy has no rate limit.
    """
    if not policy.create_retry_policy().rate_limiters:
        return None
    # By name: Ray restarts actors with the same arguments, and a handle among those would be invalid by then.
    name = f"langchain-cfc-turns-{uuid4().hex}"
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
    options = {
        "name": name,
        "num_cpus": 0,
        "max_restarts": -1,
        "max_task_retries": -1,
        "max_concurrency": policy.concurrency + _SPARE_CALLS,
        "scheduling_strategy": here,
    }
    return name, ray.remote(LimiterActor).options(**options).remote(policy)


def create_cluster_retry_policy(policy: CallPolicy, limiter_name: str | None) -> RetryPolicy:
    """Return a retry policy that uses the cluster's rate limiters; `limiter_name` is None if it has none."""
    local = policy.create_retry_policy()
    if limiter_name is None:
        return local
    actor = ray.get_actor(limiter_name)
    limiters = (
        ClusterTokenRateLimiter(actor, number)
        if isinstance(limiter, TokenRateLimiter)
        else ClusterRateLimiter(actor, number)
        for number, limiter in enumerate(local.rate_limiters)
    )
    return replace(local, rate_limiters=tuple(limiters))
