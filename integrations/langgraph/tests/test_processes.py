"""An interrupted thread is continued by another process from its database alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

from integrations.langgraph.tests.asking import carry_out
from integrations.langgraph.tests.parts import EASY, HARD, MARK, UNSURE, N, make_artifact, stored
from langchain_cfc import CalibrationArtifact
from langchain_cfc.errors import AttainabilityWarning
from tests.serving.openai_server import Script

ROOT = Path(__file__).parents[3]


class Talker:
    """A function that runs a command in a new process, or in this one."""

    def __init__(self, url: str, artifact: Path, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        self._order = {"url": url, "artifact": str(artifact), "database": str(folder / "threads.db")}

    def __call__(self, *, code: int = 0, **order: Any) -> Any:
        done = subprocess.run(
            [
                sys.executable,
                "-W",
                "error",
                "-m",
                "integrations.langgraph.tests.asking",
                json.dumps({**self._order, **order}),
            ],
            cwd=ROOT,
            env={**os.environ, "LANGGRAPH_STRICT_MSGPACK": "true", "NO_PROXY": "127.0.0.1"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, done.stderr
        # Of a class that it does not know, LangGraph's serializer would speak there.
        assert "msgpack" not in done.stderr
        return json.loads(done.stdout) if done.stdout else None

    def here(self, **order: Any) -> Any:
        return carry_out({**self._order, **order})


@pytest.fixture
def talk(url: str, artifact_path: Path, tmp_path: Path) -> Talker:
    """Processes on one database."""
    return Talker(url, artifact_path, tmp_path / "database")


def test_person_can_reply_to_another_process(talk: Talker, served: Script) -> None:
    asked = talk(given={"question": UNSURE})
    assert asked["next"] == ["ask_person"]
    (waiting,) = asked["waiting"]
    assert waiting["question"] == UNSURE
    assert asked["state"]["answer"] is None
    refused = talk.here(reply=5)
    assert "of type int" in refused["waiting"][0]["refused"]
    answered = talk.here(reply={"answer": "Santiago", "by": "Ana"})
    assert answered["next"] == []
    assert answered["state"]["answer"]["by"] == "person"
    assert answered["state"]["answer"]["guarantee"] is None
    assert answered["state"]["decision"] == asked["state"]["decision"]
    # Nothing was drawn again.
    assert len(served.requests) == N
    assert MARK not in stored(talk.folder)


@pytest.mark.long
def test_decision_keeps_the_guarantee_of_its_artifact(
    talk: Talker, artifact_path: Path, tmp_path: Path
) -> None:
    asked = talk(given={"question": HARD})
    newer = tmp_path / "newer.json"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AttainabilityWarning)
        make_artifact(size=160, worst=0.4).save(newer)
    digests = [CalibrationArtifact.load(path).digest for path in (artifact_path, newer)]
    assert digests[0] != digests[1]
    answered = talk(reply="No one can know.", artifact=str(newer))
    assert answered["state"]["decision"] == asked["state"]["decision"]
    assert answered["state"]["decision"]["guarantee"]["artifact_digest"] == digests[0]
    assert answered["state"]["answer"]["guarantee"] is None
    later = talk(given={"question": EASY}, artifact=str(newer))
    assert later["state"]["answer"]["guarantee"]["artifact_digest"] == digests[1]


@pytest.mark.long
def test_killed_process_leaves_no_decision(talk: Talker, served: Script) -> None:
    talk(given={"question": EASY})
    talk(given={"question": UNSURE}, killed=True, code=9)
    assert len(served.requests) == 2 * N
    assert MARK not in stored(talk.folder)
    # What it was at is asked again, with no answer of the question before.
    decided = talk(given=None)
    assert decided["state"]["asked"] == UNSURE
    assert decided["state"]["answer"] is None
    assert len(served.requests) == 3 * N
