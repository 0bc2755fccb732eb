"""PostgreSQL as the store: the same contents as SQLite, locks, and crashes."""

from __future__ import annotations

import asyncio
import json
import math
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from langchain_cfc_collect import CollectionResult, acollect, collect
from langchain_cfc_collect.costs import ModelCalls, Stage, Usage
from langchain_cfc_collect.stages import Labels
from langchain_cfc_collect.status import CollectionStatus
from langchain_cfc_collect.store import Store, rows, schema
from langchain_cfc_collect.store.calls import insert_calls
from sqlalchemy import create_engine, select

from integrations.collect.tests import batching
from integrations.collect.tests.batch_server import Faults, Provider, serve
from integrations.collect.tests.batching import SimulatedKill, kill_at, shorten_waits
from integrations.collect.tests.crashing import (
    AT_ONCE,
    CONCURRENCY,
    OPTIONS,
    PROMPTS,
    N,
    count_calls,
    examples,
    make_parts_noting_calls,
)
from integrations.collect.tests.fakes import is_free
from integrations.collect.tests.postgres import Server, postgres
from langchain_cfc.errors import LabelerError, StoreError
from langchain_cfc.sampling import DrawnCandidate
from langchain_cfc.verifiers.base import VerifierScores
from tests.concurrency import wait_until, wait_until_async
from tests.lengths import mostly_long

HALF_A_PAIR = "\ud800"
ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with postgres() as started:
        yield started


@pytest.fixture
def url(server: Server) -> str:
    return server.reset_database()


