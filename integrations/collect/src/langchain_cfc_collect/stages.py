"""What passes between the stages of a prompt and its run: labels, outcomes, and the journal of a stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from langchain_cfc.candidates import Scalar
from langchain_cfc.sampling import DrawnCandidate
from langchain_cfc.verifiers.base import VerifierScores
from langchain_cfc_collect.costs import Usage


@dataclass(frozen=True)
class Labels:
    """Labels of one prompt's n candidates or claims, with the prompt's computed metadata."""

    correct: Sequence[bool | None]  # None: no label could be read
    answers: Sequence[str] | None = None  # n extracted answers; None without an extractor
    metadata: Mapping[str, Scalar] | None = None  # output of the metadata function


@dataclass(frozen=True)
class Outcome:
    """Outcome of running one stage for one prompt.

    Attributes:
        result: `DrawnCandidate`s, the `Span`s of claims, `VerifierScores` or `Labels`; a `CFCError` if the
            stage failed; None if a prompt is left without labels for now.
        usage: Usage of models by the stage.
        scores: Scores of all candidates, if they were drawn by a rule that looks at scores; otherwise None.
    """

    result: Any
    usage: Usage
    scores: VerifierScores | None = None


class Journal:
    """Log of one stage: the candidates drawn, and requests that may have been billed. This one keeps nothing.

    Attributes:
        drawn: Candidates that are already stored, by slot.
        context: Digest of the prepared input that they were drawn for.
    """

    drawn: Mapping[int, DrawnCandidate] = {}
    context: str | None = None

    def resume(self, context: str) -> Mapping[int, DrawnCandidate]:
        """Return the stored candidates that were drawn for the prepared input with this digest."""
        del context
        return {}

    def save_draw(self, slot: int, draw: DrawnCandidate, usage: Usage) -> None:
        """Store a candidate and the usage of the stage so far."""

    def discard_draws(self) -> None:
        """Delete all stored candidates, because the sampler refused them."""

    def announce(self, requests: int) -> None:
        """Record that up to `requests` more requests may follow, for example another wave of draws."""

    def record_lost_request(self) -> None:
        """Record that a request failed although the server may have answered it."""

    async def flush(self) -> None:
        """Wait until everything recorded so far is durable; called before every request."""
