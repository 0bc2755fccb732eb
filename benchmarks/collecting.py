"""The parts of `collection.py`: what collecting costs, beside the ideal and beside the least to be done."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import httpx
from langchain_core.language_models import BaseChatModel, FakeListChatModel
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig
from langchain_openai import ChatOpenAI
from sqlalchemy.dialects import sqlite

from benchmarks.alternate import Ratio
from benchmarks.in_memory import InMemoryModel
from benchmarks.ours import quiet
from benchmarks.slow_server import counted, slow_server
from langchain_cfc.collect.collecting import CallPolicy, CollectionOptions, collect
from langchain_cfc.collect.costs import ModelCalls, Usage
from langchain_cfc.collect.executor import Components, Labels
from langchain_cfc.collect.store import Store, rows
from langchain_cfc.collect.store.rows import Statement, Write, combine_writes
from langchain_cfc.execution import Steps
from langchain_cfc.labelers.base import BaseLabeler, LabelerInput
from langchain_cfc.records import Example
from langchain_cfc.sampling import DrawnCandidate
from langchain_cfc.verifiers import VerifierInput
from langchain_cfc.verifiers.base import BaseVerifier, VerifierScores

CONCURRENCY = 8
TOGETHER = 8
"""Prompts per transaction, where the store alone is timed."""

Plain: TypeAlias = tuple[str, list[tuple[Any, ...]]]


@dataclass(frozen=True)
class Measured:
    """One row.

    Attributes:
        what: What is compared with what.
        prompts: Number of prompts.
        n: Number of candidates for each.
        ratio: The one over the other.
        control: Whether nothing of ours is in it: what the client and the machine add by themselves.
    """

    what: str
    prompts: int
    n: int
    ratio: Ratio
    control: bool = False


class Half(BaseVerifier):
    """Takes no time: what is measured is what is around it."""

    fingerprint: Mapping[str, Any] = {"id": "half"}

    def flow(self, given: VerifierInput, config: RunnableConfig) -> Steps[list[float]]:
        """One half for each candidate."""
        del config
        yield from ()
        return [0.5] * len(given["candidates"])


class First(BaseLabeler):
    """The same as a labeler."""

    fingerprint: Mapping[str, Any] = {"id": "first"}

    def flow(self, given: LabelerInput, config: RunnableConfig) -> Steps[list[bool]]:
        """The first candidate is correct."""
        del config
        yield from ()
        return [slot == 0 for slot in range(len(given["candidates"]))]


def wait(rounds: int) -> Iterator[Measured]:
    """Wall time over the ideal, n * N * latency / places."""
    os.environ["NO_PROXY"] = "127.0.0.1"
    for latency, places, prompts, n in ((0.25, 8, 20, 10), (0.25, 8, 200, 1), (0.5, 16, 20, 10)):
        ideal = n * prompts * latency / places
        found: list[list[float]] = [[], []]
        with slow_server(latency, 0.0, places) as url:
            for _ in range(rounds):
                for taken, way in zip(found, (_collected, _bare), strict=True):
                    taken.append(_seconds(partial(way, _client(url), prompts, n, places)))
            asked = sum(counted(url).values())
        if asked != 2 * prompts * n * rounds:
            msg = f"{asked} requests for 2 x {rounds} x {prompts} x {n} candidates"
            raise AssertionError(msg)
        for taken, what in zip(found, ("a collection", "bare abatch"), strict=True):
            over = f"{what} over HTTP, {places} places of {latency:g} s, over the ideal"
            ratio = Ratio.of(taken, [ideal] * rounds)
            yield Measured(over, prompts, n, ratio, control=what != "a collection")


def _client(url: str) -> ChatOpenAI:
    # One for each round: connections do not outlive the event loop that they were opened on.
    settings: dict[str, Any] = {"base_url": url, "api_key": "none", "http_async_client": httpx.AsyncClient()}
    return ChatOpenAI(model="distinct-5", max_retries=0, **settings)


def store(rounds: int) -> Iterator[Measured]:
    """Rows written per second, beside `executemany` of the same ones in as many transactions."""
    prompts, n = 400, 10
    stages = _stages(prompts, n)
    bare = [[_plain(*one) for one in rows if one[1]] for rows in stages]
    ours, plain = [], []
    for _ in range(rounds):
        with _store(prompts) as path:
            plain.append(_seconds(partial(_plainly, path, bare)))
        with _store(prompts) as path:
            ours.append(_seconds(partial(_stored, path, stages)))
    # A rate is one over a time.
    yield Measured("rate of the store over plain inserts", prompts, n, Ratio.of(plain, ours))


def memory(rounds: int) -> Iterator[Measured]:
    """A bare `abatch`, in time, over a whole collection."""
    for n in (10, 20):
        yield from _beside_abatch(InMemoryModel(), "on the loop", 6000 // n, n, rounds)


def threads(rounds: int) -> Iterator[Measured]:
    """The same for a model without an async path of its own."""
    model = FakeListChatModel(responses=[f"answer {slot}" for slot in range(7)])
    yield from _beside_abatch(model, "in threads", 150, 20, rounds)


def _beside_abatch(model: BaseChatModel, how: str, prompts: int, n: int, rounds: int) -> Iterator[Measured]:
    bare: list[tuple[float, float]] = []
    ours: list[tuple[float, float]] = []
    for number in range(-1, rounds):
        for found, way in ((bare, _bare), (ours, _collected)):
            with quiet():
                start, worked = time.perf_counter(), time.process_time()
                way(model, prompts, n, CONCURRENCY)
                if number >= 0:
                    found.append((time.perf_counter() - start, time.process_time() - worked))
    for which, name in enumerate(("wall time", "processor time")):
        ratio = Ratio.of([one[which] for one in bare], [one[which] for one in ours])
        yield Measured(f"bare abatch over a collection, model {how}, {name}", prompts, n, ratio)


def _bare(model: BaseChatModel, prompts: int, n: int, concurrency: int) -> None:
    asked: list[Any] = [f"question {number}" for number in range(prompts) for _ in range(n)]

    async def answers() -> object:
        return await model.abatch(asked, {"max_concurrency": concurrency})

    asyncio.run(answers())


def _collected(model: BaseChatModel, prompts: int, n: int, concurrency: int) -> None:
    parts = Components(model, Half(), First(), n)
    with tempfile.TemporaryDirectory() as folder:
        options = CollectionOptions(call_policy=CallPolicy(concurrency), on_notice=_ignored)
        found = collect(_examples(prompts), parts, Path(folder) / "store.db", options)
    if not found.complete or found.status.labelled != prompts:
        msg = f"only {found.status.labelled} of {prompts} prompts were collected"
        raise AssertionError(msg)


def _ignored(notice: str) -> None:
    del notice


def _examples(prompts: int) -> list[Example]:
    return [
        Example(id=f"p{number}", input=f"question {number}", reference=f"answer {number % 5}")
        for number in range(prompts)
    ]


# The store alone


def _stages(prompts: int, n: int) -> list[list[Write]]:
    """All writes of a collection, a list for each transaction."""
    paid = Usage((ModelCalls("model-1", drew=True, input_tokens=100, output_tokens=50),), n, 0)
    draws = [_draw(slot) for slot in range(n)]
    scores, labels = VerifierScores([slot / n for slot in range(n)]), Labels([slot == 0 for slot in range(n)])
    numbers = iter(range(prompts))
    found = []
    while some := list(islice(numbers, TOGETHER)):
        found += [
            combine_writes(rows.insert_draws(one, draws, paid, without_nul=False) for one in some),
            combine_writes(rows.insert_scores(one, scores, paid) for one in some),
            combine_writes(rows.insert_labels(one, labels, Usage(), without_nul=False) for one in some),
        ]
    return found


def _draw(slot: int) -> DrawnCandidate:
    text = f"The answer is {slot}, for a reason that takes about a line."
    return DrawnCandidate(
        text, AIMessage(text, response_metadata={"model_name": "model-1", "finish_reason": "stop"})
    )


@contextmanager
def _store(prompts: int) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store.db"
        with Store(path, create=True) as made:
            made.add(_examples(prompts))
        yield path


def _stored(path: Path, stages: Sequence[list[Write]]) -> None:
    with Store(path) as opened:
        for rows in stages:
            opened.write(rows)


def _plain(statement: Statement, parameters: Sequence[Mapping[str, Any]]) -> Plain:
    """The same as SQLite takes it fastest: question marks, and tuples."""
    compiled = statement.compile(dialect=sqlite.dialect(), column_keys=list(parameters[0]))
    names = compiled.positiontup or []
    return str(compiled), [tuple(row[name] for name in names) for row in parameters]


def _plainly(path: Path, stages: Sequence[Sequence[Plain]]) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA synchronous = FULL")
        if connection.execute("PRAGMA journal_mode").fetchone() != ("wal",):
            msg = "the two are not committed alike"
            raise AssertionError(msg)
        connection.execute("PRAGMA foreign_keys = ON")
        for rows in stages:
            for statement, parameters in rows:
                connection.executemany(statement, parameters)
            connection.commit()


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
