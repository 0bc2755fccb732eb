"""Clients that mean harm: around the limits, into the logs, or towards a guarantee that does not hold."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import re
import socket
import string
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
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
from langchain_cfc_server.schema import SAMPLING_PARAMETERS
from langchain_cfc_server.tokens import ClientTokens
from langchain_cfc_server.traffic import Traffic
from langchain_core.messages import AIMessage
from langchain_core.runnables import Runnable, RunnableLambda
from starlette.types import Message, Receive, Scope, Send

from integrations.server.tests.bots import EASY, FALLBACK, GOOD, HARD, TOOL, UNSURE, chain, judge
from integrations.server.tests.parts import HEADERS, TOKEN, Server, asking, running, until
from tests.serving.openai_bodies import Answer
from tests.serving.openai_server import Script

COMPLETIONS = "/v1/chat/completions"
HELD = "Host: x\r\nContent-Type: application/json\r\n"
ALLOWED = f"{HELD}Authorization: Bearer {TOKEN}\r\n"
MEGABYTE = 1 << 20
CONCURRENCY = 3
HIDDEN = "prompt-that-no-log-must-see"
UNREADABLE = "no JSON"


def hostile() -> dict[str, Runnable[Any, Any]]:
    """Bots that look at what the server does with them; they stand here for the server to find."""
    return {
        "any": chain(generator=RunnableLambda(lambda _: GOOD)),
        "an/other": chain(generator=RunnableLambda(lambda _: GOOD)),
        "crowded": chain(generator=RunnableLambda(lambda _: GOOD), verifier=_Crowd()),
        "talkative": chain(generator=RunnableLambda(_talk)),
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


def _talk(messages: Any) -> str:
    """What packages do that were not written with prompts in mind."""
    warnings.warn(f"strange: {messages[-1].text}", stacklevel=1)
    logging.getLogger("some_package").error("cannot count the tokens of %s", messages[-1].text)
    return GOOD


def _call_oddly(_: Any) -> AIMessage:
    call = {"type": "invalid_tool_call", "id": "1", "name": "weather", "args": UNREADABLE, "error": None}
    return AIMessage("", invalid_tool_calls=[call])


@pytest.fixture(scope="module")
def stage(bots: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of its own, for some of this might break it."""
    path = tmp_path_factory.mktemp("hostile") / "crowd"
    with running(
        {**bots, "BOTS_CANCELLED": str(path)},
        *("--concurrency", str(CONCURRENCY), "--queue", "100"),
        models="integrations.server.tests.test_hostile:hostile",
    ) as server:
        server.crowd = path  # type: ignore[attr-defined]
        yield server


def post(body: bytes, path: str = COMPLETIONS, *, more: str = "Connection: close\r\n") -> bytes:
    """A request as it is sent."""
    return f"POST {path} HTTP/1.1\r\n{ALLOWED}{more}Content-Length: {len(body)}\r\n\r\n".encode() + body


def chunked(body: bytes) -> bytes:
    """A body in one chunk."""
    return b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)


# Who may ask, and what is a request at all.

LIVE = b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n"


def get(path: str, *headers: str, method: str = "GET", first: str = "Host: x") -> bytes:
    """A request without a body, as it is sent."""
    lines = [f"{method} {path} HTTP/1.1", first, *(headers or ("Connection: close",)), "", ""]
    return "\r\n".join(lines).encode()


def framed(*headers: str, body: str = "", allowed: bool = True) -> bytes:
    """A request with a body whose end is told by these headers."""
    head = f"POST {COMPLETIONS} HTTP/1.1\r\n{ALLOWED if allowed else HELD}"
    return (head + "\r\n".join([*headers, "", body])).encode()


