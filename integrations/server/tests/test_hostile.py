"""Hostile clients: attempts to bypass limits, forge logs, or obtain a guarantee that does not hold."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import socket
import string
import time
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from langchain_cfc_server import Settings
from langchain_cfc_server.errors import RefusedError
from langchain_cfc_server.limits import Limits
from langchain_cfc_server.metrics import Metrics
from langchain_cfc_server.observing import RequestObserver
from langchain_cfc_server.parameters import PARAMETERS
from langchain_cfc_server.tokens import ClientTokens
from langchain_cfc_server.traffic import Traffic
from langchain_core.messages import AIMessage
from langchain_core.runnables import Runnable, RunnableLambda
from starlette.types import Message, Receive, Scope, Send

from integrations.server.tests.bots import EASY, FALLBACK, GOOD, HARD, TOOL, UNSURE, N, chain, judge
from integrations.server.tests.parts import (
    HEADERS,
    OTHER_HEADERS,
    TOKEN,
    Server,
    make_request,
    run_server,
    wait_for_value,
)
from tests.serving.openai_bodies import Answer
from tests.serving.openai_server import Script

COMPLETIONS = "/v1/chat/completions"
_PLAIN_HEADERS = "Host: x\r\nContent-Type: application/json\r\n"
_ADMITTED_HEADERS = f"{_PLAIN_HEADERS}Authorization: Bearer {TOKEN}\r\n"
MEGABYTE = 1 << 20
CONCURRENCY = 3
HIDDEN_TEXT = "prompt-that-no-log-must-see"
UNREADABLE = "no JSON"


def models() -> dict[str, Runnable[Any, Any]]:
    """Bots that look at what the server does with them; they stand here for the server to find."""
    return {
        "any": chain(generator=RunnableLambda(lambda _: GOOD)),
        "crowded": chain(generator=RunnableLambda(lambda _: GOOD), verifier=_Crowd()),
        "talkative": chain(generator=RunnableLambda(_log_prompt)),
        "odd": chain(generator=RunnableLambda(_call_oddly)),
    }


class _Crowd:
    """A verifier that notes how often it runs at once."""

    def __init__(self) -> None:
        self._now = 0

    async def __call__(self, prompt: Any, candidates: Sequence[Any]) -> list[float]:
        self._now += 1
        self._note()
        await asyncio.sleep(0.2)
        self._now -= 1
        return judge(prompt, candidates)

    def _note(self) -> None:
        with Path(os.environ["BOTS_CANCELLED"]).open("a", encoding="utf-8") as file:
            file.write(f"{self._now}\n")


def _log_prompt(messages: Any) -> str:
    """Log a prompt, as a package that ignores confidentiality might."""
    warnings.warn(f"strange: {messages[-1].text}", stacklevel=1)
    logging.getLogger("some_package").error("cannot count the tokens of %s", messages[-1].text)
    return GOOD


def _call_oddly(_: Any) -> AIMessage:
    call = {"type": "invalid_tool_call", "id": "1", "name": "weather", "args": UNREADABLE, "error": None}
    return AIMessage("", invalid_tool_calls=[call])


@pytest.fixture(scope="module")
def own_server(bots: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of its own, for some of this might break it."""
    path = tmp_path_factory.mktemp("hostile") / "crowd"
    with run_server(
        {**bots, "BOTS_CANCELLED": str(path)},
        *("--concurrency", str(CONCURRENCY), "--queue", "100"),
        models="integrations.server.tests.test_hostile:models",
    ) as server:
        server.crowd = path  # type: ignore[attr-defined]
        yield server


def encode_post(body: bytes, path: str = COMPLETIONS, *, more: str = "Connection: close\r\n") -> bytes:
    return (
        f"POST {path} HTTP/1.1\r\n{_ADMITTED_HEADERS}{more}Content-Length: {len(body)}\r\n\r\n".encode()
        + body
    )


def encode_chunk(body: bytes) -> bytes:
    return b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)


