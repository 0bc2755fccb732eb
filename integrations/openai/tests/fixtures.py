"""A server on this machine, and artifacts that were collected from it, calibrated and saved."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from filelock import FileLock

from integrations.openai.tests.parts import VERIFIERS, Hosted, Saved, collect_artifacts
from tests.serving.openai_server import serving


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Saved:
    """For each verifier the file of an artifact; the server they were collected from is gone."""
    base = tmp_path_factory.getbasetemp()
    # Processes that run tests side by side share what the first of them collects.
    folder = (base if worker_id == "master" else base.parent) / "saved"
    with FileLock(f"{folder}.lock"), pytest.MonkeyPatch.context() as patch:
        patch.setenv("NO_PROXY", "127.0.0.1")
        if not folder.exists():
            made = folder.with_name("unfinished")
            made.mkdir()
            collect_artifacts(made)
            made.rename(folder)
    return {name: folder / f"{name}.json" for name in VERIFIERS}


@pytest.fixture
def hosted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hosted]:
    """The same server, which tests make faulty, where clients look for a hosted model."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    script = Hosted.script_of_facts()
    with serving(script) as url:
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        yield Hosted(url, script)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No key of this machine, and a folder of its own."""
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_API_BASE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
