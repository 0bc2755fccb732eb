"""Connections of clients: how many may be open, and how long each may wait for what."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from langchain_cfc_server.errors import RefusedError

# Seconds that a connection has for the head of a request, from its first byte.
_HEAD = 10.0
# Seconds in which a client has to take some of what it was sent.
_TAKEN = 10.0
# Connections beyond the limit that are accepted to be refused in words or asked for the server's health, and
# the seconds that they have to say which.
_EXTRA = 64
_EXTRA_HEAD = 1.0
_HEALTH = b"GET /health/"


class OpenConnections:
    """The connections that are open, and which of them are idle.

    Attributes:
        most: Most that are open at once. When a new one comes, the one idle longest is closed; where none is
            idle, the new one is refused.
        refused: How many were refused so far.

    Args:
        most: Most that are open at once.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.refused = 0
        self._open: set[Connection] = set()
        # In the order in which they became idle.
        self._idle: dict[Connection, None] = {}

    def __len__(self) -> int:
        """How many are open."""
        return len(self._open)

    def add(self, new: Connection) -> bool:
        """Count a new connection, closing an idle one for it if need be.

        Args:
            new: The connection.

        Returns:
            Whether there are no more than may be.
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
        """Count a connection no longer."""
        self._open.discard(connection)
        self._idle.pop(connection, None)

    def set_idle(self, connection: Connection, *, is_idle: bool) -> None:
        """Note that a connection waits for its next request, or has begun to receive it."""
        if not is_idle:
            self._idle.pop(connection, None)
        elif connection in self._open:
            self._idle[connection] = None

    @property
    def is_flooded(self) -> bool:
        """Whether there are so many that new ones are closed without a word."""
        return len(self._open) > self.most + _EXTRA


class Connection(H11Protocol):
    """A connection that waits for heads of requests no longer than it should, and refuses in our words.

    Args:
        connections: All that are open.
        **uvicorn: What uvicorn makes connections with.
    """

    def __init__(self, connections: OpenConnections, **uvicorn: Any) -> None:
        super().__init__(**uvicorn)
        self._open_connections = connections
        self._is_extra = False
        self._head_is_due: asyncio.TimerHandle | None = None
        self._is_to_be_taken: asyncio.TimerHandle | None = None

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
        self._is_extra = not self._open_connections.add(self)
        if self._open_connections.is_flooded:
            self._open_connections.refused += 1
            transport.abort()
            return
        # What the system does not take at once is waited for.
        transport.set_write_buffer_limits(high=0)
        self._expect_head()

    def data_received(self, data: bytes) -> None:
        """Take in bytes, which may be the head of a request, or only a part of it."""
        self._open_connections.set_idle(self, is_idle=False)
        if self._is_extra and self._cycle is None and not data.startswith(_HEALTH):
            self._refuse_extra()
            return
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
        self._open_connections.remove(self)
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
        if self._is_extra:
            self.transport.close()
            return
        begun, _ = self.conn.trailing_data
        if self.conn.their_state is h11.IDLE:
            if begun:
                self._expect_head()
            else:
                self._open_connections.set_idle(self, is_idle=True)

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
        """Refuse bytes that are no HTTP."""
        del msg
        if self.conn.our_state not in {h11.IDLE, h11.SEND_RESPONSE}:
            # The rest of a body that has been answered already.
            self.transport.close()
            return
        self._refuse(
            RefusedError(400, "invalid_http", "this is no HTTP that the server understands"), b"Bad Request"
        )

    def _refuse_extra(self) -> None:
        """Refuse any request, since too many connections are open."""
        self._open_connections.refused += 1
        msg = "as many connections as this server takes are open already; try again later"
        again = {"Retry-After": "1"}
        self._refuse(RefusedError(429, "too_many_connections", msg, headers=again), b"Too Many Requests")

    def _refuse(self, error: RefusedError, reason: bytes) -> None:
        """Send a refusal as the last thing on this connection."""
        response = error.to_response()
        headers = [*response.raw_headers, (b"connection", b"close")]
        for event in (
            h11.Response(status_code=error.status, headers=headers, reason=reason),
            h11.Data(data=bytes(response.body)),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _expect_head(self) -> None:
        if self._head_is_due is None:
            self._head_is_due = self.loop.call_later(_EXTRA_HEAD if self._is_extra else _HEAD, self._too_late)

    def _forget_head(self) -> None:
        if self._head_is_due is not None:
            self._head_is_due.cancel()
            self._head_is_due = None

    def _too_late(self) -> None:
        self.timeout_keep_alive_handler()
