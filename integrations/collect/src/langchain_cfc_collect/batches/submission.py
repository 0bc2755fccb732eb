"""`Submissions`: submits batches and fetches their answers, despite provider faults and killed runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar
from uuid import uuid4

from langchain_cfc.errors import CollectionError
from langchain_cfc.execution import describe_error, is_permanent
from langchain_cfc.support.text import quote
from langchain_cfc_collect.batches.providers import (
    HTTP_OK,
    BatchState,
    Headers,
    Provider,
    make_id,
)
from langchain_cfc_collect.batches.requests import (
    KEY_DIGITS,
    OpenRequests,
    PendingRequest,
    Route,
)
from langchain_cfc_collect.costs import Usage
from langchain_cfc_collect.failures import is_transient
from langchain_cfc_collect.store import Writer, batches
from langchain_cfc_collect.store.batches import Answer, BatchRow

T = TypeVar("T")

# Attempts to upload a batch, and to get a reply that can be read; nothing is charged for either.
_MAX_ATTEMPTS = 8
_MAX_REREADS = 3


@dataclass(frozen=True)
class WaitTimes:
    """Waiting times of batches, in seconds."""

    quiet: float = 1.0  # time without a new request after which queued requests are submitted
    first: float = 2.0  # wait before the first attempt; each further wait is half as long again
    longest: float = 60.0  # longest wait between two attempts


WAIT_TIMES = WaitTimes()


def _list_waits() -> Iterator[float]:
    """Yield the seconds between attempts, without end."""
    wait = WAIT_TIMES.first
    while True:
        yield wait
        wait = min(1.5 * wait, WAIT_TIMES.longest)


@dataclass(eq=False)
class OpenBatch:
    """Batch that is not fetched yet, with its requests by line."""

    row: BatchRow
    provider: Provider
    requests: Mapping[int, PendingRequest]
    state: BatchState | None = None
    is_guess: bool = False  # whether its id is not known for certain
    started: float = field(default_factory=time.monotonic)

    @property
    def name(self) -> str:
        """Name of the batch in messages: the provider's id, if it is known."""
        return self.row.id or "a batch that is being submitted"

    def describe(self) -> str:
        """Return a description of the batch's progress for users."""
        done, total = (0, len(self.requests)) if self.state is None else (self.state.done, self.state.total)
        minutes = (time.monotonic() - self.started) / 60
        return f"{self.name}: {done:,} of {total:,} requests, {minutes:.0f} min"


