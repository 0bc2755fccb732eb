"""What passes between the stages of a prompt and its run: the prompt, outcomes and journals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import starmap
from typing import Any

from langchain_cfc.candidates import Scalar
from langchain_cfc.claims import Span, make_claim_candidates
from langchain_cfc.records import Candidate, Claim, ClaimsRecord, Example, LabelledRecord, PromptRecord
from langchain_cfc.sampling import DrawnCandidate, UsageRecorder
from langchain_cfc.verifiers.base import VerifierScores
from langchain_cfc_collect.costs import Usage


@dataclass(frozen=True)
class Labels:
    """Labels of one prompt's n candidates or claims, with the prompt's computed metadata."""

    correct: Sequence[bool | None]  # None: no label could be read
    answers: Sequence[str] | None = None  # n extracted answers; None without an extractor
    metadata: Mapping[str, Scalar] | None = None  # output of the metadata function


@dataclass(frozen=True)
class StoredPrompt:
    """Prompt with everything that is known of it; its stages continue from here."""

    position: int
    example: Example
    draws: Sequence[DrawnCandidate] | None = None  # None if they are not complete
    claims: Sequence[Span] | None = None  # claims of the first answer; None if it is not split
    scores: VerifierScores | None = None  # None if the prompt is not scored
    labels: Labels | None = None  # None if it is not labelled
    error: str | None = None  # why the next stage failed; None if it did not
    # Stored candidates by slot, while they are not complete, and the digest of their prepared input.
    partial: Mapping[int, DrawnCandidate] = field(default_factory=dict)
    context: str | None = None
    row: Any = None  # the row that it was read from

    @cached_property
    def candidates(self) -> Sequence[DrawnCandidate]:
        """What is scored and labelled: candidates, or the claims of the first one as candidates."""
        draws = self.draws or ()
        return draws if self.claims is None else make_claim_candidates(draws[0], self.claims)


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
        recorder: Records the usage of the stage.
    """

    drawn: Mapping[int, DrawnCandidate] = {}

    def __init__(self) -> None:
        self.recorder = UsageRecorder()

    def load(self, prepared: Any) -> Mapping[int, DrawnCandidate]:
        """Return the stored candidates that were drawn for this prepared input."""
        del prepared
        return {}

    def save(self, slot: int, draw: DrawnCandidate) -> None:
        """Store a candidate, with the usage of the stage so far."""

    def discard(self) -> None:
        """Delete all stored candidates, because the sampler refused them."""

    def announce(self, requests: int) -> None:
        """Record that up to `requests` more requests may follow, for example another wave of draws."""

    def record_lost_request(self) -> None:
        """Record that a request failed although the server may have answered it."""

    async def flush(self) -> None:
        """Wait until everything recorded so far is committed; called before every request."""


def make_record(prompt: StoredPrompt) -> LabelledRecord | None:
    """Return the record of a prompt; None for an answer without claims, and for a prompt without labels."""
    draws, claims, scores, labels = prompt.draws, prompt.claims, prompt.scores, prompt.labels
    if scores is None or labels is None or not draws:
        return None
    fields = dict(prompt.example)
    fields["metadata"] = {**prompt.example.metadata, **(labels.metadata or {})}
    none = [None] * len(labels.correct)
    outputs, answers = scores.outputs or none, labels.answers or none
    if claims is None:
        rows = zip(draws, scores.verdicts, outputs, labels.correct, answers, strict=True)
        return PromptRecord(**fields, candidates=tuple(starmap(_make_candidate, rows)))
    made = tuple(starmap(_make_claim, zip(claims, scores.verdicts, outputs, labels.correct, strict=True)))
    return ClaimsRecord(**fields, answer=draws[0].text, claims=made) if made else None


def _make_candidate(
    draw: DrawnCandidate, verdict: float | None, outputs: Any, correct: bool | None, answer: str | None
) -> Candidate:
    # Imported records may have a verdict about a blank text.
    is_judged_blank = draw.no_answer == "blank" and (verdict is not None or draw.text)
    no_answer = None if is_judged_blank else draw.no_answer
    return Candidate(
        text=draw.text if draw.data is None else None,
        message=draw.data,
        score=1.0 if verdict is None else verdict,
        correct=bool(correct),
        no_label=True if correct is None else None,
        answer=answer,
        no_answer=no_answer,
        scores=outputs,
        no_verdict=True if verdict is None and no_answer is None else None,
    )


def _make_claim(
    span: Any, verdict: float | None, outputs: Mapping[str, float] | None, correct: bool | None
) -> Claim:
    return Claim(
        text=span.text,
        start=span.start,
        end=span.end,
        score=1.0 if verdict is None else verdict,
        supported=bool(correct),
        no_label=True if correct is None else None,
        scores=None if outputs is None else dict(outputs),
        no_verdict=True if verdict is None else None,
    )
