"""`Run`: takes all unfinished prompts of a store through their stages, many at a time.

A process may be killed at any moment, and the store must still show what may have been charged:

- A stage announces its requests before making the first one. Budgets count every request that got neither an
  answer nor a refusal, because it may have been charged.
- A candidate is written when its answer arrives, and the next request waits until it is committed. So a kill
  loses at most as many candidates as there may be calls in flight.
- Claims, scores and labels are written when their stage ends; a kill also loses those of unfinished stages.
- An SQLite store has its commits on the disk a second later, so a power cut can also lose those of the last
  second. Batches and their answers are on the disk before the run goes on.
"""

from __future__ import annotations

import asyncio
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from langchain_core.runnables import RunnableConfig

from langchain_cfc.claims import Span
from langchain_cfc.draw_rules import parse_draw_rule
from langchain_cfc.errors import CFCError, CollectionError, CollectionWarning, StoreError
from langchain_cfc.no_answers import describe_unscored
from langchain_cfc.sampling.fingerprints import CLASS
from langchain_cfc.verifiers.base import VerifierScores
from langchain_cfc_collect.batches.batcher import Batcher
from langchain_cfc_collect.calls import CallPolicy
from langchain_cfc_collect.costs import Budget, Stage, Usage
from langchain_cfc_collect.executor import Executor
from langchain_cfc_collect.failures import ends_run
from langchain_cfc_collect.journal import BatchJournal, StoreJournal
from langchain_cfc_collect.stages import Labels, Outcome
from langchain_cfc_collect.status import CollectionStatus, EarlyWarnings
from langchain_cfc_collect.store import PAGE_SIZE, Store, StoredPrompt, Writer
from langchain_cfc_collect.store.calls import ADD_CALLS
from langchain_cfc_collect.store.schema import Write

# This many consecutive failures mean an outage, a revoked key or an empty account. Continuing would mark all
# remaining prompts as failed.
MAX_CONSECUTIVE_FAILURES = 25
# Prompts run one at a time until one is labelled. The first failure ends a new collection, because a wrong
# setting is likelier than an odd prompt. This many do in a store with candidates, where prompts are retried.
MAX_FAILURES_AT_START = 3
# Prompts without any answer after which a run stops: one may be refused or filtered for itself.
MOST_WITHOUT_ANSWER = 3
# What a stage adds to a prompt.
_RESULTS = {Stage.DRAWN: "draws", Stage.SCORED: "scores", Stage.LABELLED: "labels"}
# More prompts at once mean fewer, larger batches; a waiting request takes about 50 kB of memory.
_BATCHED_PROMPTS, _BATCHED_REQUESTS = 2000, 20_000


@dataclass(frozen=True)
class CollectionResult:
    """Result of one run of a collection.

    Attributes:
        status: Status of the store after the run.
        complete: Whether every prompt is finished or has failed; False if the budget ended the run, or it was
            stopped.
    """

    status: CollectionStatus
    complete: bool


def _warn(notice: str) -> None:
    warnings.warn(notice, CollectionWarning, stacklevel=2)


@dataclass(frozen=True)
class CollectionOptions:
    """Options of one run of a collection.

    Attributes:
        call_policy: Limits and retries of calls.
        budget: Limits on tokens and cost for all prompts together.
        settings: Further plain data that affects records; a store made with other settings is refused.
        retry_failed: Whether to retry prompts that failed in an earlier run.
        relabel: Whether to make all labels again, as with another labeler or answer extractor, without new
            draws or scores. Without batches, old labels are deleted only once one prompt could be relabelled.
        keep_payloads: Whether the raw messages of candidates (log-probabilities, response metadata) stay in
            the store once their prompt is labelled; text and data always do.
        on_progress: Called with the status whenever a prompt is finished or has failed; None for a progress
            bar on standard error, or plain lines if that is not a terminal.
        on_notice: Called with warnings about the quality of the collection; issues `CollectionWarning` by
            default.
        on_batch: Called with a line of text before each batch is submitted (with its estimated cost) and when
            it has ended; None prints the line to standard error.
        on_start: Called with the `Run` before it starts, so that the caller can stop it.
        config: LangChain config that all runs inherit, such as callbacks that trace them.
    """

    call_policy: CallPolicy = field(default_factory=CallPolicy)
    budget: Budget = field(default_factory=Budget)
    settings: Mapping[str, Any] = field(default_factory=dict)
    retry_failed: bool = False
    relabel: bool = False
    keep_payloads: bool = False
    on_progress: Callable[[CollectionStatus], None] | None = None
    on_notice: Callable[[str], None] = _warn
    on_batch: Callable[[str], None] | None = None
    on_start: Callable[[Run], None] | None = None
    config: RunnableConfig | None = None


