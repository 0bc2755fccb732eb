"""Records to calibrate on, and the artifact file format written a second time, to forge files with."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from langchain_cfc import Candidate, PromptRecord
from langchain_cfc.artifact import CalibrationArtifact

TOPICS = ("capital", "new york", "river", "2020")


def make_records(seed: int, size: int, *, n: int = 4) -> list[PromptRecord]:
    """Labelled prompts with topics and years; every text in them is unmistakable."""
    rng = np.random.default_rng(seed)
    scores, right = rng.random((size, n)), rng.random((size, n)) < 0.8
    answers = rng.integers(0, n, (size, n))
    return [
        PromptRecord(
            id=f"id-{seed}-{row}",
            input=f"prompt-{seed}-{row}",
            reference=f"reference-{seed}-{row}",
            metadata={"topic": TOPICS[row % len(TOPICS)], "year": row % 7, "note": f"note-{seed}-{row}"},
            cluster=f"cluster-{seed}-{row}",
            candidates=tuple(
                Candidate(
                    text=f"text-{seed}-{row}-{slot}",
                    answer=f"answer-{seed}-{row}-{answers[row, slot]}",
                    score=float(scores[row, slot]),
                    correct=bool(right[row, answers[row, slot]]),
                )
                for slot in range(n)
            ),
        )
        for row in range(size)
    ]


def seal_content(content: dict[str, Any], **envelope: Any) -> bytes:
    """An artifact file whose digest fits its content, whatever that is."""
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    digest = "sha256:" + hashlib.sha256(canonical.encode()).hexdigest()
    file = {"format": "langchain-cfc/artifact", "version": 2, "digest": digest, "content": content}
    return (json.dumps({**file, **envelope}, sort_keys=True, indent=1) + "\n").encode()


def load_bytes(data: bytes) -> CalibrationArtifact:
    """Return what `CalibrationArtifact.load` makes of a file with these bytes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "forged.json")
        path.write_bytes(data)
        return CalibrationArtifact.load(path)


def load_content(content: dict[str, Any], **envelope: Any) -> CalibrationArtifact:
    """Return what `CalibrationArtifact.load` makes of content under a digest that fits it."""
    return load_bytes(seal_content(content, **envelope))


def get_content(artifact: CalibrationArtifact) -> dict[str, Any]:
    """Return what the file of an artifact holds, to be tampered with."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "saved.json")
        artifact.save(path)
        content: dict[str, Any] = json.loads(path.read_bytes())["content"]
        return content


def get_value(content: Any, path: Sequence[str | int]) -> Any:
    """Return what keys and positions lead to."""
    for step in path:
        content = content[step]
    return content


def set_value(content: Any, path: str, value: Any) -> None:
    """Change what keys and positions between dots lead to.

    Args:
        content: Dictionaries and lists, changed in place.
        path: Such as `certificates.0.delta`.
        value: Another one, a function that makes it from the old one, or ... to remove the key.
    """
    *outer, last = path.split(".")
    for step in outer:
        content = content[int(step) if isinstance(content, list) else step]
    if value is ...:
        del content[last]
        return
    key: Any = int(last) if isinstance(content, list) else last
    old = content[key] if isinstance(content, list) else content.get(key)
    content[key] = value(old) if callable(value) else value
    assert repr(content[key]) != repr(old)
