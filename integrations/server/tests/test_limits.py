"""Limits on the size, number and duration of requests, and how clients share what there is."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import copy_context
from pathlib import Path
from typing import Any

import httpx
import pytest
from langchain_cfc_server.call_threads import OWNER, CallThreads

from integrations.server.tests.bots import EASY, GOOD, HARD
from integrations.server.tests.parts import (
    HEADERS,
    OTHER_HEADERS,
    TOKEN,
    Server,
    asking,
    make_request,
    run_server,
    wait_for_value,
)

HEAD = (
    f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n"
    "Content-Type: application/json\r\n"
)
LARGEST = 2000


@pytest.fixture(scope="module")
def small_server(bots: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with narrow limits, whose slow model waits for a file."""
    folder = tmp_path_factory.mktemp("limits")
    slow = {**bots, "BOTS_GATE": str(folder / "gate"), "BOTS_NOTES": str(folder / "notes")}
    limits = ["--body-limit", str(LARGEST), "--concurrency", "2", "--queue", "1"]
    with run_server(slow, *limits, tokens=TOKEN) as server:
        server.folder = folder  # type: ignore[attr-defined]
        yield server


def asking_slowly(server: Server, count: int) -> AbstractContextManager[Any]:
    """Have slow requests in progress until the block ends."""
    gate: Path = server.folder / "gate"  # type: ignore[attr-defined]
    return asking(server, gate, make_request(EASY, "slow"), count)


def count_notes(server: Server, what: str) -> int:
    """Return how often the slow verifier has `begun`, or was `cancelled`."""
    path: Path = server.folder / "notes"  # type: ignore[attr-defined]
    return path.read_text(encoding="utf-8").split().count(what) if path.exists() else 0


def test_body_limit_is_inclusive(small_server: Server) -> None:
    usual = make_request(EASY, user="")
    room = LARGEST - len(json.dumps(usual))
    assert small_server.ask({**usual, "user": "u" * room}).status_code == 200
    refused = small_server.ask({**usual, "user": "u" * (room + 1)})
    assert (refused.status_code, refused.json()["error"]["code"]) == (413, "request_too_large")
    assert str(LARGEST) in refused.json()["error"]["message"]


