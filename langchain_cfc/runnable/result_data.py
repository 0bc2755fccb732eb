"""The fields of results, as plain data: what a decision is explained from."""

from __future__ import annotations

import math
from typing import Annotated, Any, TypeAlias

from pydantic import BaseModel, ConfigDict, PlainSerializer, WithJsonSchema

from langchain_cfc.candidates import Scalar
from langchain_cfc.decision import Reason
from langchain_cfc.guarantee import Guarantee
from langchain_cfc.no_answers import Unscored


def _to_json_number(number: float) -> float | str:
    return number if math.isfinite(number) else str(number)


# JSON has no infinity, so it is written as text, which is read back as a number. Pydantic's setting
# `ser_json_inf_nan` has no effect on `model_dump(mode="json")`, and its schema would only allow numbers.
_JsonNumber: TypeAlias = Annotated[
    float,
    PlainSerializer(_to_json_number, when_used="json"),
    WithJsonSchema({"anyOf": [{"type": "number"}, {"enum": ["inf", "-inf"]}]}),
]


class ScoredCandidate(BaseModel):
    """One candidate, with its score and whether it was accepted.

    Attributes:
        slot: Request slot, 0 ... n - 1.
        score: Verifier score in [0, 1], smaller is better.
        scores: Raw outputs by verifier, if there are several; None otherwise.
        level: Smallest threshold at which it enters the set; None if it never does.
        accepted: Whether the threshold accepts it; for a bot, whether it is the best one, which may be
            withheld.
        text: Its text; None unless it gives one of the result's `answers`, or `show_rejected` is set.
        data: Structured output, or text and tool calls, as a JSON object; None if the candidate is text, or
            if it is withheld, as for `text`.
        answer: The extracted answer; None without an extractor, or if it is withheld, as for `text`.
        same_as: Slot of the first candidate with the same answer: its own, or an earlier one.
        length: Number of characters of its answer, 0 for a blank one.
        unscored: Why it has the worst score without being judged: it is no answer (`cut_off`, `filtered`,
            `refused`, `reasoning_only`, `tool_call_only`, `unparsable` or `blank`), or the verifier has
            `no_verdict` on it; None otherwise.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    slot: int
    score: float
    scores: dict[str, float] | None
    level: float | None
    accepted: bool
    text: str | None
    data: dict[str, Any] | None
    answer: str | None
    same_as: int
    length: int
    unscored: Unscored | None = None


class ResultData(BaseModel):
    """The fields of a `CFCResult`, which documents them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    abstained: bool
    reason: Reason
    answers: tuple[str, ...]
    best: str | None
    threshold: _JsonNumber | None = None
    features: dict[str, float]
    metadata: dict[str, Scalar]
    unknown_categories: tuple[str, ...] = ()
    guarantee: Guarantee
    candidates: tuple[ScoredCandidate, ...]
    models: tuple[str, ...]
    usage: dict[str, Any] | None
    unscored: dict[Unscored, int] | None = None
