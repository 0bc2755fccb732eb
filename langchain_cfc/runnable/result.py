"""`CFCResult` and `ClaimsResult`: the answer set or the abstention, as plain data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from itertools import groupby
from operator import itemgetter
from typing import Annotated, Any, TypeAlias
from uuid import uuid4

from langchain_core.messages import AIMessage
from langchain_core.messages.tool import invalid_tool_call
from pydantic import BaseModel, ConfigDict, PlainSerializer, WithJsonSchema
from typing_extensions import Self

from langchain_cfc.candidates import Scalar
from langchain_cfc.decision import Reason
from langchain_cfc.errors import InputError
from langchain_cfc.guarantee import Guarantee
from langchain_cfc.no_answers import Unscored
from langchain_cfc.runnable.explanation import explain_reason, explain_result, summarise_result
from langchain_cfc.support.display import Displayed, Summary, make_frame, shorten

# The fields of the result that messages hold by default.
_MESSAGE_FIELDS: Any = {
    "reason": True,
    "unscored": True,
    "guarantee": {
        **dict.fromkeys(
            ("kind", "alpha", "target_coverage", "stated_coverage", "binding", "artifact_digest"), True
        ),
        "wrong_answers": {"max_wrong_rate"},
    },
}

# Where `__dict__` holds the objects of accepted candidates by slot; they are no field, as not plain data.
PARSED = "_parsed"


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


class CFCResult(Displayed, BaseModel):
    """The decision for one prompt, as plain data (a graph runtime would stream message objects).

    Attributes:
        abstained: Whether there is no answer.
        reason: `answered`, `only_blank_answers` (every candidate is blank or a refusal, the extractor
            found no answer in it, or the verifier had no verdict), `not_certifiable` (the threshold reached
            the cap, the artifact keeps too few calibration prompts to determine it, or the prompt's category
            is unknown), or `mean_score_too_high` (a bot abstains). For claims also `no_claim_kept`, or
            `no_claims` if the answer makes none. In a batch also `failed`, if a call failed.
        answers: The distinct answers of the set, best first: extracted answers if there is an extractor,
            otherwise texts. Of a bot only the best one, which its certificate is about.
        best: The first of `answers`; None on abstention.
        threshold: The unclipped threshold; `inf` if none can be certified, in JSON the text `"inf"`. None for
            a bot.
        features: The prompt's features by name.
        metadata: The metadata function's output for the prompt.
        unknown_categories: The metadata keys whose category does not occur in the calibration data, which
            makes the prompt not certifiable; usually empty.
        guarantee: The guarantee of this answer set.
        candidates: All n, in draw order; by default without the texts of what is not answered.
        models: The names reported by the models that drew the candidates, if any.
        usage: Tokens used by draws and verifier, including queries written for a retriever; None if no model
            reports any.
        unscored: How many of the draws are no answer, by kind, and how many candidates or claims have
            `no_verdict`; None if there are none.
    """

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

    @cached_property
    def is_repeated(self) -> bool:
        """Whether an earlier decision was given again, which must not be counted as another one."""
        return False

    def repeat(self) -> Self:
        """Return the decision as one that is given again, whose tokens were counted the first time."""
        again = self.model_copy(update={"usage": None})
        again.__dict__["is_repeated"] = True  # no field: the decision is equal to the first
        return again

    def __bool__(self) -> bool:
        """Return whether there is an answer, so that `if result:` is false for an abstention."""
        return not self.abstained

    def __repr__(self) -> str:
        """Return the answer, or that there is none and why."""
        shown = "no answer" if self.best is None else repr(shorten(self.best))
        return f"{type(self).__name__}({shown}, {self.reason})"

    def _summarise(self) -> Summary:
        return summarise_result(self)

    def to_df(self) -> Any:
        """Return the candidates, or the claims, as a pandas DataFrame with a row for each.

        Raises:
            MissingExtraError: If pandas is not installed.
        """
        return make_frame([one.model_dump() for one in getattr(self, "claims", self.candidates)])

    @property
    def stated_coverage(self) -> float | None:
        """The coverage stated for this prompt, see `Guarantee`; None if no coverage is guaranteed.

        The answer set holds a correct answer, or the prompt is flagged, with at least this probability on
        average over prompts. With adaptive levels, the average is over prompts with different stated
        coverages, not over the prompts with this stated coverage.
        """
        return self.guarantee.stated_coverage

    @property
    def parsed(self) -> Any:
        """The best answer as the chain's parser made it, such as an object of your Pydantic schema.

        None if it is text. Text with tool calls is a JSON object, and so is any object once the result has
        been written and read back, because results hold plain data.
        """
        chosen = self._best_candidate
        return None if chosen is None else self.__dict__.get(PARSED, {}).get(chosen.slot, chosen.data)

    @property
    def _best_candidate(self) -> ScoredCandidate | None:
        accepted = [] if self.abstained else [one for one in self.candidates if one.accepted]
        return min(accepted, key=lambda one: (one.score, one.slot), default=None)

    def to_message(self, abstain_message: str, *, full_result: bool = False) -> AIMessage:
        """Return the best answer or the abstention as the message of a chat model.

        Messages are copied into every checkpoint of a conversation, so by default they hold only the reason
        and the fields that identify the guarantee. The full guarantee is that of the chain.

        Args:
            abstain_message: The text of an abstention.
            full_result: Whether the message holds the whole result, candidates and guarantee included.

        Returns:
            A message with plain data in `response_metadata["cfc"]`: all fields of the result, or by default
            `reason`, `unscored` if there are any, and, of `guarantee`, the fields `kind`, `alpha`,
            `target_coverage`, `stated_coverage`, `binding` and `artifact_digest`, in bot mode also the
            `max_wrong_rate` of its `wrong_answers`. Its `usage_metadata` is `usage`. If the best answer calls
            tools, so does the message.
        """
        short = {} if full_result else {"include": _MESSAGE_FIELDS, "exclude_none": True}
        shown = self.model_dump(mode="json", **short)
        metadata: dict[str, Any] = {"cfc": shown}
        if len(self.models) == 1:
            metadata["model_name"] = self.models[0]
        further: dict[str, Any] = {"response_metadata": metadata, "usage_metadata": self.usage}
        if self.best is None:
            return AIMessage(abstain_message, **further)
        chosen = self._best_candidate
        data = (chosen and chosen.data) or {}
        if "tool_calls" not in data:
            return AIMessage(self.best, **further)
        calls = [{**call, "id": f"call_{uuid4().hex}"} for call in data["tool_calls"]]
        # Calls with invalid JSON arguments were scored and accepted like any other.
        invalid = [
            invalid_tool_call(**call, id=f"call_{uuid4().hex}", error=None)
            for call in data.get("invalid_tool_calls", ())
        ]
        return AIMessage(data["content"], tool_calls=calls, invalid_tool_calls=invalid, **further)

    def explain_reason(self) -> str:
        """Return one sentence, for end users, that explains why it answered or abstained."""
        return explain_reason(self)

    def explain(self) -> str:
        """Return a few sentences, for end users, that explain the decision and what is promised about it."""
        return explain_result(self)


def read_result(data: Mapping[str, Any]) -> CFCResult:
    """Return the result that `model_dump(mode="json")` wrote as plain data.

    Args:
        data: The fields of a `CFCResult` or a `ClaimsResult`.

    Returns:
        The result.

    Raises:
        pydantic.ValidationError: If the fields are valid for neither.
    """
    kind = ClaimsResult if "claims" in data else CFCResult
    return kind.model_validate(data)


class ScoredClaim(BaseModel):
    """One claim of an answer, with its score and whether it was kept.

    Attributes:
        start: Offset of its first character in the answer; None if the claim was not found there.
        end: Offset after its last character; None together with it.
        score: Verifier score in [0, 1], smaller is better; its confidence is 1 - score.
        kept: Whether it stays in the answer.
        text: The claim; None if it was dropped, unless `show_rejected` is set.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    start: int | None
    end: int | None
    score: float
    kept: bool
    text: str | None


