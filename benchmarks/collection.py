"""What collecting costs in addition to the model, in one run: `python benchmarks/collection.py`.

Wall time over HTTP over the ideal, with a server of fixed latency that handles so many requests at a time;
a whole collection over a bare `abatch` of the same prompts, with a model that answers on the event loop and
with one that LangChain calls in threads; and scoring a store again over reading it. Alternatives are timed in
turn within the run. Times depend on the machine and its disk; the ratios are what counts.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

# A script finds only modules of its own folder.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.lib.measuring import (
    RATIO_HEADINGS,
    Ratio,
    limit_threads,
    pause_garbage_collection,
    print_table,
    time_call,
)

limit_threads()  # before NumPy is imported

import httpx  # noqa: E402 - after the threads are limited
from langchain_cfc_collect import CallPolicy, CollectionOptions, Store, collect, rescore  # noqa: E402
from langchain_cfc_collect.executor import Components  # noqa: E402
from langchain_core.language_models import BaseChatModel, FakeListChatModel  # noqa: E402
from langchain_core.runnables import RunnableConfig  # noqa: E402
from langchain_openai import ChatOpenAI  # noqa: E402

from benchmarks.lib.in_memory import InMemoryModel  # noqa: E402
from benchmarks.lib.slow_server import count_requests, run_slow_server  # noqa: E402
from langchain_cfc.execution import Steps  # noqa: E402
from langchain_cfc.labelers.base import BaseLabeler, LabelerInput  # noqa: E402
from langchain_cfc.records import Candidate, Example, PromptRecord, Provenance  # noqa: E402
from langchain_cfc.verifiers import SelfConsistency, VerifierInput  # noqa: E402
from langchain_cfc.verifiers.base import BaseVerifier  # noqa: E402

CONCURRENCY = 8
HTTP_CASES = ((0.25, 8, 20, 10), (0.25, 8, 200, 1), (0.5, 16, 20, 10))  # seconds, places, prompts and n


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


def measure_wait(rounds: int) -> Iterator[tuple[str, Ratio]]:
    """Yield wall time over the ideal, n * N * latency / places, of a collection and of a bare `abatch`."""
    os.environ["NO_PROXY"] = "127.0.0.1"
    for latency, places, prompts, n in HTTP_CASES:
        ideal = n * prompts * latency / places
        found: list[list[float]] = [[], []]
        with run_slow_server(latency, 0.0, places) as url:
            for _ in range(rounds):
                for taken, way in zip(found, (collect_all, call_abatch), strict=True):
                    taken.append(time_call(partial(way, _make_client(url), prompts, n, places)))
            asked = sum(count_requests(url).values())
        if asked != 2 * prompts * n * rounds:
            msg = f"{asked} requests for 2 x {rounds} x {prompts} x {n} candidates"
            raise AssertionError(msg)
        for taken, what in zip(found, ("a collection", "abatch"), strict=True):
            name = f"{what} over HTTP, {places} places of {latency:g} s, {prompts} x {n}, over the ideal"
            yield name, Ratio.of(taken, [ideal] * rounds)


def _make_client(url: str) -> ChatOpenAI:
    # One for each round: connections end with the event loop that opened them.
    settings: dict[str, Any] = {"base_url": url, "api_key": "none", "http_async_client": httpx.AsyncClient()}
    return ChatOpenAI(model="distinct-5", max_retries=0, **settings)


def measure_memory(rounds: int) -> Iterator[tuple[str, Ratio]]:
    """Yield a whole collection over a bare `abatch`, with a model on the event loop."""
    for n in (10, 20):
        yield from _compare_with_abatch(InMemoryModel(), "", 6000 // n, n, rounds)


def measure_threads(rounds: int) -> Iterator[tuple[str, Ratio]]:
    """Yield the same for a model without an async implementation."""
    model = FakeListChatModel(responses=[f"answer {slot}" for slot in range(7)])
    yield from _compare_with_abatch(model, "model in threads, ", 150, 20, rounds)


def _compare_with_abatch(
    model: BaseChatModel, how: str, prompts: int, n: int, rounds: int
) -> Iterator[tuple[str, Ratio]]:
    ours: list[tuple[float, float]] = []
    bare: list[tuple[float, float]] = []
    for number in range(-1, rounds):
        for found, way in ((bare, call_abatch), (ours, collect_all)):
            with pause_garbage_collection():
                start, worked = time.perf_counter(), time.process_time()
                way(model, prompts, n, CONCURRENCY)
                if number >= 0:
                    found.append((time.perf_counter() - start, time.process_time() - worked))
    for which, name in enumerate(("wall time", "processor time")):
        ratio = Ratio.of([one[which] for one in ours], [one[which] for one in bare])
        yield f"a collection over abatch, {how}{name}, n = {n}", ratio


def call_abatch(model: BaseChatModel, prompts: int, n: int, concurrency: int) -> None:
    """Ask the model alone, for n answers to every prompt."""
    asked: list[Any] = [f"question {number}" for number in range(prompts) for _ in range(n)]

    async def answers() -> object:
        return await model.abatch(asked, {"max_concurrency": concurrency})

    asyncio.run(answers())


def collect_all(model: BaseChatModel, prompts: int, n: int, concurrency: int) -> None:
    """Collect the same prompts: draw, score, label and store."""
    parts = Components(model, HalfVerifier(), FirstLabeler(), n)
    examples = [
        Example(id=f"p{number}", input=f"question {number}", reference=f"answer {number % 5}")
        for number in range(prompts)
    ]
    with tempfile.TemporaryDirectory() as folder:
        options = CollectionOptions(call_policy=CallPolicy(concurrency), on_notice=lambda _: None)
        found = collect(examples, parts, Path(folder) / "store.db", options)
    if not found.complete or found.status.labelled != prompts:
        msg = f"only {found.status.labelled} of {prompts} prompts were collected"
        raise AssertionError(msg)


def measure_rescoring(rounds: int) -> Iterator[tuple[str, Ratio]]:
    """Yield the processor time of scoring stored draws again over that of reading them."""
    prompts, n = 10_000, 10
    made_by = Provenance(n=n, generator={"id": "g"}, verifier={"id": "v"}, labeler={"id": "l"})
    records = (
        PromptRecord(
            id=f"p{number}",
            input=f"question {number}",
            candidates=tuple(
                Candidate(text=f"answer {number * slot % 7}", score=0.5, correct=slot == 0)
                for slot in range(n)
            ),
        )
        for number in range(prompts)
    )
    options = CollectionOptions(on_progress=lambda _: None, on_notice=lambda _: None)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store.db"
        with Store(path, create=True) as store:
            store.add_records(records, made_by)
        found: list[list[float]] = [[], []]
        for number in range(rounds):
            start = time.process_time()
            with Store(path) as store:
                read = sum(1 for _ in store.read_all())
            middle = time.process_time()
            result = rescore(path, SelfConsistency(), Path(folder) / f"{number}.db", options)
            found[0].append(time.process_time() - middle)
            found[1].append(middle - start)
            if not read == result.status.labelled == prompts:
                msg = f"{read} prompts were read and {result.status.labelled} scored, of {prompts}"
                raise AssertionError(msg)
    yield f"rescore over reading, processor time, {prompts} x {n}", Ratio.of(*found)


PARTS = {
    "wait": measure_wait,
    "memory": measure_memory,
    "threads": measure_threads,
    "rescoring": measure_rescoring,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure every chosen part, and print one table of ratios."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=tuple(PARTS), default=tuple(PARTS), help="parts")
    parser.add_argument("--rounds", type=int, default=9, help="at least 6")
    options = parser.parse_args(arguments)
    found = [row for part in options.only for row in PARTS[part](options.rounds)]
    rows = [(name, *ratio.list_cells()) for name, ratio in found]
    print_table("Collecting", ("what, over what", *RATIO_HEADINGS), rows)


if __name__ == "__main__":
    main()
