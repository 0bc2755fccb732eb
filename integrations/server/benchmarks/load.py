"""What the server adds to calling the chain, at half of the load that it can take.

    python integrations/server/benchmarks/load.py

The server runs as users start it; the model and the verifier of its chain answer at once. Its peer is a
process that calls `await chain.ainvoke`, the same chain on the same saved artifact. Both are asked by the
same 50 clients at the same times: Poisson arrivals from a fixed seed, at half the rate that the server
reached just before, when each client asked again as soon as it was answered. Latency counts from when a
request was due. The sides take turns in rounds, the first of one round being the last of the next.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import multiprocessing
import os
import random
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
if str(ROOT) not in sys.path:  # a script finds only modules of its own folder
    sys.path.insert(0, str(ROOT))

from benchmarks.lib.measuring import describe_run, limit_threads, print_table  # noqa: E402

if __name__ == "__main__":
    limit_threads()  # before NumPy is imported

import numpy as np  # noqa: E402
from langchain_core.messages import HumanMessage  # noqa: E402
from langchain_core.runnables import Runnable, RunnableLambda  # noqa: E402

from benchmarks.lib.in_memory import FEATURES, InMemoryModel, calibrate_artifact  # noqa: E402
from integrations.server.tests.loading import Connection, encode_post  # noqa: E402
from integrations.server.tests.parts import COMMAND, make_request, run_server  # noqa: E402
from langchain_cfc import CalibrationArtifact, CFCResult, CFCRunnable  # noqa: E402
from langchain_cfc.demo import load_recording  # noqa: E402

PACKAGES = (
    "langchain-cfc",
    "langchain-cfc-server",
    "langchain-core",
    "starlette",
    "uvicorn",
    "h11",
    "pydantic",
)
ARTIFACT = "LOAD_ARTIFACT"
CLIENTS, MODEL = 50, "chain"
DELAY = 0.02
SERVER_CPU, CLIENT_CPU = 0, 1
SEED, RESAMPLED = 8, 1000
SIDES = {
    "chain": "the chain, called directly",
    "server": "the server",
    "delayed": "control: the server, 20 ms added on purpose",
    "nothing": "floor: a server that answers without reading",
}

Ask = Callable[[int, int], Awaitable[None]]


def draw_arrivals(rate: float, seconds: float, clients: int, seed: int) -> list[list[float]]:
    """When requests are due, for each client: a Poisson process in all, each point of it anybody's.

    Args:
        rate: Requests a second, of all clients together.
        seconds: How long.
        clients: Number of clients.
        seed: Settles all of it.
    """
    luck = random.Random(seed)  # noqa: S311 - load, not cryptography
    due: list[list[float]] = [[] for _ in range(clients)]
    now = luck.expovariate(rate)
    while now < seconds:
        due[luck.randrange(clients)].append(now)
        now += luck.expovariate(rate)
    return due


async def run_open_loop(
    due: Sequence[Sequence[float]], ask: Callable[[int, int], Awaitable[None]]
) -> list[float]:
    """Ask when it is due, and count the seconds from then on.

    A request that is late because its client still waited for the one before has been waiting all the same:
    its time does not begin when it is sent.

    Args:
        due: When requests are due, for each client.
        ask: Asks, given the numbers of the client and of its request.

    Returns:
        Seconds from due to answered, of every request.
    """
    began = time.perf_counter()

    async def client(number: int) -> list[float]:
        taken = []
        for which, at in enumerate(due[number]):
            await asyncio.sleep(max(0.0, began + at - time.perf_counter()))
            await ask(number, which)
            taken.append(time.perf_counter() - began - at)
        return taken

    return list(chain.from_iterable(await asyncio.gather(*map(client, range(len(due))))))


async def run_closed_loop(clients: int, seconds: float, ask: Callable[[int, int], Awaitable[None]]) -> float:
    """Ask again as soon as there is an answer, and in the end wait for what has been asked.

    No client leaves in the middle, or what a server does for clients that have left would be done while it is
    asked the next time, and be counted there.

    Args:
        clients: Number of clients.
        seconds: For how long requests are begun.
        ask: Asks, given the numbers of the client and of its request.

    Returns:
        Answers a second, of those that came within that time.
    """
    end = time.perf_counter() + seconds
    answered = 0

    async def client(number: int) -> None:
        nonlocal answered
        which = 0
        while time.perf_counter() < end:
            await ask(number, which)
            answered += time.perf_counter() < end
            which += 1

    await asyncio.gather(*map(client, range(clients)))
    return answered / seconds


def verify(_: Any, candidates: Sequence[Any]) -> list[float]:
    """Compute scores from the numbers that candidates end with."""
    return [17 * int(candidate.text.split()[-1]) % 101 / 100 for candidate in candidates]


def make_chain() -> CFCRunnable:
    """Make the chain, on the saved artifact that the environment names; all candidates differ."""
    held = CalibrationArtifact.load(os.environ[ARTIFACT])
    return CFCRunnable(generator=InMemoryModel(distinct=held.n), verifier=verify, artifact=held)


def make_delayed_chain() -> Runnable[Any, Any]:
    """Make the same chain behind a step that takes 20 ms."""

    async def wait(prompt: Any) -> Any:
        await asyncio.sleep(DELAY)
        return prompt

    return RunnableLambda(wait) | make_chain()


@dataclass(frozen=True)
class Load:
    """What a run found, in seconds and answers a second.

    Attributes:
        saturation: Of the chain and of the server, the rate at saturation in each round.
        rounds: Of every side, the latencies of each round.
    """

    saturation: dict[str, list[float]]
    rounds: dict[str, list[list[float]]]

    def compute_quantile(self, side: str, share: float, *, beyond: str | None = None) -> list[float]:
        """Return a quantile of latencies over all rounds, and the ends of an interval around it.

        The interval resamples rounds, all sides of a round together: 95 % if rounds are independent.

        Args:
            side: The side.
            share: The quantile's share.
            beyond: Another side, whose quantile is subtracted.
        """
        count = len(self.rounds[side])
        rng = np.random.default_rng(SEED)
        found = []
        for chosen in (np.arange(count), *rng.integers(count, size=(RESAMPLED, count))):
            one, other = (
                0.0
                if name is None
                else np.quantile(np.concatenate([self.rounds[name][number] for number in chosen]), share)
                for name in (side, beyond)
            )
            found.append(float(one - other))
        return [found[0], *map(float, np.quantile(found[1:], [0.025, 0.975]))]


def measure(rounds: int = 20, seconds: float = 4.0, saturated: float = 2.0) -> Load:
    """Measure rounds, each of saturation first and then of half of it.

    Args:
        rounds: Rounds, each of all sides.
        seconds: Seconds of one side in one round.
        saturated: Seconds of one side at saturation, in one round.
    """
    with _start_sides() as sides:

        def ask(side: str, *command: Any) -> Any:
            sides[side].send(command)
            return sides[side].recv()

        found = Load({"chain": [], "server": []}, {side: [] for side in SIDES})
        for side in found.saturation:
            ask(side, "closed", 1.0)  # imports and caches
        for turn in range(rounds):
            for side, reached in found.saturation.items():
                reached.append(ask(side, "closed", saturated))
                if not reached[-1]:
                    msg = f"the {side} answered nothing in {saturated:g} s: this machine is too busy"
                    raise RuntimeError(msg)
            # Half of the round's own saturation, for the machine is not always as fast.
            rate = found.saturation["server"][-1] / 2
            for side in list(SIDES)[:: 1 if turn % 2 == 0 else -1]:
                found.rounds[side].append(ask(side, "open", rate, seconds, SEED + turn))
    return found


@contextmanager
def _start_sides() -> Iterator[dict[str, Pipe]]:
    """Start the servers, and a process for each side that asks as a pipe commands."""
    module = "integrations.server.benchmarks.load"
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        path = Path(folder) / "artifact.json"
        calibrate_artifact(list(load_recording()), FEATURES).save(path)
        os.environ[ARTIFACT] = str(path)
        ports: dict[str, int | None] = {"chain": None}
        for side, maker in (("server", "make_chain"), ("delayed", "make_delayed_chain")):
            server = stack.enter_context(
                run_server({}, "--name", MODEL, models=f"{module}:{maker}", command=COMMAND)
            )
            _pin(server.process.pid, SERVER_CPU)
            ports[side] = server.port
        floor = stack.enter_context(_start_process(_answer_at_once, SERVER_CPU))
        ports["nothing"] = floor.recv()
        sides = {}
        for side, port in ports.items():
            cpu = SERVER_CPU if port is None else CLIENT_CPU
            sides[side] = stack.enter_context(_start_process(_run_commands, cpu, port))
        yield sides


@contextmanager
def _start_process(work: Callable[..., Any], cpu: int, *arguments: Any) -> Iterator[Pipe]:
    """Start a process that keeps to a core and runs a coroutine function, given its end of a pipe."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(work, cpu, theirs, *arguments), daemon=True)
    process.start()
    try:
        yield ours
    finally:
        process.terminate()
        process.join()


