"""Responses that a model's client cannot read, kinds of failures, and what messages say of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, TypeAlias

import httpx
import pytest
from langchain_core.language_models import BaseChatModel
from langchain_openai import ChatOpenAI

from langchain_cfc import CFCRunnable
from langchain_cfc.errors import DrawError
from langchain_cfc.execution import (
    PERMANENT_FAILURES,
    FailureKind,
    classify_failure,
    describe_error,
    is_permanent,
)
from langchain_cfc.execution.failures import is_malformed_response
from tests.factories import make_artifact
from tests.serving.openai_bodies import Answer
from tests.serving.openai_server import Fault, Script, serving

Reply: TypeAlias = tuple[int, dict[str, str], Any]

JSON, HTML = {"Content-Type": "application/json"}, {"Content-Type": "text/html"}
HEAD = {"id": "x", "object": "chat.completion", "created": 1, "model": "m"}
MALFORMED: dict[str, Reply] = {
    "null choices": (200, JSON, {**HEAD, "choices": None}),
    "no choice": (200, JSON, {**HEAD, "choices": []}),
    "no choices key": (200, JSON, HEAD),
    "empty object": (200, JSON, {}),
    "null": (200, JSON, None),
    "list": (200, JSON, []),
    "number": (200, JSON, 5),
    "choice of null": (200, JSON, {**HEAD, "choices": [None]}),
    "choice without message": (200, JSON, {**HEAD, "choices": [{}]}),
    "null message": (200, JSON, {**HEAD, "choices": [{"index": 0, "message": None}]}),
    "HTML": (200, HTML, b"<html>Please log in</html>"),
    "HTML as JSON": (200, JSON, b"<html>bad gateway</html>"),
    "cut off": (200, JSON, b'{"id": "x", "choi'),
    "empty body": (200, JSON, b""),
    "no content": (204, JSON, b""),
    "error text": (200, JSON, {"error": "overloaded"}),
    "error object": (200, JSON, {"error": {"message": "Provider returned error", "code": 502}}),
    "detail": (200, JSON, {"detail": "model is loading"}),
}


@contextmanager
def serve(*replies: Reply) -> Iterator[tuple[str, list[Any]]]:
    """Serve replies in turn, the last one for ever; yield the address and the list of requests."""
    left, asked = [*replies], []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *args: Any) -> None:
            """Print nothing."""

        def do_POST(self) -> None:
            asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            status, headers, body = left.pop(0) if len(left) > 1 else left[0]
            body = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def make_model(url: str, **settings: Any) -> BaseChatModel:
    return ChatOpenAI(
        **{"model": "m", "api_key": "key", "base_url": f"{url}/v1", "max_retries": 0, **settings}
    )


def make_claude(url: str, **settings: Any) -> BaseChatModel:
    # Its newest release does not go with the oldest supported langchain-core.
    anthropic = pytest.importorskip("langchain_anthropic", exc_type=ImportError)
    model: BaseChatModel = anthropic.ChatAnthropic(
        **{"model": "m", "api_key": "key", "base_url": url, "max_retries": 0, **settings}
    )
    return model


INTERFACES: dict[str, Callable[..., BaseChatModel]] = {
    "chat": make_model,
    "responses": lambda url: make_model(url, use_responses_api=True),
    "messages": make_claude,
}


def catch_failure(model: Any, *, is_async: bool = False) -> Exception:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - whatever the client raises
        asyncio.run(model.ainvoke("x")) if is_async else model.invoke("x")
    return caught.value


# Collecting and serving


def score_equally(_: Any, candidates: Any) -> list[float]:
    return [0.5] * len(candidates)


@pytest.mark.parametrize("name", MALFORMED)
def test_serving_raises_a_draw_error_that_names_a_malformed_response(name: str) -> None:
    with serve(MALFORMED[name]) as (url, _):
        chain = CFCRunnable(generator=make_model(url), verifier=score_equally, artifact=make_artifact())
        calls: list[Callable[[], Any]] = [
            lambda: chain.invoke("x"),
            lambda: asyncio.run(chain.abatch(["x"])),
        ]
        for call in calls:
            with pytest.raises(DrawError, match="server that cannot be read"):
                call()
        (found,) = chain.batch(["x"], return_exceptions=True)
        assert isinstance(found, DrawError)


@pytest.mark.parametrize("interface", INTERFACES)
@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_response_is_no_refusal_in_any_client(name: str, interface: str) -> None:
    with serve(MALFORMED[name]) as (url, _):
        model = INTERFACES[interface](url)
        for is_async in (False, True):
            error = catch_failure(model, is_async=is_async)
            assert is_malformed_response(error), repr(error)
            assert classify_failure(error) not in {None, *PERMANENT_FAILURES}
            assert "server that cannot be read" in describe_error(error)


@pytest.mark.parametrize("code", [401, 402, 404, "insufficient_quota", "invalid_api_key"])
def test_error_in_a_body_that_refuses_the_key_is_permanent(code: Any) -> None:
    with serve((200, JSON, {"error": {"message": "no", "code": code}})) as (url, _):
        for interface in ("chat", "responses"):
            found = classify_failure(catch_failure(INTERFACES[interface](url)))
            assert found == ("access" if code == 404 else "key")


CLIENT_FAILURES: dict[FailureKind, list[str]] = {
    "timeout": ["status 408"],
    "conflict": ["status 409", "status 425"],
    "rate": ["status 429"],
    "server": ["status 500", "status 503"],
    "request": ["status 400", "status 422"],
    "key": ["status 401"],
    "access": ["status 403", "status 404"],
    "connection_lost": ["dropped", "truncated"],
    "unreadable": ["no choices"],
}


@pytest.mark.parametrize("kind", CLIENT_FAILURES)
def test_failures_of_the_openai_client_have_their_kinds(kind: FailureKind) -> None:
    for fault in CLIENT_FAILURES[kind]:
        with serving(Script({"x": [Answer("there")]}, faults=[Fault(fault)])) as url:
            assert classify_failure(catch_failure(make_model(url.removesuffix("/v1")))) == kind


# Secrets

KEY, HEADER = "key-7f3a91", "tenant-55e1"


@pytest.mark.parametrize("status", [400, 401, 402, 403, 404, 422, 429, 500])
@pytest.mark.parametrize("interface", ["chat", "messages"])
def test_text_of_a_refusal_is_shown_without_keys_and_headers(status: int, interface: str) -> None:
    said = {"error": {"message": f"No access for {KEY} in {HEADER}: ask the owner", "code": "no_access"}}
    settings: Any = {"api_key": KEY, "default_headers": {"X-Tenant": HEADER, "X-Plan": "Team " + HEADER}}
    with serve((status, JSON, said)) as (url, _):
        model = INTERFACES[interface](url, **settings)
        chain = CFCRunnable(generator=model, verifier=score_equally, artifact=make_artifact())
        for shows in (False, True):
            with pytest.raises(DrawError) as caught:
                chain.model_copy(update={"show_rejected": shows}).invoke("x")
            message = str(caught.value)
            assert KEY not in message
            assert HEADER not in message
            # A server error may come after the request was read, so it may quote an answer.
            assert ("ask the owner" in message) == (shows or status not in {400, 422, 500})
            assert ("add retries" in message) == (status in {429, 500})
    # Control: the provider quotes both.
    assert KEY in str(caught.value.__cause__)
    assert HEADER in str(caught.value.__cause__)


def test_header_of_a_bound_request_is_not_shown() -> None:
    error = httpx.HTTPStatusError(
        f"who is {HEADER}?",
        request=httpx.Request("POST", "http://x", headers={"X-Tenant": HEADER, "Accept": "application/json"}),
        response=httpx.Response(401),
    )
    assert HEADER not in describe_error(error)
    with serve((200, JSON, {"error": f"application/json: who is {HEADER}?"})) as (url, _):
        failed = catch_failure(make_model(url, default_headers={"X-Tenant": HEADER}))
    assert HEADER in str(failed)
    assert HEADER not in describe_error(failed)
    assert "application/json: who is" in describe_error(failed)


class ClientError(Exception):
    """An error with a status and a code, as clients raise it."""

    def __init__(self, status: Any = None, code: Any = None) -> None:
        super().__init__("failed")
        self.status_code, self.code = status, code


def name_error(name: str, *bases: type[Exception]) -> Exception:
    made: Exception = type(name, bases or (Exception,), {})()
    return made


FAILURES: list[tuple[Exception, FailureKind | None]] = [
    *((ClientError(status), "key") for status in (401, 402)),
    *((ClientError(status), "access") for status in (403, 404)),
    *((ClientError(status), "request") for status in (400, 405, 413, 422)),
    *((ClientError(status), "conflict") for status in (409, 425)),
    *((ClientError(status), "timeout") for status in (408, 504, 524)),
    *((ClientError(status), "server") for status in (500, 503, 529)),
    (ClientError(429), "rate"),
    (ClientError(429, "insufficient_quota"), "key"),
    (ClientError(400, "model_not_found"), "access"),
    (ValueError({"code": 502}), "server"),
    (ClientError(200), None),
    (ClientError("429", True), None),
    (httpx.ConnectError("x"), "not_connected"),
    (httpx.ConnectTimeout("x"), "not_connected"),
    (ConnectionRefusedError(), "not_connected"),
    (httpx.ReadTimeout("x"), "timeout"),
    (asyncio.TimeoutError(), "timeout"),
    (httpx.RemoteProtocolError("x"), "connection_lost"),
    (BrokenPipeError(), "connection_lost"),
    (name_error("ServerDisconnectedError"), "connection_lost"),
    (name_error("APITimeoutError", name_error("APIConnectionError").__class__), "timeout"),
    (ValueError("x"), None),
    (OSError("disk"), None),
]


@pytest.mark.parametrize(("error", "kind"), FAILURES, ids=lambda one: repr(one)[:40])
def test_classify_failure_is_the_same_for_an_error_and_what_it_causes(error: Exception, kind: Any) -> None:
    assert classify_failure(error) == kind
    caused = DrawError("2 of 3 candidates could not be drawn")
    caused.__cause__ = error
    assert classify_failure(caused) == kind
    assert is_permanent(caused) == (kind in PERMANENT_FAILURES)
    error.__cause__ = caused  # endless
    assert classify_failure(error) == kind
