"""A small artifact, and what its file holds."""

from __future__ import annotations

from typing import Any

import pytest

from langchain_cfc import calibrate
from langchain_cfc.artifact import CalibrationArtifact
from tests.artifact.files import get_content, make_records


@pytest.fixture(scope="session")
def artifact() -> CalibrationArtifact:
    """A small artifact with a group, a fitted cut-off and two levels."""
    return calibrate(
        make_records(0, 60),
        alpha=["0.3", "0.2"],
        features="bins(mean_score, 2) + group(topic)",
        fit_fraction=0.3,
    )


@pytest.fixture
def content(artifact: CalibrationArtifact) -> dict[str, Any]:
    """What the file of that artifact holds, to be tampered with."""
    return get_content(artifact)
