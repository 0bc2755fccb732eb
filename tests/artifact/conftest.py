"""Records to calibrate on, and the artifact file format written a second time, to forge files with."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from langchain_cfc import Candidate, PromptRecord, calibrate
from langchain_cfc.artifact import CalibrationArtifact

TOPICS = ("capital", "new york", "river", "2020")


def some_records(seed: int, size: int, *, n: int = 4) -> list[PromptRecord]:
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


def sealed_file(content: dict[str, Any], **envelope: Any) -> bytes:
    """An artifact file whose digest fits its content, whatever that is."""
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    digest = "sha256:" + hashlib.sha256(canonical.encode()).hexdigest()
    file = {"format": "langchain-cfc/artifact", "version": 2, "digest": digest, "content": content}
    return (json.dumps({**file, **envelope}, sort_keys=True, indent=1) + "\n").encode()


@pytest.fixture(scope="session")
def recorded() -> Callable[..., list[PromptRecord]]:
    """`recorded(seed, size, *, n)`, see above."""
    return some_records


@pytest.fixture(scope="session")
def sealed() -> Callable[..., bytes]:
    """`sealed(content, **envelope)`, see above."""
    return sealed_file


@pytest.fixture(scope="session")
def artifact() -> CalibrationArtifact:
    """A small artifact with a group, a fitted cut-off and two levels."""
    return calibrate(
        some_records(0, 60),
        alpha=["0.3", "0.2"],
        features="bins(mean_score, 2) + group(topic)",
        fit_fraction=0.3,
    )


@pytest.fixture
def content(artifact: CalibrationArtifact, tmp_path: Path) -> dict[str, Any]:
    """What the file of that artifact holds, to be tampered with."""
    artifact.save(tmp_path / "original.json")
    content: dict[str, Any] = json.loads((tmp_path / "original.json").read_bytes())["content"]
    return content


@pytest.fixture
def load(tmp_path: Path) -> Callable[[bytes], CalibrationArtifact]:
    """`CalibrationArtifact.load` of a file with these bytes."""

    def from_bytes(data: bytes) -> CalibrationArtifact:
        path = tmp_path / "forged.json"
        path.unlink(
            missing_ok=True
        )  # some file systems wait for the disk when a file is cut and written again
        path.write_bytes(data)
        return CalibrationArtifact.load(path)

    return from_bytes