def test_body_limit_counts_chunks(small_server: Server) -> None:
    def chunks(size: int) -> Iterator[bytes]:
        for _ in range(size):
            yield b" " * 100

    def sent(size: int) -> httpx.Response:
        return httpx.post(
            f"{small_server.url}/v1/chat/completions",
            content=chunks(size),
            headers={**HEADERS, "Content-Type": "application/json"},
            trust_env=False,
        )

    assert sent(LARGEST // 100 + 1).status_code == 413
    assert sent(LARGEST // 100).json()["error"]["code"] == "invalid_json"


def test_large_body_is_refused_before_it_is_sent(small_server: Server) -> None:
    for more in ("", "Expect: 100-continue\r\n"):
        said = small_server.say(
            f"{HEAD}Connection: close\r\nContent-Length: 1000000000\r\n{more}\r\n".encode()
        )
        assert said.startswith(b"HTTP/1.1 413 ")


def test_client_that_sends_a_large_body_reads_the_refusal(small_server: Server) -> None:
    for _ in range(5):
        assert small_server.ask(b"x" * 5_000_000).status_code == 413


def test_requests_beyond_the_queue_get_retry_after(small_server: Server) -> None:
    with asking_slowly(small_server, 3):
        wait_for_value(
            lambda: small_server.read_metric("working") == 2 and small_server.read_metric("waiting") == 1
        )
        refused = [small_server.ask(make_request(EASY, "slow")) for _ in range(3)]
        assert [one.status_code for one in refused] == [429] * 3
        assert {one.headers["retry-after"] for one in refused} == {"1"}
        assert {one.json()["error"]["code"] for one in refused} == {"too_many_requests"}
        # What costs nothing is answered all the same.
        assert small_server.get("/v1/models").status_code == 200
    assert small_server.ask(make_request(EASY)).status_code == 200


def test_time_limit_answers_timeout_and_cancels_the_chain(bots: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "notes"
    slow = {**bots, "BOTS_SECONDS": "300", "BOTS_NOTES": str(path)}
    with run_server(slow, "--time-limit", "2", "--concurrency", "1") as server:
        began = time.monotonic()
        response = server.ask(make_request(EASY, "slow"), timeout=60)
        assert (response.status_code, response.json()["error"]["code"]) == (504, "timeout")
        assert time.monotonic() - began > 1.9
        wait_for_value(lambda: path.exists() and path.read_text(encoding="utf-8") == "begun\ncancelled\n")
        # The only place is free again.
        answer = wait_for_value(lambda: (one := server.ask(make_request(EASY))).status_code == 200 and one)
        assert answer.json()["choices"][0]["message"]["content"] == GOOD
        received = server.say(
            f'{HEAD}Connection: close\r\nContent-Length: 100\r\n\r\n{{"model":'.encode(), wait=60
        )
        assert received.startswith(b"HTTP/1.1 408 ")
        assert b'"code":"request_timeout"' in received
        assert server.read_metric("waiting") == 0


def test_disconnected_client_cancels_its_chain(small_server: Server) -> None:
    begun, before = count_notes(small_server, "begun"), count_notes(small_server, "cancelled")
    body = json.dumps(make_request(EASY, "slow")).encode()
    with socket.create_connection(("127.0.0.1", small_server.port)) as connection:
        connection.sendall(f"{HEAD}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        wait_for_value(lambda: count_notes(small_server, "begun") == begun + 1)
    wait_for_value(lambda: count_notes(small_server, "cancelled") == before + 1)
    wait_for_value(lambda: small_server.read_metric("working") == 0)
    line = wait_for_value(
        lambda: next((one for one in small_server.log if one.get("outcome") == "disconnected"), None)
    )
    assert (line["status"], line["model"]) == (499, "slow")


def test_client_that_leaves_the_queue_is_never_served(small_server: Server) -> None:
    body = json.dumps(make_request(EASY, "slow")).encode()
    with asking_slowly(small_server, 2):
        wait_for_value(lambda: small_server.read_metric("working") == 2)
        with socket.create_connection(("127.0.0.1", small_server.port)) as connection:
            connection.sendall(f"{HEAD}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            wait_for_value(lambda: small_server.read_metric("waiting") == 1)
        wait_for_value(lambda: small_server.read_metric("waiting") == 0)
    wait_for_value(lambda: small_server.read_metric("working") == 0)


def test_client_that_leaves_within_its_body_is_dropped(small_server: Server) -> None:
    with socket.create_connection(("127.0.0.1", small_server.port)) as connection:
        connection.sendall(f'{HEAD}Content-Length: 100\r\n\r\n{{"model":'.encode())
        wait_for_value(lambda: small_server.read_metric("waiting") == 1)
    wait_for_value(lambda: small_server.read_metric("waiting") == 0)


def test_connection_serves_several_requests(small_server: Server) -> None:
    with httpx.Client(base_url=small_server.url, headers=HEADERS, trust_env=False) as client:
        assert {
            client.post("/v1/chat/completions", json=make_request(EASY)).status_code for _ in range(5)
        } == {200}
    head = b"GET /health/live HTTP/1.1\r\nHost: x\r\n"
    pipelined = head + b"\r\n" + head + b"Connection: close\r\n\r\n"
    assert small_server.say(pipelined).count(b"HTTP/1.1 200 OK") == 2


# Half of the places for one client of two: to be worked on, and to wait.
WORKING, PLACES = 32, 96


@contextmanager
def occupy(server: Server, model: str, requests: int) -> Iterator[Counter[int]]:
    """Keep requests of one client in progress, whose calls block their threads; count those refused."""
    statuses: Counter[int] = Counter()

    def ask() -> None:
        with suppress(httpx.TransportError):  # in the end, the server is killed
            statuses[server.ask(make_request(HARD, model), OTHER_HEADERS, 300).status_code] += 1

    with ThreadPoolExecutor(requests) as pool:
        for _ in range(requests):
            pool.submit(ask)
        wait_for_value(lambda: f"cfc_server_working {WORKING}.0" in server.get("/metrics").text, 60)
        wait_for_value(lambda: statuses[429] == requests - PLACES, 60)
        try:
            yield statuses
        finally:
            server.process.kill()


@pytest.mark.parametrize("model", ["sync/generator", "sync/verifier"])
def test_slow_client_leaves_places_and_threads_to_others(bots: dict[str, str], model: str) -> None:
    with (
        run_server({**bots, "BOTS_SECONDS": "300"}, "--time-limit", "300", "--finish", "0.1") as server,
        occupy(server, model, PLACES + 4) as statuses,
    ):
        for other in ("bot", model):
            asked = [server.ask(make_request(EASY, other)).status_code for _ in range(20)]
            assert asked == [200] * 20
        # Its own requests wait for its own, also those to another model.
        assert server.ask(make_request(EASY), OTHER_HEADERS).status_code == 429
        assert statuses == {429: 4}
        # Calls that block do not keep the server from ending.
        assert server.stop() == 0


def test_calls_of_one_owner_wait_for_its_own_threads_only() -> None:
    threads, may_end = CallThreads(), threading.Event()

    def submit(owner: str, call: Callable[[], Any]) -> Future[Any]:
        context = copy_context()
        context.run(OWNER.set, owner)
        return context.run(threads.submit, call)

    blocked = [submit("one", may_end.wait) for _ in range(100)]
    waiting, given_up = submit("one", lambda: "late"), submit("one", lambda: "never")
    assert given_up.cancel()
    assert submit("other", lambda: "at once").result(20) == "at once"
    assert isinstance(submit("other", lambda: 1 / 0).exception(20), ZeroDivisionError)
    assert sum(one.running() for one in blocked) < len(blocked)
    assert not waiting.done()
    may_end.set()
    assert waiting.result(20) == "late"
    assert all(one.result(20) for one in blocked)
