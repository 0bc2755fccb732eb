"""README.md: what it shows is run, with recorded answers, and as printed with a real model."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from sybil import Example, Sybil
from sybil.parsers.markdown import CodeBlockParser, PythonCodeBlockParser

from integrations.openai.tests.parts import Hosted
from langchain_cfc import CalibrationArtifact

FOLDER = Path(__file__).parents[1]


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
def _environment(hosted: Hosted, monkeypatch: pytest.MonkeyPatch) -> None:
    """The programs of this environment, and where the endpoint is."""
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    monkeypatch.setenv("OPENAI_BASE_URL", hosted.url)
    monkeypatch.setenv("OPENAI_API_KEY", "none")


def test_readme_runs_with_recorded_answers(hosted: Hosted) -> None:
    run_page()
    assert CalibrationArtifact.load("artifact.json").n == 10
    # One request for each prompt that was collected or served.
    assert len([body for body in hosted.script.requests if body.get("n") == 10]) == 61


def test_readme_fails_without_log_probabilities(hosted: Hosted) -> None:
    # The negative control of the test above.
    hosted.script.logprobs = False
    with pytest.raises(subprocess.CalledProcessError):
        run_page()
    assert not Path("artifact.json").exists()
