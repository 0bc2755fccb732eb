"""What is remembered of a result: numbers, and no text."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from langchain_cfc._arrays import FloatArray
from langchain_cfc.runnable import CFCResult

FLAGGED, EMPTY, ANSWERED = 0, 1, 2


@dataclass(frozen=True)
class Observed:
    """One result in numbers.

    Attributes:
        id: What it is called, mostly the id of its run.
        at: When it came, in seconds since 1970.
        artifact: Digest of the artifact that decided.
        alpha: Error level.
        outcome: `FLAGGED`, `EMPTY` or `ANSWERED`: what the artifact decided, before a policy withheld sets.
        withheld: Whether a policy withheld the set.
        bot: Whether it was answered by the artifact's certified policy.
        threshold: The threshold; `inf` where none can be certified.
        scores: (n,) scores of the candidates.
        accepted: (n,) which of them are in the set.
        features: (d,) the prompt's features.
        models: What the models that drew call themselves.
        seconds: How long it took; None where nobody measured.
    """

    id: str
    at: float
    artifact: str
    alpha: str
    outcome: int
    withheld: bool
    bot: bool
    threshold: float
    scores: tuple[float, ...]
    accepted: tuple[bool, ...]
    features: tuple[float, ...]
    models: tuple[str, ...] = ()
    seconds: float | None = None

    @classmethod
    def of(cls, result: CFCResult, name: str, at: float, seconds: float | None = None) -> Observed:
        """What a result says in numbers."""
        accepted = tuple(one.accepted for one in result.candidates)
        outcome = ANSWERED if any(accepted) else EMPTY
        return cls(
            id=name,
            at=at,
            artifact=result.guarantee.artifact_digest,
            alpha=result.guarantee.alpha,
            outcome=FLAGGED if result.reason == "not_certifiable" else outcome,
            withheld=result.abstained and any(accepted),
            bot=result.guarantee.wrong_answers is not None,
            threshold=result.threshold,
            scores=tuple(one.score for one in result.candidates),
            accepted=accepted,
            features=tuple(result.features.values()),
            models=result.models,
            seconds=seconds,
        )

    @property
    def best(self) -> int | None:
        """Slot of the best accepted candidate, the earliest of lowest score; None for an empty set."""
        slots = [slot for slot, inside in enumerate(self.accepted) if inside]
        return min(slots, key=lambda slot: (self.scores[slot], slot)) if slots else None

    def uniforms(self, purpose: str, count: int) -> FloatArray:
        """(count,) uniform random numbers in (0, 1): of this result and purpose, the same each time."""
        seed = hashlib.sha256(f"{purpose}\0{self.artifact}\0{self.id}".encode()).digest()
        luck = np.random.Generator(np.random.PCG64(int.from_bytes(seed[:16], "big")))
        return np.clip(luck.random(count), 2.0**-53, 1.0 - 2.0**-53)
