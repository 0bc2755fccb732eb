"""Bursts of requests on new connections, and health checks meanwhile.

Health is asked by a process of its own, so that what the clients take is not counted as the server's. It
imports this module, which is why nothing heavy is imported here.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import multiprocessing.synchronize
import socket
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from integrations.server.tests.loading import Connection, encode_post
from integrations.server.tests.parts import make_request

_LIVE = b"GET /health/live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
# Longer than any burst here takes.
_PATIENCE = 120.0


@dataclass(frozen=True)
class Burst:
    """The outcome of a burst.

    Attributes:
        taken: For every status, seconds from connecting to the answer.
        live: Seconds that each health check took while the burst lasted.
        failed: How many of them were not answered by 200.
    """

    taken: dict[int, list[float]]
    live: list[float]
    failed: int

    @property
    def counts(self) -> Counter[int]:
        return Counter({status: len(seconds) for status, seconds in self.taken.items()})

    def slowest(self, status: int) -> float:
        """Seconds that the slowest answer of a status took."""
        return max(self.taken[status])


def send_burst(port: int, requests: int, question: str, seconds: float = 0.3) -> Burst:
    """Ask, each time on a new connection.

    Args:
        port: Of the server.
        requests: How many.
        question: What is asked.
        seconds: Time over which they are sent, at equal distances.

    Returns:
        What came of it.
    """
    with _run_health_checks(port) as found:
        answers = asyncio.run(_ask(port, requests, seconds, encode_post(make_request(question))))
    taken: dict[int, list[float]] = {}
    for status, spent in answers:
        taken.setdefault(status, []).append(spent)
    return Burst(taken, [spent for spent, _ in found], sum(not live for _, live in found))


async def _ask(port: int, requests: int, seconds: float, request: bytes) -> list[tuple[int, float]]:
    async def ask(number: int) -> tuple[int, float]:
        await asyncio.sleep(seconds * number / requests)
        connection = Connection(port)
        began = time.perf_counter()
        reply = await asyncio.wait_for(connection.ask(request), _PATIENCE)
        spent = time.perf_counter() - began
        connection.close()
        return reply.status, spent

    return await asyncio.gather(*map(ask, range(requests)))


@contextmanager
def _run_health_checks(port: int) -> Iterator[list[tuple[float, bool]]]:
    """Ask for the health over and over; what is yielded is filled when the block ends."""
    context = multiprocessing.get_context("spawn")
    stop, found = context.Event(), context.Queue()
    process = context.Process(target=_check, args=(port, stop, found), daemon=True)
    process.start()
    checks: list[tuple[float, bool]] = []
    assert found.get(timeout=60) == "ready"
    try:
        yield checks
    finally:
        stop.set()
        checks += found.get(timeout=_PATIENCE)
        process.join()


def _check(port: int, stop: multiprocessing.synchronize.Event, found: Any) -> None:
    found.put("ready")
    checks = []
    while not stop.is_set():
        began = time.perf_counter()
        with socket.create_connection(("127.0.0.1", port), timeout=_PATIENCE) as connection:
            connection.sendall(_LIVE)
            received = connection.recv(4096)
        checks.append((time.perf_counter() - began, received.startswith(b"HTTP/1.1 200 ")))
        time.sleep(0.02)
    found.put(checks)
