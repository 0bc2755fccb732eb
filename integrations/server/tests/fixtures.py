"""A model with planted answers, an artifact on disk, and the server in a process of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from integrations.server.tests.bots import make_artifact, make_script
from integrations.server.tests.parts import TOKEN, Server, run_server
from tests.serving.openai_server import Script, serving


@pytest.fixture(scope="session")
def artifact_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("artifact") / "artifact.json"
    make_artifact().save(path)
    return path


@pytest.fixture(scope="session")
def upstream() -> Iterator[tuple[str, Script]]:
    """The model behind the server: its address, and what it answers."""
    planted = make_script()
    with serving(planted) as url:
        yield url, planted


@pytest.fixture(scope="session")
def bots(artifact_path: Path, upstream: tuple[str, Script]) -> dict[str, str]:
    """The environment in which a server finds its bots."""
    return {
        "BOTS_ARTIFACT": str(artifact_path),
        "BOTS_UPSTREAM": upstream[0],
    }


@pytest.fixture
def bots_here(bots: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The bots of this process find their parts in its environment."""
    for name, value in bots.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="session")
def _shared(bots: dict[str, str]) -> Iterator[Server]:
    # Its models fail on purpose, over and over.
    with run_server(bots, "--cooldown-after", "0") as server:
        yield server


@pytest.fixture
def server(_shared: Server, upstream: tuple[str, Script]) -> Iterator[Server]:
    """A running server as it is by default, its model in order."""
    upstream[1].faults = ()
    yield _shared
    upstream[1].faults = ()


@pytest.fixture
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reach the server directly, whatever proxy the environment names."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    """OpenAI's client of the server, which does not retry and reaches it directly."""
    direct = openai.DefaultHttpxClient(trust_env=False)
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=TOKEN, max_retries=0, http_client=direct) as made:
        yield made
