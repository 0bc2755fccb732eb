"""Random draws for tests of features."""

from __future__ import annotations

import numpy as np

from langchain_cfc.candidates import CandidateBatch, Scalar

TOPICS = ("capital", "river", "new york", "2020", "true")


def make_draws(seed: int, size: int = 40, n: int = 6) -> CandidateBatch:
    """Draws with ties and without, with metadata of every kind; five prompts in a row have all topics."""
    rng = np.random.default_rng(seed)
    scores = rng.random((size, n))
    coarse = rng.random(size) < 0.5
    scores[coarse] = np.round(scores[coarse], 1)
    answers = [["abcdefg"[k] * int(k + 1) for k in rng.integers(0, 5, n)] for _ in range(size)]
    metadata: list[dict[str, Scalar]] = [
        {
            "topic": TOPICS[row % len(TOPICS)],
            "year": int(rng.integers(-5, 20)),
            "price": float(rng.normal()),
            "checked": bool(row % 2),
            "my key": float(rng.random()),
        }
        for row in range(size)
    ]
    return CandidateBatch.from_arrays(scores, answers, metadata)
