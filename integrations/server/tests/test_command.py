"""`langchain-cfc serve`: what it refuses, and several workers on one port."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from langchain_cfc_server import Settings, create_app
from langchain_cfc_server.command import TOKENS

from integrations.server.tests.bots import EASY
from integrations.server.tests.parts import (
    BOTS,
    COMMAND,
    ROOT,
    START_SECONDS,
    TOKEN,
    Server,
    make_request,
    run_server,
    wait_for_value,
)
from langchain_cfc.cli import main
from langchain_cfc.errors import InputError

CHAIN = "integrations.server.tests.bots:chain"


def run_refused(*arguments: str, folder: Path, **env: str) -> str:
    """Run a command that must not start, and return its error message."""
    ended = subprocess.run(
        [*COMMAND, *arguments],
        capture_output=True,
        text=True,
        timeout=START_SECONDS,
        check=False,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), TOKENS: TOKEN, **env},
    )
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "Traceback" not in ended.stderr
    assert TOKEN not in ended.stderr
    return ended.stderr


def test_serve_demo_needs_no_artifact() -> None:
    with run_server({}, "--demo", models=None, command=COMMAND) as server:
        peru = server.ask(make_request("What is the capital of Peru?", "demo")).json()
        assert peru["choices"][0]["message"]["content"] == "Lima"
        assert peru["cfc"]["guarantee"]["binding"] == "matched"
        assert server.ask(make_request("Who is not recorded?", "demo")).status_code == 502


def test_serve_names_chain_by_its_name_or_option(bots: dict[str, str]) -> None:
    with run_server(bots, models=CHAIN) as server:
        assert [one["id"] for one in server.get("/v1/models").json()["data"]] == ["chain"]
    with run_server(bots, "--name", "capitals", models=CHAIN) as server:
        assert server.ask(make_request(EASY, "capitals")).status_code == 200


@pytest.mark.parametrize(
    ("arguments", "env", "said"),
    [
        (["--demo"], {TOKENS: ""}, "there are no tokens"),
        (["--demo"], {TOKENS: "short"}, "token 0 cannot be used"),
        (["--demo"], {TOKENS: f"{'a' * 20} {'é' * 20}"}, "token 1 cannot be used"),
        ([CHAIN, "--token-file", "none"], {}, "cannot be read"),
        ([CHAIN, "--token-file", os.devnull], {}, "holds no tokens for clients"),
        ([], {}, "say what to serve"),
        ([BOTS, "--demo"], {}, "say what to serve"),
        (["none:chain"], {}, "ModuleNotFoundError"),
        (["os:none"], {}, "AttributeError"),
        (["os"], {}, "expected MODULE:NAME"),
        (["os:sep"], {}, "expected a CFCRunnable"),
        ([CHAIN, "--name", "a b"], {}, "invalid model name 'a b'"),
        ([BOTS, "--name", "one"], {}, "omit --name"),
        ([BOTS, "--concurrency", "0"], {}, "concurrency is 0"),
        ([BOTS, "--queue", "-1"], {}, "queue is -1"),
        ([BOTS, "--body-limit", "0"], {}, "--body-limit is 0"),
        ([BOTS, "--time-limit", "nan"], {}, "--time-limit is nan"),
        ([CHAIN, "--drain", "nan"], {}, "drain is nan"),
        ([CHAIN, "--finish", "-1"], {}, "finish is -1"),
        ([CHAIN, "--port", "70000"], {}, "cannot listen"),
        ([CHAIN, "--host", "no.such.host.invalid"], {}, "cannot listen"),
        ([BOTS, "--ignore", "messages"], {}, "'messages' cannot be ignored"),
        ([BOTS, "--ignore", "none=temperature"], {}, "there is no model 'none'"),
    ],
)
def test_serve_refuses_invalid_arguments(  # noqa: PLR0917 - fixtures
    arguments: list[str],
    env: dict[str, str],
    said: str,
    bots: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # In this process, which has imported everything already; the test below starts one.
    monkeypatch.chdir(tmp_path)
    for name, value in {**bots, TOKENS: TOKEN, **env}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "argv", [*COMMAND, *arguments])
    with pytest.raises(SystemExit, match="2"):
        main()
    shown = capsys.readouterr()
    assert shown.out == ""
    assert said in " ".join(shown.err.split())
    assert TOKEN not in shown.err


def test_serve_reports_port_in_use(bots: dict[str, str], tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"127.0.0.1:{port}" in run_refused(CHAIN, "--port", str(port), folder=tmp_path, **bots)


def test_settings_are_safe_by_default_and_hide_tokens() -> None:
    with pytest.raises(InputError, match="there are no tokens"):
        Settings()
    with pytest.raises(InputError, match="authentication is off"):
        Settings(tokens=(TOKEN,), authentication=False)
    with pytest.raises(InputError, match="single text"):
        Settings(tokens=TOKEN)  # type: ignore[arg-type]  # what a caller may do
    assert TOKEN not in repr(Settings(tokens=(TOKEN,)))


def test_create_app_refuses_empty_models() -> None:
    with pytest.raises(InputError, match="there are no models"):
        create_app({}, Settings(tokens=(TOKEN,)))


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
