"""Labelled prompts to calibrate on, and artifacts to compare."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from langchain_cfc import CalibrationArtifact, Candidate, PromptRecord

TOPICS = ("capital", "river")


def remove_date(artifact: CalibrationArtifact) -> CalibrationArtifact:
    """Return the artifact without the time at which it was made."""
    return artifact.model_copy(update={"created_at": ""})


def make_prompts(
    seed: int, size: int, *, n: int = 4, right: float = 0.8, clusters: Sequence[str | None] | None = None
) -> list[PromptRecord]:
    """Prompts p0, p1, ... of two topics; a candidate is correct with probability `right`, at any score."""
    rng = np.random.default_rng(seed)
    scores, correct = rng.random((size, n)), rng.random((size, n)) < right
    return [
        PromptRecord(
            id=f"p{row}",
            input=f"p{row}",
            metadata={"topic": TOPICS[int(rng.integers(2))]},
            cluster=clusters[row] if clusters is not None else None,
            candidates=tuple(
                Candidate(text=f"{slot}", score=float(scores[row, slot]), correct=bool(correct[row, slot]))
                for slot in range(n)
            ),
        )
        for row in range(size)
    ]
