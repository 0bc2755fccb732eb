"""Answer a batch of questions: draw and score each, several at a time, then decide on all together.

Which questions are answered depends on the scores of all of them, so nothing is answered before the last one
is scored; `langchain_cfc.artifact.batch` has the rule and its theorem. A question whose calls fail is not
answered and still counts. Equal questions count once, and get one answer.
"""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import BaseMessage, convert_to_messages, convert_to_openai_messages
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import ContextThreadPoolExecutor
from pydantic import BaseModel, ConfigDict

from langchain_cfc.artifact import CalibrationArtifact, Promise
from langchain_cfc.artifact.guarantee import build_batch_guarantee
from langchain_cfc.decision import compute_bot_scores
from langchain_cfc.errors import CFCError, FeatureError, InputError, PromptKindError, ServingError
from langchain_cfc.execution import Step, Steps, arun_flow, run_flow
from langchain_cfc.execution.limits import RunManager, find_limiter
from langchain_cfc.guarantee import AnsweredBatch, Binding, Guarantee
from langchain_cfc.runnable.batch_journal import BatchJournal
from langchain_cfc.runnable.result import CFCResult
from langchain_cfc.runnable.running import FlowRunner
from langchain_cfc.runnable.serving import ScoredPrompt, ServedPromise, ServingPipeline
from langchain_cfc.support.serialization import canonical_json, compute_sha256
from langchain_cfc.support.text import join_names
from langchain_cfc.thresholds import Level, format_alpha
from langchain_cfc.verifiers.prompts import classify_prompt, convert_to_calibrated_kind, unwrap_prompt

# What a question may fail with; all other errors end the batch.
FAILURES = (ServingError, FeatureError)
# Questions that are drawn and scored at a time, unless `max_concurrency` says otherwise.
QUESTIONS_AT_ONCE = 16

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
class BatchServer:
    """Draws, scores and decides the questions of batches, with the checked parts of a `CFCRunnable`.

    Attributes:
        pipeline: The runnable's checked parts.
        runner: Runs its flows.
        binding: How the parts were checked.
        verifier: What the verifier states about itself, as text.
    """

    pipeline: ServingPipeline
    runner: FlowRunner
    binding: Binding
    verifier: str

    def answer(
        self, inputs: list[Any], run_manager: RunManager, config: RunnableConfig, **asked: Any
    ) -> BatchResult:
        """Answer a batch with threads; see `CFCRunnable.answer_batch`."""
        with self._open(inputs, run_manager, config, **asked) as batch:
            pool = ContextThreadPoolExecutor(batch.width)
            try:
                scored = pool.map(lambda digest: run_flow(batch.score(digest)), batch.questions)
                return batch.decide(list(scored))
            finally:
                pool.shutdown(cancel_futures=True)

    async def aanswer(
        self, inputs: list[Any], run_manager: RunManager, config: RunnableConfig, **asked: Any
    ) -> BatchResult:
        """Answer a batch on the event loop."""
        with self._open(inputs, run_manager, config, **asked) as batch:
            gate = asyncio.Semaphore(batch.width)

            async def score_in_turn(digest: int) -> ScoredQuestion:
                async with gate:
                    return await arun_flow(batch.score(digest))

            tasks = [asyncio.ensure_future(score_in_turn(digest)) for digest in batch.questions]
            try:
                return batch.decide(await asyncio.gather(*tasks))
            finally:
                for task in tasks:
                    task.cancel()

    @contextmanager
    def _open(
        self,
        inputs: list[Any],
        run_manager: RunManager,
        config: RunnableConfig,
        *,
        max_wrong_share: Level,
        journal: str | os.PathLike[str] | None,
    ) -> Iterator[_QuestionBatch]:
        artifact, share = self.pipeline.artifact, format_alpha(max_wrong_share, "max_wrong_share")
        digests, questions = _check_inputs(artifact, inputs)
        runner = replace(self.runner, limiter=self.runner.limiter or find_limiter(config))
        header = {
            "artifact": artifact.digest,
            "generator": self.pipeline.generator,
            "verifier": self.verifier,
            "questions": compute_sha256(canonical_json(sorted(questions))),
            "max_wrong_share": share,
        }
        with nullcontext() if journal is None else closing(BatchJournal(journal, header)) as kept:
            server = replace(self, runner=runner)
            yield _QuestionBatch(server, (run_manager, config), share, digests, questions, kept)


