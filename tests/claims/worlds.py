"""Answers with claims whose truth is known, for tests."""

from __future__ import annotations

import numpy as np

from langchain_cfc.records import Claim, ClaimsRecord


def make_answers(
    rng: np.random.Generator,
    size: int,
    *,
    mean: float = 5.0,
    decimals: int | None = None,
    together: bool = False,
) -> list[ClaimsRecord]:
    """Independent prompts with an answer of 1 + Poisson(mean) claims each.

    Difficulty T ~ U(0, 1); a claim is supported with probability 0.95 - 0.6 T; its confidence is U(0, 1) if
    unsupported and U^(1 / 3) if supported, so harder answers hold more confident mistakes.

    Args:
        rng: Source of randomness.
        size: Number of prompts.
        mean: Mean number of claims less one.
        decimals: Round scores, to have ties.
        together: Whether all claims of an answer are supported or none.
    """
    records = []
    for _ in range(size):
        t = float(rng.random())
        n = 1 + int(rng.poisson(mean))
        supported = rng.random(1 if together else n) < 0.95 - 0.6 * t
        supported = np.broadcast_to(supported, n)
        scores = 1.0 - rng.random(n) ** np.where(supported, 1.0 / 3.0, 1.0)
        if decimals is not None:
            scores = scores.round(decimals)
        claims = tuple(
            Claim(text=f"claim {slot}", score=float(score), supported=bool(right))
            for slot, (score, right) in enumerate(zip(scores, supported, strict=True))
        )
        # Ids only have to differ within a test; 63 random bits do.
        records.append(
            ClaimsRecord(
                id=f"{rng.integers(2**63):x}",
                input=f"question {t}",
                metadata={"difficulty": t, "tier": "easy" if t < 0.5 else "hard"},
                claims=claims,
            )
        )
    return records


def count_unsupported(record: ClaimsRecord, kept: list[bool]) -> int:
    """Count the unsupported claims among those kept."""
    return sum(flag and not claim.supported for flag, claim in zip(kept, record.claims, strict=True))
