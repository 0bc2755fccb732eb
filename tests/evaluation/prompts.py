"""Labelled prompts, given explicitly or drawn at random."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from langchain_cfc import Candidate, PromptRecord


def make_prompt(name: str, topic: str, *candidates: tuple[float, str, bool], **changes: Any) -> PromptRecord:
    """A prompt with candidates (score, text, correct)."""
    made = tuple(Candidate(score=score, text=text, correct=correct) for score, text, correct in candidates)
    return PromptRecord(id=name, input=name, metadata={"topic": topic}, candidates=made, **changes)


def make_prompts(
    seed: int,
    size: int,
    *,
    prefix: str = "p",
    right: float = 0.8,
    clusters: Sequence[str | None] | None = None,
    topics: Sequence[str] = ("a", "b"),
) -> list[PromptRecord]:
    """Prompts of three candidates that are correct with probability `right`, at any score."""
    rng = np.random.default_rng(seed)
    scores, correct = rng.random((size, 3)), rng.random((size, 3)) < right
    return [
        make_prompt(
            f"{prefix}{row}",
            topics[row % len(topics)],
            *((float(scores[row, slot]), str(slot), bool(correct[row, slot])) for slot in range(3)),
            cluster=clusters[row] if clusters is not None else None,
        )
        for row in range(size)
    ]
