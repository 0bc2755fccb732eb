"""`CFCResult`: the answer set or the abstention, as plain data."""

from __future__ import annotations

import math
from typing import Annotated, Any, TypeAlias
from uuid import uuid4

from langchain_core.messages import AIMessage
from langchain_core.messages.tool import invalid_tool_call
from pydantic import BaseModel, ConfigDict, PlainSerializer, WithJsonSchema

from langchain_cfc.candidates import Scalar
from langchain_cfc.decision import Reason
from langchain_cfc.guarantee import Guarantee


def _strict_json(number: float) -> float | str:
    return number if math.isfinite(number) else str(number)


# JSON has no infinity; the text is read back as the number. Pydantic's setting `ser_json_inf_nan` would not
# reach `model_dump(mode="json")`, and the schema would allow numbers alone.
_Number: TypeAlias = Annotated[
    float,
    PlainSerializer(_strict_json, when_used="json"),
    WithJsonSchema({"anyOf": [{"type": "number"}, {"enum": ["inf", "-inf"]}]}),
]


# A level that exceeds a threshold by less than this has reached it.
_ROUND_OFF = 1e-9
# What messages hold of a guarantee: enough to understand it, and to find the rest in the artifact.
_IDENTIFYING = {"kind", "alpha", "target_coverage", "binding", "artifact_digest"}


