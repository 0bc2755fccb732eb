"""Answer a batch of questions: draw and score each, then decide on all together.

Which questions are answered depends on the scores of all of them, so nothing is answered before the last one
is scored; `langchain_cfc.artifact.batch` has the rule and its theorem. A question whose calls fail is not
answered and still counts. Equal questions count once, and get one answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import BaseMessage, convert_to_messages, convert_to_openai_messages
from pydantic import BaseModel, ConfigDict

from langchain_cfc.artifact import CalibrationArtifact, Promise
from langchain_cfc.artifact.guarantee import build_batch_guarantee
from langchain_cfc.decision import compute_bot_scores
from langchain_cfc.errors import CFCError, FeatureError, InputError, PromptKindError, ServingError
from langchain_cfc.guarantee import AnsweredBatch, Binding, Guarantee
from langchain_cfc.runnable.result import CFCResult
from langchain_cfc.runnable.serving import ScoredPrompt, ServedPromise, ServingPipeline
from langchain_cfc.support.text import join_names
from langchain_cfc.thresholds import Level, format_alpha
from langchain_cfc.verifiers.prompts import classify_prompt, convert_to_calibrated_kind, unwrap_prompt

# What a question may fail with; all other errors end the batch.
FAILURES = (ServingError, FeatureError)

ScoredQuestion: TypeAlias = ScoredPrompt | CFCError


class BatchResult(BaseModel):
    """The decisions for a batch, as plain data.

    Attributes:
        results: A result for each input, in their order. Its reason is `failed` if a call failed.
        p_values: A p-value for each input: the smaller, the fewer wrong answers had scores like it among the
            labelled prompts; 1 for a question without an answer.
        errors: For each input whose reason is `failed`, the error; None for all others.
        guarantee: What is promised about the answers; every result carries it too.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    results: tuple[CFCResult, ...]
    p_values: tuple[float, ...]
    errors: tuple[str | None, ...]
    guarantee: Guarantee


class ScoredListener(BaseCallbackHandler):
    """Calls a function with the number of questions scored so far, each time that one is; takes no events.

    Args:
        on_scored: The function.
    """

    ignore_llm = ignore_chat_model = ignore_chain = True

    def __init__(self, on_scored: Callable[[int], object]) -> None:
        self._on_scored, self._count = on_scored, 0

    def count(self) -> None:
        """Count a question that has been drawn and scored."""
        self._count += 1
        self._on_scored(self._count)


@dataclass(frozen=True)
class QuestionBatch:
    """A batch that was checked before anything is drawn.

    Attributes:
        artifact: The artifact, which keeps scores for batches.
        max_wrong_share: The largest expected share of wrong answers, as decimal text.
        questions: The m distinct questions, in order of appearance.
        digests: Digests of these, by which they are recognised.
        rows: For each input the place of its question.
    """

    artifact: CalibrationArtifact
    max_wrong_share: str
    questions: tuple[Any, ...]
    digests: tuple[int, ...]
    rows: tuple[int, ...]

    @classmethod
    def check(
        cls, artifact: CalibrationArtifact, inputs: Sequence[Any], max_wrong_share: Level
    ) -> QuestionBatch:
        """Check the inputs of a batch.

        Raises:
            InputError: If the artifact keeps no scores for batches, there are fewer than two distinct
                questions, or inputs are calibration prompts or of another kind than those.
        """
        share, kept = format_alpha(max_wrong_share, "max_wrong_share"), artifact.batch_scores
        kinds = artifact.calibration.prompt_kinds
        prompts = [_convert_input(row, one, kinds) for row, one in enumerate(inputs)]
        forms = [_list_forms(one) for one in prompts]
        first, known = kept.recognise([one[0] for one in forms])
        known |= kept.recognise([one[-1] for one in forms])[1]
        if known.any():
            msg = (
                "equal to questions that calibrated this artifact: leave them out, because their right "
                "answers are known and the scores that wrong answers had include theirs"
            )
            raise _make_input_error(np.flatnonzero(known).tolist(), msg)
        places: dict[int, int] = {}
        rows = tuple(places.setdefault(one, len(places)) for one in first.tolist())
        if len(places) < 2:  # noqa: PLR2004 - a batch
            msg = (
                f"a batch needs at least two different questions, got {len(places)}. For one question at a "
                "time calibrate with max_wrong_rate or max_wrong_of_all, and call bot.invoke(question)"
            )
            raise InputError(msg)
        questions = tuple(prompts[rows.index(place)] for place in range(len(places)))
        return cls(artifact, share, questions, tuple(places), rows)

    def measure(self, scored: ScoredQuestion) -> float:
        """Return the mean score of a question; `inf` if it failed or has no answer."""
        if isinstance(scored, CFCError):
            return math.inf
        return float(compute_bot_scores(self.artifact, scored.batch)[0])

    def decide(
        self, pipeline: ServingPipeline, binding: Binding, outcomes: Sequence[ScoredQuestion]
    ) -> BatchResult:
        """Decide on all questions, given the m outcomes of drawing and scoring them."""
        scores = np.array([self.measure(one) for one in outcomes])
        p_values, cut = self.artifact.batch_scores.select(scores, self.max_wrong_share)
        answered = AnsweredBatch(
            max_wrong_share=self.max_wrong_share,
            questions=len(outcomes),
            answered=int((scores <= cut).sum()),
        )
        guarantee = build_batch_guarantee(self.artifact, answered, binding)
        named = Promise("max_wrong_share", self.max_wrong_share)
        promise = ServedPromise(named, cut, {None: guarantee})
        decided = [
            _make_failed(guarantee) if isinstance(one, CFCError) else pipeline.decide(promise, one)
            for one in outcomes
        ]
        seen: set[int] = set()
        results = []
        for place in self.rows:  # tokens count once
            one = decided[place]
            results.append(one.model_copy(update={"usage": None}) if place in seen else one)
            seen.add(place)
        errors = [str(one) if isinstance(one, CFCError) else None for one in outcomes]
        return BatchResult(
            results=tuple(results),
            p_values=tuple(p_values[list(self.rows)].tolist()),
            errors=tuple([errors[place] for place in self.rows]),
            guarantee=guarantee,
        )


def _make_failed(guarantee: Guarantee) -> CFCResult:
    return CFCResult(
        abstained=True,
        reason="failed",
        answers=(),
        best=None,
        features={},
        metadata={},
        guarantee=guarantee,
        candidates=(),
        models=(),
        usage=None,
    )


def _make_input_error(rows: Sequence[int], problem: str) -> InputError:
    named = f"{'input' if len(rows) == 1 else 'inputs'} {join_names([str(row) for row in rows], 10)}"
    return InputError(f"{named} (counted from 0): {problem}")


def _convert_input(row: int, given: Any, kinds: Sequence[str] | None) -> Any:
    try:
        return convert_to_calibrated_kind(given, kinds)
    except PromptKindError as error:
        raise _make_input_error([row], str(error)) from error


def _list_forms(prompt: Any) -> list[Any]:
    """Return the forms that records may give a prompt, as plain data; messages have one or two."""
    prompt = unwrap_prompt(prompt)
    if classify_prompt(prompt) != "messages":
        return [prompt]
    given = [prompt] if isinstance(prompt, BaseMessage) else list(prompt)
    objects = [
        {**convert_to_openai_messages([one])[0], "content": one.content} for one in convert_to_messages(given)
    ]
    return [objects, given] if all(isinstance(one, Mapping) for one in given) else [objects]
