"""Responses that a model's client cannot read, and what messages say of a failed request."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, TypeAlias

import httpx
import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.output_parsers import JsonOutputParser
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

from langchain_cfc import CFCRunnable
from langchain_cfc.collect import CallPolicy, CollectionOptions, Components, collect
from langchain_cfc.collect.failures import ends_run, is_transient
from langchain_cfc.collect.store import Store
from langchain_cfc.errors import DrawError, VerifierError
from langchain_cfc.execution import describe_error, is_malformed_response
from langchain_cfc.labelers import NormalisedMatch
from langchain_cfc.records import Example
from langchain_cfc.sampling import DrawnCandidate
from langchain_cfc.verifiers import ModelJudge
from tests.factories import make_artifact

Reply: TypeAlias = tuple[int, dict[str, str], Any]

JSON, HTML = {"Content-Type": "application/json"}, {"Content-Type": "text/html"}
HEAD = {"id": "x", "object": "chat.completion", "created": 1, "model": "m"}
MESSAGE = {"role": "assistant", "content": "Lima"}
GOOD: Reply = (200, JSON, {**HEAD, "choices": [{"index": 0, "message": MESSAGE, "finish_reason": "stop"}]})
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


@pytest.mark.parametrize("interface", INTERFACES)
@pytest.mark.parametrize("name", MALFORMED)
def test_response_that_cannot_be_read_is_transient(name: str, interface: str) -> None:
    with serve(MALFORMED[name]) as (url, _):
        model = INTERFACES[interface](url)
        for is_async in (False, True):
            error = catch_failure(model, is_async=is_async)
            assert is_malformed_response(error), repr(error)
            assert is_transient(error)
            assert not ends_run(error)
            assert "server that cannot be read" in describe_error(error)


@pytest.mark.parametrize("code", [401, 402, 404, "insufficient_quota", "invalid_api_key"])
def test_error_body_that_refuses_the_key_is_definite(code: Any) -> None:
    with serve((200, JSON, {"error": {"message": "no", "code": code}})) as (url, _):
        for interface in ("chat", "responses"):
            error = catch_failure(INTERFACES[interface](url))
            assert not is_transient(error)
            assert ends_run(error)


class City(BaseModel):
    """An answer's schema."""

    city: str


def test_errors_about_an_answer_or_a_request_are_no_malformed_responses() -> None:
    with serve(GOOD) as (url, _):
        model = make_model(url)
        for other in (
            model | JsonOutputParser(),
            model.with_structured_output(City, method="json_schema"),
            model.bind(unknown_parameter=1),
            model | (lambda message: message.additional_kwargs["missing"]),
        ):
            error = catch_failure(other)
            assert not is_malformed_response(error), repr(error)
            assert not is_transient(error)


# Collecting and serving

PROMPTS = [Example(id=str(number), input=f"{number}?", reference="Lima") for number in range(2)]
FAST = CallPolicy(concurrency=4, attempts=2)


def score_equally(_: Any, candidates: Any) -> list[float]:
    return [0.5] * len(candidates)


@pytest.mark.parametrize("name", ["null choices", "no choice", "HTML"])
def test_collect_retries_a_first_wave_of_malformed_responses(tmp_path: Path, name: str) -> None:
    with serve(*[MALFORMED[name]] * 3, GOOD) as (url, asked):
        made_of = Components(make_model(url), score_equally, NormalisedMatch(), n=3, verifier_id="equal")
        found = collect(PROMPTS, made_of, tmp_path / "s.db", CollectionOptions(call_policy=FAST)).status
    assert (found.labelled, found.failed, found.unanswered, len(asked)) == (2, 0, 3, 9)


def test_collect_stores_the_cause_and_draws_again_with_retry_failed(tmp_path: Path) -> None:
    notices: list[str] = []
    run = CollectionOptions(call_policy=FAST, on_notice=notices.append)
    with serve(*[MALFORMED["null choices"]] * 2, GOOD) as (url, asked):
        made_of = Components(make_model(url), score_equally, NormalisedMatch(), n=1, verifier_id="equal")
        found = collect(PROMPTS, made_of, tmp_path / "s.db", run).status
        assert (found.labelled, found.failed) == (1, 1)
        with Store(tmp_path / "s.db") as store:
            assert "server that cannot be read" in repr(store.read_failures())
        again = CollectionOptions(call_policy=FAST, retry_failed=True)
        found = collect(PROMPTS, made_of, tmp_path / "s.db", again).status
    assert (found.labelled, found.failed, len(asked)) == (2, 0, 4)


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


def test_malformed_response_of_a_judge_is_transient() -> None:
    with serve(MALFORMED["null choices"]) as (url, _):
        judge = ModelJudge(make_model(url))
        with pytest.raises(VerifierError, match="server that cannot be read") as caught:
            judge.invoke({"prompt": "x", "candidates": [DrawnCandidate("Lima")]})
    assert is_transient(caught.value)


# Secrets

KEY, HEADER = "key-7f3a91", "tenant-55e1"


@pytest.mark.parametrize("status", [401, 402, 403, 404, 429, 500])
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
            assert ("ask the owner" in message) == (shows or status != 500)
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
