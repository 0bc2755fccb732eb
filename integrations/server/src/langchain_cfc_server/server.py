"""Serve an application on a port, and stop without losing requests.

After SIGTERM, the server first continues for a while: it reports that it is not ready, so that balancers send
requests elsewhere, and closes every connection after its next response. Requests that still arrive are
answered as usual. Then it stops listening, waits for first requests on connections made just before, finishes
requests in flight, and ends. Ctrl-C skips the first phase.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import logging
import math
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from types import FrameType

import uvicorn
from starlette.applications import Starlette

from langchain_cfc.errors import InputError
from langchain_cfc_server.connections import Connection
from langchain_cfc_server.metrics import Metrics
from langchain_cfc_server.tokens import ClientTokens
from langchain_cfc_server.traffic import Traffic

_LOG = logging.getLogger("langchain_cfc_server")
# Seconds; longer than clients keep idle connections, which might otherwise be closed just as they are reused.
_KEEP_ALIVE = 75
# The interpreter's switch interval, in seconds: how long a thread may run before the event loop gets a turn.
_SWITCH_INTERVAL = 0.0005
# Seconds to wait for first requests on open connections after the server has stopped listening.
_FIRST_REQUEST_SECONDS = 1.0
# Number of uvicorn's ticks (0.1 s each) between two updates of the metrics that other workers report.
_TICKS_PER_REFRESH = 10


def run(
    app: Starlette,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    drain: float = 5.0,
    finish: float = 60.0,
    supervisor: int | None = None,
) -> None:
    """Serve an application until the process is stopped by a signal; SIGHUP reloads its tokens.

    Args:
        app: An application made by `create_app`.
        host: Address to listen on.
        port: Port; 0 for a free one, which the log states.
        drain: Seconds from SIGTERM to the end of listening.
        finish: Seconds after that for requests in flight; requests that take longer are refused.
        supervisor: Id of the process that runs several workers. The port is then shared with the other
            workers, and the server stops when that process has ended.

    Raises:
        InputError: If it cannot listen there, or `drain` or `finish` is not a finite number of at least 0.
    """
    for name, seconds in (("drain", drain), ("finish", finish)):
        if not (math.isfinite(seconds) and seconds >= 0):
            msg = f"{name} is {seconds:g}: expected seconds, at least 0"
            raise InputError(msg)
    listening = open_socket(host, port, is_shared=supervisor is not None)
    traffic: Traffic = app.state.traffic
    _raise_file_limit(traffic)
    config = uvicorn.Config(
        app,
        http=functools.partial(Connection, traffic.connections),  # type: ignore[arg-type]  # it is called, no more
        ws="none",
        lifespan="on",
        # asyncio accepts all waiting connections in one turn of the loop. uvloop accepts one per turn, so
        # during a burst new requests would wait in the system's queue, neither counted nor refused.
        loop="asyncio",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=_KEEP_ALIVE,
        # A last resort for connections whose client does not read.
        timeout_graceful_shutdown=int(finish) + 5,
    )
    # When one of the two sockets is closed, the system continues to accept connections on the other.
    with listening, listening.dup() as twin:
        _Server(config, app, twin, drain, finish, supervisor).run([listening])


def _raise_file_limit(traffic: Traffic) -> None:
    """Raise the limit on open files to twice the number of connections, or allow fewer connections.

    Every prompt being processed also needs connections to its model, which count as open files.
    """
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    connections = traffic.connections
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * connections.most
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    if soft != resource.RLIM_INFINITY and soft < 2 * connections.most:
        connections.most = max(1, soft // 2)
        fields = {"connections": connections.most, "files": soft}
        _LOG.warning(
            ("fewer connections than set, because the limit of open files is lower"), extra={"fields": fields}
        )


def open_socket(host: str, port: int, *, is_shared: bool = False) -> socket.socket:
    """Return a socket bound to a port; with `is_shared`, several processes can bind to the same port.

    Raises:
        InputError: If the address or port cannot be used.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With an explicit protocol: otherwise asyncio does not recognise TCP and leaves Nagle's algorithm on,
    # which delays the second part of each response by 40 ms.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if is_shared:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listening.bind((host, port))
    except (OSError, OverflowError) as error:
        listening.close()
        msg = f"cannot listen on {host}:{port}: {error}"
        raise InputError(msg) from error
    return listening