@pytest.fixture(params=["sqlite", "postgres"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A place for a store of each kind."""
    if request.param == "sqlite":
        return str(tmp_path / "store.db")
    found: str = request.getfixturevalue("url")
    return found


@pytest.fixture
def store(where: str) -> Iterator[Store]:
    with Store(where, create=True) as opened:
        yield opened


def finish(store: Store, position: int, draws: Sequence[DrawnCandidate], paid: Usage | None = None) -> None:
    """Take a prompt through its stages; the first candidate is correct."""
    n = len(draws)
    charge = insert_calls(position, Stage.DRAWN, paid or Usage())
    store.write([*rows.insert_draws(position, draws), *charge])
    store.write(rows.insert_scores(position, VerifierScores([0.25] * n)))
    labels = Labels([slot == 0 for slot in range(n)])
    store.write(rows.insert_labels(position, labels, keep_messages=True))


# Both kinds of stores


def test_store_writes_a_stage_once_and_all_of_a_transaction_or_nothing(store: Store) -> None:
    store.add(examples(3))
    paid = Usage.from_models(["m"])
    first = [*rows.insert_draws(0, [DrawnCandidate("one")]), *insert_calls(0, Stage.DRAWN, paid)]
    with suppress(ZeroDivisionError), store.begin_write() as connection:
        store.execute(connection, first)
        raise ZeroDivisionError
    assert store.count_stages()[Stage.OPEN] == 3
    # The names of models are written again as well.
    store.write(first)
    assert store.read_models() == ["m"]
    late = {stage: rows.set_error(0, stage, LabelerError("no")) for stage in Stage if stage > Stage.OPEN}
    refused = [
        [*rows.insert_draws(1, [DrawnCandidate("x")]), *insert_calls(1, Stage.DRAWN, paid), *first],
        rows.insert_draws(7, [DrawnCandidate("of no prompt")]),
        # Another run, which should not be there, has finished the stage meanwhile, or not the one before it.
        late[Stage.DRAWN],
        late[Stage.LABELLED],
    ]
    for writes in refused:
        with pytest.raises(StoreError, match="cannot write"):
            store.write(writes)
    assert (store.count_stages()[Stage.OPEN], store.read_failures()) == (2, [])
    assert store.read_usage().calls == (ModelCalls("m", drew=True, input_tokens=0, output_tokens=0),)
    store.write(late[Stage.SCORED])
    assert [one.stage for one in store.read_failures()] == [Stage.SCORED]


def test_store_sums_usage_models_and_labels(store: Store) -> None:
    store.add(examples(3))
    much = 2**40
    for position, model in enumerate(["b", "a", "a"]):
        paid = Usage((ModelCalls(model, position > 0, much, 1), ModelCalls("judge", False, 5, 7)))
        finish(store, position, [DrawnCandidate("x"), DrawnCandidate("y")], paid)
    taken = {one.model: one for one in store.read_usage().calls}
    assert taken == {
        "a": ModelCalls("a", drew=True, input_tokens=2 * much, output_tokens=2),
        "b": ModelCalls("b", drew=False, input_tokens=much, output_tokens=1),
        "judge": ModelCalls("judge", drew=False, input_tokens=15, output_tokens=21),
    }
    # Whole numbers, which prices can be multiplied with.
    assert {type(one.input_tokens) for one in taken.values()} == {int}
    assert store.read_models() == ["a"]
    found = CollectionStatus.from_store(store)
    assert (found.covered, found.candidates, found.score_sums) == (3, [3, 3], [0.75, 0.75])
    assert store.count_stages() == {Stage.OPEN: 0, Stage.DRAWN: 0, Stage.SCORED: 0, Stage.LABELLED: 3}


def run(where: str, log: Path, size: int = 12, **changed: Any) -> CollectionResult:
    made = replace(make_parts_noting_calls(log, seconds=0.0), **changed)
    return collect(examples(size), made, where, OPTIONS)


def label_even(prompt: str, reference: Any, candidates: list[Any]) -> list[bool]:
    """Label candidates, but not those of prompt 5."""
    if prompt.endswith(" 5"):
        raise ValueError(prompt)
    return [one.text == reference for one in candidates]


def test_sqlite_and_postgres_hold_the_same_collection(url: str, tmp_path: Path) -> None:
    places = [url, str(tmp_path / "store.db")]
    for number, place in enumerate(places):
        parts = replace(make_parts_noting_calls(log := tmp_path / f"log{number}", 0.0), labeler=label_even)
        # One has failed, and all are labelled again by corrected references.
        assert collect(examples(12), parts, place, OPTIONS).status.failed == 1
        corrected = [one.model_copy(update={"reference": "answer 0"}) for one in examples(12)]
        ended = collect(corrected, make_parts_noting_calls(log, 0.0), place, replace(OPTIONS, relabel=True))
        assert (ended.status.labelled, ended.status.covered, count_calls(log).total()) == (12, 1, 36)
    found = []
    for place in places:
        with Store(place) as store:
            found.append(
                (
                    store.read_provenance(),
                    list(store.read_records()),
                    CollectionStatus.from_store(store).doubtful_labels,
                    store.configuration,
                )
            )
    assert found[0] == found[1]
    assert len(found[0][1]) == 12


@pytest.mark.parametrize("step", ["create", "write_answers"])
def test_batches_in_postgres_survive_a_kill(url: str, step: str) -> None:
    provider = Provider(faults=Faults(errors=0.1))
    with shorten_waits(), serve(provider) as address:
        with kill_at(step), pytest.raises(SimulatedKill):
            batching.run(url, batching.make_components(address), 6)
        ended = batching.run(url, batching.make_components(address), 6)
    batching.check_collection(url, provider, ended, 6)
    assert provider.log.submitted == [6 * batching.N]


# Texts that cannot be stored


@mostly_long(
    ("name", "refused_by_sqlite", "part"),
    [
        ("nul", False, "generator"),
        ("nul", False, "answer"),
        ("half a pair", False, "generator"),
        ("half a pair", True, "answer"),
    ],
    quick=2,
)
def test_unstorable_text_fails_only_its_prompt(
    where: str, tmp_path: Path, name: str, part: str, *, refused_by_sqlite: bool
) -> None:
    found = "a\0b" if name == "nul" else HALF_A_PAIR
    made: dict[str, Any] = {part: lambda text: found if " 7" in str(text) else str(text)}
    run(where, tmp_path / "log", **made)
    with Store(where) as store:
        failed = [one.id for one in store.read_failures()]
        assert failed == (["p7"] if refused_by_sqlite else [])
        assert len(list(store.read_records())) == 12 - len(failed)


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (math.nan, "DescriptionError: the metadata function returned {'hard': nan}"),
        ("\ud800", "CollectionError: the metadata of the prompt cannot be stored"),
    ],
)
def test_unstorable_metadata_fails_only_its_prompt(
    bad: float | str, said: str, where: str, tmp_path: Path
) -> None:
    run(where, tmp_path / "log", metadata=lambda prompt: {"hard": bad if " 7" in prompt else 1.0})
    with Store(where) as store:
        (failure,) = store.read_failures()
    assert failure.id == "p7"
    assert failure.error.startswith(said)


# Databases without a store


def test_postgres_database_without_a_store_is_refused(url: str) -> None:
    with pytest.raises(StoreError, match="is no store of a collection"):
        Store(url)


def test_unreachable_postgres_server_is_reported_without_its_password() -> None:
    with pytest.raises(StoreError, match=r"cannot read .* refused") as raised:
        Store("postgresql://user:secret@127.0.0.1:1/store")
    assert "no store of" not in str(raised.value)
    assert "secret" not in str(raised.value)


# Locks


def start_writer(url: str, log: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "integrations.collect.tests.crashing", url, str(log)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT)


def test_postgres_store_refuses_a_second_run_while_locked(server: Server, url: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with Store(url, create=True) as first, first.lock():
        with pytest.raises(StoreError, match="another run is using"):
            run(url, log)
        assert not log.exists()
        # Stores in other schemas of the database are not locked.
        server.run("CREATE SCHEMA other", url.partition("@/")[2].partition("?")[0])
        assert run(f"{url}&options=-csearch_path%3Dother", tmp_path / "other").complete
    assert run(url, log).complete


@pytest.mark.long
def test_postgres_lock_is_freed_when_its_process_is_killed(url: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    first = start_writer(url, log)
    try:
        wait_until(lambda: len(count_calls(log)) > 0)
        with pytest.raises(StoreError, match="another run is using"):
            run(url, tmp_path / "second")
        assert not (tmp_path / "second").exists()
    finally:
        first.kill()
        first.communicate()
    # A process that was killed frees its lock as soon as the server notices that the client is gone.
    with Store(url) as store:
        wait_until(lambda: is_free(store))
    assert run(url, log, size=PROMPTS).complete


@pytest.mark.long
def test_two_runs_without_a_lock_cannot_write_the_same_stage_twice(
    server: Server, url: str, tmp_path: Path
) -> None:
    # As if an administrator had ended the one session that holds the lock.
    first = start_writer(url, tmp_path / "first")
    try:
        wait_until(lambda: len(count_calls(tmp_path / "first")) > CONCURRENCY)
        # It waits until the other has begun, or it might have ended by then.
        first.send_signal(signal.SIGSTOP)
        held = "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted"
        assert server.run(held)
        second = start_writer(url, tmp_path / "second")
        wait_until(lambda: len(count_calls(tmp_path / "second")) > 0)
        first.send_signal(signal.SIGCONT)
        ended = [process.communicate(timeout=120)[1].decode() for process in (first, second)]
    finally:
        first.kill()
    refused = [said for said in ended if "StoreError" in said]
    assert refused, "no second run was refused"
    known = ("duplicate key", "a stage was written before")
    assert all(any(one in said for one in known) for said in refused), refused
    assert run(url, tmp_path / "third", size=PROMPTS).complete
    # Messages may be left that one run drew after the other had finished their prompt.
    check_each_prompt_stored_once(url, messages_left=AT_ONCE * N)


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="reads the timers of sockets from /proc")
def test_postgres_lock_shortens_the_keepalive_of_its_connection(server: Server, url: str) -> None:
    # A machine that dies closes no connection; what frees its lock is that it no longer answers.
    with Store(server.over_tcp(url), create=True) as store:
        # The timer shows once what was sent has been received.
        wait_until(lambda: len(read_keepalive_timers(server.port)) > 0)
        assert min(read_keepalive_timers(server.port)) > 60
        with store.lock():
            wait_until(lambda: min(read_keepalive_timers(server.port), default=60) <= 30)


def read_keepalive_timers(port: int) -> list[float]:
    """Return the seconds until the next keepalive probe, by connection of the server."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    keepalive, established = "02", "01"
    # local address, remote address, state, queues, timer : when in hundredths of a second
    return [
        int(fields[5].partition(":")[2], 16) / 100
        for fields in lines
        if int(fields[1].partition(":")[2], 16) == port
        and fields[3] == established
        and fields[5].startswith(f"{keepalive}:")
    ]


# Crashes


def check_each_prompt_stored_once(url: str, *, messages_left: int = 0) -> None:
    engine = create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.connect() as connection:
        assert len(connection.execute(select(schema.draws)).all()) <= messages_left
        stored = (
            connection.execute(select(schema.prompts.c.id).order_by(schema.prompts.c.position))
            .scalars()
            .all()
        )
        ids = [f"p{k}" for k in range(PROMPTS)]
        assert stored == [json.dumps(one) for one in ids]
    engine.dispose()
    with Store(url) as store:
        records = list(store.read_records())
    assert [record.id for record in records] == ids
    for number, record in enumerate(records):
        assert [one.text for one in record.candidates] == [f"answer {number}"] * N
        assert [one.correct for one in record.candidates] == [True, False, False]


def list_durable_prompts(url: str) -> set[str]:
    try:
        with Store(url) as store:
            unfinished = {work.example.input for work in store.read_unfinished() if work.draws is None}
            known = {f"question {k}" for k in range(PROMPTS)} if sum(store.count_stages().values()) else set()
            return known - unfinished
    except StoreError:  # killed before there was one
        return set()


@pytest.mark.long
def test_repeatedly_killed_run_draws_no_durable_prompt_twice(url: str, tmp_path: Path) -> None:
    log, kills = tmp_path / "log", 0
    chance = random.Random(5)  # noqa: S311 - moments, not secrets
    while True:
        before, safe = count_calls(log), list_durable_prompts(url)
        process = start_writer(url, log)
        # At a random moment while it is at work, however long the machine takes to get there.
        further = sum(before.values()) + chance.randint(1, 80)
        wait_until(lambda: process.poll() is not None or sum(count_calls(log).values()) >= further)  # noqa: B023 - waited for here
        time.sleep(chance.uniform(0.0, 0.05))
        process.send_signal(signal.SIGKILL)
        _, error = process.communicate()
        after = count_calls(log)
        assert {prompt: after[prompt] for prompt in safe} == {prompt: before[prompt] for prompt in safe}
        if process.returncode == 0:
            break
        assert process.returncode == -signal.SIGKILL, error.decode()
        kills += 1
    assert kills >= 3
    check_each_prompt_stored_once(url)
    # What a kill can cost are the calls for prompts whose candidates were not durable yet.
    made = count_calls(log)
    assert sum(made.values()) <= PROMPTS * N + kills * AT_ONCE * N
    # Control: a run that kept nothing would have repeated all calls.
    assert sum(made.values()) < 2 * PROMPTS * N


@pytest.mark.long
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT], ids=["stopped", "crashed"])
def test_run_ends_when_the_postgres_server_stops_and_resumes_later(
    tmp_path: Path, how: signal.Signals
) -> None:
    log = tmp_path / "log"
    with postgres() as server:
        url = server.database()

        async def run_and_stop() -> None:
            going = asyncio.ensure_future(acollect(examples(), make_parts_noting_calls(log), url, OPTIONS))
            await wait_until_async(lambda: len(count_calls(log)) >= PROMPTS // 3)
            await asyncio.to_thread(server.stop, how)
            await asyncio.wait_for(going, timeout=30)

        with pytest.raises(StoreError, match="finished work is kept") as raised:
            asyncio.run(run_and_stop())
        assert "cannot write" in str(raised.value)
        with pytest.raises(StoreError):
            Store(url)
        server.start()
        safe, before = list_durable_prompts(url), count_calls(log)
        assert 0 < len(safe) < PROMPTS
        assert run(url, log, size=PROMPTS).complete
        check_each_prompt_stored_once(url)
        after = count_calls(log)
        assert {prompt: after[prompt] for prompt in safe} == {prompt: before[prompt] for prompt in safe}
        assert sum(after.values()) <= PROMPTS * N + AT_ONCE * N