class ClaimsResult(CFCResult):
    """A `CFCResult` for the claims of one answer; its only answer is the text that remains.

    Attributes:
        text: The answer without its dropped claims, otherwise unchanged; None on abstention.
        claims: All claims, in the order of the answer; by default without the texts of dropped ones.
        full_text: The whole answer if `show_rejected` is set; otherwise None.
    """

    text: str | None
    claims: tuple[ScoredClaim, ...]
    full_text: str | None = None

    def mark_dropped(self, before: str = "~~", after: str = "~~") -> str:
        """Return the whole answer with its dropped claims marked.

        Args:
            before: Text to insert before dropped text; the default is a Markdown strikethrough.
            after: Text to insert after it.

        Returns:
            The whole answer. Text outside claims is not marked, nor is a claim that was not found in it.

        Raises:
            InputError: If the result does not hold the whole answer.
        """
        if self.full_text is None:
            msg = "the result holds no dropped text: make the CFCRunnable with show_rejected=True"
            raise InputError(msg)
        dropped = [False] * len(self.full_text)
        for one in self.claims:
            if not one.kept and one.start is not None and one.end is not None:
                dropped[one.start : one.end] = [True] * (one.end - one.start)
        parts = []
        for is_dropped, group in groupby(zip(self.full_text, dropped, strict=True), key=itemgetter(1)):
            text = "".join(character for character, _ in group)
            parts.append(f"{before}{text}{after}" if is_dropped else text)
        return "".join(parts)
