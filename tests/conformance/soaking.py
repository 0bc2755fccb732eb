"""The soak: many prompts at once over a network that goes wrong in many ways.

`ChatOpenAI` draws n = 3 candidates for every prompt from a server in a process of its own, of whose requests
each kind of fault strikes one in fifty, all kinds at once. Half of the prompts are served in threads and half
on an event loop; some in event streams and in graphs that stream; half by separate requests and half by one.

Of each prompt: exactly n candidates, all of them answers to this very prompt, or an error of the package with
its cause; nothing rejected in anything that was streamed; the usage that it cost. Over all: requests and
tokens are those that the server counted, and no thread, task or call is left.

Memory: the prompts come in rounds, after each of which nothing is at work and garbage is collected. One that
keeps an object per prompt adds a block at least per prompt to `sys.getallocatedblocks`, so its slope over the
rounds must stay below one half. Connections and pools come and go, and move that number by some 1,500 blocks
of its own accord: where half a block per prompt is not well above, in short runs, the slope must stay below
half of the blocks of a result, so that keeping every second result would show. Buffers outside of Python's
own memory show in the resident set alone, whose slope must stay below half of the bytes of a result; it moves
by some megabytes of its own accord, and is judged only where half of the results weigh more. Slopes are Theil
and Sen's, the median over all pairs of rounds: a cache that fills up once does not move them.
"""

from __future__ import annotations

import asyncio
import copy
import gc
import json
import os
import sys
import threading
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

import httpx
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.outputs import ChatGeneration, LLMResult
from langchain_core.runnables import RunnableConfig
from langchain_openai import ChatOpenAI

from langchain_cfc import (
    CalibrationArtifact,
    Candidate,
    CFCError,
    CFCResult,
    CFCRunnable,
    PromptRecord,
    calibrate,
)
from langchain_cfc.sampling import DrawnCandidate
from tests.conformance.surroundings import shown_events
from tests.serving.openai_bodies import Answer
from tests.serving.openai_server import Fault, Script, serving

from .providers import COMPLETIONS, MODEL
from .surroundings import MODES, events_of, graph_of

N = 3
SHARE = 0.02
# A single character, which no stream can cut in two.
REJECTED = "¬"
# All that keeps a client waiting no longer than a moment.
KINDS = (
    "status 500",
    "status 429",
    "malformed",
    "truncated",
    "dropped",
    "no choices",
    "no content",
    "one choice",
    "fewer choices",
    "more choices",
    "slow",
)
SECONDS = {"status 429": 0.1, "slow": 0.3}  # what it sends as Retry-After; how long it takes
WARM = 2  # rounds that fill caches and pools before memory counts
ENOUGH = 6  # rounds that a slope is made of, at least
BLOCKS = 0.5  # per prompt
OFTEN = 12  # strikes of a kind that are expected
# What memory must be able to show above what it moves by of its own accord.
RESTLESS_BLOCKS = 2_000
RESTLESS_BYTES = 16 * 2**20
PATIENCE = 30.0


class Answers(dict[str, list[Answer]]):
    """To every prompt one answer that is accepted and two that are not, each naming its prompt."""

    def __missing__(self, prompt: str) -> list[Answer]:
        return [
            Answer(f"{prompt}: accepted|0.1", -1.0),
            Answer(f"{prompt}: {REJECTED} first|0.9", -1.0),
            Answer(f"{prompt}: {REJECTED} second|0.8", -1.0),
        ]


@dataclass(frozen=True)
class Plan:
    """How much is served.

    Attributes:
        invocations: Number of prompts.
        concurrency: Prompts at once, half of them in threads.
        rounds: Rounds that the prompts come in.
        seed: Settles what strikes which request.
        share: Share of the requests that each kind of fault strikes.
        patience: Seconds that a round may take.
    """

    invocations: int
    concurrency: int
    rounds: int
    seed: int = 0
    share: float = SHARE
    patience: float = 600.0


