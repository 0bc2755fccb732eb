"""The container file works, as far as that can be checked without a container."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
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