# Who may ask, and what is a request at all.

LIVE = b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n"


def encode_get(path: str, *headers: str, method: str = "GET") -> bytes:
    """A request without a body, as it is sent."""
    lines = [f"{method} {path} HTTP/1.1", "Host: x", *(headers or ("Connection: close",)), "", ""]
    return "\r\n".join(lines).encode()


def encode_framed(*headers: str, body: str = "", allowed: bool = True) -> bytes:
    """A request with a body whose end is told by these headers."""
    head = f"POST {COMPLETIONS} HTTP/1.1\r\n{_ADMITTED_HEADERS if allowed else _PLAIN_HEADERS}"
    return (head + "\r\n".join([*headers, "", body])).encode()


AMBIGUOUS: dict[str, bytes] = {
    "space before a colon": encode_get("/v1/models", f"Authorization : Bearer {TOKEN}"),
    "zero byte": encode_get("/v1/models", f"Authorization: Bearer {TOKEN}\0"),
    "endless header": encode_get("/v1/models", f"Authorization: Bearer {'a' * 500_000}"),
    "two hosts": encode_get("/v1/models", "Host: y"),
    "length with a sign": encode_framed("Content-Length: +5"),
    "length in hexadecimal": encode_framed("Content-Length: 0x5"),
    "two lengths in one": encode_framed("Content-Length: 5, 6"),
    "length of 5000 digits": encode_framed(f"Content-Length: {'9' * 5000}"),
    "chunks twice": encode_framed("Transfer-Encoding: chunked, chunked"),
    "chunks disguised": encode_framed("Transfer-Encoding: \vchunked"),
    "chunk of another length": encode_framed("Transfer-Encoding: chunked", body="2\r\n{}xx\r\n0\r\n\r\n"),
}
_UPGRADE = "Connection: Upgrade, close"
TOKEN_TRICKS: dict[str, bytes] = {
    "absolute address": encode_get("http://x/v1/models"),
    "absolute address of an open path": encode_get("http://x/health/live"),
    "tunnel": encode_get("x:443", method="CONNECT"),
    "trace": encode_get("/v1/models", method="TRACE"),
    "asterisk": encode_get("*", method="OPTIONS"),
    "HTTP/1.0": b"GET /v1/models HTTP/1.0\r\n\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "HTTP/2 by upgrade": encode_get(
        "/v1/models", _UPGRADE, "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA"
    ),
    "websocket": encode_get("/v1/models", _UPGRADE, "Upgrade: websocket", "Sec-WebSocket-Version: 13"),
    "open path and a line break": encode_get("/health/live%0a"),
    "open path and a parameter": encode_get("/health/live;x"),
    "open path, encoded twice": encode_get("/health%252flive"),
    "long token": encode_get("/v1/models", "Connection: close", f"Authorization: Bearer {'a' * 50_000}"),
    "token in the address": encode_get(f"/v1/models?api_key={TOKEN}"),
    "token in a trailer": encode_framed(
        *("Connection: close", "Transfer-Encoding: chunked"),
        body=f"2\r\n{{}}\r\n0\r\nAuthorization: Bearer {TOKEN}\r\n\r\n",
        allowed=False,
    ),
    # It is not even invited to send its body.
    "body to come": encode_framed(
        "Connection: close", "Content-Length: 9", "Expect: 100-continue", allowed=False
    ),
}


@pytest.mark.parametrize("kind", AMBIGUOUS)
def test_ambiguous_requests_are_refused(server: Server, kind: str) -> None:
    received = server.say(AMBIGUOUS[kind] + LIVE, wait=2)
    assert received.startswith(b"HTTP/1.1 400 ")
    assert received.count(b"HTTP/1.1 ") == 1
    assert b'"live"' not in received


@pytest.mark.parametrize("kind", TOKEN_TRICKS)
def test_http_tricks_do_not_replace_a_token(server: Server, kind: str) -> None:
    assert server.say(TOKEN_TRICKS[kind], wait=2).startswith(b"HTTP/1.1 401 ")


