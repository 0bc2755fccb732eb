"""`StoreJournal`: the persistent log of one stage of one prompt, with its candidates and requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import Any

from langchain_core.load import dumps

from langchain_cfc.claims import Span
from langchain_cfc.errors import CFCError, CollectionError
from langchain_cfc.sampling import DrawnCandidate
from langchain_cfc_collect.batches.requests import OpenRequests
from langchain_cfc_collect.costs import Stage, Usage
from langchain_cfc_collect.stages import Journal, Outcome
from langchain_cfc_collect.store import StoredPrompt, Writer, batches, calls, rows
from langchain_cfc_collect.store.schema import Write


class StoreJournal(Journal):
    """Journal of one stage of one prompt, kept in the store."""

    counted_usage = Usage()  # usage that the budget counted before the stage ended
    # Usage of stored answers that the stage did not use: they could not be read, or were not requested again.
    unused_usage = Usage()

    def __init__(self, writer: Writer, prompt: StoredPrompt, stage: Stage, requests: int) -> None:
        super().__init__()
        self.position = prompt.position
        self.stage = stage
        self.drawn: dict[int, DrawnCandidate] = dict(prompt.partial)  # stored candidates, by slot
        self.lost_requests = 0  # number of failed requests that may have been answered
        self._context = prompt.context  # digest of the prepared input that they were drawn for
        self._writer = writer
        self._announced_requests = 0
        self._written_usage = Usage()
        self._unwritten: list[Write] = []  # candidates for the next transaction
        self.announce(requests)

    def load(self, prepared: Any) -> Mapping[int, DrawnCandidate]:
        """Return the stored candidates that were drawn for this prepared input.

        Candidates of another input, for example with other retrieved passages, are deleted, because all n
        candidates of a prompt must share one input.
        """
        # LangChain writes objects that it cannot serialize with their address, so they match in no later run.
        context = blake2b(dumps(prepared).encode(), digest_size=8).hexdigest()
        if context != self._context:
            if self.drawn:
                self.announce(len(self.drawn))
                self.discard()
            self._writer.submit(rows.set_context(self.position, context))
            self._context = context
        return dict(self.drawn)

    def save(self, slot: int, draw: DrawnCandidate) -> None:
        """Write a candidate, and with the next transaction the usage of the stage since the last one."""
        try:
            added = rows.insert_draw(self.position, slot, draw)
        except CollectionError:  # `finish` raises it again, once all candidates are drawn
            return
        self.drawn[slot] = draw
        if not self._unwritten:
            self._writer.submit(self._take_unwritten)
        self._unwritten.append(added)

    def _take_unwritten(self) -> list[Write]:
        """Return the writes of the candidates that were drawn since the last ones, and of their usage."""
        added, self._unwritten = self._unwritten, []
        usage = self._count_new(Usage.from_recorder(self.recorder))
        return [*added, *calls.insert_calls(self.position, self.stage, usage)]

    def _count_new(self, usage: Usage) -> Usage:
        """Return the part of the usage of the stage that is not written yet, which the caller then writes."""
        new, self._written_usage = usage - self._written_usage, usage
        return new

    def discard(self) -> None:
        """Delete all stored candidates; their usage stays counted."""
        self._unwritten = []
        self._writer.submit(rows.delete_draws(self.position))
        self.drawn = {}

    def save_claims(self, spans: Sequence[Span], usage: Usage) -> None:
        """Write the claims of an answer before they are scored; `usage` is that of splitting the answer.

        Raises `CollectionError` if a claim cannot be stored.
        """
        writes = rows.insert_claims(self.position, spans)
        self._writer.submit(writes + calls.insert_calls(self.position, self.stage, self._count_new(usage)))

    def record_lost_request(self) -> None:
        """Record a failed request that may have been answered, and announce the request that replaces it."""
        self.lost_requests += 1
        StoreJournal.announce(self, 1)  # it was made live, even if the stage is batched

    async def flush(self) -> None:
        """Wait until everything submitted to the store is committed."""
        await self._writer.flush()

    def finish(self, outcome: Outcome, *, keep_messages: bool = False) -> tuple[list[Write], CFCError | None]:
        """Return the writes that end a stage, and its error if it failed."""
        writes = self._take_unwritten() if self._unwritten else []
        writes += calls.insert_calls(self.position, self.stage, self._count_new(outcome.usage))
        error = outcome.result if isinstance(outcome.result, CFCError) else None
        if error is None:
            try:
                writes += self._make_result_writes(outcome.result, keep_messages=keep_messages)
            except CollectionError as refused:
                error = refused
        if error is not None:
            writes += rows.set_error(self.position, self.stage, error)
        return [*writes, *self._settle_requests(outcome.usage, failed=error is not None)], error

    def _make_result_writes(self, result: Any, *, keep_messages: bool) -> list[Write]:
        if result is None:
            return []
        if self.stage == Stage.DRAWN:
            return rows.insert_draws(self.position, result, stored=set(self.drawn))
        if self.stage == Stage.SCORED:
            return rows.insert_scores(self.position, result)
        return rows.insert_labels(self.position, result, keep_messages=keep_messages)

    def _settle_requests(self, usage: Usage, *, failed: bool) -> list[Write]:
        """Return the writes after which only the lost requests of a stage count as unanswered."""
        del failed
        requests = self.lost_requests + usage.answered - self._announced_requests
        return calls.announce_requests(self.position, self.stage, requests)

    def announce(self, requests: int) -> None:
        """Record that up to `requests` more requests may follow."""
        if requests > 0:
            self._announced_requests += requests
            self._writer.submit(calls.announce_requests(self.position, self.stage, requests))


class BatchJournal(StoreJournal):
    """Journal of a stage whose requests may go through batches.

    Answers are stored as they arrive, and the candidates made from them only when the stage ends: otherwise
    their usage would be stored twice and look as if it had been paid twice. Requests in batches are never
    lost, so only live requests are announced: `requests` if the stage is not `is_batched`, and each live
    request that replaces one of a batch.
    """

    def __init__(
        self,
        writer: Writer,
        prompt: StoredPrompt,
        stage: Stage,
        requests: int,
        open_requests: OpenRequests,
        *,
        is_batched: bool,
    ) -> None:
        self._unsaved_draws: dict[int, DrawnCandidate] = {}
        self._open_requests = open_requests
        self.is_batched = is_batched
        super().__init__(writer, prompt, stage, requests)

    def save(self, slot: int, draw: DrawnCandidate) -> None:
        """Keep a candidate in memory until the stage ends; its answer is already stored."""
        self._unsaved_draws[slot] = draw

    def discard(self) -> None:
        """Delete all candidates, in memory and in the store."""
        self._unsaved_draws = {}
        super().discard()

    def _count_new(self, usage: Usage) -> Usage:
        """Return the part of the usage that is not written yet: stored answers were written with theirs."""
        return super()._count_new(usage - self._open_requests.sum_stage(self.position, self.stage))

    def announce(self, requests: int) -> None:
        """Announce requests, unless they go through batches."""
        if not self.is_batched:
            super().announce(requests)

    def announce_live_request(self) -> None:
        """Record that one live request is about to be made."""
        super().announce(1)

    def settle_live_request(self, *, lost: bool) -> list[Write]:
        """Return the writes that end a live request; one that is `lost` stays announced."""
        if lost:
            self.lost_requests += 1
            return []
        self._announced_requests -= 1
        return calls.announce_requests(self.position, self.stage, -1)

    def _settle_requests(self, usage: Usage, *, failed: bool) -> list[Write]:
        """Return the writes of the base class, and those that delete the stored answers of the stage."""
        self.counted_usage = self._open_requests.finish_stage(self.position, self.stage)
        self.unused_usage = self.counted_usage - usage
        writes = [
            *super()._settle_requests(usage - self.counted_usage, failed=failed),
            *batches.finish_stage(self.position, self.stage),
        ]
        # Keep the candidates of a failed stage, so that the next run draws only the others.
        for slot, draw in self._unsaved_draws.items() if failed else ():
            with suppress(CollectionError):  # a candidate that cannot be stored made the stage fail
                writes.append(rows.insert_draw(self.position, slot, draw))
        return writes