class ScoredCandidate(BaseModel):
    """One of the n candidates, with its score.

    Attributes:
        slot: Request slot, 0 ... n - 1.
        score: Verifier score in [0, 1], smaller is better.
        scores: Raw outputs by verifier, where the artifact combines several; None otherwise.
        level: Smallest threshold at which it enters the set; None if it never does.
        accepted: Whether it is in the answer set.
        text: Its text; None where it was rejected, unless the runnable was told to show rejected candidates.
        data: Structured output, or text and tool calls, as a JSON object, under the same rule; None where the
            candidate is text.
        answer: The extracted answer, under the same rule; None without an extractor.
        same_as: Slot of the first candidate with the same answer: its own, or an earlier one.
        length: Number of characters of its answer, 0 for a blank one.
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


class CFCResult(BaseModel):
    """The decision for one prompt. Plain data, no message objects: graph runtimes would stream those.

    Attributes:
        abstained: Whether there is no answer.
        reason: `answered`, `no_candidate_accepted` (the threshold lies below every level, where the artifact
            allows empty sets), `only_blank_answers` (every candidate is blank or a refusal, or no answer was
            found in it), `not_certifiable` (it reached the cap, the artifact keeps too little to decide it,
            or no calibration prompt was of the prompt's category),
            `too_many_answers` or `too_little_agreement` (the policy withholds such a set; the accepted
            candidates are still listed).
        answers: The distinct answers of the set, best first: extracted answers where there is an extractor,
            else texts.
        best: The first of them; None on abstention.
        threshold: The unclipped threshold; `inf` where none can be certified, in JSON the text `"inf"`.
        features: The prompt's features by name.
        metadata: What the metadata function returned for the prompt.
        unknown_categories: The metadata keys under which it has a category that was not calibrated on, which
            is why it is not certifiable; mostly empty.
        guarantee: What is guaranteed about this answer set.
        candidates: All n, in draw order; rejected texts are left out by default.
        models: The names that the models that drew the candidates give themselves, if any.
        usage: Tokens that drawing took, a query written for a retriever included; None where no model states
            any.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    abstained: bool
    reason: Reason
    answers: tuple[str, ...]
    best: str | None
    threshold: _Number
    features: dict[str, float]
    metadata: dict[str, Scalar]
    unknown_categories: tuple[str, ...] = ()
    guarantee: Guarantee
    candidates: tuple[ScoredCandidate, ...]
    models: tuple[str, ...]
    usage: dict[str, Any] | None

    def __bool__(self) -> bool:
        """Return whether there is an answer, so that `if result:` does not take an abstention for one."""
        return not self.abstained

    def to_message(self, abstain_message: str) -> AIMessage:
        """Return the best answer or the abstention as the message of a chat model.

        Messages are copied into every checkpoint of a conversation, so they hold the decision in a few
        hundred bytes beside the answers. `CFCRunnable.guarantee_of` returns the whole guarantee of a message.

        Args:
            abstain_message: The text of an abstention.

        Returns:
            A message with the decision and what identifies its guarantee as plain data in
            `response_metadata["cfc"]`, and the tokens of all draws together as `usage_metadata`. A best
            answer that calls tools becomes a message that calls them.
        """
        metadata: dict[str, Any] = {"cfc": self._dump_decision()}
        if len(self.models) == 1:
            metadata["model_name"] = self.models[0]
        further: dict[str, Any] = {"response_metadata": metadata, "usage_metadata": self.usage}
        if self.best is None:
            return AIMessage(abstain_message, **further)
        chosen = min((one for one in self.candidates if one.accepted), key=lambda one: (one.score, one.slot))
        data = chosen.data or {}
        if "tool_calls" not in data:
            return AIMessage(self.best, **further)
        calls = [{**call, "id": f"call_{uuid4().hex}"} for call in data["tool_calls"]]
        # Calls whose arguments are no JSON were scored and accepted like any other.
        invalid = [
            invalid_tool_call(**call, id=f"call_{uuid4().hex}", error=None)
            for call in data.get("invalid_tool_calls", ())
        ]
        return AIMessage(data["content"], tool_calls=calls, invalid_tool_calls=invalid, **further)

    def _dump_decision(self) -> dict[str, Any]:
        """Return the decision as messages hold it: no candidates, and of the guarantee what identifies it."""
        left_out = {"best", "candidates", "features", "metadata", "models", "guarantee"}
        guarantee = self.guarantee.model_dump(mode="json", include=_IDENTIFYING)
        if (wrong := self.guarantee.wrong_answers) is not None:
            guarantee["max_wrong_rate"] = wrong.max_wrong_rate
        return {**self.model_dump(mode="json", exclude=left_out), "guarantee": guarantee}

    def explain(self) -> str:
        """Explain in a few sentences why it answered or abstained, and what the answer is worth."""
        n = len(self.candidates)
        lowest = min(candidate.score for candidate in self.candidates)
        percent = f"{100 * self.guarantee.target_coverage:g} %"
        if self.unknown_categories:
            named = " and ".join(f"{key} is {self.metadata[key]!r}" for key in self.unknown_categories)
            decision = (
                f"Abstained: {named}, which no calibration prompt had, so no set can be certified for "
                "prompts like this. Collect labelled prompts of that kind and calibrate again."
            )
        elif self.reason == "not_certifiable":
            decision = (
                f"Abstained: for prompts like this, no set made of {n} candidates can be certified to hold "
                f"a correct answer at {percent}. Too many calibration prompts like it had no correct "
                "candidate, or there were too few of them."
            )
        elif self.reason == "too_many_answers":
            decision = (
                f"Abstained: {sum(one.accepted for one in self.candidates)} of {n} candidates lie below the "
                f"threshold {self.threshold:.4g}, which are more distinct answers than may be returned."
            )
        elif self.reason == "too_little_agreement":
            decision = (
                f"Abstained: too few of {n} candidates agree on the best answer of the set, at threshold "
                f"{self.threshold:.4g}."
            )
        elif self.reason == "only_blank_answers":
            decision = f"Abstained: none of the {n} candidates gives an answer; all are blank or refusals."
        elif self.reason == "no_candidate_accepted":
            decision = f"Abstained: {self._describe_scores_above(n, lowest)}."
        elif self._is_best_alone:
            decision = (
                "Answered with the best candidate alone, because sets are never empty: "
                f"{self._describe_scores_above(n, lowest)}."
            )
        else:
            answers = "answer" if len(self.answers) == 1 else "distinct answers"
            decision = (
                f"Answered with {len(self.answers)} {answers} at threshold {self.threshold:.4g}; the lowest "
                f"of {n} scores was {lowest:.4g} (smaller is better)."
            )
        features = ", ".join(
            _format_feature(name, value) for name, value in self.features.items() if value != 0.0
        )
        shown = f" Features: {features}." if features else ""
        return f"{decision}{shown} {self._describe_guarantee()}"

    def _describe_scores_above(self, n: int, lowest: float) -> str:
        return (
            f"all {n} scores lie above the threshold {self.threshold:.4g}; the lowest was {lowest:.4g} "
            "(smaller is better)"
        )

    @property
    def _is_best_alone(self) -> bool:
        """Whether the set is the best candidate although its level is above the threshold."""
        lowest = min(one.level for one in self.candidates if one.accepted and one.level is not None)
        return lowest - self.threshold > _ROUND_OFF

    def _describe_guarantee(self) -> str:
        guarantee = self.guarantee
        if guarantee.kind in {"heuristic", "certified"}:
            certified = guarantee.wrong_answers
            return guarantee.sentence if certified is None else f"{guarantee.sentence} {certified.brief()}"
        groups = sum(weighting.kind == "indicator" for weighting in guarantee.weightings)
        soft = len(guarantee.weightings) - 1 - groups
        kinds = [f"{groups} groups" if groups else "", f"{soft} soft weightings" if soft else ""]
        scope = f", and over each of {' and '.join(filter(None, kinds))}" if groups or soft else ""
        assumed = "" if guarantee.binding == "matched" else f" {guarantee.assumptions[-1]}"
        if guarantee.wrong_answers is not None:
            assumed = f" {guarantee.wrong_answers.brief()}{assumed}"
        return (
            f"With probability at least {100 * guarantee.target_coverage:g} % a set holds a correct answer "
            f"or is flagged: over prompts like those calibrated on{scope}; of one answer by itself it says "
            f"nothing.{assumed}"
        )


def _format_feature(name: str, value: float) -> str:
    """Return an indicator by its name, any other feature with its value."""
    return name if value == 1.0 else f"{name} = {value:.4g}"
