"""The parts of `collection.py`: what collecting costs, against the ideal and against the least work."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import httpx
from langchain_cfc_collect.collecting import CallPolicy, CollectionOptions, collect
from langchain_cfc_collect.costs import ModelCalls, Usage
from langchain_cfc_collect.executor import Components, Labels
from langchain_cfc_collect.store import Store, rows
from langchain_cfc_collect.store.rows import combine_writes
from langchain_cfc_collect.store.schema import Statement, Write
from langchain_core.language_models import BaseChatModel, FakeListChatModel
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig
from langchain_openai import ChatOpenAI
from sqlalchemy.dialects import sqlite

from benchmarks.lib.in_memory import InMemoryModel
from benchmarks.lib.slow_server import count_requests, run_slow_server
from benchmarks.lib.timing import Ratio, pause_garbage_collection, time_call
from langchain_cfc.execution import Steps
from langchain_cfc.labelers.base import BaseLabeler, LabelerInput
from langchain_cfc.records import Example
from langchain_cfc.sampling import DrawnCandidate
from langchain_cfc.verifiers import VerifierInput
from langchain_cfc.verifiers.base import BaseVerifier, VerifierScores

CONCURRENCY = 8
BATCH_SIZE = 8  # prompts per transaction, where only the store is timed

Insert: TypeAlias = tuple[str, list[tuple[Any, ...]]]


@dataclass(frozen=True)
class Row:
    """A ratio for a number of prompts with n candidates; a control has nothing of ours in it."""

    what: str
    prompts: int
    n: int
    ratio: Ratio
    control: bool = False


class HalfVerifier(BaseVerifier):
    """A verifier that takes no time."""

    fingerprint: Mapping[str, Any] = {"id": "half"}

    def flow(self, given: VerifierInput, config: RunnableConfig) -> Steps[list[float]]:
        """Score each candidate one half."""
        del config
        yield from ()
        return [0.5] * len(given["candidates"])


class FirstLabeler(BaseLabeler):
    """A labeler that takes no time."""

    fingerprint: Mapping[str, Any] = {"id": "first"}

    def flow(self, given: LabelerInput, config: RunnableConfig) -> Steps[list[bool]]:
        """Label the first candidate correct."""
        del config
        yield from ()
        return [slot == 0 for slot in range(len(given["candidates"]))]


def measure_wait(rounds: int) -> Iterator[Row]:
    """Measure wall time over the ideal, n * N * latency / places."""
    os.environ["NO_PROXY"] = "127.0.0.1"
    for latency, places, prompts, n in ((0.25, 8, 20, 10), (0.25, 8, 200, 1), (0.5, 16, 20, 10)):
        ideal = n * prompts * latency / places
        found: list[list[float]] = [[], []]
        with run_slow_server(latency, 0.0, places) as url:
            for _ in range(rounds):
                for taken, way in zip(found, (_collect, _call_abatch), strict=True):
                    taken.append(time_call(partial(way, _make_client(url), prompts, n, places)))
            asked = sum(count_requests(url).values())
        if asked != 2 * prompts * n * rounds:
            msg = f"{asked} requests for 2 x {rounds} x {prompts} x {n} candidates"
            raise AssertionError(msg)
        for taken, what in zip(found, ("a collection", "bare abatch"), strict=True):
            over = f"{what} over HTTP, {places} places of {latency:g} s, over the ideal"
            ratio = Ratio.of(taken, [ideal] * rounds)
            yield Row(over, prompts, n, ratio, control=what != "a collection")


def _make_client(url: str) -> ChatOpenAI:
    # One for each round: connections end with the event loop that opened them.
    settings: dict[str, Any] = {"base_url": url, "api_key": "none", "http_async_client": httpx.AsyncClient()}
    return ChatOpenAI(model="distinct-5", max_retries=0, **settings)


def measure_store(rounds: int) -> Iterator[Row]:
    """Measure rows written per second, against `executemany` of the same rows and transactions."""
    prompts, n = 400, 10
    stages = _make_writes(prompts, n)
    bare = [[_compile_insert(*one) for one in rows if one[1]] for rows in stages]
    ours, plain = [], []
    for _ in range(rounds):
        with _open_store(prompts) as path:
            plain.append(time_call(partial(_write_plain, path, bare)))
        with _open_store(prompts) as path:
            ours.append(time_call(partial(_write_store, path, stages)))
    # A rate is one over a time.
    yield Row("rate of the store over plain inserts", prompts, n, Ratio.of(plain, ours))


def measure_memory(rounds: int) -> Iterator[Row]:
    """Measure a bare `abatch` over a whole collection."""
    for n in (10, 20):
        yield from _compare_with_abatch(InMemoryModel(), "on the loop", 6000 // n, n, rounds)


def measure_threads(rounds: int) -> Iterator[Row]:
    """Measure the same for a model without an async implementation."""
    model = FakeListChatModel(responses=[f"answer {slot}" for slot in range(7)])
    yield from _compare_with_abatch(model, "in threads", 150, 20, rounds)


def _compare_with_abatch(model: BaseChatModel, how: str, prompts: int, n: int, rounds: int) -> Iterator[Row]:
    bare: list[tuple[float, float]] = []
    ours: list[tuple[float, float]] = []
    for number in range(-1, rounds):
        for found, way in ((bare, _call_abatch), (ours, _collect)):
            with pause_garbage_collection():
                start, worked = time.perf_counter(), time.process_time()
                way(model, prompts, n, CONCURRENCY)
                if number >= 0:
                    found.append((time.perf_counter() - start, time.process_time() - worked))
    for which, name in enumerate(("wall time", "processor time")):
        ratio = Ratio.of([one[which] for one in bare], [one[which] for one in ours])
        yield Row(f"bare abatch over a collection, model {how}, {name}", prompts, n, ratio)


def _call_abatch(model: BaseChatModel, prompts: int, n: int, concurrency: int) -> None:
    asked: list[Any] = [f"question {number}" for number in range(prompts) for _ in range(n)]

    async def answers() -> object:
        return await model.abatch(asked, {"max_concurrency": concurrency})

    asyncio.run(answers())


def _collect(model: BaseChatModel, prompts: int, n: int, concurrency: int) -> None:
    parts = Components(model, HalfVerifier(), FirstLabeler(), n)
    with tempfile.TemporaryDirectory() as folder:
        options = CollectionOptions(call_policy=CallPolicy(concurrency), on_notice=lambda _: None)
        found = collect(_make_examples(prompts), parts, Path(folder) / "store.db", options)
    if not found.complete or found.status.labelled != prompts:
        msg = f"only {found.status.labelled} of {prompts} prompts were collected"
        raise AssertionError(msg)


def _make_examples(prompts: int) -> list[Example]:
    return [
        Example(id=f"p{number}", input=f"question {number}", reference=f"answer {number % 5}")
        for number in range(prompts)
    ]


def _make_writes(prompts: int, n: int) -> list[list[Write]]:
    """Make all writes of a collection, a list for each transaction."""
    paid = Usage((ModelCalls("model-1", drew=True, input_tokens=100, output_tokens=50),), n, 0)
    draws = [_make_draw(slot) for slot in range(n)]
    scores, labels = VerifierScores([slot / n for slot in range(n)]), Labels([slot == 0 for slot in range(n)])
    numbers = iter(range(prompts))
    found = []
    while some := list(islice(numbers, BATCH_SIZE)):
        found += [
            combine_writes(rows.insert_draws(one, draws, paid, forbids_nul=False) for one in some),
            combine_writes(rows.insert_scores(one, scores, paid) for one in some),
            combine_writes(rows.insert_labels(one, labels, Usage(), forbids_nul=False) for one in some),
        ]
    return found


def _make_draw(slot: int) -> DrawnCandidate:
    text = f"The answer is {slot}, for a reason that takes about a line."
    return DrawnCandidate(
        text, AIMessage(text, response_metadata={"model_name": "model-1", "finish_reason": "stop"})
    )


@contextmanager
def _open_store(prompts: int) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store.db"
        with Store(path, create=True) as opened:
            opened.add(_make_examples(prompts))
        yield path


def _write_store(path: Path, stages: Sequence[list[Write]]) -> None:
    with Store(path) as opened:
        for rows in stages:
            opened.write(rows)


def _compile_insert(statement: Statement, parameters: Sequence[Mapping[str, Any]]) -> Insert:
    """Compile a write to the form that SQLite takes fastest: question marks, and tuples."""
    compiled = statement.compile(dialect=sqlite.dialect(), column_keys=list(parameters[0]))
    names = compiled.positiontup or []
    return str(compiled), [tuple(row[name] for name in names) for row in parameters]


def _write_plain(path: Path, stages: Sequence[Sequence[Insert]]) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA synchronous = FULL")
        if connection.execute("PRAGMA journal_mode").fetchone() != ("wal",):
            msg = "the two use different journal modes"
            raise AssertionError(msg)
        connection.execute("PRAGMA foreign_keys = ON")
        for rows in stages:
            for statement, parameters in rows:
                connection.executemany(statement, parameters)
            connection.commit()
