"""What is done for a prompt, in stages that are paid for once: its draws, their scores, their labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, Protocol

from langchain_cfc.candidates import Scalar
from langchain_cfc.records import Example
from langchain_cfc.sampling import DrawnCandidate, UsageRecorder


class Stage(IntEnum):
    """How far a prompt has come."""

    OPEN = 0
    DRAWN = 1
    SCORED = 2
    LABELLED = 3


@dataclass(frozen=True)
class ModelCalls:
    """Requests that one model answered for a prompt.

    Attributes:
        model: What the model calls itself; empty where it does not say.
        drew: Whether candidates are among the answers.
        input_tokens: Tokens of the requests; 0 where it does not say.
        output_tokens: Tokens of the answers.
        answered: How many there are.
    """

    model: str
    drew: bool
    input_tokens: int
    output_tokens: int
    answered: int = 0


@dataclass(frozen=True)
class Usage:
    """What a stage took, whether it succeeded or not.

    Attributes:
        calls: By model.
        answered: How many requests were answered.
        silent: How many of them did not say what they took.
    """

    calls: tuple[ModelCalls, ...] = ()
    answered: int = 0
    silent: int = 0

    @classmethod
    def seen_by(cls, witness: UsageRecorder) -> Usage:
        """What a witness of all its calls has seen."""
        calls = []
        for name, answered in witness.answers.items():
            usage = witness.usages.get(name)
            taken = (0, 0) if usage is None else (usage["input_tokens"], usage["output_tokens"])
            calls.append(ModelCalls(name, name in witness.versions, *taken, answered))
        return cls(tuple(calls), witness.answered, witness.silent)

    @classmethod
    def drawn_by(cls, versions: Sequence[str]) -> Usage:
        """Candidates that these models drew, for which nothing is known but that."""
        return cls(tuple(ModelCalls(name, drew=True, input_tokens=0, output_tokens=0) for name in versions))

    def plus(self, other: Usage) -> Usage:
        """This and more."""
        merged: dict[tuple[str, bool], ModelCalls] = {}
        for one in (*self.calls, *other.calls):
            known = merged.get((one.model, one.drew), ModelCalls(one.model, one.drew, 0, 0))
            merged[one.model, one.drew] = replace(
                known,
                input_tokens=known.input_tokens + one.input_tokens,
                output_tokens=known.output_tokens + one.output_tokens,
                answered=known.answered + one.answered,
            )
        return Usage(tuple(merged.values()), self.answered + other.answered, self.silent + other.silent)

    def minus(self, other: Usage) -> Usage:
        """What of this is not in `other`, which was a part of it."""
        known = {one.model: one for one in other.calls}
        left = []
        for one in self.calls:
            before = known.get(one.model, ModelCalls(one.model, one.drew, 0, 0))
            rest = replace(
                one,
                input_tokens=one.input_tokens - before.input_tokens,
                output_tokens=one.output_tokens - before.output_tokens,
                answered=one.answered - before.answered,
            )
            if before.drew != one.drew or rest.answered or rest.input_tokens or rest.output_tokens:
                left.append(rest)
        return Usage(tuple(left), self.answered - other.answered, self.silent - other.silent)

    @property
    def tokens(self) -> int:
        """Tokens of requests and answers."""
        return sum(one.input_tokens + one.output_tokens for one in self.calls)


@dataclass(frozen=True)
class Labels:
    """What is said of n candidates and their prompt, once they are drawn.

    Attributes:
        correct: n labels.
        answers: n extracted answers; None without an extractor.
        metadata: What the metadata function says of the prompt.
    """

    correct: Sequence[bool]
    answers: Sequence[str] | None = None
    metadata: Mapping[str, Scalar] | None = None


@dataclass(frozen=True)
class Outcome:
    """What came of one stage of one prompt.

    Attributes:
        result: n `DrawnCandidate`s, `Scored` or `Labels`; the error in their place where it failed.
        paid: What it took.
    """

    result: Any
    paid: Usage


class Journal(Protocol):
    """Where a stage notes what it is about to do and what came of it, durably: see `collect/journal.py`."""

    @property
    def drawn(self) -> Mapping[int, DrawnCandidate]:
        """Candidates that are there already, by slot."""

    @property
    def context(self) -> str | None:
        """Digest of what was prepared for the requests that drew them."""

    def resume(self, context: str) -> Mapping[int, DrawnCandidate]:
        """Candidates that need not be drawn again, now that the requests are prepared."""

    def keep(self, slot: int, draw: DrawnCandidate, paid: Usage) -> None:
        """Take in a candidate, and what the stage took so far."""

    def discard(self) -> None:
        """Drop all candidates that are there, which were refused."""

    def lose(self) -> None:
        """Take in that a request failed which may have been answered."""

    async def flushed(self) -> None:
        """Wait until all of that is durable; called before every request."""


class Executor(Protocol):
    """Where prompts are worked on: in this process, or on machines elsewhere."""

    @property
    def configuration(self) -> Mapping[str, Any]:
        """Whatever makes other records, as plain data: `n`, and what the parts say of themselves."""

    async def draw(self, example: Example, journal: Journal) -> Outcome:
        """Draw n candidates, but for those that the journal knows."""

    async def score(self, example: Example, draws: Sequence[DrawnCandidate], journal: Journal) -> Outcome:
        """Score them."""

    async def label(self, example: Example, draws: Sequence[DrawnCandidate], journal: Journal) -> Outcome:
        """Label them, tell their answers apart and describe the prompt."""