def test_request_with_two_lengths_ends_its_connection(own_server: Server) -> None:
    """A proxy that goes by the other length takes what follows for another client's request."""
    body = json.dumps(make_request(EASY, "any")).encode()
    twofold = encode_framed("Content-Length: 5", "Transfer-Encoding: chunked")
    assert own_server.say(twofold + encode_chunk(body) + LIVE, wait=1).count(b"HTTP/1.1 ") == 1
    # After a request of one length, the next one counts.
    once = encode_framed("Transfer-Encoding: chunked")
    assert own_server.say(once + encode_chunk(body) + LIVE, wait=1).count(b"HTTP/1.1 200 ") == 2


def test_body_broken_after_refusal_is_no_server_error(own_server: Server) -> None:
    """Otherwise clients without a token could fill the log with tracebacks."""
    with socket.create_connection(("127.0.0.1", own_server.port), timeout=5) as connection:
        connection.sendall(encode_framed("Transfer-Encoding: chunked", allowed=False))
        assert connection.recv(1000).startswith(b"HTTP/1.1 401 ")
        connection.sendall(b"no number\r\n")
        while connection.recv(1000):
            pass
    assert not [line for line in own_server.log if line["logger"] == "asyncio"]


# Around the limits.


@pytest.mark.parametrize(
    "path",
    [
        COMPLETIONS,
        "/v1/chat%2Fcompletions",
        f"{COMPLETIONS}%0A",
        f"{COMPLETIONS}%0D%0A",
        f"{COMPLETIONS}?%0A",
    ],
)
def test_path_spellings_do_not_bypass_the_limits(own_server: Server, path: str) -> None:
    """Starlette's routes let a line break follow, and a comparison of paths does not."""
    usual = json.dumps(make_request(EASY, "any")).encode()
    received = own_server.say(encode_post(usual + b" " * MEGABYTE, path), wait=5)
    assert received[9:12] in {b"413", b"404"}


def _repeat(before: str, one: str, after: str) -> bytes:
    """Return a body with as many copies of a part as fit."""
    count = (MEGABYTE - len(before) - len(after)) // (len(one) + 1)
    return (before + ",".join([one] * count) + after).encode()


def _make_distinct_names() -> bytes:
    names = itertools.islice(itertools.product(string.ascii_letters, repeat=4), 30_000)
    return "{{{},{}}}".format(",".join(f'"{"".join(name)}":0' for name in names), '"z":0,"z":0').encode()


_MESSAGES = '{"model": "any", "messages": ['
BODIES: dict[str, bytes] = {
    "one of many names twice": _make_distinct_names(),
    "messages that are none": _repeat(_MESSAGES, "0", "]}"),
    "empty messages": _repeat(_MESSAGES, "{}", "]}"),
    "parts that are none": _repeat(_MESSAGES + '{"role": "user", "content": [', "0", "]}]}"),
    "parts of a tool's that are none": _repeat(
        _MESSAGES + '{"role": "tool", "tool_call_id": "1", "content": [', "{}", "]}]}"
    ),
    "empty calls": _repeat(_MESSAGES + '{"role": "assistant", "tool_calls": [', "{}", "]}]}"),
    "annotations": _repeat(_MESSAGES + '{"role": "assistant", "annotations": [', "0", "]}]}"),
    "unknown fields": b"{" + b",".join(b'"%d":0' % number for number in range(90_000)) + b"}",
    "deep": b'{"a":' * 100_000,
    "one text": json.dumps(make_request("x" * (MEGABYTE - 200), "any")).encode(),
}


@pytest.mark.parametrize("kind", BODIES)
def test_expensive_bodies_take_less_than_a_second(own_server: Server, kind: str) -> None:
    """One process serves all: what one body costs it, all clients wait, longer where the machine is busy."""
    assert len(BODIES[kind]) <= MEGABYTE
    before = own_server.processor_time()
    assert own_server.ask(BODIES[kind]).status_code in {200, 400}
    assert own_server.processor_time() - before < 1.0


