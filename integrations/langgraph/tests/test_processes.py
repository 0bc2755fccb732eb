"""An interrupted thread is continued by another process from its database alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from integrations.langgraph.tests.parts import EASY, GOOD, MARK, UNSURE, N
from integrations.tests.graphs import read_stored
from tests.serving.openai_server import Script

ROOT = Path(__file__).parents[3]


@pytest.fixture
def talk(url: str, artifact_path: Path, tmp_path: Path) -> Any:
    """A function that opens the thread's database in a new process."""
    settings = {"url": url, "artifact": str(artifact_path), "database": str(tmp_path / "threads.db")}

    def run(*, code: int = 0, **order: Any) -> Any:
        module = "integrations.langgraph.tests.asking"
        done = subprocess.run(
            [sys.executable, "-W", "error", "-m", module, json.dumps({**settings, **order})],
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

    return run


@pytest.mark.long
def test_thread_continues_in_another_process(talk: Any, served: Script, tmp_path: Path) -> None:
    asked = talk(given={"question": UNSURE})
    (waiting,) = asked["waiting"]
    assert waiting["question"] == UNSURE
    answered = talk(reply={"answer": "Santiago", "by": "Ana"})
    assert answered["state"]["answer"]["by"] == "person"
    assert answered["state"]["decision"] == asked["state"]["decision"]
    # Nothing was drawn again.
    assert len(served.requests) == N
    # A process that is killed while it decides leaves no decision, and no answer of the question before.
    talk(given={"question": EASY}, killed=True, code=9)
    assert len(served.requests) == 2 * N
    decided = talk(given=None)
    assert (decided["state"]["asked"], decided["state"]["answer"]["text"]) == (EASY, GOOD)
    assert len(served.requests) == 3 * N
    assert MARK not in read_stored(tmp_path)
