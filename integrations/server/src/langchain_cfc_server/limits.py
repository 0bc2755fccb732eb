"""How large, how many and how long requests may be."""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from langchain_cfc_server.authentication import get_token_position
from langchain_cfc_server.errors import DisconnectedError, RefusedError
from langchain_cfc_server.settings import Settings
from langchain_cfc_server.traffic import Traffic


class Limits:
    """Keeps the requests to one path within the settings, and ends the work of those whose client has left.

    A request is counted before its body is read, so that bodies cannot fill the memory. The time for it
    begins then, too, which bounds slow ones.

    Args:
        app: The application that answers.
        path: The path whose requests are work; all others pass.
        settings: The limits.
        traffic: Where requests are counted.
    """

    def __init__(self, app: ASGIApp, path: str, settings: Settings, traffic: Traffic) -> None:
        self._app = app
        self._path = path
        self._most = settings.concurrency + settings.queue
        self._most_per_token = settings.per_token
        self._largest = settings.body_limit
        self._longest = settings.time_limit
        self._traffic = traffic

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request within the limits.

        Raises:
            RefusedError: If it cannot be done.
        """
        if scope["type"] == "http" and scope["path"].endswith("\n"):
            # Starlette's routes end with `$`, which lets a line break follow, and the limits do not.
            raise RefusedError(404, "not_found", "nothing is served here")
        if scope["type"] != "http" or scope["path"] != self._path or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        end = time.monotonic() + self._longest
        token = get_token_position(scope)
        self._admit(token)
        with ExitStack() as stack:
            stack.callback(self._traffic.leave, token)
            body = await self._read_body(scope, receive)
            exchange = _Exchange(send)
            work = self._traffic.work(lambda: self._app(scope, _replay_body(body), exchange.send), token)
            # From here on the work's end is the request's.
            stack.pop_all()
        await self._finish(work, exchange, receive, end)

    def _admit(self, token: int | None) -> None:
        traffic = self._traffic
        if traffic.over:
            raise _make_stop_error()
        if traffic.admitted >= self._most:
            again = {"Retry-After": "1"}
            if traffic.draining:
                raise RefusedError(
                    503, "shutting_down", "this server is about to stop; ask another", headers=again
                )
            msg = "as many requests as this server takes are waiting already; try again later"
            raise RefusedError(429, "too_many_requests", msg, headers=again)
        if self._most_per_token is not None and traffic.count_admitted(token) >= self._most_per_token:
            msg = f"{self._most_per_token} requests with this token are under way already; try again later"
            raise RefusedError(429, "too_many_requests_of_token", msg, headers={"Retry-After": "1"})
        traffic.admit(token)

    async def _read_body(self, scope: Scope, receive: Receive) -> bytes:
        """Receive the whole body within the time limit."""
        stated = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        if int(stated) > self._largest:
            raise self._make_size_error()
        try:
            with self._traffic.receiving():
                return await asyncio.wait_for(self._receive_body(receive), self._longest)
        except asyncio.CancelledError:
            if not self._traffic.over:
                raise
            raise _make_stop_error() from None
        except asyncio.TimeoutError:
            raise RefusedError(
                408, "request_timeout", f"the body did not arrive within {self._longest:g} seconds"
            ) from None

    async def _receive_body(self, receive: Receive) -> bytes:
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise DisconnectedError
            body += message.get("body", b"")
            if len(body) > self._largest:
                raise self._make_size_error()
            if not message.get("more_body", False):
                return bytes(body)

    def _make_size_error(self) -> RefusedError:
        return RefusedError(413, "request_too_large", f"the body has more than {self._largest} bytes")

    async def _finish(
        self, work: asyncio.Task[None], exchange: _Exchange, receive: Receive, end: float
    ) -> None:
        """Wait for the work, until its time is over or its client disconnects."""
        left = asyncio.ensure_future(_wait_for_disconnect(receive))
        try:
            await asyncio.wait(
                {work, left}, timeout=max(0.0, end - time.monotonic()), return_when=asyncio.FIRST_COMPLETED
            )
            if exchange.finished:
                # The client has the whole response and may leave.
                await asyncio.wait({work})
        finally:
            exchange.closed = not work.done()
            left.cancel()
            work.cancel()
        if not work.done():
            if left.done():
                raise DisconnectedError
            msg = f"no answer within {self._longest:g} seconds, waiting included; nothing was answered"
            raise RefusedError(504, "timeout", msg)
        if work.cancelled():
            raise _make_stop_error()
        work.result()


def _make_stop_error() -> RefusedError:
    return RefusedError(503, "shutting_down", "this server had to stop; nothing was answered")


class _Exchange:
    """The sending side of a request, which its work loses when it comes too late."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.finished = False
        self.closed = False

    async def send(self, message: Message) -> None:
        """Pass a part of the response on."""
        if self.closed:
            return
        await self._send(message)
        # Not before: a client that reads nothing would hold its place for ever.
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            self.finished = True


async def _wait_for_disconnect(receive: Receive) -> None:
    """Wait until the client leaves."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _replay_body(body: bytes) -> Receive:
    """Return a receiving side that holds a body which has been read."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        return messages.pop() if messages else {"type": "http.disconnect"}

    return receive
