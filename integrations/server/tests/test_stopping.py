"""Stopping a server: requests in flight, draining and the grace period; under load no request is lost."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import httpx
import pytest

from integrations.server.tests.bots import EASY, GOOD
from integrations.server.tests.parts import HEADERS, asking, make_request, run_server, wait_for_value
from integrations.server.tests.stopping import Clients, Stop, send_before_the_stop


def test_stopping_server_answers_requests_in_flight(bots: dict[str, str], tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with run_server({**bots, "BOTS_GATE": str(gate)}) as server:
        with asking(server, gate, make_request(EASY, "slow")) as asked:
            server.process.send_signal(signal.SIGTERM)
            wait_for_value(lambda: any(line["message"] == "draining" for line in server.log))
        assert server.process.wait(timeout=60) == 0
        assert asked[0].result().json()["choices"][0]["message"]["content"] == GOOD


@pytest.mark.long
def test_draining_server_answers_new_requests(bots: dict[str, str], tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with (
        run_server({**bots, "BOTS_GATE": str(gate)}, "--drain", "5") as server,
        httpx.Client(base_url=server.url, headers=HEADERS, trust_env=False) as kept,
    ):
        assert "connection" not in kept.post("/v1/chat/completions", json=make_request(EASY)).headers
        with asking(server, gate, make_request(EASY, "slow")) as asked:
            server.process.send_signal(signal.SIGTERM)
            wait_for_value(lambda: server.get("/health/ready", {}).status_code == 503)
            assert server.get("/health/ready", {}).json() == {"status": "draining"}
            assert server.get("/health/live", {}).status_code == 200
            late = kept.post("/v1/chat/completions", json=make_request(EASY))
            assert (late.status_code, late.headers["connection"]) == (200, "close")
        early = asked[0].result()
        assert early.json()["choices"][0]["message"]["content"] == GOOD
        assert early.headers["connection"] == "close"
        assert server.process.wait(timeout=60) == 0
        assert [line["message"] for line in server.log][-1] == "stopped"
        with pytest.raises(httpx.ConnectError):
            server.get("/health/live")


def test_connection_made_before_the_stop_is_answered(bots: dict[str, str]) -> None:
    with run_server(bots, "--drain", "0") as server:
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            server.process.send_signal(signal.SIGTERM)
            wait_for_value(lambda: any(line["message"] == "draining" for line in server.log))
            connection.sendall(b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n")
            assert connection.recv(1000).startswith(b"HTTP/1.1 200 OK")
        assert server.process.wait(timeout=60) == 0


def test_work_beyond_the_grace_period_is_refused(bots: dict[str, str]) -> None:
    with (
        run_server({**bots, "BOTS_SECONDS": "300"}, "--finish", "0.5") as server,
        ThreadPoolExecutor(1) as pool,
    ):
        asked = pool.submit(server.ask, make_request(EASY, "slow"))
        wait_for_value(lambda: server.read_metric("working") == 1)
        assert server.stop() == 0
        refused = asked.result()
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")


def test_interrupt_skips_the_drain_period(bots: dict[str, str]) -> None:
    with run_server(bots, "--drain", "300") as server:
        began = time.monotonic()
        assert server.stop(signal.SIGINT) == 0
        assert time.monotonic() - began < 30


# Under load.

MODELS = "integrations.server.tests.stopping:models"
MANY = ["--concurrency", "1000", "--queue", "1000"]
# Stops at each drain, and at the last moment; 38 in all if `CFC_LONG` is set.
STOPS, LAST = (6, 5) if os.environ.get("CFC_LONG") else (2, 2)
# Clients who ask one after the other, for longer than it takes the server to stop listening.
CROWD = 500
BROKEN_SERVER = [sys.executable, "-m", "integrations.server.tests.broken_server", "serve"]


def stop_under_load(bots: dict[str, str], seed: int, *options: str, again: float | None = None) -> Stop:
    """Stop a server under load, at a time that the seed determines, and return the outcome."""
    after = random.Random(seed).uniform(0.3, 1.0)  # noqa: S311 - load, not cryptography
    with run_server({**bots, "BOTS_SECONDS": "0.5"}, *options, models=MODELS) as server:
        return asyncio.run(Clients(server, seed).run(after, again))


@pytest.mark.long
@pytest.mark.parametrize("drain", ["0", "0.05", "0.3", "1"])
def test_stopping_server_loses_no_accepted_request(bots: dict[str, str], drain: str) -> None:
    found = [stop_under_load(bots, seed, "--drain", drain) for seed in range(STOPS)]
    assert [one.code for one in found] == [0] * STOPS
    assert [one.lost for one in found] == [[]] * STOPS
    # There was something to lose.
    assert all(len(one.accepted) > 50 for one in found)


@pytest.mark.long
@pytest.mark.parametrize("new", [True, False], ids=["new connections", "connections used before"])
def test_requests_just_before_the_stop_are_answered(bots: dict[str, str], new: bool) -> None:
    found = []
    for _ in range(LAST):
        with run_server(bots, "--drain", "0", *MANY, models=MODELS) as server:
            found.append(send_before_the_stop(server, CROWD, new=new))
    assert [one.code for one in found] == [0] * LAST
    assert [one.lost for one in found] == [[]] * LAST
    # The moment was among theirs.
    assert all(one.accepted for one in found)
    assert any(len(one.accepted) < CROWD for one in found)


@pytest.mark.long
def test_second_stop_signal_changes_nothing(bots: dict[str, str]) -> None:
    found = [stop_under_load(bots, seed, "--drain", "0.3", again=0.1 * seed) for seed in range(4)]
    assert [one.code for one in found] == [0] * 4
    assert [one.lost for one in found] == [[]] * 4


@pytest.mark.long
def test_killed_server_loses_requests(bots: dict[str, str]) -> None:
    with (
        run_server({**bots, "BOTS_SECONDS": "2"}, models=MODELS) as server,
        mock.patch.object(signal, "SIGTERM", signal.SIGKILL),
    ):
        found = asyncio.run(Clients(server, 1).run(0.5))
    assert found.code == -signal.SIGKILL
    assert {"slow"} <= {one.who for one in found.lost}


@pytest.mark.long
def test_uvicorn_without_graceful_shutdown_loses_requests(bots: dict[str, str]) -> None:
    env = {**bots, "BOTS_SECONDS": "2", "BROKEN": "waits for nothing"}
    with run_server(env, models=MODELS, command=BROKEN_SERVER) as server:
        found = asyncio.run(Clients(server, 1).run(0.5))
    assert {"slow"} <= {one.who for one in found.lost}
