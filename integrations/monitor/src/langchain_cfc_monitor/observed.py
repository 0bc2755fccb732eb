"""The stored form of a result, and the labels of results.

A stored result holds no text of prompts or answers; its only texts are names and metadata entries.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, ClassVar

import numpy as np
from pydantic import BaseModel, ConfigDict, StrictBool, TypeAdapter, ValidationError

from langchain_cfc.candidates import Scalar
from langchain_cfc.errors import InputError, RecordError
from langchain_cfc.guarantee import Binding
from langchain_cfc.runnable import CFCResult
from langchain_cfc.support.arrays import FloatArray

FLAGGED, EMPTY, ANSWERED = 0, 1, 2
DAY = 86_400.0  # seconds


def is_number(value: object) -> bool:
    """Return whether a value is a number that is not NaN."""
    return isinstance(value, int | float) and not math.isnan(value)


class Data(BaseModel):
    """Base class of what a monitor reports: immutable plain data."""

    model_config = ConfigDict(frozen=True, extra="forbid")


@dataclass(frozen=True)
class ObservedResult:
    """One result as a monitor stores it, without any text of the prompt or the answers."""

    id: str  # name of the result, usually the id of its run
    at: float  # time of the result, in seconds since 1970
    artifact: str
    alpha: str
    outcome: int  # `FLAGGED`, `EMPTY` or `ANSWERED`; for a bot, before it withholds its best answer
    withheld: bool  # whether a bot withheld its answer
    max_wrong_rate: str | None  # certified rate of the bot; None for answer sets
    max_wrong_of_all: str | None  # rate among all questions of a bot that promises one
    threshold: float  # the threshold; `inf` where none can be certified, and for a bot, which has none
    scores: tuple[float, ...]  # (n,) scores of the candidates
    accepted: tuple[bool, ...]  # (n,) whether each candidate is in the answer set
    features: tuple[float, ...]  # (d,) the prompt's features
    codes: tuple[int, ...]  # (n,) slot of the first candidate with the same answer
    lengths: tuple[int, ...]  # (n,) number of characters of each answer, 0 for a blank one
    metadata: Mapping[str, Scalar]  # the stored entries of the prompt's metadata
    models: tuple[str, ...] = ()  # model names reported in the responses
    # Whether the components that served are known to be the calibrated ones; see `Guarantee`
    binding: Binding = "unbound"
    seconds: float | None = None  # time taken to serve it; None if not measured

    @classmethod
    def from_result(
        cls,
        result: CFCResult,
        name: str,
        at: float,
        seconds: float | None = None,
        *,
        metadata: Collection[str] = (),
    ) -> ObservedResult:
        """Convert a result to its stored form, with these keys of the prompt's metadata."""
        candidates, certified = result.candidates, result.guarantee.wrong_answers
        batch = result.guarantee.batch
        is_of_all = certified is None and batch is None and result.guarantee.is_about_best
        accepted = tuple(one.accepted for one in candidates)
        outcome = ANSWERED if any(accepted) else EMPTY
        return cls(
            id=name,
            at=at,
            artifact=result.guarantee.artifact_digest,
            # No test is about the decisions of a batch, which depend on all its questions.
            alpha=result.guarantee.alpha if batch is None else f"batch {batch.max_wrong_share}",
            outcome=FLAGGED if result.reason == "not_certifiable" else outcome,
            withheld=result.abstained and any(accepted),
            max_wrong_rate=None if certified is None else certified.max_wrong_rate,
            max_wrong_of_all=result.guarantee.alpha if is_of_all else None,
            threshold=math.inf if result.threshold is None else result.threshold,
            scores=tuple(one.score for one in candidates),
            accepted=accepted,
            features=tuple(result.features.values()),
            codes=tuple(one.same_as for one in candidates),
            lengths=tuple(one.length for one in candidates),
            metadata={key: value for key, value in result.metadata.items() if key in metadata},
            models=result.models,
            binding=result.guarantee.binding,
            seconds=seconds,
        )

    @property
    def decision(self) -> int:
        """The outcome, where an answer that a bot withholds counts as an empty set."""
        return EMPTY if self.withheld else self.outcome

    @property
    def best(self) -> int | None:
        """Slot of the best accepted candidate (lowest score, then earliest); None for an empty set."""
        slots = [slot for slot, inside in enumerate(self.accepted) if inside]
        return min(slots, key=lambda slot: (self.scores[slot], slot)) if slots else None

    def draw_uniforms(self, purpose: str, count: int) -> FloatArray:
        """Draw (count,) uniform random numbers in (0, 1), the same each time for this result and purpose."""
        seed = hashlib.sha256(f"{purpose}\0{self.artifact}\0{self.id}".encode()).digest()
        rng = np.random.Generator(np.random.PCG64(int.from_bytes(seed[:16], "big")))
        return np.clip(rng.random(count), 2.0**-53, 1.0 - 2.0**-53)


