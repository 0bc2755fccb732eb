"""Stopping a server: requests in flight, draining and the grace period."""

from __future__ import annotations

import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from integrations.server.tests.bots import EASY, GOOD
from integrations.server.tests.parts import HEADERS, make_request, run_server, wait_for_value


def test_stopping_server_answers_requests_in_flight(bots: dict[str, str], tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with run_server({**bots, "BOTS_GATE": str(gate)}) as server, ThreadPoolExecutor(1) as pool:
        asked = pool.submit(server.ask, make_request(EASY, "slow"))
        wait_for_value(lambda: "cfc_server_working 1.0" in server.get("/metrics").text)
        server.process.send_signal(signal.SIGTERM)
        wait_for_value(lambda: any(line["message"] == "draining" for line in server.log))
        gate.touch()
        assert server.process.wait(timeout=60) == 0
        assert asked.result().json()["choices"][0]["message"]["content"] == GOOD


@pytest.mark.long
def test_draining_server_answers_new_requests(bots: dict[str, str], tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with (
        run_server({**bots, "BOTS_GATE": str(gate)}, "--drain", "5") as server,
        ThreadPoolExecutor(2) as pool,
        httpx.Client(base_url=server.url, headers=HEADERS, trust_env=False) as kept,
    ):
        assert "connection" not in kept.post("/v1/chat/completions", json=make_request(EASY)).headers
        asked = pool.submit(server.ask, make_request(EASY, "slow"))
        wait_for_value(lambda: "cfc_server_working 1.0" in server.get("/metrics").text)
        server.process.send_signal(signal.SIGTERM)
        wait_for_value(lambda: server.get("/health/ready", {}).status_code == 503)
        assert server.get("/health/ready", {}).json() == {"status": "draining"}
        assert server.get("/health/live", {}).status_code == 200
        late = kept.post("/v1/chat/completions", json=make_request(EASY))
        assert (late.status_code, late.headers["connection"]) == (200, "close")
        gate.touch()
        early = asked.result()
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
        wait_for_value(lambda: "cfc_server_working 1.0" in server.get("/metrics").text)
        assert server.stop() == 0
        refused = asked.result()
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")


def test_interrupt_skips_the_drain_period(bots: dict[str, str]) -> None:
    with run_server(bots, "--drain", "300") as server:
        began = time.monotonic()
        assert server.stop(signal.SIGINT) == 0
        assert time.monotonic() - began < 30
