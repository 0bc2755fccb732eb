"""The container file works, as far as that can be checked without a container."""

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

from integrations.server.tests.parts import ROOT, TOKEN, wait_for_value

CONTAINERFILE = Path(__file__).parents[1] / "Containerfile"


def read_instructions() -> list[tuple[str, str]]:
    """Instruction and arguments of each line."""
    text = re.sub(r"^#.*\n", "", CONTAINERFILE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    lines = text.replace("\\\n", " ").splitlines()
    return [(line.split(" ", 1)[0], line.split(" ", 1)[1].strip()) for line in lines if line.strip()]


def list_arguments(kind: str) -> list[str]:
    return [arguments for name, arguments in read_instructions() if name == kind]


def test_containerfile_uses_plain_user_and_contains_no_token() -> None:
    names = [name for name, _ in read_instructions()]
    assert list_arguments("USER") == ["server"]
    assert names.index("USER") < names.index("ENTRYPOINT")
    assert not {"ENV", "ADD"}.intersection(names)
    assert list_arguments("ARG") == ["BASE=pinned"]


def test_containerfile_base_is_pinned_by_digest() -> None:
    pinned, base = list_arguments("FROM")
    assert re.fullmatch(r"python:3\.\d+-slim@sha256:[0-9a-f]{64} AS pinned", pinned)
    assert base == "${BASE}"


def test_containerfile_copies_existing_files_and_builds_only_them() -> None:
    sources = [source for line in list_arguments("COPY") for source in line.split()[:-1]]
    assert all((ROOT / source).exists() for source in sources)
    # The wheel's metadata read three of these.
    metadata = {"pyproject.toml", "README.md", "LICENSE"}
    assert {*metadata, ".ci/locks/server.txt", "langchain_cfc", "integrations/server"} == set(sources)
    install, ours, _ = list_arguments("RUN")[0].split(" && ")
    assert "--require-hashes" in install
    assert "--no-deps" in ours


@pytest.mark.long
def test_containerfile_command_starts_and_health_check_passes(tmp_path: Path) -> None:
    entry, arguments = json.loads(list_arguments("ENTRYPOINT")[0]), json.loads(list_arguments("CMD")[0])
    check = json.loads(list_arguments("HEALTHCHECK")[0].partition("CMD ")[2])
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    here = {"0.0.0.0": "127.0.0.1", "8000": port}  # noqa: S104 - inside a container
    command = [here.get(word, word) for word in [*entry, *arguments]]
    command[0] = str(Path(sys.executable).with_name(entry[0]))
    check = [sys.executable, *(word.replace("8000", port) for word in check[1:])]
    assert subprocess.run(check, capture_output=True, check=False).returncode != 0
    assert (
        subprocess.run(command, capture_output=True, check=False, cwd=tmp_path, env=_make_env("")).returncode
        == 2
    )
    process = subprocess.Popen(command, cwd=tmp_path, env=_make_env(TOKEN), stderr=subprocess.DEVNULL)
    try:
        wait_for_value(lambda: subprocess.run(check, capture_output=True, check=False).returncode == 0, 60)
    finally:
        process.terminate()
        assert process.wait(timeout=30) == 0


def _make_env(tokens: str) -> dict[str, str]:
    return {**os.environ, "LANGCHAIN_CFC_SERVER_TOKENS": tokens, "NO_PROXY": "127.0.0.1"}


@pytest.mark.long
def test_packages_of_containerfile_serve_in_new_environment(tmp_path: Path) -> None:
    build = tmp_path / "build"
    for line in list_arguments("COPY"):
        *sources, target = line.split()
        (build / target).mkdir(parents=True, exist_ok=True)
        for source in sources:
            into = build / target if (ROOT / source).is_file() else build / target / ".."
            subprocess.run(["cp", "-r", str(ROOT / source), str(into)], check=True)
    venv.create(tmp_path / "venv", with_pip=True)
    for install in list_arguments("RUN")[0].split(" && ")[:2]:
        words = shlex.split(install)
        assert words[:2] == ["pip", "install"]
        pip = [str(tmp_path / "venv/bin/python"), "-m", *words]
        subprocess.run(pip, check=True, cwd=build, stdout=subprocess.DEVNULL)
    command = [str(tmp_path / "venv/bin/langchain-cfc"), "serve", "--demo", "--port", "0"]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=tmp_path, env=_make_env(TOKEN), stderr=log)
    try:
        wait_for_value(lambda: '"serving"' in (tmp_path / "log").read_text(encoding="utf-8"), 120)
    finally:
        process.terminate()
        assert process.wait(timeout=30) == 0