def test_client_that_does_not_read_gives_up_its_place() -> None:
    """Head and body go out apart, and the body waits where the head has filled what there is room for."""
    asyncio.run(_send_unread_answer())


async def _send_unread_answer() -> None:
    async def app(_: Scope, __: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}", "more_body": False})

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()

    received: list[Message] = [{"type": "http.request", "body": b"{}", "more_body": False}]

    async def receive() -> Message:
        if not received:
            await asyncio.Event().wait()
        return received.pop()

    traffic = Traffic(1, 1)
    settings = Settings(authentication=False, time_limit=0.2)
    limits = Limits(app, [COMPLETIONS], settings, traffic, ClientTokens())
    scope = {"type": "http", "path": COMPLETIONS, "method": "POST", "headers": []}
    with pytest.raises(RefusedError) as caught:
        await asyncio.wait_for(limits(scope, receive, send), 2)
    await asyncio.sleep(0)
    assert caught.value.status == 504
    assert (traffic.admitted, traffic.working) == (0, 0)


def test_unsent_response_is_replaced_by_timeout_error() -> None:
    """Else the client reads a bare 500 once it reads, and the log says 200."""
    assert asyncio.run(_replace_answer()) == [504]


async def _replace_answer() -> list[int]:
    room = asyncio.Event()
    sent: list[int] = []

    async def send(message: Message) -> None:
        await room.wait()
        if "status" in message:
            sent.append(message["status"])

    async def app(_: Scope, __: Receive, send: Send) -> None:
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(send({"type": "http.response.start", "status": 200, "headers": []}), 0.1)
        room.set()
        raise RefusedError(504, "timeout", "too late")

    traffic = Traffic(1, 1)
    observed = RequestObserver(
        app, [COMPLETIONS], traffic, Metrics(traffic, ClientTokens(), {}), log_content=False
    )
    scope = {"type": "http", "path": COMPLETIONS, "method": "POST", "headers": []}
    await observed(scope, _receive_nothing, send)
    return sent


async def _receive_nothing() -> Message:
    raise NotImplementedError


def _ask_without_reading(server: Server) -> socket.socket:
    """Asks for more than all buffers hold, and reads none of it."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
    connection.connect(("127.0.0.1", server.port))
    connection.settimeout(2)
    with suppress(TimeoutError):
        for _ in range(1000):
            connection.sendall(encode_get("/v1/models", "A: b") * 1000)
    return connection


def _send_half_a_head(server: Server) -> socket.socket:
    """Sends it beside a request that is answered."""
    connection = socket.create_connection(("127.0.0.1", server.port))
    connection.sendall(LIVE + b"GET /health/live HTTP/1.1\r\nHo")
    return connection


def _connect_silently(server: Server) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port))


def _list_connected_ports(port: int) -> set[int]:
    """Ports of clients whose connection the server has open."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text(encoding="utf-8").splitlines()[1:]]
    return {
        int(remote.rpartition(":")[2], 16)
        for _, local, remote, state, *_ in rows
        if state == "01" and int(local.rpartition(":")[2], 16) == port
    }


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="the system does not list connections here")
def test_lingering_clients_without_token_are_disconnected(own_server: Server) -> None:
    """Connections are files, of which there are so many; these clients need no token."""
    held = [linger(own_server) for linger in (_ask_without_reading, _send_half_a_head, _connect_silently)]
    ports = {connection.getsockname()[1] for connection in held}
    time.sleep(15)
    alive = _list_connected_ports(own_server.port)
    for connection in held:
        connection.close()
    assert len(ports) == 3
    assert not ports & alive


