"""What is remembered of a result: numbers, and no text but metadata that features are made of."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from langchain_cfc._internal.arrays import FloatArray
from langchain_cfc.candidates import Scalar
from langchain_cfc.guarantee import Binding
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
        codes: (n,) slot of the first candidate with the same answer.
        lengths: (n,) number of characters of each answer, 0 for a blank one.
        metadata: What is kept of the prompt's metadata.
        outputs: (n,) raw outputs of each verifier by name, where the artifact combines several.
        models: What the models that drew call themselves.
        binding: Whether the parts that served are known to be those calibrated; see `Guarantee`.
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
    codes: tuple[int, ...]
    lengths: tuple[int, ...]
    metadata: Mapping[str, Scalar]
    outputs: Mapping[str, Sequence[float]]
    models: tuple[str, ...] = ()
    binding: Binding = "unbound"
    seconds: float | None = None

    @classmethod
    def of(
        cls,
        result: CFCResult,
        name: str,
        at: float,
        seconds: float | None = None,
        *,
        metadata: Collection[str] = (),
    ) -> Observed:
        """What a result says in numbers.

        Args:
            result: The result.
            name: What it is called.
            at: When it came, in seconds since 1970.
            seconds: How long it took.
            metadata: Which entries of the prompt's metadata are kept.
        """
        candidates = result.candidates
        accepted = tuple(one.accepted for one in candidates)
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
            scores=tuple(one.score for one in candidates),
            accepted=accepted,
            features=tuple(result.features.values()),
            codes=tuple(one.same_as for one in candidates),
            lengths=tuple(one.length for one in candidates),
            metadata={key: value for key, value in result.metadata.items() if key in metadata},
            outputs={
                key: [(one.scores or {})[key] for one in candidates] for key in candidates[0].scores or ()
            },
            models=result.models,
            binding=result.guarantee.binding,
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
