"""What a collection on Ray costs its driver, and how it scales: `clusters.py driver`, `clusters.py nodes`.

`driver` measures the processor time (user and system) of the driver's process per prompt, on this machine,
with a model that answers at once. To start takes a constant time, so what each further prompt costs is
stated beside it. `nodes` compares three simulated nodes
with one, on calls that wait, so that the processors of this machine are not the limit.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import ray
from langchain_cfc_collect import CallPolicy, Columns, Components
from langchain_cfc_ray import Parts, collect_prompts, make_prompts
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableLambda
from ray.cluster_utils import Cluster

from langchain_cfc.labelers import NormalisedMatch

N = 5
COLUMNS = Columns(input="question", reference="answer", id="name")
_MEMORY = 100 * 2**20


def make_components(seconds: float) -> Components:
    """Return components whose model waits so many seconds, and always answers."""
    import asyncio

    async def answer(question: str) -> AIMessage:
        if seconds:
            await asyncio.sleep(seconds)
        text = question.replace("question", "answer")
        return AIMessage(text, response_metadata={"model_name": "waiting"})

    def refuse(question: str) -> AIMessage:
        raise NotImplementedError(question)

    def verify(prompt: Any, candidates: Sequence[Any]) -> list[float]:
        del prompt
        return [0.5] * len(candidates)

    generator = RunnableLambda(refuse, answer)
    return Components(generator, verify, NormalisedMatch(), N, generator_id="waiting", verifier_id="constant")


@dataclass(frozen=True)
class Work:
    """How many prompts are collected, and with how many calls of how many seconds at a time on each actor."""

    size: int
    seconds: float = 0.0
    actors: int = 2
    calls: int = 32
    each: Mapping[str, Any] | None = None
    batch: int = 64


def run_data(work: Work, folder: Path) -> int:
    """Collect by a pipeline of Ray Data; return how many were labelled."""
    names = range(work.size)
    rows = [{"name": f"p{k}", "question": f"question {k}", "answer": f"answer {k}"} for k in names]
    parts = Parts(folder / "parts")
    prompts = parts.skip_finished(make_prompts(ray.data.from_items(rows), COLUMNS))
    policy = CallPolicy(work.calls)
    options: dict[str, Any] = {
        "actors": work.actors,
        "call_policy": policy,
        "batch_size": work.batch,
        "each": work.each,
    }
    parts.write(collect_prompts(prompts, partial(make_components, work.seconds), **options))
    return parts.merge(folder / "records.parquet").labelled


def time_run(work: Work) -> tuple[float, float]:
    """Return the processor time of this process and the wall time of a run, in seconds."""
    with tempfile.TemporaryDirectory() as folder:
        started, processor = time.perf_counter(), time.process_time()
        labelled = run_data(work, Path(folder))
        times = time.process_time() - processor, time.perf_counter() - started
    if labelled != work.size:
        message = f"{labelled} of {work.size} prompts were labelled"
        raise RuntimeError(message)
    return times


def measure_driver(sizes: Sequence[int]) -> None:
    """Print the driver's processor time per prompt."""
    ray.init(
        "local", num_cpus=4, object_store_memory=2 * _MEMORY, include_dashboard=False, log_to_driver=False
    )
    _silence()
    try:
        time_run(Work(64))  # imports
        found = {size: time_run(Work(size)) for size in sizes}
        for size, (processor, wall) in found.items():
            print(
                f"{size} prompts x {N}: driver {1000 * processor / size:.2f} ms a prompt, "
                f"{size / wall:.0f} prompts a second"
            )
        small, large = min(sizes), max(sizes)
        marginal = (found[large][0] - found[small][0]) / (large - small)
        print(f"of which {1000 * marginal:.2f} ms for each further prompt")
    finally:
        ray.shutdown()


def measure_nodes(size: int, seconds: float) -> None:
    """Print how many times as fast three simulated nodes are as one."""
    # A worker that finds a free processor otherwise lets everything else go first.
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 - Ray spells it so
    rates: dict[int, float] = {}
    for nodes in (1, 3):
        cluster = Cluster()
        for _ in range(nodes):
            cluster.add_node(num_cpus=3, resources={"worker": 1}, object_store_memory=_MEMORY)
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        _silence()
        try:
            each = {"resources": {"worker": 1}}
            time_run(Work(8 * nodes, 0.0, nodes, 4, each, 8))
            _, wall = time_run(Work(size, seconds, nodes, 4, each, 8))
            rates[nodes] = size / wall
        finally:
            ray.shutdown()
            cluster.shutdown()
    print(
        f"{size} prompts x {N} calls of {seconds:g} s, 4 at a time on each node: one node {rates[1]:.2f}, "
        f"three nodes {rates[3]:.2f} prompts a second, {rates[3] / rates[1]:.2f} times"
    )


def _silence() -> None:
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print what was found."""
    parser = argparse.ArgumentParser(description="What Ray costs a driver, and how it scales.")
    parser.add_argument("part", choices=("driver", "nodes"))
    parser.add_argument("--sizes", type=int, nargs="+", default=(2000, 20000))
    options = parser.parse_args(arguments)
    if options.part == "driver":
        measure_driver(options.sizes)
    else:
        measure_nodes(96, 0.5)


if __name__ == "__main__":
    os.environ["PYTHONPATH"] = os.pathsep.join(part for part in sys.path if part)
    main()
