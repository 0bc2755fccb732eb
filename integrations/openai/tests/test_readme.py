"""README.md: what it shows is run, with recorded answers, and as printed with a real model."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sybil import Example, Sybil
from sybil.parsers.markdown import CodeBlockParser, PythonCodeBlockParser

from integrations.openai.tests.parts import Hosted
from langchain_cfc import CalibrationArtifact
from tests.conformance.test_live import installed

FOLDER = Path(__file__).parents[1]
EXAMPLES = FOLDER.parents[1] / "examples"


def shell(commands: str) -> None:
    subprocess.run(["bash", "-euo", "pipefail", "-c", commands], check=True)


def write(example: Example) -> None:
    name, _, content = example.parsed.partition("\n")
    Path(name.removeprefix("# ")).write_text(content, encoding="utf-8")


def run_page() -> None:
    """Its blocks in their order, in this folder and one namespace; `bash` and `text` are not among them."""
    page = Sybil(
        parsers=[
            PythonCodeBlockParser(),
            CodeBlockParser("shell", lambda example: shell(example.parsed)),
            CodeBlockParser("toml", write),
        ],
        path=str(FOLDER),
    ).parse(FOLDER / "README.md")
    blocks = list(page.examples())
    assert len(blocks) >= 6
    for block in blocks:
        block.evaluate()


@pytest.fixture(autouse=True)
def _path(monkeypatch: pytest.MonkeyPatch) -> None:
    """The programs of this environment."""
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))


def test_readme_runs_with_recorded_answers(hosted: Hosted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", hosted.url)
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    run_page()
    assert CalibrationArtifact.load("artifact.json").n == 10
    # One request for each prompt that was collected or served.
    assert len([body for body in hosted.script.requests if body.get("n") == 10]) == 61


def test_readme_fails_without_log_probabilities(hosted: Hosted, monkeypatch: pytest.MonkeyPatch) -> None:
    # The negative control of the test above.
    monkeypatch.setenv("OPENAI_BASE_URL", hosted.url)
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    hosted.script.logprobs = False
    with pytest.raises(subprocess.CalledProcessError):
        run_page()
    assert not Path("artifact.json").exists()


@contextmanager
def start_server(commands: str) -> Iterator[dict[str, str]]:
    """Run commands that leave a server behind; yields where they ended, and ends the server."""
    said = 'printf "%s\\n" "$PWD" "$OPENAI_BASE_URL" "$OPENAI_API_KEY"'
    with subprocess.Popen(
        ["bash", "-euo", "pipefail", "-c", f"{commands}\n{said} > started\nwait"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        try:
            found = [*Path.cwd().glob("**/started")]
            for _ in range(600):
                if (found := [*Path.cwd().glob("**/started")]) or process.poll() is not None:
                    break
                with pytest.raises(subprocess.TimeoutExpired):
                    process.wait(0.2)
            assert process.poll() is None, "the commands have failed"
            [where] = found
            yield dict(
                zip(("PWD", "OPENAI_BASE_URL", "OPENAI_API_KEY"), where.read_text().split(), strict=True)
            )
        finally:
            os.killpg(process.pid, signal.SIGTERM)


@pytest.mark.live
@pytest.mark.long
@pytest.mark.skipif(
    not installed(),
    reason="no local model: pip install xllamacpp && python examples/local_model/local_model.py get",
)
def test_readme_runs_as_printed_with_a_real_model(monkeypatch: pytest.MonkeyPatch) -> None:
    _install, model = re.findall(r"```bash\n(.*?)```", (FOLDER / "README.md").read_text(), re.DOTALL)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = str(taken.getsockname()[1])
    # As at the root of a checkout; another port, for the usual one may be in use.
    Path("examples").symlink_to(EXAMPLES)
    with start_server(model.replace("8097", port)) as left:
        assert port in left["OPENAI_BASE_URL"]
        monkeypatch.chdir(left["PWD"])
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        for name in ("OPENAI_BASE_URL", "OPENAI_API_KEY"):
            monkeypatch.setenv(name, left[name])
        run_page()
        assert CalibrationArtifact.load("artifact.json").calibration.size == 60
