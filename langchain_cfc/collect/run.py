"""`Run`: all unfinished prompts of a store through their stages, many at a time.

`Journal`: requests announced before they are made, and candidates durable as soon as they are drawn.

A process may be killed at any moment. What it had paid for by then is known all the same:

- A stage announces its requests before the first of them is made. Those that neither an answer nor a refusal
  accounts for later may have been paid for, and budgets charge them.
- A candidate is written when its answer arrives, and the next request waits until it is on disk. So the
  answers that a kill can cost are at most as many as there are places for calls.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

from langchain_cfc.collect.costs import Budget, Spending
from langchain_cfc.collect.stages import Executor, Labels, Outcome, Stage, Usage
from langchain_cfc.collect.status import CollectionStatus, EarlyLook
from langchain_cfc.collect.store import PAGE, Store, Work, Writer, writes
from langchain_cfc.collect.store.writes import Write
from langchain_cfc.errors import CFCError, CollectionError, StoreError
from langchain_cfc.sampling import DrawnCandidate


class StoreJournal:
    """The journal of one stage of one prompt, kept in the store.

    Args:
        writer: Of the store.
        work: The prompt.
        stage: What is done for it.
        requests: How many requests that will take, as far as is known.
        without_nul: Whether the store lacks the character U+0000.

    Attributes:
        drawn: Candidates that are written, by slot.
        context: Digest of what was prepared for the requests that drew them; None where there are none.
        lost: How many requests failed that may have been answered.
    """

    def __init__(self, writer: Writer, work: Work, stage: Stage, requests: int, *, without_nul: bool) -> None:
        self._writer = writer
        self._position = work.position
        self._stage = stage
        self._without_nul = without_nul
        self._announced = 0
        self._before = self._written = Usage()
        self.drawn: dict[int, DrawnCandidate] = dict(work.partial)
        self.context = work.context
        self.lost = 0
        self._announce(requests)

    def resume(self, context: str) -> Mapping[int, DrawnCandidate]:
        """Return the candidates that need not be drawn again.

        Args:
            context: Digest of what was prepared for the requests, such as retrieved passages. Candidates that
                were drawn for something else are dropped: all n of a prompt share one context.
        """
        # Where it begins again, as on another machine, what it takes is counted from 0 again.
        self._before, self._written = self._before.plus(self._written), Usage()
        if context != self.context:
            if self.drawn:
                self._announce(len(self.drawn))
                self._writer.submit(writes.dropped(self._position))
                self.drawn = {}
            self._writer.submit(writes.context(self._position, context))
            self.context = context
        return dict(self.drawn)

    def keep(self, slot: int, draw: DrawnCandidate, paid: Usage) -> None:
        """Write a candidate; `flushed` waits until it is durable.

        Args:
            slot: Its request slot.
            draw: The candidate.
            paid: What the stage took so far.
        """
        try:
            rows = writes.candidate(
                self._position, slot, draw, paid.minus(self._written), without_nul=self._without_nul
            )
        except CollectionError:  # the stage fails with it once all are drawn
            return
        self._written = paid
        self.drawn[slot] = draw
        self._writer.submit(rows)

    def discard(self) -> None:
        """Drop all candidates that are written; what they took stays counted."""
        self._writer.submit(writes.dropped(self._position))
        self.drawn = {}

    def lose(self) -> None:
        """Note that a request failed that may have been answered; another one will be made in its place."""
        self.lost += 1
        self._announce(1)

    async def flushed(self) -> None:
        """Wait until everything that was announced or kept is durable.

        Raises:
            StoreError: If it could not be written.
        """
        await self._writer.flushed()

    def rest(self, paid: Usage) -> Usage:
        """Return what of a finished or failed stage's costs is not written yet."""
        return paid.minus(self._written)

    def total(self, paid: Usage) -> Usage:
        """Return all that the stage took, with what it had taken before it began again."""
        return self._before.plus(paid)

    def settled(self, paid: Usage) -> list[Write]:
        """Return what to write at the end of the stage: only requests that were lost remain open."""
        requests = self.lost + self.total(paid).answered - self._announced
        return writes.announced(self._position, self._stage, requests)

    def _announce(self, requests: int) -> None:
        if requests > 0:
            self._announced += requests
            self._writer.submit(writes.announced(self._position, self._stage, requests))