@dataclass
class Found:
    """The findings of a soak.

    Attributes:
        violations: What was violated, with how often.
        outcomes: How often each way of serving ended in which way.
        counts: Numbers of ours and of the server's.
        hung: Whether calls never came to an end.
        seconds: Wall time.
    """

    broken: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    causes: Counter[str] = field(default_factory=Counter)
    counts: dict[str, str] = field(default_factory=dict)
    hung: bool = False
    seconds: float = 0.0

    @property
    def violations(self) -> list[str]:
        return [f"{what} ({count} times)" for what, count in self.broken.items()]

    def rows(self) -> Iterator[tuple[str, str]]:
        """The findings as rows of a table."""
        for way in sorted({way for way, _ in self.outcomes}):
            ended = {end: count for (one, end), count in self.outcomes.items() if one == way}
            yield way, ", ".join(f"{count} {end}" for end, count in sorted(ended.items()))
        yield "causes of errors", ", ".join(f"{count} {name}" for name, count in self.causes.most_common())
        yield from self.counts.items()
        yield "wall time", f"{self.seconds:.0f} s"


@dataclass(frozen=True)
class Weight:
    """What a result holds for itself; its guarantee is everybody's.

    Attributes:
        bytes: By the account of `tracemalloc`.
        blocks: Of Python's own memory.
    """

    bytes: float
    blocks: float

    @classmethod
    def of(cls, result: CFCResult) -> Weight:
        """Weigh a hundred copies."""
        kept: list[CFCResult] = []
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0], sys.getallocatedblocks()
            kept.extend(copy.deepcopy(result, {id(result.guarantee): result.guarantee}) for _ in range(100))
            after = tracemalloc.get_traced_memory()[0], sys.getallocatedblocks()
        finally:
            tracemalloc.stop()
        return cls((after[0] - before[0]) / len(kept), (after[1] - before[1]) / len(kept))


class Spent(BaseCallbackHandler):
    """Tokens of all responses that models gave: of each once, whatever number of choices it brought."""

    run_inline = True

    def __init__(self) -> None:
        self.tokens_in = self.tokens_out = 0
        self.unasked = False
        self._lock = threading.Lock()

    def on_chat_model_start(self, *args: Any, **kwargs: Any) -> None:
        """Nothing yet."""

    def on_llm_end(self, response: LLMResult, **kwargs: Any) -> None:
        several = "cfc:candidates" in (kwargs.get("tags") or [])
        for batch in response.generations:
            for generation in batch[:1]:
                assert isinstance(generation, ChatGeneration)
                used: Any = getattr(generation.message, "usage_metadata", None) or {}
                with self._lock:
                    self.tokens_in += used.get("input_tokens", 0)
                    self.tokens_out += used.get("output_tokens", 0)
                    self.unasked |= len(batch) > 1 and not several


class Sent:
    """Counts the requests of clients on the wire."""

    def __init__(self) -> None:
        self.count = 0
        self._lock = threading.Lock()

    def __call__(self, request: httpx.Request) -> None:
        del request
        with self._lock:
            self.count += 1

    async def asynchronously(self, request: httpx.Request) -> None:
        self(request)


def score_of(text: str) -> float:
    """The score that a text states; the worst where it is empty, as a model's that ran out of tokens."""
    return float(text.rpartition("|")[2]) if text else 1.0


def verify(prompt: Any, candidates: list[DrawnCandidate]) -> list[float]:
    """The verifier."""
    del prompt
    return [score_of(one.text) for one in candidates]


def make_soak_artifact() -> CalibrationArtifact:
    """For n = 3 candidates; the threshold is 0.75."""
    records = [
        PromptRecord(
            id=str(rank),
            input=f"prompt {rank}",
            candidates=tuple(
                Candidate(text=f"a{slot}", score=rank / 40 if slot == 0 else 1.0, correct=slot == 0)
                for slot in range(N)
            ),
        )
        for rank in range(1, 40)
    ]
    return calibrate(records, alpha=0.25, features="1")


