"""A collection on a cluster makes the records that one process makes, even if processes die."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from langchain_cfc_collect.collecting import CallPolicy, CollectionOptions, CollectionResult, collect
from langchain_cfc_collect.store import Store
from langchain_cfc_ray import acollect_on_ray, collect_on_ray
from langchain_cfc_ray.executor import MAX_DEATHS
from ray.cluster_utils import Cluster

from integrations.collect.tests.postgres import postgres
from integrations.ray.tests.working import (
    CALL,
    N,
    add_node,
    check_records_once,
    count_asked,
    count_begun,
    count_in_flight,
    examples,
    make_noting_parts,
    over_http,
    quiet,
    read_calls,
    script,
)
from langchain_cfc.errors import StoreError
from tests.concurrency import wait_until_async
from tests.serving.openai_server import serving

pytestmark = pytest.mark.long

CONCURRENCY, ACTORS = 6, 3
# Prompts under way: as many as calls, and eight that may wait for the disk meanwhile.
AT_ONCE = CallPolicy(CONCURRENCY).prompts_at_once
OPTIONS = CollectionOptions(call_policy=CallPolicy(CONCURRENCY), on_notice=quiet)


@pytest.fixture
def where(tmp_path: Path) -> str:
    return str(tmp_path / "store.db")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.mark.usefixtures("cluster")
def test_collect_on_ray_makes_the_records_of_one_process(where: str, tmp_path: Path) -> None:
    size, found = 30, []
    for number, place in enumerate([where, str(tmp_path / "local.db")]):
        served = script(size)
        with serving(served, own_process=True) as url:
            if number == 0:
                ended = collect_on_ray(examples(size), partial(over_http, url), place, OPTIONS, actors=ACTORS)
            else:
                ended = collect(examples(size), over_http(url), place, OPTIONS)
        assert ended.complete
        assert count_asked(served) == Counter({f"question {k}": N for k in range(size)})
        records = check_records_once(place, size)
        # Which of the three requests gets which answer is up to the network, in one process as well.
        candidates = [{one.model_dump_json() for one in record.candidates} for record in records]
        rest = [record.model_dump(exclude={"candidates"}) for record in records]
        with Store(place) as store:
            found.append((candidates, rest, store.read_provenance(), store.read_usage(), store.configuration))
    assert found[0] == found[1]
    assert all(len(one) == N for one in found[0][0])


@pytest.mark.usefixtures("cluster")
def test_collect_on_ray_spreads_prompts_within_the_concurrency(where: str, log: Path) -> None:
    size = 60
    assert collect_on_ray(
        examples(size), partial(make_noting_parts, log), where, OPTIONS, actors=ACTORS
    ).complete
    check_records_once(where, size)
    calls = read_calls(log)
    # On a busy machine the last of them may begin when all is done.
    assert 1 < len({call.process for call in calls}) <= ACTORS
    assert len({call.node for call in calls}) > 1
    assert most_at_once(log) <= CONCURRENCY
    # The measure sees it where more are allowed.
    more = CollectionOptions(call_policy=CallPolicy(4 * CONCURRENCY), on_notice=quiet)
    other = log.with_name("more")
    collect_on_ray(examples(size), partial(make_noting_parts, other), f"{where}2", more, actors=ACTORS)
    assert most_at_once(other) > CONCURRENCY


def most_at_once(log: Path) -> int:
    calls = read_calls(log)
    return max(sum(count_in_flight(calls[: end + 1]).values()) for end in range(len(calls)))


# What dies


def count_repeated(calls: Counter[str], size: int) -> Counter[str]:
    """Calls beyond the n of each prompt."""
    assert set(calls) == {f"question {number}" for number in range(size)}
    assert min(calls.values()) >= N
    return Counter({prompt: count - N for prompt, count in calls.items() if count > N})


async def find_busy(log: Path, node: str | None = None) -> int:
    """A process that is at a call right now, once half of the work is done."""
    await wait_until_async(lambda: sum(count_begun(log).values()) > 60)
    while True:
        calls = [call for call in read_calls(log) if node in {None, call.node}]
        for process, count in count_in_flight(calls).items():
            if count > 0:
                return process
        await asyncio.sleep(0.001)


async def while_collecting(size: int, log: Path, where: str, then: Any) -> CollectionResult:
    going = asyncio.ensure_future(
        acollect_on_ray(examples(size), partial(make_noting_parts, log), where, OPTIONS, actors=ACTORS)
    )
    try:
        await then()
        return await asyncio.wait_for(going, 120)
    finally:
        going.cancel()


@pytest.mark.usefixtures("cluster")
def test_killed_worker_repeats_only_its_prompts(where: str, log: Path) -> None:
    size, killed = 80, []

    async def kill() -> None:
        killed.append(await find_busy(log))
        os.kill(killed[0], signal.SIGKILL)

    assert asyncio.run(while_collecting(size, log, where, kill)).complete
    check_records_once(where, size)
    again = count_repeated(count_begun(log), size)
    # It was at something; and all that it can have been at are the prompts under way, n calls each.
    assert 1 <= len(again) <= AT_ONCE
    assert max(again.values()) <= N
    calls = read_calls(log)
    # Nothing of others is repeated: only the successor of the dead actor repeats.
    died = {call.prompt for call in calls if call.process == killed[0]}
    assert set(again) <= died


def test_lost_node_repeats_only_its_prompts(cluster: Cluster, where: str, log: Path) -> None:
    size, lost = 80, []
    # The only one with room for these actors, until it is gone.
    extra = add_node(cluster, room=3)

    async def run() -> CollectionResult:
        going = asyncio.ensure_future(
            acollect_on_ray(
                examples(size),
                partial(make_noting_parts, log),
                where,
                OPTIONS,
                actors=ACTORS,
                each={"num_cpus": 0, "resources": {"room": 1}},
            )
        )
        await find_busy(log)
        lost.append(time.time())
        await asyncio.to_thread(lose, cluster, extra, {call.process for call in read_calls(log)})
        add_node(cluster, room=2)  # not in a thread, where Ray could not handle signals
        return await asyncio.wait_for(going, 180)

    assert asyncio.run(run()).complete
    check_records_once(where, size)
    calls = read_calls(log)
    first = calls[0].node
    assert len({call.node for call in calls}) == 2
    assert max(call.at for call in calls if call.node == first) < lost[0] + 1
    # All three actors were there: what they were at is all that was under way.
    assert 1 <= len(count_repeated(count_begun(log), size)) <= AT_ONCE
    assert max(count_repeated(count_begun(log), size).values()) <= N


def lose(cluster: Cluster, node: Any, workers: set[int]) -> None:
    """A machine that is switched off: none of its processes ends anything."""
    for process in workers:
        os.kill(process, signal.SIGKILL)
    cluster.remove_node(node, allow_graceful=False)


@pytest.fixture(params=["sqlite", "postgres"])
def shared_store(request: pytest.FixtureRequest, where: str) -> Iterator[str]:
    if request.param == "sqlite":
        yield where
        return
    with postgres() as server:
        yield server.database()


def test_killed_driver_can_be_run_again(cluster: Cluster, shared_store: str) -> None:
    size = 80
    served = script(size, seconds=CALL)
    with serving(served, own_process=True) as url:
        command = [
            sys.executable,
            str(Path(__file__).with_name("working.py")),
            cluster.address,
            shared_store,
            url,
            str(size),
        ]
        driver = subprocess.Popen(command)
        try:
            durable = asyncio.run(half_drawn(shared_store, size))
            with pytest.raises(StoreError, match="another run is using"):
                collect(examples(size), over_http(url), shared_store, OPTIONS)
        finally:
            driver.kill()
            driver.wait()
        time.sleep(1)  # its actors may end what they are at; nothing else is begun for it
        assert collect_on_ray(
            examples(size), partial(over_http, url), shared_store, OPTIONS, actors=ACTORS
        ).complete
    check_records_once(shared_store, size)
    again = count_repeated(count_asked(served), size)
    assert not set(again) & durable
    assert 1 <= len(again) <= AT_ONCE
    assert max(again.values()) <= N


async def half_drawn(where: str, size: int) -> set[str]:
    """The prompts whose candidates are durable, once they are a quarter."""
    found: set[str] = set()

    def enough() -> bool:
        try:
            with Store(where) as store:
                if sum(store.count_stages().values()) < size:
                    return False
                open_ones = {
                    str(work.example.input) for work in store.read_unfinished() if work.draws is None
                }
        except StoreError:  # there is none yet
            return False
        found.update(f"question {number}" for number in range(size))
        found.difference_update(open_ones)
        return len(found) >= size // 4

    await wait_until_async(enough)
    return found


@pytest.mark.usefixtures("cluster")
def test_prompt_that_kills_its_workers_fails_alone(where: str, log: Path) -> None:
    size = 12
    factory = partial(make_noting_parts, log, end_of="question 7")
    options = CollectionOptions(call_policy=CallPolicy(2), on_notice=quiet)
    assert collect_on_ray(examples(size), factory, where, options, actors=2).complete
    with Store(where) as store:
        failures = store.read_failures()
        assert "question 7" not in {record.input for record in store.read_records()}
        assert len(list(store.read_records())) == size - len(failures)
    assert "p7" in {failure.id for failure in failures}
    assert all(f"{MAX_DEATHS} workers died" in failure.error for failure in failures)
    # Each time with all its calls that had a place.
    assert MAX_DEATHS <= count_begun(log)["question 7"] <= MAX_DEATHS * N
