"""`Journal`: requests announced before they are made, and candidates durable as soon as they are drawn.

A process may be killed at any moment. What it had paid for by then is known all the same:

- A stage announces its requests before the first of them is made. Those that neither an answer nor a refusal
  accounts for later may have been paid for, and budgets charge them.
- A candidate is written when its answer arrives, and the next request waits until it is on disk. So the
  answers that a kill can cost are at most as many as there are places for calls.
"""

from __future__ import annotations

from collections.abc import Mapping

from langchain_cfc.collect.stages import Paid, Stage
from langchain_cfc.collect.store import Work, Writer, writes
from langchain_cfc.collect.store.writes import Write
from langchain_cfc.errors import CollectionError
from langchain_cfc.sampling import Draw


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
        self._before = self._written = Paid()
        self.drawn: dict[int, Draw] = dict(work.partial)
        self.context = work.context
        self.lost = 0
        self._announce(requests)

    def resume(self, context: str) -> Mapping[int, Draw]:
        """Return the candidates that need not be drawn again.

        Args:
            context: Digest of what was prepared for the requests, such as retrieved passages. Candidates that
                were drawn for something else are dropped: all n of a prompt share one context.
        """
        # Where it begins again, as on another machine, what it takes is counted from 0 again.
        self._before, self._written = self._before.plus(self._written), Paid()
        if context != self.context:
            if self.drawn:
                self._announce(len(self.drawn))
                self._writer.submit(writes.dropped(self._position))
                self.drawn = {}
            self._writer.submit(writes.context(self._position, context))
            self.context = context
        return dict(self.drawn)

    def keep(self, slot: int, draw: Draw, paid: Paid) -> None:
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

    def rest(self, paid: Paid) -> Paid:
        """Return what of a finished or failed stage's costs is not written yet."""
        return paid.minus(self._written)

    def total(self, paid: Paid) -> Paid:
        """Return all that the stage took, with what it had taken before it began again."""
        return self._before.plus(paid)

    def settled(self, paid: Paid) -> list[Write]:
        """Return what to write at the end of the stage: only requests that were lost remain open."""
        requests = self.lost + self.total(paid).answered - self._announced
        return writes.announced(self._position, self._stage, requests)

    def _announce(self, requests: int) -> None:
        if requests > 0:
            self._announced += requests
            self._writer.submit(writes.announced(self._position, self._stage, requests))