class Soak:
    """Serves a plan.

    Args:
        plan: How much.
        url: Where the server is found.
        runnable: What makes the runnables, from the fields of `CFCRunnable`.
    """

    def __init__(self, plan: Plan, url: str, runnable: Callable[..., Any]) -> None:
        self.found, self.sent, self.spent = Found(), Sent(), Counter[str]()
        self._sample: CFCResult | None = None
        self._plan = plan
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=4 * plan.concurrency)
        self._client = httpx.Client(limits=limits, timeout=60, event_hooks={"request": [self.sent]})
        self._aclient = httpx.AsyncClient(
            limits=limits, timeout=60, event_hooks={"request": [self.sent.asynchronously]}
        )
        settings: dict[str, Any] = {"model": MODEL, "base_url": url, "api_key": "none", "max_retries": 1}
        model = ChatOpenAI(**settings, http_client=self._client, http_async_client=self._aclient)
        artifact = make_soak_artifact()
        self._chains = [
            runnable(generator=model, verifier=verify, artifact=artifact, sampling=sampling)
            for sampling in ("requests", "single_request")
        ]
        self._graphs = [graph_of(chain) for chain in self._chains]
        self._lock = threading.Lock()
        self._blocks: list[tuple[float, float]] = []
        self._resident: list[tuple[float, float]] = []

    async def run(self) -> None:
        """All rounds."""
        try:
            await self._rounds()
        finally:
            await self._aclient.aclose()
            self._client.close()

    async def _rounds(self) -> None:
        half = max(1, self._plan.concurrency // 2)
        gate = asyncio.Semaphore(half)
        size, most = divmod(self._plan.invocations, self._plan.rounds)
        number = 0
        with ThreadPoolExecutor(half) as pool:
            for turn in range(self._plan.rounds):
                numbers = range(number, number + size + (turn < most))
                number = numbers.stop
                if not await self._round(numbers, gate, pool):
                    self.found.hung = True
                    return
                self._weigh(turn, number)

    async def _round(self, numbers: range, gate: asyncio.Semaphore, pool: ThreadPoolExecutor) -> bool:
        """Serve some prompts; whether all came to an end."""
        loop = asyncio.get_running_loop()
        served = [
            asyncio.ensure_future(self._awaited(number, gate))
            if number % 2
            else asyncio.ensure_future(loop.run_in_executor(pool, self._plain, number))
            for number in numbers
        ]
        done, pending = await asyncio.wait(served, timeout=self._plan.patience)
        for one in done:
            one.result()
        if pending:
            self.found.broken["a call did not come to an end"] += len(pending)
            return False
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        self._left("tasks", {task.get_name() for task in tasks})
        return True

    def _left(self, what: str, names: set[str]) -> None:
        if names:
            self.found.broken[f"{what} were left: {', '.join(sorted(names)[:3])}"] += 1

    def _plain(self, number: int) -> None:
        """Serve a prompt in a thread."""
        prompt, which = _prompt(number), number // 6 % 2
        way = ("invoke", "stream", "graph")[number // 2 % 3]
        serve: dict[str, Callable[[RunnableConfig], tuple[Any, Any]]] = {
            "invoke": lambda config: (self._chains[which].invoke(prompt, config), None),
            "stream": lambda config: _last(list(self._chains[which].stream(prompt, config))),
            "graph": lambda config: _of_graph(
                list(self._graphs[which].stream({"question": prompt}, config, stream_mode=list(MODES)))
            ),
        }
        spent = Spent()
        try:
            ended = serve[way](RunnableConfig(callbacks=[spent]))
        except Exception as error:  # noqa: BLE001 - what it is is looked at
            self._note(number, way, which, spent, error)
        else:
            self._note(number, way, which, spent, ended)

    async def _awaited(self, number: int, gate: asyncio.Semaphore) -> None:
        """Serve a prompt on the event loop."""
        prompt, which = _prompt(number), number // 6 % 2
        way = ("ainvoke", "events", "agraph")[number // 2 % 3]
        spent = Spent()
        async with gate:
            try:
                ended = await self._aserved(way, which, prompt, RunnableConfig(callbacks=[spent]))
            except Exception as error:  # noqa: BLE001 - what it is is looked at
                self._note(number, way, which, spent, error)
            else:
                self._note(number, way, which, spent, ended)

    async def _aserved(self, way: str, which: int, prompt: str, config: RunnableConfig) -> tuple[Any, Any]:
        if way == "ainvoke":
            return await self._chains[which].ainvoke(prompt, config), None
        if way == "events":
            events = await events_of(self._chains[which], prompt, config)
            return events[-1]["data"]["output"], shown_events(events)
        graph = self._graphs[which]
        given = {"question": prompt}
        return _of_graph([one async for one in graph.astream(given, config, stream_mode=list(MODES))])

    def _note(self, number: int, way: str, which: int, spent: Spent, ended: Any) -> None:
        """Look at what came of a prompt, and forget it."""
        with self._lock:
            self.spent["in"] += spent.tokens_in
            self.spent["out"] += spent.tokens_out
            label = f"{way}, {('separate requests', 'one request')[which]}"
            if isinstance(ended, Exception):
                self._failed(label, ended)
                return
            result, shown = ended
            self._served(label, _prompt(number), result, spent)
            # If all others are blank, the set is the best candidate alone, whatever its score.
            is_answered = isinstance(result, CFCResult) and any(REJECTED in one for one in result.answers)
            if REJECTED in repr(shown) and not is_answered:
                self.found.broken["a rejected text was streamed"] += 1

    def _failed(self, label: str, error: Exception) -> None:
        self.found.outcomes[label, type(error).__name__] += 1
        self.found.causes[type(error.__cause__).__name__] += 1
        if not isinstance(error, CFCError):
            self.found.broken[f"an error that is not the package's: {error!r:.200}"] += 1
        elif error.__cause__ is None:
            self.found.broken["an error without a cause"] += 1

    def _served(self, label: str, prompt: str, result: Any, spent: Spent) -> None:
        if not isinstance(result, CFCResult):
            self.found.outcomes[label, "nothing"] += 1
            self.found.broken["neither a result nor an error"] += 1
            return
        self.found.outcomes[label, result.reason] += 1
        if [one.slot for one in result.candidates] != list(range(N)):
            self.found.broken["another number of candidates than n"] += 1
        if any(one.text is not None and not one.accepted for one in result.candidates):
            self.found.broken["a rejected text in a result"] += 1
        if any(one.text and not one.text.startswith(prompt) for one in result.candidates):
            self.found.broken["a candidate of another prompt"] += 1
        # Of a response with unrequested choices, the cost is counted once for each.
        used = result.usage or {}
        if not spent.unasked and (used.get("input_tokens"), used.get("output_tokens")) != (
            spent.tokens_in,
            spent.tokens_out,
        ):
            self.found.broken["a result's usage is not what was paid"] += 1
        self._sample = self._sample or result

    def _weigh(self, turn: int, number: int) -> None:
        """Note how much memory is held while nothing runs."""
        gc.collect()
        if turn >= WARM:
            self._blocks.append((number, sys.getallocatedblocks()))
            self._resident.append((number, resident_bytes()))

    def judge_memory(self) -> None:
        """Judge what grew, and whether that is too much."""
        if len(self._blocks) < ENOUGH:
            self.found.counts["memory"] = f"not judged: {len(self._blocks)} rounds after warming up"
            return
        if self._sample is None:
            return
        weight = Weight.of(self._sample)
        blocks, bytes_ = slope(self._blocks), slope(self._resident)
        prompts = self._resident[-1][0] - self._resident[0][0]
        long = prompts * BLOCKS > RESTLESS_BLOCKS
        most = BLOCKS if long else weight.blocks / 2
        self.found.counts["blocks per prompt"] = f"{blocks:+.3f} (at most {most:g})"
        if blocks > most:
            self.found.broken[f"memory grew by {blocks:.2f} blocks per prompt"] += 1
        tolerated = weight.bytes / 2
        judged = prompts * tolerated > RESTLESS_BYTES
        told = f"at most {tolerated:.0f}" if judged else "not judged in a run this short"
        sizes = f"{self._resident[0][1] / 2**20:.0f} to {self._resident[-1][1] / 2**20:.0f} MiB"
        self.found.counts["resident bytes per prompt"] = f"{bytes_:+.0f} ({told}); {sizes}"
        if judged and bytes_ > tolerated:
            self.found.broken[f"memory grew by {bytes_:.0f} bytes per prompt"] += 1

    def reconcile(self, script: Script) -> None:
        """Compare what was sent and paid for with what the server counted."""
        answered = count_replayed(script)
        self._equal("requests, clients and server", self.sent.count, len(script.requests))
        self._equal("tokens read, clients and server", self.spent["in"], answered["in"])
        self._equal("tokens written, clients and server", self.spent["out"], answered["out"])
        self._equal("faults, first and again", dict(script.struck), answered["struck"])
        self.found.counts["connections"] = str(script.connections)
        if any(body.get("stream") for body in script.requests):
            self.found.broken["a request asked for a stream"] += 1

    def _equal(self, what: str, ours: Any, servers: Any) -> None:
        self.found.counts[what] = f"{ours}" if ours == servers else f"{ours} and {servers}"
        if ours != servers:
            self.found.broken[f"{what} differ: {ours} and {servers}"] += 1


def soak(plan: Plan, runnable: Callable[..., Any] = CFCRunnable) -> Found:
    """Serve a plan and check what came of it.

    Args:
        plan: How much is served.
        runnable: What makes the runnables, from the fields of `CFCRunnable`.
    """
    script = Script(
        Answers(),
        faults=[Fault(kind, on=plan.share, seconds=SECONDS.get(kind, 0.0)) for kind in KINDS],
        seed=plan.seed,
    )
    before, started = set(threading.enumerate()), time.monotonic()
    with mock.patch.dict(os.environ, {"NO_PROXY": "127.0.0.1"}):
        with serving(script, keep_alive=True, own_process=True) as url:
            soaked = Soak(plan, url, runnable)
            asyncio.run(soaked.run())
        found = soaked.found
    found.seconds = time.monotonic() - started
    if not found.hung:
        _wait(lambda: set(threading.enumerate()) <= before)
        left = set(threading.enumerate()) - before
        soaked._left("threads", {thread.name for thread in left})
        soaked.reconcile(script)
        soaked.judge_memory()
    # Six kinds replace a response, and leave the others what is left; that one expected so often does not
    # strike at all has a chance below exp(-12).
    if plan.share * (1 - plan.share) ** 6 * len(script.requests) > OFTEN:
        for kind in KINDS:
            if not script.struck[kind]:
                found.broken[f"{kind} never struck"] += 1
    return found


def count_replayed(script: Script) -> dict[str, Any]:
    """Return what a script's whole responses cost, by repeating the requests."""
    again = Script(script.answers, faults=script.faults, seed=script.seed)
    tokens: Counter[str] = Counter()
    for body in script.requests:
        reply = again.reply(COMPLETIONS, body)
        # A stream, which should not be requested, does not count.
        whole = reply.status == httpx.codes.OK and not reply.broken and not reply.events
        content = json.loads(reply.parts[0]) if whole else {}
        # Of no choice at all clients make an error, and listeners are told of no usage.
        if content.get("choices"):
            tokens["in"] += content["usage"]["prompt_tokens"]
            tokens["out"] += content["usage"]["completion_tokens"]
    return {**tokens, "struck": dict(again.struck)}


def slope(points: list[tuple[float, float]]) -> float:
    """Theil and Sen's: the median slope of all pairs of points."""
    return median((b[1] - a[1]) / (b[0] - a[0]) for a, b in combinations(points, 2))


def resident_bytes() -> float:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _prompt(number: int) -> str:
    return f"prompt {number:07d}"


def _last(pieces: list[Any]) -> tuple[Any, Any]:
    return pieces[-1], pieces


def _of_graph(shown: list[Any]) -> tuple[Any, Any]:
    """The result that a graph ended with, and all that it streamed."""
    values = [piece for mode, piece in shown if mode == "values"]
    return CFCResult.model_validate(values[-1]["result"]), shown


def _wait(done: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not done() and time.monotonic() < end:
        time.sleep(0.02)
