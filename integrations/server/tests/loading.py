"""A cheap HTTP client, and load in bursts beside health checks.

Health is asked by a process of its own, so that what the clients take is not counted as the server's. It
imports this module, which is why nothing heavy is imported here.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import multiprocessing.synchronize
import socket
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from integrations.server.tests.parts import TOKEN, make_request

COMPLETIONS = "/v1/chat/completions"
_LONGEST = 1 << 20


class LostError(Exception):
    """A request that was sent, and got no whole response."""


@dataclass(frozen=True)
class Reply:
    """A whole response.

    Attributes:
        head: Status line and headers as they came.
        body: The body.
    """

    head: bytes
    body: bytes

    @property
    def status(self) -> int:
        return int(self.head[9:12])

    @property
    def closes(self) -> bool:
        """Whether the server ends the connection with it."""
        return b"\r\nconnection: close" in self.head.lower()


class Connection:
    """A connection that is kept until the server ends it.

    Args:
        port: Of the server, on this machine.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def open(self) -> asyncio.StreamWriter:
        """Connect if it is not connected, or not any longer, and return what bytes go into."""
        if self._reader is not None and self._reader.at_eof():
            self.close()
        if self._writer is None:
            opened = await asyncio.open_connection("127.0.0.1", self._port, limit=_LONGEST)
            self._reader, self._writer = opened
        return self._writer

    async def ask(self, request: bytes) -> Reply:
        """Send a request, and read its response.

        Raises:
            LostError: If there is no whole response.
            ConnectionRefusedError: If no server listens.
        """
        writer = await self.open()
        try:
            writer.write(request)
            return await self.reply()
        except (ConnectionError, LostError) as error:
            self.close()
            raise LostError(str(error) or type(error).__name__) from error
        except asyncio.CancelledError:
            # Or the next request would read this one's response.
            self.close()
            raise

    async def reply(self) -> Reply:
        """Read a response.

        Raises:
            LostError: If it does not come whole.
        """
        assert self._reader is not None
        try:
            head = await self._reader.readuntil(b"\r\n\r\n")
            body = await self._reader.readexactly(_read_length(head))
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            count = len(error.partial) if isinstance(error, asyncio.IncompleteReadError) else 0
            self.close()
            msg = f"{type(error).__name__} after {count} bytes"
            raise LostError(msg) from error
        except LostError:
            self.close()
            raise
        reply = Reply(head, body)
        if reply.closes:
            self.close()
        return reply

    def close(self) -> None:
        """Leave; what was sent may still be worked on."""
        if self._writer is not None:
            self._writer.close()
        self._reader = self._writer = None


def _read_length(head: bytes) -> int:
    """The length that a head states; this server always does."""
    _, found, rest = head.lower().partition(b"\r\ncontent-length: ")
    if not found:
        msg = f"a response without a length: {head!r}"
        raise LostError(msg)
    return int(rest.partition(b"\r\n")[0])


def encode_post(body: Any, *, token: str | None = TOKEN, path: str = COMPLETIONS) -> bytes:
    """The bytes of a request; a body of bytes is sent as it is."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    by = "" if token is None else f"Authorization: Bearer {token}\r\n"
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{by}Content-Type: application/json\r\n"
        f"Content-Length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


def encode_get(path: str, *, token: str | None = TOKEN) -> bytes:
    """The bytes of a request for a path."""
    by = "" if token is None else f"Authorization: Bearer {token}\r\n"
    return f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{by}\r\n".encode()


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