def _work(work: Callable[..., Any], cpu: int, *arguments: Any) -> None:
    _pin(0, cpu)
    # No measurement should contain a pause of the process that measures, and the peer gets its best case.
    gc.collect()
    gc.freeze()
    with suppress(EOFError, KeyboardInterrupt):
        asyncio.run(work(*arguments))


def _pin(process: int, cpu: int) -> None:
    """Keep a process to a core, where the system can."""
    if hasattr(os, "sched_setaffinity") and (os.cpu_count() or 1) > cpu:
        os.sched_setaffinity(process, {cpu})


async def _run_commands(pipe: Pipe, port: int | None) -> None:
    ask = _call_chain() if port is None else _over_http(port)
    while True:
        match await asyncio.to_thread(pipe.recv):
            case ("closed", seconds):
                pipe.send(await run_closed_loop(CLIENTS, seconds, ask))
            case ("open", rate, seconds, seed):
                pipe.send(await run_open_loop(draw_arrivals(rate, seconds, CLIENTS, seed), ask))


def _over_http(port: int) -> Ask:
    connections = [Connection(port) for _ in range(CLIENTS)]

    async def ask(client: int, which: int) -> None:
        request = encode_post(make_request(f"question {1000 * which + client}", MODEL))
        reply = await connections[client].ask(request)
        if reply.status != 200 or b'"guarantee"' not in reply.body:  # noqa: PLR2004 - HTTP's own number
            msg = f"not a decision: {reply.head!r} {reply.body!r}"
            raise AssertionError(msg)

    return ask