@dataclass(frozen=True)
class Label:
    """Which candidates of a result were correct, as found out after serving.

    Attributes:
        id: Id of the result.
        correct: A sequence that says for each of the n candidates whether it is correct (None if unknown); or
            one truth value for the best answer, which says nothing about the set; or None for an empty or
            flagged set, where nothing needs to be known.
        probability: Probability with which this result was chosen for labelling, in (0, 1]; 1 if all results
            are labelled, or if the choice did not depend on the result.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    id: str
    correct: StrictBool | Sequence[StrictBool | None] | None
    probability: float = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.id, str):
            msg = f"label of {self.id!r}: ids of results are texts"
            raise InputError(msg)
        if not is_number(self.probability) or not 0.0 < self.probability <= 1.0:
            msg = f"label of {self.id!r}: the probability must lie in (0, 1], got {self.probability!r}"
            raise InputError(msg)
        if not self.id.isprintable():
            msg = f"label of {self.id!r}: ids of results hold printable characters only"
            raise InputError(msg)
        # NumPy arrays hold `np.bool_` instead of bool.
        object.__setattr__(self, "correct", _normalize_correct(self.correct, self.id))

    @property
    def is_complete(self) -> bool:
        """Whether the label says for every candidate whether it is correct."""
        return not (self.correct is None or isinstance(self.correct, bool) or None in self.correct)

    def compute_weight(self, least: float) -> float:
        """Return least / p in (0, 1], for a result that was chosen for labelling with probability p.

        Args:
            least: Smallest probability with which any result is chosen.

        Raises:
            InputError: If p is smaller than `least`.
        """
        if self.probability < least:
            msg = (
                f"label of {self.id!r}: its result was chosen with probability {self.probability}, which is "
                f"below least_probability = {least}: state the smallest probability used"
            )
            raise InputError(msg)
        return least / self.probability

    def is_sampled(self, one: ObservedResult, least: float) -> bool:
        """Return whether the label is used, which happens with a probability equal to its weight.

        The labels that are used are then a fair sample of all results (rejection sampling).
        """
        return bool(one.draw_uniforms("label", 1)[0] < self.compute_weight(least))

    def judge(self, one: ObservedResult) -> tuple[bool | None, bool | None]:
        """Return whether the promise was kept (covered or flagged), and whether the answer was right.

        A promise about all questions is kept if no wrong answer was given. Each is None if the label does not
        say, the second also if no answer was given. If it is unknown
        whether an accepted candidate is correct, coverage is unknown even if another one is correct: such a
        label could never show an uncovered set, and using only its successes would bias the sample.

        Raises:
            InputError: If the label does not fit the result.
        """
        truths, best = self._list_truths(one), one.best
        inside = [truth for truth, accepted in zip(truths, one.accepted, strict=True) if accepted]
        if one.max_wrong_of_all is not None:
            kept = None if None in inside else all(inside)
        elif isinstance(self.correct, bool):
            kept = None
        else:
            kept = one.outcome == FLAGGED or (None if None in inside else any(inside))
        return kept, None if best is None or one.withheld else truths[best]

    def _list_truths(self, one: ObservedResult) -> list[bool | None]:
        """Return whether each candidate is correct, None if unknown."""
        n, best, correct = len(one.scores), one.best, self.correct
        if correct is None and one.outcome == ANSWERED:
            msg = f"label of {self.id!r}: the set is not empty; say which candidates are correct"
            raise InputError(msg)
        if isinstance(correct, bool) and best is None:
            msg = f"label of {self.id!r}: no answer was given, so none can be correct; label the candidates"
            raise InputError(msg)
        if correct is None or isinstance(correct, bool):
            return [correct if slot == best else None for slot in range(n)]
        if len(correct) != n:
            msg = f"label of {self.id!r}: it is about {len(correct)} candidates, and the result has {n}"
            raise InputError(msg)
        return list(correct)


_LABEL_ADAPTER = TypeAdapter(Label)


def parse_label(row: Mapping[str, Any], source: str = "label", line: int = 0) -> Label:
    """Convert plain data, such as parsed JSON, to a label.

    Args:
        row: `{"id": ..., "correct": ..., "probability": ...?}`; see `Label`.
        source: Where it comes from, for errors.
        line: Its line there, counted from 1; 0 if there are no lines.

    Returns:
        The label.

    Raises:
        RecordError: If it is not a label.
    """
    try:
        return _LABEL_ADAPTER.validate_python(row)
    except ValidationError as error:
        first = error.errors()[0]
        raise RecordError(source, line, ".".join(map(str, first["loc"])), first["msg"]) from error


def format_time(seconds: float) -> str:
    """Format seconds since 1970 in ISO 8601, UTC, as `--since` takes it."""
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="seconds").partition("+")[0]


def _normalize_correct(correct: Any, name: str) -> bool | tuple[bool | None, ...] | None:
    if correct is None or isinstance(correct, (bool, np.bool_)):
        return None if correct is None else bool(correct)
    known = list(correct) if isinstance(correct, (Sequence, np.ndarray)) else [correct]
    if isinstance(correct, str) or any(
        one is not None and not isinstance(one, (bool, np.bool_)) for one in known
    ):
        msg = f"label of {name!r}: expected true or false, a list of them, or nothing; got {correct!r:.80}"
        raise InputError(msg)
    return tuple(None if one is None else bool(one) for one in known)
