"""`BatchServer`: draw and score the questions of a batch, several at a time, and decide on all of them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import ContextThreadPoolExecutor

from langchain_cfc.errors import CFCError
from langchain_cfc.execution import Step, Steps, arun_flow, run_flow
from langchain_cfc.execution.limits import RunManager, find_limiter
from langchain_cfc.guarantee import Binding
from langchain_cfc.runnable.batch import FAILURES, BatchResult, QuestionBatch, ScoredListener, ScoredQuestion
from langchain_cfc.runnable.batch_journal import BatchJournal
from langchain_cfc.runnable.running import Flow, FlowRunner
from langchain_cfc.runnable.serving import ScoredPrompt, ServingPipeline
from langchain_cfc.thresholds import Level

# Questions that are drawn and scored at a time, unless `max_concurrency` says otherwise.
QUESTIONS_AT_ONCE = 16


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
        with self._open(inputs, run_manager, config, **asked) as run:
            pool = ContextThreadPoolExecutor(run.width)
            try:
                places = range(len(run.batch.questions))
                return run.decide(list(pool.map(lambda place: run_flow(run.score(place)), places)))
            finally:
                pool.shutdown(cancel_futures=True)

    async def aanswer(
        self, inputs: list[Any], run_manager: RunManager, config: RunnableConfig, **asked: Any
    ) -> BatchResult:
        """Answer a batch on the event loop."""
        with self._open(inputs, run_manager, config, **asked) as run:
            gate = asyncio.Semaphore(run.width)

            async def score_in_turn(place: int) -> ScoredQuestion:
                async with gate:
                    return await arun_flow(run.score(place))

            tasks = [asyncio.ensure_future(score_in_turn(place)) for place in range(len(run.batch.questions))]
            try:
                return run.decide(await asyncio.gather(*tasks))
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
    ) -> Iterator[_BatchRun]:
        batch = QuestionBatch.check(self.pipeline.artifact, inputs, max_wrong_share)
        runner = replace(self.runner, limiter=self.runner.limiter or find_limiter(config))
        parts = {"generator": self.pipeline.generator, "verifier": self.verifier}
        with nullcontext() if journal is None else BatchJournal(journal, batch, parts) as kept:
            yield _BatchRun(replace(self, runner=runner), batch, kept, (run_manager, config))


@dataclass(frozen=True)
class _BatchRun:
    """A batch that is being answered, with one limiter for all its questions, which are given by place."""

    server: BatchServer
    batch: QuestionBatch
    journal: BatchJournal | None
    within: tuple[RunManager, RunnableConfig]

    @property
    def width(self) -> int:
        limiter = self.server.runner.limiter
        return QUESTIONS_AT_ONCE if limiter is None else limiter.size

    def score(self, place: int) -> Steps[ScoredQuestion]:
        """Return what was drawn and scored for a question, now or before a stop, or how that failed."""
        digest = self.batch.digests[place]
        known = None if self.journal is None else self.journal.find(digest)
        if known is not None:
            return known
        runner, flow = self.server.runner, self._make_flow(self.batch.questions[place])
        try:
            scored: ScoredPrompt = yield Step(
                partial(runner.run, flow, *self.within), partial(runner.arun, flow, *self.within)
            )
            self.batch.measure(scored)  # fails here if a feature cannot be computed
        except FAILURES as error:
            return error
        # Not in the inner flow, which goes on in its thread when its time is over.
        if self.journal is not None:
            self.journal.keep(digest, scored)
        for one in self.within[0].handlers:
            if isinstance(one, ScoredListener):
                one.count()
        return scored

    def _make_flow(self, question: Any) -> Flow[ScoredPrompt]:
        return lambda config: self.server.pipeline.draw_and_score(question, config)

    def decide(self, outcomes: Sequence[ScoredQuestion]) -> BatchResult:
        """Decide on all questions, after the journal knows which have failed."""
        if self.journal is not None:
            failed = zip(self.batch.digests, outcomes, strict=True)
            self.journal.finish({digest: one for digest, one in failed if isinstance(one, CFCError)})
        return self.batch.decide(self.server.pipeline, self.server.binding, outcomes)