def test_concurrency_limit_holds_under_load(own_server: Server) -> None:
    with ThreadPoolExecutor(20) as pool:
        asked = [
            pool.submit(own_server.ask, make_request(EASY, "crowded"), headers)
            for headers in (HEADERS, OTHER_HEADERS) * 10
        ]
        assert {one.result().status_code for one in asked} == {200}
    path: Path = own_server.crowd  # type: ignore[attr-defined]
    assert max(map(int, path.read_text(encoding="utf-8").split())) == CONCURRENCY


# What is asked of the model.


def test_ignored_parameters_do_not_reach_the_model(
    bots: dict[str, str], upstream: tuple[str, Script]
) -> None:
    """The guarantee is about the generator as it was calibrated."""
    parameters: dict[str, Any] = {
        **dict.fromkeys(PARAMETERS, 0.5),
        "user": "u",
        "store": True,
        "service_tier": "flex",
        "metadata": {"temperature": "2"},
    }
    with run_server(bots, "--ignore", ",".join(PARAMETERS)) as server:
        assert server.ask(make_request(EASY)).status_code == 200
        usual = upstream[1].requests[-1]
        assert server.ask(make_request(EASY, **parameters)).json()["cfc"]["guarantee"]["alpha"] == "0.2"
        assert upstream[1].requests[-1] == usual
        # What other servers know besides is not passed over, for it might be meant.
        for name in ("top_k", "min_p", "best_of", "extra_body", "Temperature", "temperature\0"):
            assert server.ask({**make_request(EASY), name: 1}).status_code == 400


def test_concurrent_requests_get_their_own_answers(server: Server, upstream: tuple[str, Script]) -> None:
    questions = {
        f"easy: number {number % 90}{'!' * (number // 90)}": f"answer {number}." for number in range(180)
    }
    planted = {question: [Answer(answer, -0.1)] for question, answer in questions.items()}
    kept, upstream[1].answers = upstream[1].answers, {**upstream[1].answers, **planted}

    def ask(question: str) -> str:
        stream = hash(question) % 2 == 0
        headers = HEADERS if len(question) % 2 else OTHER_HEADERS
        response = server.ask(make_request(question, stream=stream), headers)
        if not stream:
            return str(response.json()["choices"][0]["message"]["content"])
        chunks = [json.loads(line[6:]) for line in response.text.split("\n\n")[:-2]]
        return "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)

    try:
        with ThreadPoolExecutor(len(questions)) as pool:
            assert dict(zip(questions, pool.map(ask, questions), strict=True)) == questions
    finally:
        upstream[1].answers = kept


def test_server_does_not_fetch_images(server: Server) -> None:
    """An address may be one that only the server can reach."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(1)
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/image.png"
        parts = [{"type": "text", "text": EASY}, {"type": "image_url", "image_url": {"url": url}}]
        body = {"model": "bot", "messages": [{"role": "user", "content": parts}]}
        assert server.ask(body).json()["cfc"]["best"] == GOOD
        with pytest.raises(TimeoutError):
            listening.accept()


@pytest.mark.parametrize("arguments", ['{"a": NaN}', '{"a": 1e999}', '{"a": "\\ud800"}', '{"\\udc00": 1}'])
def test_tool_call_arguments_are_passed_on_unchanged(
    server: Server, upstream: tuple[str, Script], arguments: str
) -> None:
    """The model is told of calls in the client's words; in others, something else is asked."""
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    messages = [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "done"},
        {"role": "user", "content": EASY},
    ]
    assert server.ask({"model": "bot", "messages": messages}).status_code == 200
    sent = upstream[1].requests[-1]["messages"][0]["tool_calls"]
    assert [one["function"]["arguments"] for one in sent] == [arguments]


