"""A server, an artifact that was saved, and the agent that both make."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from langchain_cfc_agents import GuardedAnswer

from integrations.agents.tests.parts import Agent, agent_of, artifact_in, chain_at, model_at, script
from langchain_cfc import CalibrationArtifact
from tests.serving.openai_server import Script, serving


@pytest.fixture(scope="session")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> CalibrationArtifact:
    """Read from a file."""
    return artifact_in(tmp_path_factory.mktemp("artifact"))


@pytest.fixture
def served() -> Script:
    """What the server answers."""
    return script()


@pytest.fixture
def url(served: Script, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a server."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with serving(served) as address:
        yield address


@pytest.fixture
def guarded(url: str, artifact: CalibrationArtifact) -> Callable[..., Agent]:
    """A function that makes the guarded agent, with other middleware outside and inside the guard."""

    def make(*, outside: Any = (), inside: Any = (), strict: bool = True, **settings: Any) -> Agent:
        guard = GuardedAnswer(chain_at(url, artifact), strict=strict)
        return agent_of(model_at(url), [*outside, guard, *inside], **settings)

    return make