class _StageFailedError(Exception):
    """Raised once a failed stage is stored and reported, to leave the other stages of its prompt out."""


class _TrialWriter(Writer):
    """Writer of a trial, of which a store keeps the requests and their usage alone."""

    def _execute(self, writes: list[Write]) -> None:
        super()._execute([one for one in writes if one[0] is ADD_CALLS])


class Run:
    """Run of a collection, which processes all unfinished prompts of a store.

    Args:
        store: The store of prompts and results.
        executor: Runs the stages.
        options: Options of the run, of which `relabel` and `settings` are dealt with before.
        on_progress: Called with the status whenever a prompt is finished or has failed.
        batcher: Answers the models' requests from batches; None for live calls.
        is_trial: Whether to take only the first prompts through all stages, until one is labelled, and to
            store nothing but what they used. A record holds candidates of one way of drawing, so those of a
            live trial cannot stay beside candidates from batches.

    Attributes:
        status: Status of the store.
        is_stopping: Whether the run starts no further prompts.
        has_batches: Whether the models' requests are answered from batches.
    """

    def __init__(
        self,
        store: Store,
        executor: Executor,
        options: CollectionOptions,
        on_progress: Callable[[CollectionStatus], None],
        batcher: Batcher | None = None,
        *,
        is_trial: bool = False,
    ) -> None:
        self._executor = executor
        self._options = options
        self._on_progress = on_progress
        configuration = executor.configuration
        n, rule = configuration["n"], configuration.get("draws")
        first_wave = n if rule is None else parse_draw_rule(rule).first_wave
        self._has_sheet = str((configuration["labeler"] or {}).get(CLASS)).endswith(".HumanLabels")
        self._requests_per_prompt = 1 if configuration.get("sampling") == "single_request" else first_wave
        self._prompts_at_once = options.call_policy.prompts_at_once
        if batcher is not None:  # prompts in progress wait for batches together
            self._prompts_at_once = max(1, min(_BATCHED_PROMPTS, _BATCHED_REQUESTS // n))
        self._budget = store.track_budget(options.budget)
        self._is_trial = is_trial
        self._writer = (_TrialWriter if is_trial else Writer)(store, options.call_policy.concurrency)
        self._consecutive_failures = 0
        # With batches, all prompts must start before the first can succeed.
        self._has_succeeded = batcher is not None
        self.is_stopping = self._all_started = False
        self._unfinished = islice(store.read_unfinished(), MOST_WITHOUT_ANSWER if is_trial else None)
        self._page: deque[StoredPrompt] = deque()
        self._in_progress = 0
        self._start_lock = asyncio.Lock()
        self._prompt_ended = asyncio.Event()
        self.status = CollectionStatus.from_store(store)
        self._warnings = EarlyWarnings(n, self.status)
        self._is_new = not self.status.drawn
        # Whether the model is known to answer; batches begin only after a trial.
        self._has_answered = batcher is not None or not self._is_new
        self._update_costs()
        self._batcher, self.has_batches = batcher, batcher is not None
        if batcher is not None:
            batcher.open(self._writer, self._budget, self._show_waiting)

    def stop(self) -> None:
        """Start no further prompts; those in progress are finished, unless they wait for batches."""
        self.is_stopping = True
        if self._batcher is not None:
            self._batcher.stop()

    async def run(self) -> bool:
        """Process prompts until none is left, the budget is used up, or `stop` is called.

        Returns:
            Whether every prompt was started.

        Raises:
            StoreError: If something cannot be written; prompts in progress are cancelled.
            CollectionError: If many consecutive prompts fail, the first ones get no answer, or usage cannot
                be determined. Prompts in progress are finished first, because they are charged; with batches,
                they are cancelled.
        """
        try:
            if self._batcher is None:
                await self._run_workers()
            elif not await self._batcher.run(self._run_workers):
                return False
        finally:
            await self._writer.close()
        return self._all_started

    async def _run_workers(self) -> None:
        """Process prompts, many at a time once one has succeeded."""
        while not self._has_succeeded and (prompt := await self._start_next_prompt()) is not None:
            await self._process(prompt)
            is_last = self.status.labelled == min(MOST_WITHOUT_ANSWER, self.status.total)
            if is_last and not self._has_answered and (self.status.remaining or self._is_trial):
                raise CollectionError(self._explain_no_answers())
        if self._is_trial:
            return
        size = max(1, min(self._prompts_at_once, self.status.remaining))
        workers = [asyncio.ensure_future(self._run_worker()) for _ in range(size)]
        try:
            await asyncio.gather(*workers)
        except BaseException as error:
            self.is_stopping = True  # also when cancelled
            # With batches, do not wait for workers: a batch may take a day, and the next run can fetch it.
            if isinstance(error, StoreError) or self._batcher is not None:
                for worker in workers:
                    worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
            raise

    async def _run_worker(self) -> None:
        while (prompt := await self._start_next_prompt()) is not None:
            await self._process(prompt)

    async def _process(self, prompt: StoredPrompt) -> None:
        """Process a prompt, and stop the run on an error."""
        try:
            await self._run_stages(prompt)
        except _StageFailedError:
            pass
        except BaseException:
            # Stop here, because other workers continue before `_run_workers` sees the error.
            self.is_stopping = True
            raise
        finally:
            self._in_progress -= 1
            self._prompt_ended.set()

    async def _start_next_prompt(self) -> StoredPrompt | None:
        """Return the next prompt once it may be started; None if no further prompt may be started."""
        async with self._start_lock:
            while not self.is_stopping:
                # The batcher checks the budget for each batch before it submits it.
                if self._batcher is not None or self._budget.allows(self._in_progress):
                    return await self._take_prompt()
                if self._in_progress == 0:
                    return None
                self._prompt_ended.clear()
                await self._prompt_ended.wait()
            return None

    async def _take_prompt(self) -> StoredPrompt | None:
        if not self._page and not self._all_started:
            # In a thread, because the database may be slow; no batch is submitted before these prompts start.
            with nullcontext() if self._batcher is None else self._batcher.running_calls.count_one():
                self._page.extend(await asyncio.to_thread(lambda: list(islice(self._unfinished, PAGE_SIZE))))
        if not self._page:
            self._all_started = True
            return None
        self._in_progress += 1
        return self._page.popleft()

    async def _run_stages(self, prompt: StoredPrompt) -> None:
        """Take a prompt through all stages that are not finished yet."""
        known = None
        if prompt.draws is None:
            prompt, known = await self._draw(prompt)
        if prompt.scores is None:
            prompt = await self._score(prompt, known)
        await self._label(prompt)

    async def _draw(self, prompt: StoredPrompt) -> tuple[StoredPrompt, VerifierScores | None]:
        """Draw a prompt's candidates; return it with these, and their scores if the draw rule used any."""
        stored = len(prompt.partial)
        journal = self._open_journal(prompt, Stage.DRAWN, self._requests_per_prompt - stored)
        outcome = await self._executor.draw(prompt.example, journal)
        prompt = await self._save_stage(prompt, journal, outcome)
        draws = prompt.draws or ()
        self._options.budget.check_reported(outcome.usage, drew=len(draws) > stored)
        self._has_answered |= any(one.no_answer is None for one in draws)
        self._notify(self._warnings.check_draws(draws, outcome.usage))
        return prompt, outcome.scores

    async def _score(self, prompt: StoredPrompt, known: VerifierScores | None) -> StoredPrompt:
        """Score the candidates or claims of a prompt, and return it with the scores."""
        journal = self._open_journal(prompt, Stage.SCORED)
        if self.status.unit == "claims" and prompt.claims is None:
            prompt = replace(prompt, claims=await self._split(prompt, journal))
        outcome = Outcome(known, Usage())
        if known is None:
            outcome = await self._executor.score(prompt, journal)
        return await self._save_stage(prompt, journal, outcome)

    async def _split(self, prompt: StoredPrompt, journal: StoreJournal) -> Sequence[Span]:
        """Split the answer of a prompt into claims and return them."""
        (answer, *_) = prompt.draws or ()
        outcome = await self._executor.split(answer, journal)
        if not isinstance(outcome.result, CFCError):
            try:
                journal.save_claims(outcome.result, outcome.usage)
            except CollectionError as refused:
                outcome = Outcome(refused, outcome.usage)
        if isinstance(outcome.result, CFCError):
            await self._save_stage(prompt, journal, outcome)
        spans: Sequence[Span] = outcome.result
        return spans

    async def _label(self, prompt: StoredPrompt) -> None:
        """Label the candidates or claims of a prompt, which finishes it."""
        journal = self._open_journal(prompt, Stage.LABELLED)
        outcome = Outcome(Labels([]), Usage())
        if prompt.candidates:  # an answer may have no claims
            outcome = await self._executor.label(prompt, journal)
        prompt = await self._save_stage(prompt, journal, outcome)
        self._consecutive_failures = 0
        if prompt.labels is not None:
            self._notify(self._warnings.check_labels(prompt))
            self._on_progress(self.status)

    def _open_journal(self, prompt: StoredPrompt, stage: Stage, requests: int | None = None) -> StoreJournal:
        expected = self._budget.expected_requests(stage) if requests is None else requests
        if self._batcher is None:
            return StoreJournal(self._writer, prompt, stage, expected)
        is_batched = stage in self._batcher.models.stages
        return BatchJournal(
            self._writer, prompt, stage, expected, self._batcher.requests, is_batched=is_batched
        )

    async def _save_stage(
        self, prompt: StoredPrompt, journal: StoreJournal, outcome: Outcome
    ) -> StoredPrompt:
        """Write the outcome of a stage, and return the prompt with it; `_StageFailedError` if it failed.

        It is committed before the next call is made, and once the prompt is finished or has failed. So stages
        that make no calls share a transaction.
        """
        writes, error = journal.finish(outcome, keep_messages=self._options.keep_payloads)
        self._writer.submit(writes)
        if error is not None or journal.stage is Stage.LABELLED:
            await self._writer.flush()
        # Charge after the write: usage without a price ends the run, and paid results must be kept.
        used = outcome.usage + journal.unused_usage
        self._budget.add_stage(journal.stage, used, journal.lost_requests, journal.counted_usage)
        self._update_costs()
        if error is None:
            self._has_succeeded |= journal.stage is Stage.LABELLED and self._has_answered
            part: dict[str, Any] = {_RESULTS[journal.stage]: outcome.result}
            prompt = replace(prompt, **part)
            self.status.add_stage(prompt, journal.stage)
            return prompt
        self.status.failed += 1
        self._consecutive_failures += 1
        self._on_progress(self.status)
        # A sheet of people's labels may hold only some prompts.
        self._has_succeeded |= journal.stage is Stage.LABELLED and self._has_sheet
        is_first = self._is_trial or (self.status.remaining and self._is_new)
        at_start = 1 if is_first else MAX_FAILURES_AT_START
        limit = MAX_CONSECUTIVE_FAILURES if self._has_succeeded else at_start
        if self._consecutive_failures == limit or ends_run(error):
            raise CollectionError(self._explain_stop(error)) from error
        self._notify(self._warnings.check_failure(error))
        raise _StageFailedError

    def _explain_no_answers(self) -> str:
        causes = " ".join(describe_unscored(self.status.no_answers, self.status.drawn))
        then = "collect into another store; or run the same command again to go on without a change"
        return (
            f"stopped because the model gave no answer to the first prompts. {causes} Change this, then "
            f"{'run again' if self._is_trial else then}"
        )

    def _explain_stop(self, error: CFCError) -> str:
        if self._is_trial:
            return (
                f"stopped before any batch, because a trial of the first prompt failed with "
                f"{type(error).__name__}: {error}. Fix the cause, then run again"
            )
        failed = self._consecutive_failures
        which = "the first prompt failed" if not self._has_succeeded else "a prompt failed"
        if failed > 1:
            which = f"{failed} prompts in a row failed, the last one"
        return f"{which}: {error}.\nFix the cause, then use CollectionOptions(retry_failed=True)"

    def _update_costs(self) -> None:
        status, budget = self.status, self._budget
        status.usage, status.cost, status.unanswered = budget.usage, budget.cost, budget.unanswered

    def _show_waiting(self, waiting: str | None) -> None:
        self.status.waiting = waiting
        self._update_costs()
        self._on_progress(self.status)

    def _notify(self, notices: Iterable[str]) -> None:
        for notice in notices:
            self._options.on_notice(notice)
