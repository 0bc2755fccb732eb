"""README.md: its blocks are run as printed, with recorded answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from integrations.openai.tests.parts import Hosted
from integrations.tests.pages import run_page
from langchain_cfc import CalibrationArtifact

PAGE = Path(__file__).parents[1] / "README.md"


def test_readme_runs_with_recorded_answers(hosted: Hosted) -> None:
    assert run_page(PAGE) >= 6
    assert CalibrationArtifact.load("artifact.json").n == 10
    # One request for each prompt that was collected or served.
    assert len([body for body in hosted.script.requests if body.get("n") == 10]) == 61


def test_readme_fails_without_log_probabilities(hosted: Hosted) -> None:
    # The negative control of the test above.
    hosted.script.logprobs = False
    with pytest.raises(AssertionError, match="log-probabilities"):
        run_page(PAGE)
    assert not Path("artifact.json").exists()
