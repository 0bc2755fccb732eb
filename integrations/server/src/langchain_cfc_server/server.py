"""Listening and stopping: an application on a port, which loses no request when it is told to stop.

Told to stop by SIGTERM, the server first goes on for a while: it says that it is not ready, so that balancers
send requests elsewhere, and ends every connection with its next response. Requests that come nevertheless
are answered as ever. Then it stops listening, hears out connections that were made just before, finishes
what is in flight, and ends. Ctrl-C leaves the while out.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import logging
import math
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from types import FrameType

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from langchain_cfc.errors import InputError
from langchain_cfc_server.errors import RefusedError
from langchain_cfc_server.traffic import Traffic

_LOG = logging.getLogger("langchain_cfc_server")
# Longer than clients keep a connection that they do not use, or one would be closed as they use it again.
_KEEP_ALIVE = 75
# Seconds that a connection has for the head of a request, from its first byte.
_HEAD = 10.0
# Seconds that a thread runs before the loop has its turn.
_SWITCH = 0.0005
# Seconds that connections have for a first request after the server has stopped listening.
_LAST = 1.0
# Seconds in which a client has to take some of what it was sent.
_TAKEN = 10.0


def run(
    app: FastAPI, *, host: str = "127.0.0.1", port: int = 8000, drain: float = 5.0, finish: float = 60.0
) -> None:
    """Serve an application until the process is told to stop.

    Args:
        app: What `create_app` made.
        host: Address to listen on.
        port: Port; 0 for a free one, which the log tells.
        drain: Seconds from SIGTERM to the end of listening.
        finish: Seconds that requests in flight have from then on; what takes longer is refused.

    Raises:
        InputError: If it cannot listen there, or a time is none.
    """
    for name, seconds in (("drain", drain), ("finish", finish)):
        if not (math.isfinite(seconds) and seconds >= 0):
            msg = f"{name} is {seconds:g}: expected seconds, at least 0"
            raise InputError(msg)
    listening = _listening(host, port)
    config = uvicorn.Config(
        app,
        http=_Connection,
        ws="none",
        lifespan="on",
        # uvloop, where there is one: it spends less on each turn, of which a request takes dozens.
        loop="auto",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=_KEEP_ALIVE,
        # A last resort, for connections that nobody reads from.
        timeout_graceful_shutdown=int(finish) + 5,
    )
    # Whoever closes the one has not closed the other, on which the system goes on to accept.
    with listening, listening.dup() as twin:
        _Server(config, app.state.traffic, twin, drain, finish).run([listening])


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # By its number, or asyncio does not see that it is TCP and leaves Nagle's algorithm on, which holds the
    # second part of each response back for 40 ms.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
    except (OSError, OverflowError) as error:
        listening.close()
        msg = f"cannot listen on {host}:{port}: {error}"
        raise InputError(msg) from error
    return listening


class _Server(uvicorn.Server):
    """uvicorn's server, with a way to stop in which no request is lost."""

    def __init__(
        self, config: uvicorn.Config, traffic: Traffic, twin: socket.socket, drain: float, finish: float
    ) -> None:
        super().__init__(config)
        self._traffic = traffic
        self._twin = twin
        self._drain = drain
        self._finish = finish
        self._end: float | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Note that the process is told to stop; it ends with exit code 0, for it does as it is told."""
        del frame
        if sig == signal.SIGINT:
            self.force_exit = self.should_exit
            self._drain = 0.0
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and say where."""
        await super().startup(sockets)
        # What has been imported stays: not to look through it again keeps pauses short.
        gc.collect()
        gc.freeze()
        # Plain verifiers run in threads, each of which would hold the loop up for 5 ms at a time.
        sys.setswitchinterval(_SWITCH)
        for one in sockets or ():
            host, port, *_ = one.getsockname()
            _LOG.info("serving", extra={"fields": {"host": host, "port": port}})

    async def on_tick(self, counter: int) -> bool:
        """Whether it is time to stop listening."""
        if not await super().on_tick(counter):
            return False
        if self._end is None:
            self._traffic.draining = True
            self._end = time.monotonic() + self._drain
            _LOG.info("draining", extra={"fields": {"seconds": self._drain}})
        return self.force_exit or time.monotonic() >= self._end

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening, hear out who has connected, finish, end."""
        if not self.force_exit:
            await self._stop_listening(sockets or [])
            await self._hear_out()
            asyncio.get_running_loop().call_later(self._finish, self._traffic.cut)
        await super().shutdown(sockets)
        _LOG.info("stopped")

    async def _stop_listening(self, sockets: list[socket.socket]) -> None:
        """Stop listening, and lose nobody who has connected or asked until then.

        asyncio drops connections that it has accepted and not set up when its server closes, and the system
        those that nobody has accepted when the last socket that listens closes. So the loop stops accepting,
        sets up what it has, and what the system holds is taken from it in the moment before it would drop it.
        """
        loop = asyncio.get_running_loop()
        for one in sockets:
            # For asyncio; uvloop has no reader there, and sets up at once what it accepts.
            loop.remove_reader(one)
        await _turns()
        for server in self.servers:
            server.close()
        # uvloop closes in its next turn. Meanwhile the system goes on to accept, for the twin.
        await _turns()
        waiting = list(_accepted(self._twin))
        self._twin.close()
        connection = functools.partial(
            _Connection, config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        for one in waiting:
            await loop.connect_accepted_socket(connection, one)
        # What was sent on connections that were used before is read, or they would be closed as idle.
        await _turns()

    async def _hear_out(self) -> None:
        """Wait for first requests, which uvicorn would not: it closes what it has not heard of yet."""
        end = time.monotonic() + _LAST
        while time.monotonic() < end and any(  # noqa: ASYNC110 - uvicorn has no event for it
            isinstance(one, _Connection) and one.awaits_first for one in self.server_state.connections
        ):
            await asyncio.sleep(0.01)


async def _turns() -> None:
    """Let the loop turn until what it has seen by now is done: an accepted connection takes four turns."""
    for _ in range(6):
        await asyncio.sleep(0)


def _accepted(listening: socket.socket) -> Iterator[socket.socket]:
    """All connections that wait to be accepted."""
    with suppress(OSError):
        while True:
            yield listening.accept()[0]


class _Connection(H11Protocol):
    """A connection that waits for heads of requests no longer than it should, and refuses in our words."""

    _head_is_due: asyncio.TimerHandle | None = None
    _is_to_be_taken: asyncio.TimerHandle | None = None

    @property
    def _cycle(self) -> RequestResponseCycle | None:
        """The latest request; uvicorn's annotation leaves out that there may be none."""
        return self.cycle

    @property
    def awaits_first(self) -> bool:
        """Whether no request has come yet."""
        return self._cycle is None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn does
        """Begin to wait for the first request."""
        super().connection_made(transport)
        # Whatever the system does not take at once is waited for.
        transport.set_write_buffer_limits(high=0)
        self._expect_head()

    def data_received(self, data: bytes) -> None:
        """Take in bytes, which may be the head of a request, or only a part of it."""
        super().data_received(data)
        cycle = self._cycle
        if cycle is None or cycle.response_complete:
            self._expect_head()
        else:
            self._forget_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._forget_head()
        self._forget_taking()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Begin to wait for a client that does not take what it was sent."""
        super().pause_writing()
        self._expect_taking()

    def resume_writing(self) -> None:
        """Go on, for it has taken all."""
        self._forget_taking()
        super().resume_writing()

    def on_response_complete(self) -> None:
        """Go on with what has come meanwhile, which may be a part of a head."""
        super().on_response_complete()
        begun, _ = self.conn.trailing_data
        if begun and self.conn.their_state is h11.IDLE:
            self._expect_head()

    def _expect_taking(self) -> None:
        left = self.transport.get_write_buffer_size()
        self._is_to_be_taken = self.loop.call_later(_TAKEN, self._check_taking, left)

    def _check_taking(self, before: int) -> None:
        if self.transport.get_write_buffer_size() < before:
            self._expect_taking()
        else:
            self.transport.abort()

    def _forget_taking(self) -> None:
        if self._is_to_be_taken is not None:
            self._is_to_be_taken.cancel()
            self._is_to_be_taken = None

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP."""
        del msg
        if self.conn.our_state not in {h11.IDLE, h11.SEND_RESPONSE}:
            # The rest of a body that has been answered already.
            self.transport.close()
            return
        response = RefusedError(400, "invalid_http", "this is no HTTP that the server understands").response()
        headers = [*response.raw_headers, (b"connection", b"close")]
        for event in (
            h11.Response(status_code=400, headers=headers, reason=b"Bad Request"),
            h11.Data(data=bytes(response.body)),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _expect_head(self) -> None:
        if self._head_is_due is None:
            self._head_is_due = self.loop.call_later(_HEAD, self._too_late)

    def _forget_head(self) -> None:
        if self._head_is_due is not None:
            self._head_is_due.cancel()
            self._head_is_due = None

    def _too_late(self) -> None:
        self.timeout_keep_alive_handler()
