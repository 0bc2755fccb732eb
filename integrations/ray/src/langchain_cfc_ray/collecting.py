"""`collect_on_ray`: the same collection, worked on by a cluster."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Mapping
from typing import Any

from langchain_cfc.collect import Collected, Options, acollect_on
from langchain_cfc.records import Example
from langchain_cfc_ray.bench import RayBench
from langchain_cfc_ray.worker import Factory


def collect_on_ray(
    examples: Iterable[Example],
    factory: Factory,
    store: str | os.PathLike[str],
    options: Options | None = None,
    *,
    actors: int = 2,
    each: Mapping[str, Any] | None = None,
) -> Collected:
    """Draw, score and label n candidates for each example, on the cluster that Ray is connected to.

    `langchain_cfc.collect.collect` in every respect but two: the parts are made by a factory, on each of the
    actors, and the limits of `options.pace` hold for all actors together. This process alone writes the
    store. A run that was interrupted goes on where it stopped: call this again.

    Args:
        examples: What to draw for; those that the store holds already are not added again.
        factory: What makes the parts, on each actor: an import path `MODULE:NAME`, or a function or bound
            method that can be pickled.
        store: Path of an SQLite file on this machine, or the URL of a PostgreSQL database.
        options: How calls are made, what they may cost, and who is told.
        actors: Number of actors, at least 1 and at most `options.pace.concurrency`, which they share.
        each: Ray's options of each actor, such as `num_cpus`, `num_gpus`, `resources` and `runtime_env`.

    Returns:
        How the run ended.

    Raises:
        StoreError: If the store cannot be written, is in use, or was made with other parts.
        CollectionError: If no actor can be started, or prompt after prompt fails.
        RecordError: If an example cannot be used.
        InputError: If a setting cannot be used, or the factory fails.

    Warns:
        CollectionWarning: As `collect` does.
    """
    return asyncio.run(acollect_on_ray(examples, factory, store, options, actors=actors, each=each))


async def acollect_on_ray(
    examples: Iterable[Example],
    factory: Factory,
    store: str | os.PathLike[str],
    options: Options | None = None,
    *,
    actors: int = 2,
    each: Mapping[str, Any] | None = None,
) -> Collected:
    """The same as `collect_on_ray`, on an event loop that runs already."""
    options = options or Options()
    async with RayBench(factory, options.pace, actors=actors, each=each, config=options.config) as bench:
        return await acollect_on(bench, examples, store, options)
