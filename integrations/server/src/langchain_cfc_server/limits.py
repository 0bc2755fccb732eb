"""Middleware: valid tokens, and limits on the size, the number and the duration of requests."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Collection
from contextlib import ExitStack

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from langchain_cfc_server.errors import DisconnectedError, RefusedError
from langchain_cfc_server.settings import Settings
from langchain_cfc_server.tokens import Client, ClientTokens
from langchain_cfc_server.traffic import Traffic

# Open, because supervisors and load balancers have no token. These paths only reveal the server's state.
OPEN_PATHS = frozenset({"/health/live", "/health/ready"})
METRICS = "/metrics"
_SCHEME = b"bearer"
_CLIENT = "langchain_cfc_server.client"
_MINUTE = 60.0


def get_path(scope: Scope) -> str:
    """Return a request's path below where the application is mounted, as Starlette's routes see it."""
    path: str = scope["path"]
    root = scope.get("root_path", "")
    return path[len(root) :] if path == root or path.startswith(f"{root}/") else path


def get_client(scope: Scope) -> Client | None:
    """Return the client whose token a request presented; None if no token was checked."""
    client: Client | None = scope.get(_CLIENT)
    return client


class Authentication:
    """Middleware that only passes requests with a valid bearer token, or to an open path.

    A metrics token gives access to the metrics only. If there is one, no other token may read the metrics.

    Args:
        app: The application that answers.
        tokens: The valid tokens.
    """

    def __init__(self, app: ASGIApp, tokens: ClientTokens) -> None:
        self._app = app
        self._tokens = tokens

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on or refuse it.

        Raises:
            RefusedError: If the request has no valid token, or the token does not allow this path.
        """
        if scope["type"] == "http" and (path := get_path(scope)) not in OPEN_PATHS:
            client = scope[_CLIENT] = self._find_client(scope)
            is_metrics = path == METRICS
            if client.only_metrics != is_metrics and (client.only_metrics or self._tokens.has_metrics_token):
                msg = "this token is for the metrics" if client.only_metrics else "the metrics have a token"
                raise RefusedError(403, "token_not_for_this", f"{msg} alone; use the other one here")
        await self._app(scope, receive, send)

    def _find_client(self, scope: Scope) -> Client:
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        # Several headers are refused, because a proxy may have checked another one than this server would.
        scheme, _, token = given[0].partition(b" ") if len(given) == 1 else (b"", b"", b"")
        client = self._tokens.find_client(token.strip(b" "))
        if scheme.lower() != _SCHEME or client is None:
            raise RefusedError(
                401,
                "invalid_api_key",
                "a valid token is needed, exactly once, as in the header `Authorization: Bearer TOKEN`",
                headers={"WWW-Authenticate": 'Bearer realm="langchain-cfc"'},
            )
        return client


class RateLimiter:
    """Limits each client to a burst of `per_minute` requests, and to that rate afterwards (GCRA)."""

    def __init__(self) -> None:
        # By client, the theoretical arrival time: when its requests so far would be done at its rate.
        self._done: dict[str, float] = {}

    def take(self, client: Client, now: float) -> float:
        """Count a request if it is allowed now; return the seconds to wait otherwise.

        Args:
            client: The client that makes the request.
            now: Time on any steady clock, in seconds.

        Returns:
            Seconds until the request is allowed; 0 if it is allowed now. It is counted only then.
        """
        if client.per_minute is None:
            return 0.0
        done = max(now, self._done.get(client.name, now)) + _MINUTE / client.per_minute
        # A nanosecond of tolerance: by rounding, the last request of a full minute might be refused.
        if (wait := done - now - _MINUTE) > 1e-9:  # noqa: PLR2004
            return wait
        self._done[client.name] = done
        return 0.0


