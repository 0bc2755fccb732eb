"""`Worker`: an actor that works on prompts, with clients of its own."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

from langchain_core.runnables import RunnableConfig

from langchain_cfc.calls import Limit
from langchain_cfc.collect import LocalBench, Outcome, Pace, Parts
from langchain_cfc.errors import CFCError, InputError
from langchain_cfc.records import Example
from langchain_cfc.sampling import Draw
from langchain_cfc_ray.turns import repeated_on_cluster

Factory: TypeAlias = str | Callable[[], Parts]


@dataclass(frozen=True)
class Orders:
    """What a worker is told when it begins.

    Attributes:
        factory: What makes the parts, there.
        pace: How calls are made on the whole cluster.
        config: LangChain config that all runs inherit.
    """

    factory: Factory
    pace: Pace
    config: RunnableConfig | None


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
    def _bench(self) -> LocalBench:
        orders = self._orders
        repeated = repeated_on_cluster(orders.pace, self._turns)
        return LocalBench(_made(orders.factory), Limit(self._places), repeated, orders.config)

    async def opened(self) -> dict[str, Any] | CFCError:
        """Make the parts: what they say of themselves, or why they cannot be made."""
        try:
            return self._bench.configuration
        except CFCError as error:
            return error

    async def draw(self, example: Example) -> Outcome:
        """Draw n candidates."""
        return await self._bench.draw(example)

    async def score(self, example: Example, draws: Sequence[Draw]) -> Outcome:
        """Score them."""
        return await self._bench.score(example, draws)

    async def label(self, example: Example, draws: Sequence[Draw]) -> Outcome:
        """Label them, tell their answers apart and describe the prompt."""
        return await self._bench.label(example, draws)


def _made(factory: Factory) -> Parts:
    try:
        found = pkgutil.resolve_name(factory) if isinstance(factory, str) else factory
        parts = found()
    except CFCError:
        raise
    except Exception as error:
        msg = f"the factory {factory} failed on a worker with {type(error).__name__}: {error}"
        raise InputError(msg) from error
    if not isinstance(parts, Parts):
        msg = f"the factory {factory} returned a {type(parts).__name__}; expected collect.Parts"
        raise InputError(msg)
    return parts
