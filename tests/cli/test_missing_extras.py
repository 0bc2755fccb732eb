"""Commands without their extra: one error line and exit code 2."""

from __future__ import annotations

import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest

from tests.cli.running import run

RECORDING = str(files("langchain_cfc") / "demo" / "facts.jsonl.gz")


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("artifact") / "artifact.json"
    assert run("calibrate", RECORDING, "--alpha", "0.3", "--test-fraction", "0.3", "--out", path).code == 0
    return path


@pytest.mark.parametrize(
    ("words", "extra"),
    [(["inspect", "ARTIFACT", "--verify"], "verify"), (["sign", "ARTIFACT", "--key", "key.pem"], "signing")],
)
def test_commands_without_their_extra_name_what_to_install(
    words: list[str], extra: str, artifact: Path, tmp_path: Path
) -> None:
    # In a process of its own: other tests have imported them here already.
    code = (
        "import sys; sys.modules.update(dict.fromkeys("
        "('cvxpy', 'cryptography'))); "
        "from langchain_cfc.cli import main; main()"
    )
    (key := tmp_path / "key.pem").write_text("-----BEGIN PRIVATE KEY-----\n")
    given = [str(artifact) if word == "ARTIFACT" else word for word in words]
    command = [sys.executable, "-c", code, *given]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert ran.returncode == 2
    assert "Traceback" not in ran.stderr
    assert f"pip install 'langchain-cfc[{extra}]'" in " ".join(ran.stderr.split())
    assert list(tmp_path.iterdir()) == [key]