UNREAD: dict[str, bytes] = {
    "space before a colon": get("/v1/models", f"Authorization : Bearer {TOKEN}"),
    "zero byte": get("/v1/models", f"Authorization: Bearer {TOKEN}\0"),
    "endless header": get("/v1/models", f"Authorization: Bearer {'a' * 500_000}"),
    "two hosts": get("/v1/models", "Host: y"),
    "length with a sign": framed("Content-Length: +5"),
    "length in hexadecimal": framed("Content-Length: 0x5"),
    "two lengths in one": framed("Content-Length: 5, 6"),
    "length of 5000 digits": framed(f"Content-Length: {'9' * 5000}"),
    "chunks twice": framed("Transfer-Encoding: chunked, chunked"),
    "chunks disguised": framed("Transfer-Encoding: \vchunked"),
    "chunk of another length": framed("Transfer-Encoding: chunked", body="2\r\n{}xx\r\n0\r\n\r\n"),
}
_UPGRADE = "Connection: Upgrade, close"
REFUSED: dict[str, bytes] = {
    "absolute address": get("http://x/v1/models"),
    "absolute address of an open path": get("http://x/health/live"),
    "tunnel": get("x:443", method="CONNECT"),
    "trace": get("/v1/models", method="TRACE"),
    "asterisk": get("*", method="OPTIONS"),
    "HTTP/1.0": b"GET /v1/models HTTP/1.0\r\n\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "HTTP/2 by upgrade": get(
        "/v1/models", _UPGRADE, "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA"
    ),
    "websocket": get("/v1/models", _UPGRADE, "Upgrade: websocket", "Sec-WebSocket-Version: 13"),
    "open path and a line break": get("/health/live%0a"),
    "open path and a parameter": get("/health/live;x"),
    "open path, encoded twice": get("/health%252flive"),
    "long token": get("/v1/models", "Connection: close", f"Authorization: Bearer {'a' * 50_000}"),
    "token in the address": get(f"/v1/models?api_key={TOKEN}"),
    "token in a trailer": framed(
        *("Connection: close", "Transfer-Encoding: chunked"),
        body=f"2\r\n{{}}\r\n0\r\nAuthorization: Bearer {TOKEN}\r\n\r\n",
        allowed=False,
    ),
    # It is not even invited to send its body.
    "body to come": framed("Connection: close", "Content-Length: 9", "Expect: 100-continue", allowed=False),
}


@pytest.mark.parametrize("kind", UNREAD)
def test_what_readers_disagree_on_is_no_request(server: Server, kind: str) -> None:
    received = server.say(UNREAD[kind] + LIVE, wait=2)
    assert received.startswith(b"HTTP/1.1 400 ")
    assert received.count(b"HTTP/1.1 ") == 1
    assert b'"live"' not in received


@pytest.mark.parametrize("kind", REFUSED)
def test_no_trick_of_http_replaces_a_token(server: Server, kind: str) -> None:
    assert server.say(REFUSED[kind], wait=2).startswith(b"HTTP/1.1 401 ")


def test_a_request_of_two_lengths_is_the_last_of_its_connection(stage: Server) -> None:
    """A proxy that goes by the other length takes what follows for another client's request."""
    body = json.dumps(asking(EASY, "any")).encode()
    twofold = framed("Content-Length: 5", "Transfer-Encoding: chunked")
    assert stage.say(twofold + chunked(body) + LIVE, wait=1).count(b"HTTP/1.1 ") == 1
    # After a request of one length, the next one counts.
    once = framed("Transfer-Encoding: chunked")
    assert stage.say(once + chunked(body) + LIVE, wait=1).count(b"HTTP/1.1 200 ") == 2


def test_a_body_that_breaks_after_its_refusal_is_no_error_of_the_server(stage: Server) -> None:
    """Else whoever has no token fills the log with errors and where they came from."""
    with socket.create_connection(("127.0.0.1", stage.port), timeout=5) as connection:
        connection.sendall(framed("Transfer-Encoding: chunked", allowed=False))
        assert connection.recv(1000).startswith(b"HTTP/1.1 401 ")
        connection.sendall(b"no number\r\n")
        while connection.recv(1000):
            pass
    assert not [line for line in stage.log if line["logger"] == "asyncio"]


