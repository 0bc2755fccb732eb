"""Artifacts that many tests of this folder serve with."""

from __future__ import annotations

import pytest

from langchain_cfc import CalibrationArtifact, calibrate
from langchain_cfc.errors import AttainabilityWarning
from tests.factories import fit_topics, make_artifact, make_hopeless_records, make_records, plain_artifact


@pytest.fixture(scope="session")
def artifact() -> CalibrationArtifact:
    """Without features: the threshold is 0.75 for every prompt."""
    return plain_artifact()


@pytest.fixture(scope="session")
def two_levels() -> CalibrationArtifact:
    """An artifact of two levels: the threshold is 0.75 at alpha = 0.25 and 0.5 at alpha = 0.5."""
    return make_artifact(alpha=["0.25", "0.5"])


@pytest.fixture(scope="session")
def by_topics() -> CalibrationArtifact:
    """A threshold per topic: 0.75 for easy prompts, and for hopeless ones nothing can be certified."""
    prompts = [*make_records("easy"), *make_hopeless_records("hopeless")]
    with pytest.warns(AttainabilityWarning, match="hopeless"):
        return calibrate(
            prompts,
            alpha=0.25,
            features=fit_topics("easy", "hopeless"),
            allow_unattainable=True,
        )
