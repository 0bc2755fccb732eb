"""`RequestObserver`: log and count every request, and convert errors to responses."""

from __future__ import annotations

import logging
import time
import traceback
import uuid
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from langchain_cfc.execution import list_causes
from langchain_cfc_server.errors import DisconnectedError, RefusedError, to_refused_error
from langchain_cfc_server.limits import get_client, get_path
from langchain_cfc_server.metrics import Metrics
from langchain_cfc_server.traffic import Traffic

_LOG = logging.getLogger("langchain_cfc_server")
# The status in web server logs for a client that disconnected (nginx).
_CLIENT_LEFT = 499
_SERVER_ERROR = 500
_NOTE = "langchain_cfc_server.note"


@dataclass
class Note:
    """The log entry of a request, filled in while it is served.

    Attributes:
        route: The served path that it matches, or `other`.
        id: The request's id.
        model: The requested model, if it is served here.
        status: The HTTP status of the response; 0 if there is none.
        outcome: The outcome in one word: a decision's reason, or an error's code.
        decision: The decision's reason, if one was made, even if its client had disconnected.
        usage: Tokens used by the draws.
        promise: What the decision promised: its kind, its level and its share.
        error: Names of the error and its causes, the error first.
        where: The traceback of an unexpected error, without code.
        prompt: The prompt, if logs hold content.
        answer: The answer, if logs hold content.
        detail: The text of the error, if logs hold content.
    """

    route: str
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    model: str | None = None
    status: int = 0
    outcome: str = "ok"
    decision: str | None = None
    usage: dict[str, int] | None = None
    promise: tuple[str, str, float] | None = None
    error: list[str] | None = None
    where: list[str] | None = None
    prompt: Any = None
    answer: str | None = None
    detail: str | None = None

    def record_decision(
        self, reason: str, usage: dict[str, int] | None, promise: tuple[str, str, float] | None
    ) -> None:
        """Record a decision, with its usage and promise."""
        self.outcome = self.decision = reason
        self.usage = usage
        self.promise = promise

    def record_error(self, error: BaseException, refusal: RefusedError) -> None:
        """Record an error, and the refusal that the client got for it."""
        self.outcome = refusal.code
        if error is refusal:
            return
        self.error = [type(one).__name__ for one in list_causes(error)]
        self.detail = str(error)
        if refusal.status == _SERVER_ERROR:
            # Without the error's text and lines of code, which may quote a prompt.
            frames = traceback.extract_tb(error.__traceback__)
            self.where = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]

    def record_disconnect(self) -> None:
        """Record that the client disconnected."""
        self.status, self.outcome = _CLIENT_LEFT, "disconnected"


def get_note(scope: Scope) -> Note:
    """Return the log entry of the request with this ASGI scope."""
    note: Note = scope[_NOTE]
    return note


class RequestObserver:
    """Middleware that logs every request, converts errors to responses, and adds common headers.

    Args:
        app: The application that answers.
        routes: The served paths; a path that ends with `/` includes all paths below it. All other paths count
            as one in metrics; otherwise clients could create labels without bound.
        traffic: States whether the server is about to stop.
        metrics: Counts the requests.
        log_content: Whether logs hold prompts, answers and error texts.
    """

    def __init__(
        self,
        app: ASGIApp,
        routes: Collection[str],
        traffic: Traffic,
        metrics: Metrics,
        *,
        log_content: bool,
    ) -> None:
        self._app = app
        self._routes = frozenset(routes)
        self._traffic = traffic
        self._metrics = metrics
        self._log_content = log_content

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        note = scope[_NOTE] = Note(self._route(get_path(scope)))

        # Possible request smuggling: a proxy that uses the length would take the rest for another request.
        ambiguous = {name for name, _ in scope["headers"]} >= {b"content-length", b"transfer-encoding"}

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["x-request-id"] = note.id
                if self._traffic.draining or ambiguous:
                    headers["connection"] = "close"
            await send(message)
            # Set after sending, which may fail.
            if message["type"] == "http.response.start":
                note.status = message["status"]

        try:
            await self._answer(scope, receive, send_with_headers, note)
        except BaseException:
            note.outcome = "cancelled"
            raise
        finally:
            client = get_client(scope)
            self._report(note, None if client is None else client.name, time.perf_counter() - began)

    def _route(self, path: str) -> str:
        if path in self._routes:
            return path
        return next((one for one in self._routes if one.endswith("/") and path.startswith(one)), "other")

    async def _answer(self, scope: Scope, receive: Receive, send: Send, note: Note) -> None:
        try:
            await self._app(scope, receive, send)
        except DisconnectedError:
            note.record_disconnect()
        except Exception as error:  # noqa: BLE001 - the client gets a response for every error
            refusal = to_refused_error(error)
            note.record_error(error, refusal)
            # A response that has started cannot be replaced; then the connection is closed.
            if not note.status:
                await refusal.to_response()(scope, receive, send)

    def _report(self, note: Note, client: str | None, seconds: float) -> None:
        self._metrics.count(note.route, note.status, note.outcome, seconds)
        if client is not None:
            self._metrics.count_client(client, note.status)
        if note.model is not None and note.decision is not None:
            self._metrics.count_decision(note.model, note.decision, note.usage)
            if note.promise is not None:
                self._metrics.set_promise(note.model, note.promise)
        content = {"prompt": note.prompt, "answer": note.answer, "detail": note.detail}
        fields = {
            "request": note.id,
            "route": note.route,
            "client": client,
            "model": note.model,
            "status": note.status,
            "outcome": note.outcome,
            "milliseconds": round(1000 * seconds, 3),
            "usage": note.usage,
            "error": note.error,
            "where": note.where,
            **(content if self._log_content else {}),
        }
        present = {name: value for name, value in fields.items() if value is not None}
        level = logging.ERROR if note.where else logging.INFO
        _LOG.log(level, "request", extra={"fields": present})
