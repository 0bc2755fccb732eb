"""Pipelines of Ray Data whose workers, nodes and drivers are killed: every prompt is there once."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
import ray
from langchain_cfc_collect import CallPolicy, Columns
from langchain_cfc_ray import Parts, collect_prompts, make_prompts
from ray.cluster_utils import Cluster

from integrations.ray.tests.working import (
    N,
    add_node,
    count_begun,
    count_in_flight,
    examples,
    make_noting_parts,
    read_calls,
)
from langchain_cfc.records import read_records
from tests.concurrency import PATIENCE, wait_until

pytestmark = pytest.mark.long

SIZE, BATCH, ACTORS = 240, 8, 2
# Prompts that die with an actor: its batches under way, and what it has been given beyond.
LOST = 4 * BATCH


def run(folder: Path, each: dict[str, Any] | None = None) -> None:
    """Collect what is left to do in a folder."""
    given = examples(SIZE)
    rows = [{"name": one.id, "question": one.input, "answer": one.reference} for one in given]
    columns = Columns(input="question", reference="answer", id="name")
    parts = Parts(folder / "parts")
    prompts = parts.skip_finished(make_prompts(ray.data.from_items(rows), columns))
    policy, factory = CallPolicy(4), partial(make_noting_parts, folder / "log", 0.05)
    parts.write(
        collect_prompts(prompts, factory, actors=ACTORS, call_policy=policy, batch_size=BATCH, each=each)
    )


def check_records_once(folder: Path) -> None:
    """Check the records: each prompt once, with n candidates."""
    merged = Parts(folder / "parts").merge(folder / "records.jsonl")
    assert (merged.labelled, merged.failed) == (SIZE, {})
    records = list(read_records(folder / "records.jsonl"))
    assert sorted(one.id for one in records) == sorted(one.id for one in examples(SIZE))
    assert {len(one.candidates) for one in records} == {N}


def list_finished(folder: Path) -> set[str]:
    """The prompts that are in the folder."""
    names = [one for one in (folder / "parts").glob("*.parquet") if not one.name.startswith(".")]
    return {name for one in names for name in pq.read_table(one, columns=["id"])["id"].to_pylist()}


def check_repeated(folder: Path, most: int, finished: set[str]) -> None:
    """Check the records, and that some prompts, at most so many and none of those finished, were repeated."""
    check_records_once(folder)
    calls = count_begun(folder / "log")
    assert set(calls) == {f"question {number}" for number in range(SIZE)}
    assert min(calls.values()) >= N
    again = {prompt.replace("question ", "p") for prompt, count in calls.items() if count > N}
    assert 1 <= len(again) <= most
    assert not again & finished


def while_running(folder: Path, then: Callable[[], None], each: dict[str, Any] | None = None) -> None:
    """Do something once a third of the prompts is finished."""
    errors: list[BaseException] = []

    def work() -> None:
        try:
            run(folder, each)
        except BaseException as error:  # noqa: BLE001 - raised again below
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        wait_until(lambda: len(list_finished(folder)) >= SIZE // 3 or not thread.is_alive())
        then()
    finally:
        thread.join(PATIENCE)
    assert not thread.is_alive()
    assert not errors, errors


@pytest.mark.usefixtures("cluster")
def test_killed_worker_of_a_pipeline_repeats_only_its_batches(tmp_path: Path) -> None:
    before: set[str] = set()

    def kill() -> None:
        before.update(list_finished(tmp_path))
        busy: list[int] = []

        def is_busy() -> bool:
            calls = count_in_flight(read_calls(tmp_path / "log"))
            busy[:] = [process for process, running in calls.items() if running > 0]
            return bool(busy)

        wait_until(is_busy)
        os.kill(busy[0], signal.SIGKILL)

    while_running(tmp_path, kill)
    check_repeated(tmp_path, LOST, before)


def test_lost_node_of_a_pipeline_repeats_only_its_batches(cluster: Cluster, tmp_path: Path) -> None:
    extra = add_node(cluster, room=ACTORS)
    before: set[str] = set()

    def lose() -> None:
        before.update(list_finished(tmp_path))
        for process in {call.process for call in read_calls(tmp_path / "log")}:
            os.kill(process, signal.SIGKILL)
        cluster.remove_node(extra, allow_graceful=False)
        asyncio.run(asyncio.sleep(1))
        add_node(cluster, room=ACTORS)

    while_running(tmp_path, lose, {"resources": {"room": 1}})
    assert len({call.node for call in read_calls(tmp_path / "log")}) == 2
    check_repeated(tmp_path, ACTORS * LOST, before)


def test_killed_driver_of_a_pipeline_can_be_run_again(cluster: Cluster, tmp_path: Path) -> None:
    driver = subprocess.Popen([sys.executable, __file__, cluster.address, str(tmp_path)])
    try:
        wait_until(lambda: len(list_finished(tmp_path)) >= SIZE // 3)
    finally:
        driver.kill()
        driver.wait()
    before = list_finished(tmp_path)
    assert len(before) < SIZE
    run(tmp_path)
    check_repeated(tmp_path, ACTORS * LOST, before)


if __name__ == "__main__":
    ray.init(address=sys.argv[1], log_to_driver=False)
    run(Path(sys.argv[2]))
