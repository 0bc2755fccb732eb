"""`langchain-cfc serve`, and what it refuses."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
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
    make_request,
    run_server,
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