@dataclass(eq=False)
class Submissions:
    """Batches of a run that are not fetched yet."""

    writer: Writer
    providers: Sequence[Provider]
    requests: OpenRequests
    spawn: Callable[[Coroutine[Any, Any, None]], None]  # runs a task whose failure ends the run
    on_batch: Callable[[str], None]  # called with a line of text about what happens to a batch
    on_wait: Callable[[str | None], None]  # called with a description of the batches waited for, or None
    _is_waiting: bool = False
    _batches: dict[int, OpenBatch] = field(default_factory=dict)
    _next_number: int = 0
    _known_ids: set[str] = field(default_factory=set)
    _last_problem: str = ""  # why a provider does not answer, for progress messages

    @property
    def estimate(self) -> Usage:
        """Estimated usage of all batches that are not fetched yet."""
        return sum((one.row.estimate for one in self._batches.values()), Usage())

    def report_waiting(self) -> None:
        """Report the batches that the run waits for, or once that it waits for none any more."""
        waiting = [*self._batches.values()]
        if waiting:
            more = f" (and {len(waiting) - 1} more)" if len(waiting) > 1 else ""
            self.on_wait(f"{waiting[0].describe()}{more}{self._last_problem}")
        elif self._is_waiting:
            self.on_wait(None)
        self._is_waiting = bool(waiting)

    async def resume(self) -> None:
        """Find out which batches of earlier runs were submitted, and start waiting for these."""
        with self.writer.store.begin_read() as connection:
            unfinished = batches.read_open_batches(connection)
            self._known_ids = batches.read_ids(connection)
            self._next_number = batches.read_next_number(connection)
        for row, keys in unfinished:
            provider = self._choose_provider(row)
            batch = OpenBatch(row, provider, {line: PendingRequest(key) for line, key in keys.items()})
            found = row.id or await self._find(batch)
            if found is None:  # the batch was never submitted
                await self._delete(batch)
                continue
            if row.id is None:
                await self._save_id(batch, found)
            batch.requests = {line: self.requests.find(key) for line, key in keys.items()}
            for pending in batch.requests.values():
                pending.is_queued = True
            self._batches[row.number] = batch
            self.on_batch(f"waiting for {found}, submitted by an earlier run: {len(keys):,} requests")
            self.spawn(self._wait_and_fetch(batch))

    def _choose_provider(self, row: BatchRow) -> Provider:
        for one in self.providers:
            if (one.client.provider, one.client.address) == (row.provider, row.address):
                return one
        msg = (
            f"{self.writer.store.name} waits for a batch at {row.provider} ({row.address}), but no model of "
            "this run sends its requests there: continue with the models that the collection was started with"
        )
        raise CollectionError(msg)

    async def submit(self, route: Route, requests: Sequence[PendingRequest], estimate: Usage) -> None:
        """Write a batch to the store, and start the task that submits it and waits for it."""
        provider = route.provider
        row = BatchRow(
            self._next_number,
            uuid4().hex[:KEY_DIGITS],
            provider.client.provider,
            provider.client.address,
            route.endpoint,
            route.model,
            int(time.time()),
            sum(one.input_tokens for one in estimate.calls),
            sum(one.output_tokens for one in estimate.calls),
        )
        self._next_number += 1
        batch = OpenBatch(row, provider, dict(enumerate(requests)))
        self._batches[row.number] = batch
        await self.writer.write(batches.insert_batch(row, [pending.key for pending in requests]))
        self.spawn(self._create_and_fetch(batch, route.headers))

    async def _create_and_fetch(self, batch: OpenBatch, headers: Headers) -> None:
        await self._save_id(batch, await self._create(batch, headers))
        await self._wait_and_fetch(batch)

    async def _create(self, batch: OpenBatch, headers: Headers) -> str:
        """Submit a batch exactly once, and return the provider's id of it."""
        provider, row = batch.provider, batch.row
        bodies = [one.body for one in batch.requests.values() if one.body is not None]
        try:
            prepared = await self._retry(
                batch, lambda: provider.prepare(row.key, bodies, row.endpoint, headers), _MAX_ATTEMPTS
            )
        except CollectionError as error:
            await self._delete(batch)
            raise self._make_refused_error(batch, describe_error(error.__cause__ or error)) from error
        waits, unreadable = _list_waits(), 0
        while True:
            try:
                return await provider.create(row.key, prepared, row.endpoint)
            except Exception as error:  # noqa: BLE001 - any failure of a client
                failure = error
            if not is_permanent(failure):  # the batch may have been created despite it
                self._last_problem = f"; the provider does not answer: {describe_error(failure)}"
                await asyncio.sleep(next(waits))
                found = await self._find(batch)
                self._last_problem = ""
                if found is not None:
                    return found
                unreadable += not is_transient(failure)
            if is_permanent(failure) or unreadable == _MAX_ATTEMPTS:
                await self._delete(batch)
                raise self._make_refused_error(batch, describe_error(failure)) from failure

    async def _find(self, batch: OpenBatch) -> str | None:
        """Return the provider's id of a batch that may have been created; None if it was not."""
        row, size = batch.row, len(batch.requests)
        batch.is_guess = batch.provider.guesses
        return await self._retry(
            batch, lambda: batch.provider.find(row.key, row.created_at, size, self._known_ids)
        )

    async def _save_id(self, batch: OpenBatch, provider_id: str) -> None:
        """Make the provider's id of a batch durable before the run waits for it, unless it is a guess."""
        self._known_ids.add(provider_id)
        if not batch.is_guess:
            await self.writer.write(batches.set_id(batch.row.number, provider_id))
        batch.row = replace(batch.row, id=provider_id)

    async def _wait_and_fetch(self, batch: OpenBatch) -> None:
        """Wait until a batch has ended, and hand on its answers."""
        waits = _list_waits()
        while True:
            await asyncio.sleep(next(waits))
            batch.state = state = await self._retry(batch, lambda: batch.provider.retrieve(batch.name))
            self.report_waiting()
            if state.ending is not None:
                break
        if state.ending == "refused":
            await self._delete(batch)
            raise self._make_refused_error(batch, quote(state.reason or "no reason given"))
        results, foreign = await self._retry(batch, lambda: self._read_results(batch, state))
        for _ in range(_MAX_REREADS):  # a file that lacks results may have been cut off on its way
            if not 0 < len(results) < min(state.done, len(batch.requests)):
                break
            await asyncio.sleep(next(waits))
            results = (await self._retry(batch, lambda: self._read_results(batch, state)))[0] | results
        if foreign and not results:
            if not batch.is_guess:
                raise self._make_foreign_error(batch, foreign)
            await self._resubmit(batch)
            return
        missing = [line for line in batch.requests if line not in results]
        # Those that were processed may be charged, although no line about them can be read.
        lost = {*missing[: max(0, state.done - len(results))]}
        answers = [
            (pending, results.get(line, Answer(0, live=False, lost=line in lost)))
            for line, pending in batch.requests.items()
        ]
        answered = sum(answer.status == HTTP_OK for _, answer in answers)
        said = f"{batch.name} has ended: {answered:,} of {len(answers):,} requests are answered"
        if state.ending == "cancelled":
            del self._batches[batch.row.number]
            await self.requests.write_answers([pair for pair in answers if pair[1].status])
            with self.writer.store.begin_write() as connection:
                batches.delete_unanswered(connection, batch.row.number)
            msg = (
                f"{said}, because it was cancelled at the provider. These answers are kept. To collect the "
                "rest, run the same command again: it submits another batch"
            )
            raise CollectionError(msg)
        live = len(answers) - answered
        self.on_batch(said + (f"; the other {live:,} are sent live, at full price" if live else ""))
        end = batches.set_id(batch.row.number, batch.name) + batches.set_ended(batch.row.number)
        del self._batches[batch.row.number]
        await self.requests.write_answers(answers, *end)

    async def _read_results(self, batch: OpenBatch, state: BatchState) -> tuple[dict[int, Answer], list[str]]:
        """Return the first answer of each line of a batch, and the ids of other batches' requests.

        Raises a `ValueError` if nothing can be read: live calls in place of all answers would be paid twice.
        """
        key, foreign = batch.row.key, list[str]()
        results: dict[int, Answer] = {}
        lines = {make_id(key, line): line for line in batch.requests}
        async for id_, answer in batch.provider.read_results(batch.name, state):
            line = lines.get(id_)
            if line is not None and (line not in results or results[line].packed is None):
                results[line] = answer
            elif not id_.startswith(make_id(key, "")):
                foreign.append(id_)
        if not (results or foreign) and (state.done or state.files):
            msg = "none of its results can be read"
            raise ValueError(msg)
        return results, foreign

    async def _resubmit(self, batch: OpenBatch) -> None:
        """Look for a batch again after a wrong match, and queue its requests again if it is not found."""
        row = batch.row
        batch.row, batch.state = replace(row, id=None), None
        found = await self._find(batch)
        if found is not None:
            await self._save_id(batch, found)
            await self._wait_and_fetch(batch)
            return
        await self._delete(batch)
        for pending in batch.requests.values():
            self.requests.requeue(pending)

    async def _delete(self, batch: OpenBatch) -> None:
        """Delete a batch from the store for which nothing was charged."""
        self._batches.pop(batch.row.number, None)
        await self.writer.flush()
        with self.writer.store.begin_write() as connection:
            batches.delete_batch(connection, batch.row.number)

    @staticmethod
    def _make_foreign_error(batch: OpenBatch, foreign: Sequence[str]) -> CollectionError:
        row = batch.row
        return CollectionError(
            f"{row.provider} ({row.address}) returns the results of other requests for {batch.name}: "
            f"{len(foreign):,} ids such as {foreign[0][:40]!r}, none of them {make_id(row.key, '...')!r}. "
            "The batch was charged: ask the provider, or pay again with another store"
        )

    def _make_refused_error(self, batch: OpenBatch, reason: str) -> CollectionError:
        row = batch.row
        return CollectionError(
            f"{row.provider} ({row.address}) refuses a batch of {len(batch.requests):,} requests to "
            f"{row.model}: {reason}. It was not charged. If too many tokens are queued, collect fewer "
            "prompts; if batches are not supported, use another store and live calls"
        )

    async def _retry(
        self, batch: OpenBatch, call: Callable[[], Awaitable[T]], max_attempts: int | None = None
    ) -> T:
        """Make a call that costs nothing, at most `max_attempts` times while its failures are transient.

        A reply that cannot be read, perhaps of a gateway, is not the provider's last word either.
        """
        waits, attempts = _list_waits(), 0
        while True:
            attempts += 1
            try:
                result = await call()
            except Exception as error:
                most = max_attempts if is_transient(error) else _MAX_ATTEMPTS
                if is_permanent(error) or (most is not None and attempts >= most):
                    raise self._make_lost_error(batch, error) from error
                self._last_problem = f"; the provider does not answer: {describe_error(error)}"
                self.report_waiting()
                await asyncio.sleep(next(waits))
            else:
                self._last_problem = ""
                return result

    @staticmethod
    def _make_lost_error(batch: OpenBatch, error: Exception) -> CollectionError:
        row = batch.row
        return CollectionError(
            f"{row.provider} ({row.address}) reports no state or results of {batch.name}: "
            f"{describe_error(error)}. Nothing is lost: with a key of the account that submitted it, the "
            "same command fetches it"
        )