def test_chunks_are_read_by_a_parser_without_a_known_hole() -> None:
    """Before 0.16, h11 takes chunks that end in anything: CVE-2025-43859."""
    text = Path(__file__).parents[1].joinpath("pyproject.toml").read_text(encoding="utf-8")
    [least] = re.findall(r'"h11>=([0-9]+)\.([0-9]+)"', text)
    assert tuple(map(int, least)) >= (0, 16)


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
def test_no_spelling_of_the_path_leads_around_the_limits(stage: Server, path: str) -> None:
    """Starlette's routes let a line break follow, and a comparison of paths does not."""
    usual = json.dumps(asking(EASY, "any")).encode()
    received = stage.say(post(usual + b" " * MEGABYTE, path), wait=5)
    assert received[9:12] in {b"413", b"404"}


def _many(before: str, one: str, after: str) -> bytes:
    """As many of the same as a body may hold."""
    count = (MEGABYTE - len(before) - len(after)) // (len(one) + 1)
    return (before + ",".join([one] * count) + after).encode()


def _names() -> bytes:
    names = itertools.islice(itertools.product(string.ascii_letters, repeat=4), 30_000)
    return "{{{},{}}}".format(",".join(f'"{"".join(name)}":0' for name in names), '"z":0,"z":0').encode()


_MESSAGES = '{"model": "any", "messages": ['
BODIES: dict[str, bytes] = {
    "one of many names twice": _names(),
    "messages that are none": _many(_MESSAGES, "0", "]}"),
    "empty messages": _many(_MESSAGES, "{}", "]}"),
    "parts that are none": _many(_MESSAGES + '{"role": "user", "content": [', "0", "]}]}"),
    "parts of a tool's that are none": _many(
        _MESSAGES + '{"role": "tool", "tool_call_id": "1", "content": [', "{}", "]}]}"
    ),
    "empty calls": _many(_MESSAGES + '{"role": "assistant", "tool_calls": [', "{}", "]}]}"),
    "annotations": _many(_MESSAGES + '{"role": "assistant", "annotations": [', "0", "]}]}"),
    "unknown fields": b"{" + b",".join(b'"%d":0' % number for number in range(90_000)) + b"}",
    "deep": b'{"a":' * 100_000,
    "one text": json.dumps(asking("x" * (MEGABYTE - 200), "any")).encode(),
}


@pytest.mark.parametrize("kind", BODIES)
def test_no_body_keeps_everybody_waiting(stage: Server, kind: str) -> None:
    """One process serves all: what one body costs it, all clients wait, longer where the machine is busy."""
    assert len(BODIES[kind]) <= MEGABYTE
    before = stage.processor_time()
    assert stage.ask(BODIES[kind]).status_code in {200, 400}
    assert stage.processor_time() - before < 1.0


def test_what_a_body_costs_is_measured(stage: Server) -> None:
    before = stage.processor_time()
    stage.ask(BODIES["unknown fields"])
    assert stage.processor_time() - before > 0.02


def test_a_client_that_does_not_read_holds_no_place() -> None:
    """Head and body go out apart, and the body waits where the head has filled what there is room for."""
    asyncio.run(_unread_answer())


async def _unread_answer() -> None:
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
    limits = Limits(app, [COMPLETIONS], Settings(authentication=False, time_limit=0.2), traffic)
    scope = {"type": "http", "path": COMPLETIONS, "method": "POST", "headers": []}
    with pytest.raises(RefusedError) as caught:
        await asyncio.wait_for(limits(scope, receive, send), 2)
    await asyncio.sleep(0)
    assert caught.value.status == 504
    assert (traffic.admitted, traffic.working) == (0, 0)


def test_a_response_that_never_went_out_is_replaced_by_why() -> None:
    """Else the client reads a bare 500 once it reads, and the log says 200."""
    assert asyncio.run(_replaced_answer()) == [504]


async def _replaced_answer() -> list[int]:
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
    await observed(scope, _nothing, send)
    return sent


async def _nothing() -> Message:
    raise NotImplementedError


