"""`CFCResult`: the answer set or the abstention, as plain data."""

from __future__ import annotations

import math
from typing import Annotated, Any, TypeAlias

from pydantic import BaseModel, ConfigDict, PlainSerializer

from langchain_cfc.decision import Reason
from langchain_cfc.guarantee import Guarantee


def _strict_json(number: float) -> float | str:
    return number if math.isfinite(number) else str(number)


# JSON has no infinity; text is read back as the number. Pydantic's setting `ser_json_inf_nan` would not reach
# `model_dump(mode="json")`.
_Number: TypeAlias = Annotated[float, PlainSerializer(_strict_json, when_used="json")]


class ScoredCandidate(BaseModel):
    """One of the n candidates.

    Attributes:
        slot: Request slot, 0 ... n - 1.
        score: Verifier score in [0, 1], smaller is better.
        level: Smallest threshold at which it enters the set; None if it never does.
        accepted: Whether it is in the answer set.
        text: Its text; None where it was rejected, unless the runnable was told to show rejected candidates.
        answer: The extracted answer, under the same rule; None without an extractor.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    slot: int
    score: float
    level: float | None
    accepted: bool
    text: str | None
    answer: str | None


class CFCResult(BaseModel):
    """What was decided for one prompt. Plain data, no message objects: graph runtimes would stream those.

    Attributes:
        abstained: Whether there is no answer.
        reason: `answered`, `no_candidate_accepted` (the threshold lies below every level) or
            `not_certifiable` (it reached the cap, or the artifact keeps too little to decide it).
        answers: The distinct answers of the set, best first: extracted answers where there is an extractor,
            else texts.
        best: The first of them; None on abstention.
        threshold: The unclipped threshold; `inf` where none can be certified, in JSON the text `"inf"`.
        features: The prompt's features by name.
        guarantee: What is promised about this answer set.
        candidates: All n, in draw order; rejected texts are left out by default.
        usage: Tokens that the draws cost together; None where the model does not say.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    abstained: bool
    reason: Reason
    answers: tuple[str, ...]
    best: str | None
    threshold: _Number
    features: dict[str, float]
    guarantee: Guarantee
    candidates: tuple[ScoredCandidate, ...]
    usage: dict[str, Any] | None

    def explain(self) -> str:
        """In a few sentences, why it answered or abstained, and what that is worth."""
        n = len(self.candidates)
        lowest = min(candidate.score for candidate in self.candidates)
        percent = f"{100 * self.guarantee.target_coverage:g} %"
        if self.reason == "not_certifiable":
            decision = (
                f"Abstained: for prompts like this, no set made of {n} candidates can be certified to hold "
                f"a correct answer at {percent}. Too many calibration prompts like it had no correct "
                "candidate, or there were too few of them."
            )
        elif self.reason == "no_candidate_accepted":
            decision = (
                f"Abstained: all {n} scores lie above the threshold {self.threshold:.4g}; the lowest was "
                f"{lowest:.4g} (smaller is better)."
            )
        else:
            answers = "answer" if len(self.answers) == 1 else "distinct answers"
            decision = (
                f"Answered with {len(self.answers)} {answers} at threshold {self.threshold:.4g}; the lowest "
                f"of {n} scores was {lowest:.4g} (smaller is better)."
            )
        features = ", ".join(_feature(name, value) for name, value in self.features.items() if value != 0.0)
        return f"{decision} Features: {features}. {self._promise()}"

    def _promise(self) -> str:
        promise = self.guarantee
        if promise.kind == "heuristic":
            return promise.sentence
        groups = sum(weighting.kind == "indicator" for weighting in promise.weightings)
        soft = len(promise.weightings) - 1 - groups
        kinds = [f"{groups} groups" if groups else "", f"{soft} soft weightings" if soft else ""]
        scope = f", and over each of {' and '.join(filter(None, kinds))}" if groups or soft else ""
        assumed = "" if promise.binding == "matched" else f" {promise.assumptions[-1]}"
        return (
            f"With probability at least {100 * promise.target_coverage:g} % a set holds a correct answer or "
            f"is flagged: over prompts like those calibrated on{scope}; of one answer by itself it says "
            f"nothing.{assumed}"
        )


def _feature(name: str, value: float) -> str:
    """An indicator by its name, anything else with its value."""
    return name if value == 1.0 else f"{name} = {value:.4g}"
