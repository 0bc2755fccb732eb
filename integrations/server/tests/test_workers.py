"""Several workers on one port."""

from __future__ import annotations

import os
import signal
import socket
import time
from pathlib import Path

import pytest

from integrations.server.tests.bots import EASY
from integrations.server.tests.parts import (
    BOTS,
    COMMAND,
    START_SECONDS,
    TOKEN,
    Server,
    make_request,
    run_server,
    wait_for_value,
)
from integrations.server.tests.test_command import run_refused

WORKERS = ("--workers", "2")


def count_serving_workers(server: Server) -> int:
    """Return how many workers have begun to serve so far."""
    return sum(line["message"] == "serving" for line in server.log)


def list_workers(server: Server) -> set[int]:
    said = {int(line["pid"]) for line in server.log if line["message"] == "serving"}
    return {pid for pid in said if is_alive(pid)}


def is_alive(pid: int) -> bool:
    """Whether a process has not ended, even if nothing has asked yet how."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def count_requests(server: Server) -> float:
    """Requests for completions in the metrics of whichever worker is asked."""
    lines = server.get("/metrics").text.splitlines()
    counted = [
        line for line in lines if line.startswith("cfc_server_requests_total") and "completions" in line
    ]
    return sum(float(line.split()[-1]) for line in counted)


def test_workers_answer_together_and_stop_together(bots: dict[str, str]) -> None:
    with run_server(bots, *WORKERS, command=COMMAND) as server:
        wait_for_value(lambda: count_serving_workers(server) == 2, START_SECONDS)
        assert len(list_workers(server)) == 2
        # New connections each, of which both get some: of 40, one gets all once in 2 ** 39 times.
        assert {server.ask(make_request(EASY)).status_code for _ in range(40)} == {200}
        # Whichever is asked, it reports those of both.
        wait_for_value(lambda: {count_requests(server) for _ in range(8)} == {40.0})
        figures = [server.get("/metrics").text for _ in range(8)]
        assert all("cfc_server_client_tokens 2.0\n" in text for text in figures)
        assert server.stop() == 0
        assert sum(line["message"] == "stopped" for line in server.log) == 2
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", server.port))


def test_dead_worker_is_replaced_and_all_end_with_their_supervisor(
    bots: dict[str, str], tmp_path: Path
) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(TOKEN)
    with run_server(bots, *WORKERS, "--token-file", str(tokens), tokens=None, command=COMMAND) as server:
        wait_for_value(lambda: count_serving_workers(server) == 2, START_SECONDS)
        first = min(list_workers(server))
        os.kill(first, signal.SIGKILL)
        wait_for_value(lambda: count_serving_workers(server) == 3, START_SECONDS)
        [ended] = [line for line in server.log if line["message"] == "worker ended"]
        assert (ended["pid"], ended["code"]) == (first, -signal.SIGKILL)
        assert {server.ask(make_request(EASY)).status_code for _ in range(10)} == {200}
        # A signal reaches all of them, and ends none.
        tokens.write_text(f"{TOKEN}-of-another")
        server.process.send_signal(signal.SIGHUP)
        wait_for_value(lambda: sum(line["message"] == "tokens replaced" for line in server.log) == 2)
        for token, status in ((TOKEN, 401), (f"{TOKEN}-of-another", 200)):
            headers = {"Authorization": f"Bearer {token}"}
            assert {server.ask(make_request(EASY), headers).status_code for _ in range(10)} == {status}
        # One that is replaced while the file cannot be used waits for one that can, and the others serve.
        tokens.write_text("malformed")
        os.kill(max(list_workers(server)), signal.SIGTERM)
        wait_for_value(lambda: any(line.get("code") == 2 for line in server.log), START_SECONDS)
        assert server.get("/v1/models", {"Authorization": f"Bearer {TOKEN}-of-another"}).status_code == 200
        tokens.write_text(TOKEN)
        # Signals do not end one that is about to start.
        while count_serving_workers(server) < 4:
            server.process.send_signal(signal.SIGHUP)
            time.sleep(0.1)
        assert not any(line.get("code") == -signal.SIGHUP for line in server.log)
        left = wait_for_value(lambda: len(found := list_workers(server)) == 2 and found)
        server.process.kill()
        wait_for_value(lambda: not any(map(is_alive, left)), START_SECONDS)


def test_failing_start_ends_all_workers(bots: dict[str, str], tmp_path: Path) -> None:
    said = run_refused("none:chain", *WORKERS, "--port", "0", folder=tmp_path, **bots)
    assert "ModuleNotFoundError" in said


@pytest.mark.long
def test_port_of_another_server_is_not_shared(bots: dict[str, str], tmp_path: Path) -> None:
    with run_server(bots, *WORKERS, command=COMMAND) as server:
        port = str(server.port)
        assert "cannot listen" in run_refused(BOTS, *WORKERS, "--port", port, folder=tmp_path, **bots)
        assert "cannot listen" in run_refused(BOTS, "--port", port, folder=tmp_path, **bots)
    assert "workers is 0" in run_refused(BOTS, "--workers", "0", folder=tmp_path, **bots)
