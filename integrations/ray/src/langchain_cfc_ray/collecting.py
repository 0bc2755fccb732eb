"""`collect_on_ray`: run a collection on the actors of a Ray cluster."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Mapping
from typing import Any

from langchain_cfc_collect import CollectionOptions, CollectionResult, acollect

from langchain_cfc.records import Example
from langchain_cfc_ray.executor import RayExecutor
from langchain_cfc_ray.worker import Factory


def collect_on_ray(
    examples: Iterable[Example],
    factory: Factory,
    store: str | os.PathLike[str],
    options: CollectionOptions | None = None,
    *,
    actors: int = 2,
    each: Mapping[str, Any] | None = None,
) -> CollectionResult:
    """Draw, score and label n candidates for each example, on the cluster that Ray is connected to.

    The same as `langchain_cfc_collect.collect`, except that a factory creates the components on each actor,
    and that the limits of `options.call_policy` apply to all actors together. Only this process writes the
    store. To resume an interrupted run, call this again.

    Args:
        examples: The prompts; those that are already in the store are not added again.
        factory: Creates the components on each actor: an import path `MODULE:NAME`, or a function or bound
            method that can be pickled.
        store: Path of an SQLite file on this machine, or the URL of a PostgreSQL database.
        options: Limits, callbacks and further options; None for the defaults.
        actors: Number of actors, at least 1 and at most `options.call_policy.concurrency`, which they share.
        each: Ray options for each actor, such as `num_cpus`, `num_gpus`, `resources` and `runtime_env`.

    Returns:
        How the run ended.

    Raises:
        StoreError: If the store cannot be written, is in use, or was made with other components.
        CollectionError: If no actor can be started, or many consecutive prompts fail.
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
    options: CollectionOptions | None = None,
    *,
    actors: int = 2,
    each: Mapping[str, Any] | None = None,
) -> CollectionResult:
    """Do the same as `collect_on_ray`, asynchronously, on a running event loop.

    Args:
        examples: As in `collect_on_ray`.
        factory: As in `collect_on_ray`.
        store: As in `collect_on_ray`.
        options: As in `collect_on_ray`.
        actors: As in `collect_on_ray`.
        each: As in `collect_on_ray`.

    Returns:
        How the run ended.
    """
    options = options or CollectionOptions()
    cluster = RayExecutor(factory, options.call_policy, actors=actors, each=each, config=options.config)
    async with cluster as executor:
        return await acollect(examples, executor, store, options)