def _does_not_read(server: Server) -> socket.socket:
    """Asks for more than all buffers hold, and reads none of it."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
    connection.connect(("127.0.0.1", server.port))
    connection.settimeout(2)
    with suppress(TimeoutError):
        for _ in range(1000):
            connection.sendall(get("/v1/models", "A: b") * 1000)
    return connection


def _sends_half_a_head(server: Server) -> socket.socket:
    """Sends it beside a request that is answered."""
    connection = socket.create_connection(("127.0.0.1", server.port))
    connection.sendall(LIVE + b"GET /health/live HTTP/1.1\r\nHo")
    return connection


def _is_silent(server: Server) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port))


LINGERING: dict[str, Callable[[Server], socket.socket]] = {
    "does not read": _does_not_read,
    "sends half a head": _sends_half_a_head,
    "is silent": _is_silent,
}


@pytest.fixture(scope="module")
def ended(stage: Server) -> dict[str, bool]:
    """Which clients that have no token and hold on to a connection have lost it after a while."""
    held = {name: linger(stage) for name, linger in LINGERING.items()}
    ports = {name: connection.getsockname()[1] for name, connection in held.items()}
    time.sleep(15)
    alive = _established(stage.port)
    for connection in held.values():
        connection.close()
    return {name: port not in alive for name, port in ports.items()}


def _established(port: int) -> set[int]:
    """Ports of clients whose connection the server has open."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text(encoding="utf-8").splitlines()[1:]]
    return {
        int(remote.rpartition(":")[2], 16)
        for _, local, remote, state, *_ in rows
        if state == "01" and int(local.rpartition(":")[2], 16) == port
    }


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="the system does not list connections here")
@pytest.mark.parametrize("name", LINGERING)
def test_nobody_holds_a_connection_for_nothing(ended: dict[str, bool], name: str) -> None:
    """Connections are files, of which there are so many; these clients need no token."""
    assert ended[name]


def test_never_more_are_worked_on_than_may_be(stage: Server) -> None:
    with ThreadPoolExecutor(20) as pool:
        asked = [pool.submit(stage.ask, asking(EASY, "crowded")) for _ in range(20)]
        assert {one.result().status_code for one in asked} == {200}
    path: Path = stage.crowd  # type: ignore[attr-defined]
    assert max(map(int, path.read_text(encoding="utf-8").split())) == CONCURRENCY


# What is asked of the model.


def test_ignored_parameters_do_not_reach_the_model(
    bots: dict[str, str], upstream: tuple[str, Script]
) -> None:
    """The guarantee is about the generator as it was calibrated."""
    parameters: dict[str, Any] = {
        **dict.fromkeys(SAMPLING_PARAMETERS, 0.5),
        "user": "u",
        "store": True,
        "service_tier": "flex",
        "metadata": {"temperature": "2"},
    }
    with running(bots, "--sampling-parameters", "ignore") as server:
        assert server.ask(asking(EASY)).status_code == 200
        usual = upstream[1].requests[-1]
        assert server.ask(asking(EASY, **parameters)).json()["cfc"]["guarantee"]["alpha"] == "0.2"
        assert upstream[1].requests[-1] == usual
        # What other servers know besides is not passed over, for it might be meant.
        for name in ("top_k", "min_p", "best_of", "extra_body", "Temperature", "temperature\0"):
            assert server.ask({**asking(EASY), name: 1}).status_code == 400


def test_each_request_is_drawn_anew(server: Server, upstream: tuple[str, Script]) -> None:
    before = len(upstream[1].requests)
    ids = {server.ask(asking(EASY)).json()["id"] for _ in range(3)}
    assert (len(ids), len(upstream[1].requests) - before) == (3, 9)


def test_answers_of_many_at_once_are_not_mixed_up(server: Server, upstream: tuple[str, Script]) -> None:
    questions = {f"easy: number {number}": f"answer {number}." for number in range(180)}
    planted = {question: [Answer(answer, -0.1)] for question, answer in questions.items()}
    kept, upstream[1].answers = upstream[1].answers, {**upstream[1].answers, **planted}

    def told(question: str) -> str:
        stream = hash(question) % 2 == 0
        response = server.ask(asking(question, stream=stream), timeout=60)
        if not stream:
            return str(response.json()["choices"][0]["message"]["content"])
        chunks = [json.loads(line[6:]) for line in response.text.split("\n\n")[:-2]]
        return "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)

    try:
        with ThreadPoolExecutor(len(questions)) as pool:
            assert dict(zip(questions, pool.map(told, questions), strict=True)) == questions
    finally:
        upstream[1].answers = kept


