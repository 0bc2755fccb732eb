"""The container file does what it says, as far as that shows without a container."""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from integrations.server.tests.parts import ROOT, TOKEN, until

FILE = Path(__file__).parents[1] / "Containerfile"


def instructions() -> list[tuple[str, str]]:
    """Instruction and arguments of each line."""
    text = re.sub(r"^#.*\n", "", FILE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    lines = text.replace("\\\n", " ").splitlines()
    return [(line.split(" ", 1)[0], line.split(" ", 1)[1].strip()) for line in lines if line.strip()]


def of(kind: str) -> list[str]:
    return [arguments for name, arguments in instructions() if name == kind]


def test_it_runs_as_nobody_special_and_holds_no_token() -> None:
    names = [name for name, _ in instructions()]
    assert of("USER") == ["server"]
    assert names.index("USER") < names.index("ENTRYPOINT")
    assert not {"ENV", "ADD"}.intersection(names)
    assert of("ARG") == ["BASE=pinned"]


def test_its_base_is_pinned_by_digest_unless_another_is_given() -> None:
    pinned, base = of("FROM")
    assert re.fullmatch(r"python:3\.\d+-slim@sha256:[0-9a-f]{64} AS pinned", pinned)
    assert base == "${BASE}"


def test_what_it_copies_is_there_and_is_all_that_is_built() -> None:
    sources = [source for line in of("COPY") for source in line.split()[:-1]]
    assert all((ROOT / source).exists() for source in sources)
    # The wheel's metadata read three of these.
    metadata = {"pyproject.toml", "README.md", "LICENSE"}
    assert {*metadata, ".ci/locks/server.txt", "langchain_cfc", "integrations/server"} == set(sources)
    install, ours, _ = of("RUN")[0].split(" && ")
    assert "--require-hashes" in install
    assert "--no-deps" in ours


@pytest.mark.long
def test_its_command_starts_and_its_health_check_sees_that(tmp_path: Path) -> None:
    entry, arguments = json.loads(of("ENTRYPOINT")[0]), json.loads(of("CMD")[0])
    check = json.loads(of("HEALTHCHECK")[0].partition("CMD ")[2])
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    here = {"0.0.0.0": "127.0.0.1", "8000": port}  # noqa: S104 - inside a container
    command = [here.get(word, word) for word in [*entry, *arguments]]
    command[0] = str(Path(sys.executable).with_name(entry[0]))
    check = [sys.executable, *(word.replace("8000", port) for word in check[1:])]
    assert subprocess.run(check, capture_output=True, check=False).returncode != 0
    assert (
        subprocess.run(command, capture_output=True, check=False, cwd=tmp_path, env=_env("")).returncode == 2
    )
    process = subprocess.Popen(command, cwd=tmp_path, env=_env(TOKEN), stderr=subprocess.DEVNULL)
    try:
        until(lambda: subprocess.run(check, capture_output=True, check=False).returncode == 0, 60)
    finally:
        process.terminate()
        assert process.wait(timeout=30) == 0


def _env(tokens: str) -> dict[str, str]:
    return {**os.environ, "LANGCHAIN_CFC_SERVER_TOKENS": tokens, "NO_PROXY": "127.0.0.1"}


@pytest.mark.long
def test_what_it_installs_serves_in_an_environment_of_its_own(tmp_path: Path) -> None:
    build = tmp_path / "build"
    for line in of("COPY"):
        *sources, target = line.split()
        (build / target).mkdir(parents=True, exist_ok=True)
        for source in sources:
            into = build / target if (ROOT / source).is_file() else build / target / ".."
            subprocess.run(["cp", "-r", str(ROOT / source), str(into)], check=True)
    venv.create(tmp_path / "venv", with_pip=True)
    for install in of("RUN")[0].split(" && ")[:2]:
        words = shlex.split(install)
        assert words[:2] == ["pip", "install"]
        pip = [str(tmp_path / "venv/bin/python"), "-m", *words]
        subprocess.run(pip, check=True, cwd=build, stdout=subprocess.DEVNULL)
    command = [str(tmp_path / "venv/bin/langchain-cfc"), "serve", "--demo", "--port", "0"]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=tmp_path, env=_env(TOKEN), stderr=log)
    try:
        until(lambda: '"serving"' in (tmp_path / "log").read_text(encoding="utf-8"), 120)
    finally:
        process.terminate()
        assert process.wait(timeout=30) == 0