@dataclass(frozen=True)
class _QuestionBatch:
    """A batch that is being answered, with one limiter for all its questions.

    Attributes:
        server: Has the parts that serve.
        within: The run of the batch.
        max_wrong_share: The largest expected share of wrong answers, as decimal text.
        digests: For each input a digest, which equal questions share.
        questions: The m distinct questions by digest, in order of appearance.
        journal: Keeps what was drawn and scored.
    """

    server: BatchServer
    within: tuple[RunManager, RunnableConfig]
    max_wrong_share: str
    digests: Sequence[int]
    questions: Mapping[int, Any]
    journal: BatchJournal | None

    @property
    def width(self) -> int:
        limiter = self.server.runner.limiter
        return QUESTIONS_AT_ONCE if limiter is None else limiter.size

    def score(self, digest: int) -> Steps[ScoredQuestion]:
        """Return what was drawn and scored for a question, now or before a stop, or how that failed."""
        known = None if self.journal is None else self.journal.find(digest)
        if known is not None:
            return known
        runner, flow = (
            self.server.runner,
            partial(self.server.pipeline.draw_and_score, self.questions[digest]),
        )
        try:
            scored: ScoredPrompt = yield Step(
                partial(runner.run, flow, *self.within), partial(runner.arun, flow, *self.within)
            )
            self._measure(scored)  # fails here if a feature cannot be computed
        except FAILURES as error:
            return error
        # Not in the inner flow, which goes on in its thread when its time is over.
        if self.journal is not None:
            self.journal.keep(digest, scored)
        for one in self.within[0].handlers:
            if isinstance(one, ScoredListener):
                one.count()
        return scored

    def _measure(self, scored: ScoredQuestion) -> float:
        """Return the mean score of a question; `inf` if it failed or has no answer."""
        if isinstance(scored, CFCError):
            return math.inf
        return float(compute_bot_scores(self.server.pipeline.artifact, scored.batch)[0])

    def decide(self, outcomes: Sequence[ScoredQuestion]) -> BatchResult:
        """Decide on all questions, after the journal knows which have failed."""
        scored = dict(zip(self.questions, outcomes, strict=True))
        errors = {digest: str(one) for digest, one in scored.items() if isinstance(one, CFCError)}
        if self.journal is not None:
            self.journal.finish(errors)
        pipeline = self.server.pipeline
        scores = np.array([self._measure(one) for one in outcomes])
        found, cut = pipeline.artifact.batch_scores.select(scores, self.max_wrong_share)
        answered = AnsweredBatch(
            max_wrong_share=self.max_wrong_share,
            questions=len(outcomes),
            answered=int((scores <= cut).sum()),
        )
        guarantee = build_batch_guarantee(pipeline.artifact, answered, self.server.binding)
        promise = ServedPromise(Promise("max_wrong_share", self.max_wrong_share), cut, {None: guarantee})
        decided = {
            digest: _make_failed(guarantee) if isinstance(one, CFCError) else pipeline.decide(promise, one)
            for digest, one in scored.items()
        }
        results = []
        for digest in self.digests:
            results.append(decided[digest])
            decided[digest] = decided[digest].model_copy(update={"usage": None})  # tokens count once
        p_values = dict(zip(self.questions, found.tolist(), strict=True))
        return BatchResult(
            results=tuple(results),
            p_values=tuple([p_values[digest] for digest in self.digests]),
            errors=tuple(map(errors.get, self.digests)),
            guarantee=guarantee,
        )


def _check_inputs(artifact: CalibrationArtifact, inputs: Sequence[Any]) -> tuple[list[int], dict[int, Any]]:
    """Return a digest for each input of a batch, and the distinct questions by digest.

    Raises:
        InputError: If the artifact keeps no scores for batches, there are fewer than two distinct questions,
            or inputs are calibration prompts, of another kind than those, or not plain data.
    """
    kept, kinds = artifact.batch_scores, artifact.calibration.prompt_kinds
    prompts = [_convert_input(row, one, kinds) for row, one in enumerate(inputs)]
    forms = [_list_forms(one) for one in prompts]
    try:
        digests, known = kept.recognise([one[0] for one in forms])
        known |= kept.recognise([one[-1] for one in forms])[1]
    except (TypeError, ValueError) as error:
        msg = f"the questions of a batch are compared, so they must be texts, messages or JSON: {error}"
        raise InputError(msg) from error
    if known.any():
        msg = (
            "equal to questions that calibrated this artifact: leave them out, because their right "
            "answers are known and the scores that wrong answers had include theirs"
        )
        raise _make_input_error(np.flatnonzero(known).tolist(), msg)
    questions: dict[int, Any] = {}
    for digest, prompt in zip(digests.tolist(), prompts, strict=True):
        questions.setdefault(digest, prompt)
    if len(questions) < 2:  # noqa: PLR2004 - a batch
        msg = (
            f"a batch needs at least two different questions, got {len(questions)}. For one question at a "
            "time calibrate with max_wrong_rate or max_wrong_of_all, and call bot.invoke(question)"
        )
        raise InputError(msg)
    return digests.tolist(), questions


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
