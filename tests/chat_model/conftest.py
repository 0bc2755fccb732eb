"""A server that answers any prompt, and an artifact under which its answers are accepted."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from langchain_cfc import CalibrationArtifact
from tests.serving.openai_server import serving

from .facades import messages_artifact
from .responder import Responder


@pytest.fixture(scope="session")
def artifact() -> CalibrationArtifact:
    """For n = 4, calibrated on messages; the threshold is 0.75 for every prompt."""
    return messages_artifact()


@pytest.fixture
def responder() -> Responder:
    """What the server answers, and what it was asked."""
    return Responder()


@pytest.fixture
def url(responder: Responder) -> Iterator[str]:
    """Where the responder is served."""
    with serving(responder) as address:
        yield address