@pytest.mark.parametrize(
    ("alpha", "level"),
    [
        ('"0.10"', "0.1"),
        ("1e-1", "0.1"),
        ("0.1000000000000000001", "0.1"),
        # Floats mean the nearest decimal of 12 digits; text means what it says.
        ("0.10000000000001", "0.1"),
        ('"0.1\\n"', None),
        ('"１"', None),
        ('"٠.١"', None),
        ('" 0.1"', None),
        ('"1e-1"', None),
        ('"0.10000000000001"', None),
        ("0.100000000001", None),
        ("5e-324", None),
        ("-0.0", None),
        ("1" + "0" * 400, None),
        ("[0.1]", None),
        ('{"alpha": 0.1}', None),
    ],
)
def test_request_level_must_be_calibrated(server: Server, alpha: str, level: str | None) -> None:
    body = json.dumps(make_request(EASY))[:-1] + f', "cfc": {{"alpha": {alpha}}}}}'
    response = server.ask(body.encode())
    if level is None:
        assert (response.status_code, response.json()["error"]["param"]) == (400, "cfc.alpha")
    else:
        assert response.json()["cfc"]["guarantee"]["alpha"] == level


# What is said.


@pytest.mark.parametrize("question", [EASY, UNSURE, HARD, TOOL])
def test_stream_and_completion_have_the_same_content(server: Server, question: str) -> None:
    whole = server.ask(make_request(question))
    streamed = server.ask(make_request(question, stream=True))
    chunks = [json.loads(line[6:]) for line in streamed.text.split("\n\n")[:-2]]
    # Which tokens draws cost may differ; what was decided may not.
    [last] = [chunk["cfc"] for chunk in chunks if "cfc" in chunk]
    assert last == whole.json()["cfc"]
    names = {name for name in whole.headers if name.startswith("x-cfc-")}
    assert {name: whole.headers[name] for name in names} == {name: streamed.headers[name] for name in names}
    # Tool calls are no answers of a model without bound tools, and neither is reasoning alone.
    unscored = {TOOL: f"tool_call_only={N}", UNSURE: f"reasoning_only={N}"}.get(question)
    assert whole.headers.get("x-cfc-unscored") == unscored
    assert len(names) == (4 if unscored is None else 5)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("more", [{}, {"cfc": {"alpha": "0.1"}}])
def test_fallback_never_has_a_guarantee(server: Server, stream: bool, more: dict[str, Any]) -> None:
    response = server.ask(make_request(UNSURE, "helped", stream=stream, **more))
    assert FALLBACK in response.text
    assert '"cfc":{"guarantee":null}' in response.text
    assert not [name for name in response.headers if name.startswith("x-cfc-")]


def test_answer_is_the_accepted_candidate(own_server: Server) -> None:
    """A call whose arguments are no JSON was scored and accepted; an empty text was not."""
    body = own_server.ask(make_request(EASY, "odd")).json()
    assert UNREADABLE in body["cfc"]["best"]
    choice = body["choices"][0]
    [call] = choice["message"]["tool_calls"]
    assert (call["function"]["name"], call["function"]["arguments"]) == ("weather", UNREADABLE)
    assert choice["finish_reason"] == "tool_calls"


def test_response_headers_contain_no_client_text(server: Server) -> None:
    evil = "x\r\nset-cookie: a=b"
    theirs = {**HEADERS, "X-Request-ID": "theirs", "X-CFC-Reason": "answered"}
    usual = set(server.ask(make_request(EASY)).headers)
    for body in (make_request(EASY, user=evil), make_request(EASY, evil), {**make_request(EASY), evil: 1}):
        headers = server.ask(body, theirs).headers
        assert set(headers) <= usual
        assert "theirs" not in headers["x-request-id"]


def test_log_messages_of_other_packages_are_withheld(own_server: Server) -> None:
    assert own_server.ask(make_request(f"easy: {HIDDEN_TEXT}", "talkative")).status_code == 200
    logged = wait_for_value(
        lambda: [one for one in own_server.log if one["logger"] in {"some_package", "py.warnings"}]
    )
    # Logs say that it happened.
    assert {one["level"] for one in logged} == {"error", "warning"}
    assert HIDDEN_TEXT not in own_server.log_path.read_text(encoding="utf-8")