class _Server(uvicorn.Server):
    """uvicorn's server with a shutdown that loses no request."""

    def __init__(  # noqa: PLR0917 - made in one place
        self,
        config: uvicorn.Config,
        app: Starlette,
        twin: socket.socket,
        drain: float,
        finish: float,
        supervisor: int | None,
    ) -> None:
        super().__init__(config)
        self._traffic: Traffic = app.state.traffic
        self._tokens: ClientTokens = app.state.tokens
        self._metrics: Metrics = app.state.metrics
        self._supervisor = supervisor
        self._twin = twin
        self._drain = drain
        self._finish = finish
        self._end: float | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Record that the server is to stop; the signal is not re-raised later, so the exit code is 0."""
        del frame
        if sig == signal.SIGINT:
            self.force_exit = self.should_exit
            self._drain = 0.0
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start listening, and log the address."""
        await super().startup(sockets)
        # Imported objects are permanent: excluding them from garbage collection keeps its pauses short.
        gc.collect()
        gc.freeze()
        # Plain verifiers run in threads, each of which would by default block the loop for 5 ms at a time.
        sys.setswitchinterval(_SWITCH_INTERVAL)
        if hasattr(signal, "SIGHUP") and threading.current_thread() is threading.main_thread():
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._tokens.reload)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})  # a supervisor blocks it until now
        for one in sockets or ():
            host, port, *_ = one.getsockname()
            _LOG.info("serving", extra={"fields": {"host": host, "port": port, "pid": os.getpid()}})

    async def on_tick(self, counter: int) -> bool:
        """Return whether it is time to stop listening; also update tokens and metrics."""
        # So that an unusable token file is reported even if no requests come.
        self._tokens.read_if_changed()
        if counter % _TICKS_PER_REFRESH == 0:
            self._metrics.refresh()
        if self._supervisor is not None and os.getppid() != self._supervisor:
            self.should_exit = True
        if not await super().on_tick(counter):
            return False
        if self._end is None:
            self._traffic.draining = True
            self._end = time.monotonic() + self._drain
            _LOG.info("draining", extra={"fields": {"seconds": self._drain}})
        return self.force_exit or time.monotonic() >= self._end

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening, wait for first requests, finish requests in flight, and end."""
        if not self.force_exit:
            await self._stop_listening(sockets or [])
            await self._await_first_requests()
            asyncio.get_running_loop().call_later(self._finish, self._traffic.cancel_all)
        await super().shutdown(sockets)
        _LOG.info("stopped")

    async def _stop_listening(self, sockets: list[socket.socket]) -> None:
        """Stop listening without losing connections or requests made until then.

        When its server closes, asyncio drops connections that are accepted but not set up; when the last
        listening socket closes, the system drops those not accepted yet. So the loop stops accepting and sets
        up accepted connections; then, just before the last socket closes, waiting ones are accepted by hand.
        """
        loop = asyncio.get_running_loop()
        for one in sockets:
            loop.remove_reader(one)
        await _let_loop_turn()
        for server in self.servers:
            server.close()
        waiting = list(_accept_waiting(self._twin))
        self._twin.close()
        connection = functools.partial(
            Connection,
            self._traffic.connections,
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )
        for one in waiting:
            await loop.connect_accepted_socket(connection, one)
        # Read data that has arrived on kept-alive connections, which would otherwise be closed as idle.
        await _let_loop_turn()

    async def _await_first_requests(self) -> None:
        """Wait for first requests; uvicorn would close connections without one."""
        end = time.monotonic() + _FIRST_REQUEST_SECONDS
        while time.monotonic() < end and any(  # noqa: ASYNC110 - uvicorn has no event for it
            isinstance(one, Connection) and one.awaits_first for one in self.server_state.connections
        ):
            await asyncio.sleep(0.01)


async def _let_loop_turn() -> None:
    """Wait some turns of the loop, so that pending events are processed: a new connection takes four."""
    for _ in range(6):
        await asyncio.sleep(0)


def _accept_waiting(listening: socket.socket) -> Iterator[socket.socket]:
    """Accept and yield all connections that wait in the system's queue."""
    with suppress(OSError):
        while True:
            yield listening.accept()[0]
