"""The journal of one stage of one prompt, kept in the store: its candidates, and what was asked for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from langchain_cfc.claims import Span
from langchain_cfc.collect.batches.requests import OpenRequests
from langchain_cfc.collect.costs import ModelCalls, Stage, Usage
from langchain_cfc.collect.executor import Outcome
from langchain_cfc.collect.store import Work, Writer, batches, rows
from langchain_cfc.collect.store.schema import Write
from langchain_cfc.errors import CFCError, CollectionError
from langchain_cfc.sampling import DrawnCandidate


class StoreJournal:
    """The journal of one stage of one prompt, kept in the store."""

    paid = Usage()  # what was counted before the stage ended
    # Usage of answers that the stage never saw: they could not be read, or were not asked for again.
    unseen = Usage()

    def __init__(self, writer: Writer, work: Work, stage: Stage, requests: int) -> None:
        self.position = work.position
        self.stage = stage
        self.drawn: dict[int, DrawnCandidate] = dict(work.partial)  # candidates that are stored, by slot
        self.context = work.context  # digest of the prepared input that they were drawn for
        self.lost = 0  # requests that failed although they may have been answered
        self._writer = writer
        self._without_nul = writer.store.without_nul
        self._announced = 0
        self._earlier = self._written = Usage()
        self.announce(requests)

    def resume(self, context: str) -> Mapping[int, DrawnCandidate]:
        """Return the candidates that need not be drawn again for the prepared input with this digest.

        Candidates of another input, such as other retrieved passages, are deleted: all n candidates of a
        prompt share one input.
        """
        # A stage that starts again, as on another machine, counts its usage from 0 again.
        self._earlier, self._written = self._earlier + self._written, Usage()
        if context != self.context:
            if self.drawn:
                self.announce(len(self.drawn))
                self.discard_draws()
            self._writer.submit(rows.set_context(self.position, context))
            self.context = context
        return dict(self.drawn)

    def save_draw(self, slot: int, draw: DrawnCandidate, usage: Usage) -> None:
        """Write a candidate, and what is new in the usage of the stage."""
        try:
            writes = rows.insert_draw(
                self.position, slot, draw, usage - self._written, without_nul=self._without_nul
            )
        except CollectionError:  # the stage fails with it once all candidates are drawn
            return
        self._written = usage
        self.drawn[slot] = draw
        self._writer.submit(writes)

    def discard_draws(self) -> None:
        """Delete all stored candidates; their usage stays counted."""
        self._writer.submit(rows.delete_draws(self.position))
        self.drawn = {}

    def save_claims(self, spans: Sequence[Span], usage: Usage) -> None:
        """Write the claims of an answer, before the requests that score them; `usage` is that of the split.

        Raises `CollectionError` if a claim cannot be stored.
        """
        writes = rows.insert_claims(self.position, spans, usage, without_nul=self._without_nul)
        self._earlier += usage
        self._writer.submit(writes)

    def record_lost_request(self) -> None:
        """Note that a request failed that may have been answered; another one will be made in its place."""
        self.lost += 1
        self._note_requests(1)

    async def flush(self) -> None:
        """Wait until all notes are durable."""
        await self._writer.flush()

    def total_usage(self, usage: Usage) -> Usage:
        """Return the usage of a stage including what it used before it started again."""
        return self._earlier + usage

    def finish(
        self, outcome: Outcome, strip: Sequence[DrawnCandidate] = ()
    ) -> tuple[list[Write], CFCError | None]:
        """Prepare the writes that end a stage, and return them with its error if it failed."""
        usage = outcome.usage - self._written
        error = outcome.result if isinstance(outcome.result, CFCError) else None
        writes: list[Write] = []
        if error is None:
            try:
                writes = self._insert_result(outcome.result, usage, strip)
            except CollectionError as refused:
                error = refused
        if error is not None:
            writes = rows.set_error(self.position, self.stage, error, usage)
        return [*writes, *self._settle_requests(outcome.usage, failed=error is not None)], error

    def _insert_result(self, result: Any, usage: Usage, strip: Sequence[DrawnCandidate]) -> list[Write]:
        without_nul = self._without_nul
        if self.stage == Stage.DRAWN:
            stored = set(self.drawn)
            return rows.insert_draws(self.position, result, usage, without_nul=without_nul, stored=stored)
        if self.stage == Stage.SCORED:
            return rows.insert_scores(self.position, result, usage)
        return rows.insert_labels(self.position, result, usage, without_nul=without_nul, strip=strip)

    def _settle_requests(self, usage: Usage, *, failed: bool) -> list[Write]:
        """Prepare the writes after which only lost requests of a stage count as unanswered."""
        del failed
        requests = self.lost + self.total_usage(usage).answered - self._announced
        return rows.announce_requests(self.position, self.stage, requests)

    def announce(self, requests: int) -> None:
        """Note that so many requests may be made, before they are."""
        self._note_requests(requests)

    def _note_requests(self, requests: int) -> None:
        if requests > 0:
            self._announced += requests
            self._writer.submit(rows.announce_requests(self.position, self.stage, requests))


class BatchJournal(StoreJournal):
    """The journal of a stage whose requests may go through batches.

    Answers are stored as they come, and candidates made of them only once the stage ends: what is stored
    twice could not be told apart from what was paid for twice. Requests in batches are never lost, so only
    those that are made live are announced: `requests`, unless the stage `is_batched`, and those in place of a
    batch.
    """

    def __init__(
        self,
        writer: Writer,
        work: Work,
        stage: Stage,
        requests: int,
        open_requests: OpenRequests,
        *,
        is_batched: bool,
    ) -> None:
        self._held: dict[int, DrawnCandidate] = {}
        self._open_requests = open_requests
        self.is_batched = is_batched
        super().__init__(writer, work, stage, requests)

    def save_draw(self, slot: int, draw: DrawnCandidate, usage: Usage) -> None:
        """Keep a candidate until the stage ends: its answer is stored."""
        del usage
        self._held[slot] = draw

    def discard_draws(self) -> None:
        """Delete all candidates."""
        self._held = {}
        super().discard_draws()

    def save_claims(self, spans: Sequence[Span], usage: Usage) -> None:
        """Write the claims of an answer; usage of stored answers is written once the stage ends."""
        paid, _ = self._open_requests.sum_stage(self.position, self.stage)
        super().save_claims(spans, _subtract(usage, paid))

    def announce(self, requests: int) -> None:
        """Announce requests, unless they go through batches."""
        if not self.is_batched:
            super().announce(requests)

    def announce_live_request(self) -> None:
        """Note that a request is made live."""
        self._note_requests(1)

    def settle_live_request(self, *, lost: bool) -> list[Write]:
        """Prepare to note the end of a request that was made live: its answer is stored, or none was made."""
        if lost:
            self.lost += 1
            return []
        self._announced -= 1
        return rows.announce_requests(self.position, self.stage, -1)

    def _settle_requests(self, usage: Usage, *, failed: bool) -> list[Write]:
        """Prepare to delete the stored answers as well, which the stage is made of."""
        self.paid, batched = self._open_requests.finish_stage(self.position, self.stage)
        self.unseen = _subtract(self.paid, self.total_usage(usage))
        writes = [
            *super()._settle_requests(usage + self.unseen, failed=failed),
            *rows.insert_calls(self.position, self.stage, self.unseen),
            *batches.finish_stage(self.position, self.stage, batched),
        ]
        # The next run draws the others alone.
        for slot, draw in self._held.items() if failed else ():
            with suppress(CollectionError):  # one that cannot be stored is why the stage failed
                writes += rows.insert_draw(self.position, slot, draw, Usage(), without_nul=self._without_nul)
        return writes


def _subtract(paid: Usage, seen: Usage) -> Usage:
    """Return what of the paid usage was not seen, by model."""
    rest: list[ModelCalls] = []
    for one in paid.calls:
        known = [other for other in seen.calls if other.model == one.model]
        left = replace(
            one,
            input_tokens=max(0, one.input_tokens - sum(other.input_tokens for other in known)),
            output_tokens=max(0, one.output_tokens - sum(other.output_tokens for other in known)),
            answered=max(0, one.answered - sum(other.answered for other in known)),
        )
        if left.input_tokens or left.output_tokens or left.answered:
            rest.append(left)
    return Usage(tuple(rest), sum(one.answered for one in rest))
