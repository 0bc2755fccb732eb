"""A server, an artifact that was saved, and the agent that both make."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from langchain_cfc_agents import GuardedAnswer

from integrations.agents.tests.parts import Agent, agent_of, chain_at, model_at, script
from integrations.tests.graphs import url
from integrations.tests.planted import make_planted_artifact
from langchain_cfc import CalibrationArtifact
from tests.factories import reload_artifact
from tests.serving.openai_server import Script

__all__ = ["artifact", "guarded", "served", "url"]


@pytest.fixture(scope="session")
def artifact() -> CalibrationArtifact:
    """Read from a file; of easy prompts alone."""
    named = {"id": "clerk", "model": "recorded"}
    return reload_artifact(make_planted_artifact(named, "judge", kinds=["easy"], alpha=0.1, features="1"))


@pytest.fixture
def served() -> Script:
    return script()


@pytest.fixture
def guarded(url: str, artifact: CalibrationArtifact) -> Callable[..., Agent]:
    """A function that makes the guarded agent, with other middleware outside and inside the guard."""

    def make(*, outside: Any = (), inside: Any = (), strict: bool = True, **settings: Any) -> Agent:
        guard = GuardedAnswer(chain_at(url, artifact), strict=strict)
        return agent_of(model_at(url), [*outside, guard, *inside], **settings)

    return make
