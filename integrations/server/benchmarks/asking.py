"""Processes that send requests: to a server over HTTP, or to the chain itself, by the same clients."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection as Pipe
from typing import Any

from langchain_core.messages import HumanMessage

from integrations.server.benchmarks import bot
from integrations.server.tests.loading import (
    Connection,
    draw_arrivals,
    encode_post,
    run_closed_loop,
    run_open_loop,
)
from integrations.server.tests.parts import make_request
from langchain_cfc import CFCResult

CLIENTS = 50
MODEL = "chain"
SERVER_CPU, CLIENT_CPU = 0, 1

Ask = Callable[[int, int], Awaitable[None]]


class Asker:
    """A process that sends requests when it gets a command.

    Args:
        pipe: Carries the commands to it.
        process: The process.
    """

    def __init__(self, pipe: Pipe, process: multiprocessing.process.BaseProcess) -> None:
        self._pipe = pipe
        self.pid = process.pid or 0

    def measure_saturation(self, seconds: float) -> float:
        """Return answers a second when each of 50 clients asks again as soon as it is answered."""
        self._pipe.send(("closed", seconds))
        rate: float = self._pipe.recv()
        return rate

    def measure_latencies(self, rate: float, seconds: float, seed: int) -> list[float]:
        """Return the seconds from due to answered, at Poisson arrivals."""
        self._pipe.send(("open", rate, seconds, seed))
        taken: list[float] = self._pipe.recv()
        return taken


@contextmanager
def start_asker(port: int | None, cpu: int) -> Iterator[Asker]:
    """Start a process that asks a server, or the chain itself.

    Args:
        port: Of the server; None for the chain, in the asking process.
        cpu: The core that the process keeps to.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs, port, cpu), daemon=True)
    process.start()
    theirs.close()
    ours.recv()
    try:
        yield Asker(ours, process)
    finally:
        ours.close()
        process.join()


@contextmanager
def start_floor_server(cpu: int) -> Iterator[int]:
    """Start a server that answers at once without reading: the time that it takes is the clients' own."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_echo, args=(theirs, cpu), daemon=True)
    process.start()
    try:
        yield ours.recv()
    finally:
        process.terminate()
        process.join()


def pin(process: int, cpu: int) -> None:
    """Keep a process to a core, where the system can."""
    if hasattr(os, "sched_setaffinity") and (os.cpu_count() or 1) > cpu:
        os.sched_setaffinity(process, {cpu})


def _work(pipe: Pipe, port: int | None, cpu: int) -> None:
    pin(0, cpu)
    # No measurement should contain a pause of the process that measures, and the peer gets its best case.
    gc.collect()
    gc.freeze()
    with suppress(EOFError, KeyboardInterrupt):
        asyncio.run(_run_commands(pipe, _call_chain() if port is None else _over_http(port)))


async def _run_commands(pipe: Pipe, ask: Ask) -> None:
    pipe.send("ready")
    while True:
        match await asyncio.to_thread(pipe.recv):
            case ("closed", seconds):
                pipe.send(await run_closed_loop(CLIENTS, seconds, ask))
            case ("open", rate, seconds, seed):
                pipe.send(await run_open_loop(draw_arrivals(rate, seconds, CLIENTS, seed), ask))


def _prompt(client: int, which: int) -> str:
    return f"question {1000 * which + client}"


def _over_http(port: int) -> Ask:
    connections = [Connection(port) for _ in range(CLIENTS)]

    async def ask(client: int, which: int) -> None:
        reply = await connections[client].ask(encode_post(make_request(_prompt(client, which), MODEL)))
        if reply.status != 200 or b'"guarantee"' not in reply.body:  # noqa: PLR2004 - HTTP's own number
            msg = f"not a decision: {reply.head!r} {reply.body!r}"
            raise AssertionError(msg)

    return ask


def _call_chain() -> Ask:
    chain = bot.make_chain()

    async def ask(client: int, which: int) -> None:
        result = await chain.ainvoke([HumanMessage(_prompt(client, which))])
        if not isinstance(result, CFCResult):
            msg = f"not a decision: {result!r}"
            raise TypeError(msg)

    return ask


class _AtOnce(asyncio.Protocol):
    _BODY = b'{"guarantee": null}'
    _REPLY = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(_BODY), _BODY)

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        del data
        self._transport.write(self._REPLY)


def _echo(pipe: Pipe, cpu: int) -> None:
    pin(0, cpu)

    async def serve() -> None:
        server = await asyncio.get_running_loop().create_server(_AtOnce, "127.0.0.1", 0)
        pipe.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(serve())