class Limits:
    """Middleware that limits the requests to some paths, and cancels work whose client has disconnected.

    A request is counted before its body is read, so that bodies cannot fill the memory. Its time limit starts
    at the same time, which also bounds slow bodies.

    If there are several clients, one of them gets at most half of the places, so that its slow requests
    cannot keep the others from being served; unless the operator states a number.

    Args:
        app: The application that answers.
        paths: The paths to limit; requests to other paths pass.
        settings: The limits.
        traffic: Counts the requests.
        tokens: The valid tokens, which say whether there are several clients.
    """

    def __init__(
        self,
        app: ASGIApp,
        paths: Collection[str],
        settings: Settings,
        traffic: Traffic,
        tokens: ClientTokens,
    ) -> None:
        self._app = app
        self._paths = frozenset(paths)
        self._max_admitted = settings.concurrency + settings.queue
        self._max_per_client = settings.per_token
        self._rates = RateLimiter()
        self._body_limit = settings.body_limit
        self._time_limit = settings.time_limit
        self._traffic = traffic
        self._tokens = tokens

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request within the limits.

        Raises:
            RefusedError: If the request exceeds a limit, or the server is stopping.
        """
        if scope["type"] == "http" and scope["path"].endswith("\n"):
            # Starlette's patterns end with `$`, which allows a final line break: it would bypass the limits.
            raise RefusedError(404, "not_found", "there is nothing at this path")
        if scope["type"] != "http" or get_path(scope) not in self._paths or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        end = time.monotonic() + self._time_limit
        client = get_client(scope)
        name = None if client is None else client.name
        most = self._max_per_client if client is None or client.concurrent is None else client.concurrent
        is_shared = most is None and client is not None and self._tokens.has_several_clients
        self._admit(client, name, math.ceil(self._max_admitted / 2) if is_shared else most)
        with ExitStack() as stack:
            stack.callback(self._traffic.leave, name)
            body = await self._read_body(scope, receive)
            exchange = _Exchange(send)
            work = self._traffic.work(
                lambda: self._app(scope, _replay_body(body), exchange.send), name, is_shared=is_shared
            )
            # From here on, the request is counted until its work has ended.
            stack.pop_all()
        await self._finish(work, exchange, receive, end)

    def _admit(self, client: Client | None, name: str | None, most: int | None) -> None:
        traffic = self._traffic
        if traffic.over:
            raise _make_stop_error()
        if traffic.admitted >= self._max_admitted:
            again = {"Retry-After": "1"}
            if traffic.draining:
                raise RefusedError(
                    503, "shutting_down", "this server is shutting down; use another", headers=again
                )
            msg = "the queue of this server is full; try again later"
            raise RefusedError(429, "too_many_requests", msg, headers=again)
        if most is not None and traffic.count_admitted(name) >= most:
            msg = f"{most} requests with this token are in progress already; try again later"
            raise RefusedError(429, "too_many_requests_of_token", msg, headers={"Retry-After": "1"})
        if client is not None and (wait := self._rates.take(client, time.monotonic())):
            msg = f"this token may be used for {client.per_minute} requests a minute; try again later"
            again = {"Retry-After": str(math.ceil(wait))}
            raise RefusedError(429, "too_many_requests_a_minute", msg, headers=again)
        traffic.admit(name)

    async def _read_body(self, scope: Scope, receive: Receive) -> bytes:
        """Receive the whole body within the time limit."""
        stated = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        if int(stated) > self._body_limit:
            raise self._make_size_error()
        try:
            with self._traffic.receiving():
                return await asyncio.wait_for(self._receive_body(receive), self._time_limit)
        except asyncio.CancelledError:
            if not self._traffic.over:
                raise
            raise _make_stop_error() from None
        except asyncio.TimeoutError:
            raise RefusedError(
                408, "request_timeout", f"the body did not arrive within {self._time_limit:g} seconds"
            ) from None

    async def _receive_body(self, receive: Receive) -> bytes:
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise DisconnectedError
            body += message.get("body", b"")
            if len(body) > self._body_limit:
                raise self._make_size_error()
            if not message.get("more_body", False):
                return bytes(body)

    def _make_size_error(self) -> RefusedError:
        return RefusedError(413, "request_too_large", f"the body has more than {self._body_limit} bytes")

    async def _finish(
        self, work: asyncio.Task[None], exchange: _Exchange, receive: Receive, end: float
    ) -> None:
        """Wait for the work until it ends, the time limit passes, or the client disconnects."""
        left = asyncio.ensure_future(_wait_for_disconnect(receive))
        try:
            await asyncio.wait(
                {work, left}, timeout=max(0.0, end - time.monotonic()), return_when=asyncio.FIRST_COMPLETED
            )
            if exchange.finished:
                # The whole response has been sent, so the client may disconnect.
                await asyncio.wait({work})
        finally:
            exchange.closed = not work.done()
            left.cancel()
            work.cancel()
        if not work.done():
            if left.done():
                raise DisconnectedError
            msg = f"no answer within {self._time_limit:g} seconds, waiting included; nothing was answered"
            raise RefusedError(504, "timeout", msg)
        if work.cancelled():
            raise _make_stop_error()
        work.result()


def _make_stop_error() -> RefusedError:
    return RefusedError(503, "shutting_down", "this server had to stop; nothing was answered")


class _Exchange:
    """The sending side of a request; when it is closed, late parts of the response are dropped."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.finished = False
        self.closed = False

    async def send(self, message: Message) -> None:
        """Send a part of the response, unless it is closed."""
        if self.closed:
            return
        await self._send(message)
        # Set after sending: otherwise a client that reads nothing would occupy its place for ever.
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            self.finished = True


async def _wait_for_disconnect(receive: Receive) -> None:
    """Wait until the client disconnects."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _replay_body(body: bytes) -> Receive:
    """Return an ASGI `receive` callable for a body that has already been read."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        return messages.pop() if messages else {"type": "http.disconnect"}

    return receive