# So many prompts that fail one after the other are no accident but an outage, a revoked key or an empty
# account; to go on would mark all the rest as failed.
MOST_FAILURES_IN_A_ROW = 25


@dataclass(frozen=True)
class RunObserver:
    """Who is told of a run.

    Attributes:
        progress: Called with the standing whenever a prompt is finished or has failed.
        notice: Called with what people should know while there is still time.
    """

    progress: Callable[[CollectionStatus], None]
    notice: Callable[[str], None]


class Run:
    """Works on all unfinished prompts of a store.

    Args:
        store: Where the prompts are, and what is made for them goes.
        bench: What works on them.
        n: Number of candidates per prompt.
        per_prompt: How many requests draw them.
        at_once: How many prompts are under way at a time.
        budget: What they may take.
        watch: Who is told.
    """

    def __init__(
        self,
        store: Store,
        bench: Executor,
        *,
        n: int,
        per_prompt: int,
        at_once: int,
        budget: Budget,
        watch: RunObserver,
    ) -> None:
        self._store = store
        self._bench = bench
        self._at_once = at_once
        self._per_prompt = per_prompt
        self._spending = Spending(budget, store)
        self._watch = watch
        self._look = EarlyLook(n)
        self._writer = Writer(store)
        self._failed_in_a_row = 0
        self._stopping = self._all_begun = False
        self._pages = store.unfinished()
        self._page: deque[Work] = deque()
        self._under_way = 0
        self._in_line = asyncio.Lock()
        self._one_less = asyncio.Event()
        self.standing = CollectionStatus.of(store)
        self._count()

    @property
    def stopping(self) -> bool:
        """Whether no further prompt is begun."""
        return self._stopping

    def stop(self) -> None:
        """Begin no further prompt; what is under way is finished."""
        self._stopping = True

    async def work(self) -> bool:
        """Work until nothing is left, the budget is used up or somebody stops it.

        Returns:
            Whether every prompt was begun.

        Raises:
            StoreError: If something cannot be written; then what is under way is given up.
            CollectionError: If prompt after prompt fails, or what is spent cannot be known; then what is
                under way is finished first, for it is paid for.
        """
        workers = [asyncio.ensure_future(self._prompts()) for _ in range(self._at_once)]
        try:
            await asyncio.gather(*workers)
        except BaseException as error:
            self.stop()  # also where it is cancelled
            if isinstance(error, StoreError):
                for worker in workers:
                    worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
            raise
        finally:
            await self._writer.close()
        return self._all_begun

    async def _prompts(self) -> None:
        """One prompt after the other."""
        while (work := await self._next()) is not None:
            await self._whole(work)

    async def _whole(self, work: Work) -> None:
        """One prompt, counted as long as it is under way."""
        try:
            await self._one(work)
        except BaseException:
            # At once, for the others go on before anybody hears of it.
            self.stop()
            raise
        finally:
            self._under_way -= 1
            self._one_less.set()

    async def _next(self) -> Work | None:
        """The next prompt, as soon as it may be begun; None where none may any more."""
        async with self._in_line:
            while not self._stopping:
                if self._spending.allows(self._under_way):
                    return await self._unfinished()
                if self._under_way == 0:
                    return None
                self._one_less.clear()
                await self._one_less.wait()
            return None

    async def _unfinished(self) -> Work | None:
        if not self._page:
            # Read off the loop, for a database may take its time.
            self._page.extend(await asyncio.to_thread(lambda: list(islice(self._pages, PAGE))))
        if not self._page:
            self._all_begun = True
            return None
        self._under_way += 1
        return self._page.popleft()

    async def _one(self, work: Work) -> None:
        """Take a prompt from where it stands to its end."""
        draws, scores = work.draws, work.scores
        if draws is None:
            journal = self._journal(work, Stage.DRAWN, self._per_prompt - len(work.partial))
            outcome = await self._bench.draw(work.example, journal)
            written = partial(self._drawn, set(journal.drawn))
            if not await self._kept(work, Stage.DRAWN, outcome, journal, written):
                return
            draws = outcome.result
            self._tell(self._look.drawn([draw.text for draw in draws], outcome.paid))
        if scores is None:
            journal = self._journal(work, Stage.SCORED)
            outcome = await self._bench.score(work.example, draws, journal)
            if not await self._kept(work, Stage.SCORED, outcome, journal, writes.scored):
                return
            scores = outcome.result.scores
        journal = self._journal(work, Stage.LABELLED)
        outcome = await self._bench.label(work.example, draws, journal)
        if not await self._kept(work, Stage.LABELLED, outcome, journal, self._labelled):
            return
        self._failed_in_a_row = 0
        self.standing.add(scores, outcome.result.correct)
        self._tell(self._look.labelled(self.standing, scores, outcome.result.correct))
        self._watch.progress(self.standing)

    def _journal(self, work: Work, stage: Stage, requests: int | None = None) -> StoreJournal:
        """The journal of a stage; where nothing says how many requests it takes, as many as ever so far."""
        expected = self._spending.requests(stage) if requests is None else requests
        return StoreJournal(self._writer, work, stage, expected, without_nul=self._store.without_nul)

    def _drawn(
        self, known: Collection[int], position: int, draws: Sequence[DrawnCandidate], paid: Usage
    ) -> list[Write]:
        return writes.complete(position, draws, known, paid, without_nul=self._store.without_nul)

    def _labelled(self, position: int, labels: Labels, paid: Usage) -> list[Write]:
        return writes.labelled(position, labels, paid, without_nul=self._store.without_nul)

    async def _kept(
        self,
        work: Work,
        stage: Stage,
        outcome: Outcome,
        journal: StoreJournal,
        written: Callable[[int, Any, Usage], list[Write]],
    ) -> bool:
        """Make a stage durable; False where it failed."""
        error = outcome.result if isinstance(outcome.result, CFCError) else None
        rows: list[Write] = []
        if error is None:
            try:
                rows = written(work.position, outcome.result, journal.rest(outcome.paid))
            except CollectionError as refused:
                error = refused
        if error is None:
            await self._writer.write([*rows, *journal.settled(outcome.paid)])
            # Only now, for what cannot be charged ends the run, and what is paid for shall be kept.
            self._charge(stage, journal.total(outcome.paid), journal.lost)
            return True
        rest = journal.rest(outcome.paid)
        failed = writes.failed(work.position, stage, error, rest)
        await self._writer.write([*failed, *journal.settled(outcome.paid)])
        self._charge(stage, journal.total(outcome.paid), journal.lost)
        self.standing.failed += 1
        self._failed_in_a_row += 1
        self._watch.progress(self.standing)
        if self._failed_in_a_row == MOST_FAILURES_IN_A_ROW:
            msg = (
                f"stopped, for {self._failed_in_a_row} prompts in a row failed, the last one with "
                f"{type(error).__name__}: {error}. Once that is cured, run again with --retry-failed"
            )
            raise CollectionError(msg) from error
        return False

    def _charge(self, stage: Stage, paid: Usage, lost: int) -> None:
        """Count what a stage took; failed ones cost as well."""
        self._spending.charge(stage, paid, lost)
        self._count()

    def _count(self) -> None:
        self.standing.spent = self._spending.paid
        self.standing.cost = self._spending.cost
        self.standing.unanswered = self._spending.unanswered

    def _tell(self, notices: Any) -> None:
        for notice in notices:
            self._watch.notice(notice)
