"""A server with scripted answers, and an artifact on disk."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

# Before LangGraph is imported: checkpoints may hold nothing but plain data and what LangGraph itself knows.
os.environ["LANGGRAPH_STRICT_MSGPACK"] = "true"

from integrations.langgraph.tests.parts import BOT, make_chain, script
from integrations.tests.graphs import url
from integrations.tests.planted import make_planted_artifact
from langchain_cfc import CFCRunnable
from tests.serving.openai_server import Script

__all__ = ["artifact_path", "chain", "served", "url"]


@pytest.fixture(scope="session")
def artifact_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("artifact") / "artifact.json"
    make_planted_artifact({"id": BOT}, "sequence-probability").save(path)
    return path


@pytest.fixture
def served() -> Script:
    """What the server answers; tests add faults to it."""
    return script()


@pytest.fixture
def chain(artifact_path: Path, url: str) -> CFCRunnable:
    return make_chain(artifact_path, url)