def _call_chain() -> Ask:
    chain = make_chain()

    async def ask(client: int, which: int) -> None:
        result = await chain.ainvoke([HumanMessage(f"question {1000 * which + client}")])
        if not isinstance(result, CFCResult):
            msg = f"not a decision: {result!r}"
            raise TypeError(msg)

    return ask


class _AtOnce(asyncio.Protocol):
    """Answers at once without reading: the time that it takes is the clients' own."""

    _BODY = b'{"guarantee": null}'
    _REPLY = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(_BODY), _BODY)

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        del data
        self._transport.write(self._REPLY)


async def _answer_at_once(pipe: Pipe) -> None:
    server = await asyncio.get_running_loop().create_server(_AtOnce, "127.0.0.1", 0)
    pipe.send(server.sockets[0].getsockname()[1])
    await server.serve_forever()


def print_tables(load: Load) -> None:
    """Print the tables of a run."""
    rows = []
    for side, label in SIDES.items():
        added = ["-", "-"]
        if side in {"server", "delayed"}:
            added = [_format(load.compute_quantile(side, share, beyond="chain")) for share in (0.5, 0.99)]
        own = [_format(load.compute_quantile(side, share)) for share in (0.5, 0.99)]
        rows.append((label, *own, *added, f"{sum(map(len, load.rounds[side])):,}"))
    note = (
        f"The control must show {DELAY * 1e3:g} ms beyond the server's own. The floor is what clients and "
        "the machine take by themselves: epoll wakes up to a millisecond late."
    )
    headings = ("asked", "median", "99th percentile", "added to the median", "added to the 99th", "requests")
    print_table("Latency from when a request was due", headings, rows, note)
    rows = [
        (SIDES[side], f"{median(rates):.0f} a second", f"{min(rates):.0f} to {max(rates):.0f}")
        for side, rates in load.saturation.items()
    ]
    note = f"Each of {CLIENTS} clients asks again as soon as it is answered."
    print_table("Saturation", ("asked", "answers", "rounds"), rows, note)


def _format(interval: Sequence[float]) -> str:
    value, low, high = (f"{1e3 * one:.2f}" for one in interval)
    return f"{value} ms ({low} to {high})"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="What the server adds to calling the chain.")
    parser.add_argument("--rounds", type=int, default=20, help="number of rounds")
    found = measure(parser.parse_args().rounds)
    print(describe_run(PACKAGES))
    print_tables(found)
