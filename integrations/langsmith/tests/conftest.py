"""An endpoint in place of LangSmith, real clients of it, and no access to the real service."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langsmith import Client, run_trees
from langsmith.utils import get_env_var

from integrations.langsmith.tests.endpoint import LangSmith, serving
from langchain_cfc import CalibrationArtifact, CFCRunnable
from langchain_cfc.demo import demo_chain

KEY = "lsv2_pt_0123456789abcdef0123456789abcdef_secret"


@pytest.fixture
def langsmith() -> LangSmith:
    return LangSmith()


@pytest.fixture(autouse=True)
def endpoint(langsmith: LangSmith, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Its address, where the environment says LangSmith is."""
    with serving(langsmith) as url:
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.setenv("LANGSMITH_ENDPOINT", url)
        monkeypatch.setenv("LANGSMITH_API_KEY", KEY)
        monkeypatch.setenv("LANGSMITH_TRACING", "false")
        # The library remembers what it has read, and a client made of it, which pages would be given.
        forget: Any = get_env_var
        forget.cache_clear()
        monkeypatch.setattr(run_trees, "_CLIENT", None)
        yield url
    forget.cache_clear()


@pytest.fixture
def client(endpoint: str) -> Iterator[Client]:
    made = Client(api_url=endpoint, api_key=KEY, auto_batch_tracing=False)
    yield made
    made.close()


@pytest.fixture(scope="session")
def saved(fact_artifact: CalibrationArtifact, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("artifact") / "artifact.json"
    fact_artifact.save(path)
    return path


@pytest.fixture(scope="session")
def chain(saved: Path) -> CFCRunnable:
    """The recording, served through the saved artifact."""
    return demo_chain(saved)
