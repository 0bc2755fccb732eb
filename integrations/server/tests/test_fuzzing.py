"""The server against its own description, by schemathesis."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from integrations.server.tests.parts import TOKEN, Server, run_server


def run_schemathesis(server: Server, folder: Path, examples: int) -> subprocess.CompletedProcess[str]:
    """Run schemathesis with all its checks and the same examples each time."""
    program = Path(sys.executable).with_name("schemathesis")
    options = ["--checks", "all", "--seed", "1", "--max-examples", str(examples), "--no-color"]
    return subprocess.run(
        [program, "run", f"{server.url}/openapi.json", "-H", f"Authorization: Bearer {TOKEN}", *options],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={**os.environ, "NO_PROXY": "127.0.0.1"},
    )


@pytest.mark.long
def test_server_matches_its_openapi_document_under_fuzzing(bots: dict[str, str], tmp_path: Path) -> None:
    with run_server(bots, models="integrations.server.tests.bots:anything") as server:
        found = run_schemathesis(server, tmp_path, 100)
        assert found.returncode == 0, found.stdout
        lines = [line for line in server.log if line["message"] == "request"]
        statuses = {line["status"] for line in lines if line["route"] == "/v1/chat/completions"}
        # It has been asked properly, improperly and without a token.
        assert {200, 400, 401, 405} <= statuses
        assert not [line for line in lines if line["status"] >= 500]


@pytest.mark.long
def test_fuzzing_finds_a_broken_server(bots: dict[str, str], tmp_path: Path) -> None:
    with run_server(bots, models="integrations.server.tests.bots:broken") as server:
        found = run_schemathesis(server, tmp_path, 5)
        assert found.returncode == 1
        assert "Server error" in found.stdout
