"""A conversation that goes on in another process, from a file."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from integrations.agents.tests.parts import (
    ABSTAINED,
    DISCARDED,
    HIDDEN,
    HOPELESS,
    LOOKED_UP,
    NOTED,
    RIGHT,
    artifact_in,
)

ROOT = Path(__file__).parents[3]


@pytest.mark.long
@pytest.mark.parametrize("way", ["sync", "async"])
def test_conversation_continues_in_another_process(url: str, tmp_path: Path, way: str) -> None:
    artifact_in(tmp_path)
    database = tmp_path / "memory.db"

    def turn(question: str) -> list[Any]:
        # LangGraph is to refuse whatever class it does not know, and a message is to hold none.
        strict = {**os.environ, "LANGGRAPH_STRICT_MSGPACK": "true", "PYTHONWARNINGS": "error"}
        command = [sys.executable, "-m", "integrations.agents.tests.conversation"]
        command += [str(database), url, str(tmp_path / "artifact.json"), way, question]
        done = subprocess.run(command, cwd=ROOT, env=strict, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        said: list[Any] = json.loads(done.stdout)
        return said

    first = turn(HOPELESS)
    assert [text for _, text, _ in first] == [HOPELESS, ABSTAINED]
    second = turn(LOOKED_UP)
    assert second[:2] == first
    assert [text for _, text, _ in second[2:]] == [LOOKED_UP, "", NOTED, RIGHT]
    decision = second[-1][2]
    assert decision["guarantee"]["alpha"] == "0.1"
    assert decision["routing"]["usage"]["total_tokens"] == 13
    kept = read_stored(database)
    assert RIGHT.encode() in kept
    assert not [text for text in HIDDEN if text.encode() in kept]
    assert DISCARDED.encode() not in kept


def read_stored(database: Path) -> bytes:
    """All that the file holds of checkpoints and writes."""
    connection = sqlite3.connect(database)
    rows = [
        *connection.execute("select checkpoint, metadata from checkpoints"),
        *connection.execute("select value, channel from writes"),
    ]
    connection.close()
    return b"".join(cell if isinstance(cell, bytes) else str(cell).encode() for row in rows for cell in row)