def test_the_server_fetches_no_image(server: Server) -> None:
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
def test_arguments_that_only_python_reads_go_on_as_they_are(
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
def test_a_level_is_one_that_was_calibrated_or_none(server: Server, alpha: str, level: str | None) -> None:
    body = json.dumps(asking(EASY))[:-1] + f', "cfc": {{"alpha": {alpha}}}}}'
    response = server.ask(body.encode())
    if level is None:
        assert (response.status_code, response.json()["error"]["param"]) == (400, "cfc.alpha")
    else:
        assert response.json()["cfc"]["guarantee"]["alpha"] == level


# What is said.


@pytest.mark.parametrize("question", [EASY, UNSURE, HARD, TOOL])
def test_a_stream_says_what_is_said_at_once(server: Server, question: str) -> None:
    whole = server.ask(asking(question))
    streamed = server.ask(asking(question, stream=True))
    chunks = [json.loads(line[6:]) for line in streamed.text.split("\n\n")[:-2]]
    # Which tokens draws cost may differ; what was decided may not.
    [last] = [chunk["cfc"] for chunk in chunks if "cfc" in chunk]
    assert last == whole.json()["cfc"]
    names = {name for name in whole.headers if name.startswith("x-cfc-")}
    assert {name: whole.headers[name] for name in names} == {name: streamed.headers[name] for name in names}
    assert len(names) == 4


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("more", [{}, {"cfc": {"alpha": "0.1"}}])
def test_no_fallback_borrows_a_guarantee(server: Server, stream: bool, more: dict[str, Any]) -> None:
    response = server.ask(asking(UNSURE, "helped", stream=stream, **more))
    assert FALLBACK in response.text
    assert '"cfc":{"guarantee":null}' in response.text
    assert not [name for name in response.headers if name.startswith("x-cfc-")]


def test_the_answer_that_was_accepted_is_the_one_that_is_said(stage: Server) -> None:
    """A call whose arguments are no JSON was scored and accepted; an empty text was not."""
    body = stage.ask(asking(EASY, "odd")).json()
    assert UNREADABLE in body["cfc"]["best"]
    choice = body["choices"][0]
    [call] = choice["message"]["tool_calls"]
    assert (call["function"]["name"], call["function"]["arguments"]) == ("weather", UNREADABLE)
    assert choice["finish_reason"] == "tool_calls"


def test_nothing_of_a_client_stands_in_a_header(server: Server) -> None:
    evil = "x\r\nset-cookie: a=b"
    theirs = {**HEADERS, "X-Request-ID": "theirs", "X-CFC-Reason": "answered"}
    usual = set(server.ask(asking(EASY)).headers)
    for body in (asking(EASY, user=evil), asking(EASY, evil), {**asking(EASY), evil: 1}):
        headers = server.ask(body, theirs).headers
        assert set(headers) <= usual
        assert "theirs" not in headers["x-request-id"]


def test_what_other_packages_log_is_withheld(stage: Server) -> None:
    assert stage.ask(asking(f"easy: {HIDDEN}", "talkative")).status_code == 200
    told = until(lambda: [one for one in stage.log if one["logger"] in {"some_package", "py.warnings"}])
    # That it happened is told.
    assert {one["level"] for one in told} == {"error", "warning"}
    assert HIDDEN not in stage.log_path.read_text(encoding="utf-8")


def test_a_model_with_a_slash_in_its_name_counts_as_a_model(stage: Server) -> None:
    response = stage.get("/v1/models/an/other")
    assert response.status_code == 200
    assert stage.logged(response.headers["x-request-id"])["route"] == "/v1/models/"
