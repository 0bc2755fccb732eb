"""Labelled prompts to calibrate on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from langchain_cfc import Candidate, PromptRecord

TOPICS = ("capital", "river")


def make_prompts(
    seed: int, size: int, *, n: int = 4, right: float = 0.8, clusters: Sequence[str | None] | None = None
) -> list[PromptRecord]:
    """Prompts p0, p1, ... of two topics; a candidate is correct with probability `right`, at any score."""
    rng = np.random.default_rng(seed)
    scores, correct = rng.random((size, n)), rng.random((size, n)) < right
    return [
        PromptRecord(
            id=f"p{row}",
            input="?",
            metadata={"topic": TOPICS[int(rng.integers(2))]},
            cluster=clusters[row] if clusters is not None else None,
            candidates=tuple(
                Candidate(text=f"{slot}", score=float(scores[row, slot]), correct=bool(correct[row, slot]))
                for slot in range(n)
            ),
        )
        for row in range(size)
    ]


def with_score(record: PromptRecord, score: float) -> PromptRecord:
    """The same prompt with another score of every candidate."""
    candidates = tuple(one.model_copy(update={"score": score}) for one in record.candidates)
    return record.model_copy(update={"candidates": candidates})
