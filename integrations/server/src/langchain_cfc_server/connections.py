"""Client connections: a limit on their number, and timeouts for slow senders and slow readers."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from langchain_cfc_server.errors import RefusedError

# Seconds in which the head of a request must arrive, from its first byte or the start of the connection.
_HEAD_SECONDS = 10.0
# Seconds within which a client must read at least some of the data sent to it.
_READ_SECONDS = 10.0
# Number of connections beyond the limit that are still accepted, to refuse their request with a message or to
# answer health checks, and the seconds in which their request must arrive.
_EXTRA_CONNECTIONS = 64
_EXTRA_HEAD_SECONDS = 1.0
_HEALTH_REQUESTS = (b"GET /health/", b"HEAD /health/")


class OpenConnections:
    """The open connections, with those that are idle.

    Attributes:
        most: Maximum number of open connections. Beyond it, a new connection replaces the one that has been
            idle longest; if none is idle, the new one is refused.
        refused: Number of refused connections so far.

    Args:
        most: Maximum number of open connections.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.refused = 0
        self._open: set[Connection] = set()
        # In the order in which they became idle.
        self._idle: dict[Connection, None] = {}

    def __len__(self) -> int:
        """Return the number of open connections."""
        return len(self._open)

    def add(self, new: Connection) -> bool:
        """Count a new connection; if there are too many, close the one that has been idle longest.

        Args:
            new: The connection.

        Returns:
            Whether the number of connections is within the limit.
        """
        self._open.add(new)
        if len(self._open) <= self.most:
            return True
        if not self._idle:
            return False
        longest_idle = next(iter(self._idle))
        self.remove(longest_idle)
        longest_idle.transport.close()
        return True

    def remove(self, connection: Connection) -> None:
        """Stop counting a connection."""
        self._open.discard(connection)
        self._idle.pop(connection, None)

    def set_idle(self, connection: Connection, *, is_idle: bool) -> None:
        """Record whether a connection is idle, that is, waits for its next request."""
        if not is_idle:
            self._idle.pop(connection, None)
        elif connection in self._open:
            self._idle[connection] = None

    @property
    def is_flooded(self) -> bool:
        """Whether there are so many connections that new ones are closed without a response."""
        return len(self._open) > self.most + _EXTRA_CONNECTIONS


class Connection(H11Protocol):
    """A uvicorn connection with timeouts, the limit on connections, and this server's error messages.

    Args:
        connections: The open connections.
        **uvicorn: The arguments of uvicorn's own class.
    """

    def __init__(self, connections: OpenConnections, **uvicorn: Any) -> None:
        super().__init__(**uvicorn)
        self._open_connections = connections
        self._is_extra = False
        self._head_timer: asyncio.TimerHandle | None = None
        self._read_timer: asyncio.TimerHandle | None = None

    @property
    def _cycle(self) -> RequestResponseCycle | None:
        """The latest request; None if there is none yet, which uvicorn's annotation leaves out."""
        return self.cycle

    @property
    def awaits_first(self) -> bool:
        """Whether the connection is still waiting for its first request."""
        return self._cycle is None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn does
        """Count the new connection and start the timeout for its first request."""
        super().connection_made(transport)
        self._is_extra = not self._open_connections.add(self)
        if self._open_connections.is_flooded:
            self._open_connections.refused += 1
            transport.abort()
            return
        # Call `pause_writing` as soon as any data cannot be sent at once, to time slow readers.
        transport.set_write_buffer_limits(high=0)
        self._start_head_timer()

    def data_received(self, data: bytes) -> None:
        """Process received bytes; start or stop the timeout for the head of a request."""
        self._open_connections.set_idle(self, is_idle=False)
        if self._is_extra and self._cycle is None and not data.startswith(_HEALTH_REQUESTS):
            self._refuse_extra()
            return
        super().data_received(data)
        cycle = self._cycle
        if cycle is None or cycle.response_complete:
            self._start_head_timer()
        else:
            self._stop_head_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop all timeouts and stop counting the connection."""
        self._stop_head_timer()
        self._stop_read_timer()
        self._open_connections.remove(self)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Start the timeout for a client that does not read the data sent to it."""
        super().pause_writing()
        self._start_read_timer()

    def resume_writing(self) -> None:
        """Stop that timeout, because the client has read all data."""
        self._stop_read_timer()
        super().resume_writing()

    def on_response_complete(self) -> None:
        """Continue with data received in the meantime, or mark the connection as idle."""
        super().on_response_complete()
        if self._is_extra:
            self.transport.close()
            return
        begun, _ = self.conn.trailing_data
        if self.conn.their_state is h11.IDLE:
            if begun:
                self._start_head_timer()
            else:
                self._open_connections.set_idle(self, is_idle=True)

    def _start_read_timer(self) -> None:
        left = self.transport.get_write_buffer_size()
        self._read_timer = self.loop.call_later(_READ_SECONDS, self._check_read, left)

    def _check_read(self, before: int) -> None:
        if self.transport.get_write_buffer_size() < before:
            self._start_read_timer()
        else:
            self.transport.abort()

    def _stop_read_timer(self) -> None:
        if self._read_timer is not None:
            self._read_timer.cancel()
            self._read_timer = None

    def send_400_response(self, msg: str) -> None:
        """Refuse bytes that are not valid HTTP."""
        del msg
        if self.conn.our_state not in {h11.IDLE, h11.SEND_RESPONSE}:
            # The rest of a body whose request has already been answered.
            self.transport.close()
            return
        self._refuse(RefusedError(400, "invalid_http", "this is not a valid HTTP request"), b"Bad Request")

    def _refuse_extra(self) -> None:
        """Refuse the connection's request, because too many connections are open."""
        self._open_connections.refused += 1
        msg = "the maximum number of connections is open already; try again later"
        again = {"Retry-After": "1"}
        self._refuse(RefusedError(429, "too_many_connections", msg, headers=again), b"Too Many Requests")

    def _refuse(self, error: RefusedError, reason: bytes) -> None:
        """Send a refusal and close the connection."""
        response = error.to_response()
        headers = [*response.raw_headers, (b"connection", b"close")]
        for event in (
            h11.Response(status_code=error.status, headers=headers, reason=reason),
            h11.Data(data=bytes(response.body)),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _start_head_timer(self) -> None:
        if self._head_timer is None:
            seconds = _EXTRA_HEAD_SECONDS if self._is_extra else _HEAD_SECONDS
            self._head_timer = self.loop.call_later(seconds, self._close_on_timeout)

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _close_on_timeout(self) -> None:
        self.timeout_keep_alive_handler()
