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
from langchain_cfc_collect.batches.providers import BatchState, Headers, Provider, make_id
from langchain_cfc_collect.batches.requests import OpenRequests, PendingRequest, Route
from langchain_cfc_collect.costs import Usage
from langchain_cfc_collect.failures import is_transient
from langchain_cfc_collect.store import Writer, batches
from langchain_cfc_collect.store.batches import Answer, BatchRow

T = TypeVar("T")

# Number of digits of a batch's key, which is the prefix of the id of each of its requests.
_KEY_DIGITS = 16
# Attempts to upload a batch, and to get a reply that can be read.
_MAX_ATTEMPTS = 8
_MAX_REREADS = 3


# Seconds of the first wait and of the longest between two attempts; each is half as long again as the last.
_FIRST_WAIT, _LONGEST_WAIT = 2.0, 60.0


def _list_waits() -> Iterator[float]:
    """Yield the seconds between attempts, without end."""
    wait = _FIRST_WAIT
    while True:
        yield wait
        wait = min(1.5 * wait, _LONGEST_WAIT)


@dataclass(eq=False)
class OpenBatch:
    """Batch that is not fetched yet, with its requests by line."""

    row: BatchRow
    provider: Provider
    requests: Mapping[int, PendingRequest]
    done: int = 0  # number of requests that the provider has processed
    started: float = field(default_factory=time.monotonic)

    @property
    def name(self) -> str:
        """Name of the batch in messages: the provider's id, if it is known."""
        return self.row.id or "a batch that is being submitted"

    def describe(self) -> str:
        """Return a description of the batch's progress for users."""
        minutes = (time.monotonic() - self.started) / 60
        return f"{self.name}: {self.done:,} of {len(self.requests):,} requests, {minutes:.0f} min"

    def make_error(self, text: str) -> CollectionError:
        """Return an error that begins with the provider of the batch."""
        return CollectionError(f"{self.row.provider} ({self.row.address}) {text}")


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
    _ids: dict[int, str | None] = field(default_factory=dict)  # the providers' ids of all batches so far
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
        """Read the answers of earlier runs, and start waiting for their batches."""
        with self.writer.store.begin_read() as connection:
            unfinished = batches.read_open_batches(connection)
            self._ids = {row.number: row.id for row in batches.read_batches(connection)}
            for key, answer in batches.read_answers(connection):
                self.requests.find(key).answer = answer
        for row, keys in unfinished:
            requests = {line: self.requests.find(key) for line, key in keys.items()}
            for pending in requests.values():
                pending.is_queued = True
            self._start(OpenBatch(row, self._choose_provider(row), requests), None)

    def _choose_provider(self, row: BatchRow) -> Provider:
        for one in self.providers:
            if (one.name, one.address) == (row.provider, row.address):
                return one
        msg = (
            f"{self.writer.store.name} waits for a batch at {row.provider} ({row.address}), but no model of "
            "this run sends its requests there: continue with the models that the collection was started with"
        )
        raise CollectionError(msg)

    async def submit(self, route: Route, requests: Sequence[PendingRequest], estimate: Usage) -> None:
        """Write a batch to the store, and start the task that submits it and waits for it."""
        provider, (total,) = route.provider, estimate.calls
        row = BatchRow(
            max(self._ids, default=-1) + 1,
            uuid4().hex[:_KEY_DIGITS],
            provider.name,
            provider.address,
            route.endpoint,
            route.model,
            int(time.time()),
            total.input_tokens,
            total.output_tokens,
        )
        self._ids[row.number] = None
        batch = OpenBatch(row, provider, dict(enumerate(requests)))
        await self.writer.write(batches.insert_batch(row, [pending.key for pending in requests]))
        self._start(batch, route.headers)

    def _start(self, batch: OpenBatch, headers: Headers | None) -> None:
        self._batches[batch.row.number] = batch
        self.spawn(self._follow(batch, headers))

    async def _follow(self, batch: OpenBatch, headers: Headers | None) -> None:
        """Submit a batch, or find that of an earlier run if `headers` are None, and hand on its answers."""
        provider_id = batch.row.id
        if provider_id is None:
            provider_id = await (self._find(batch) if headers is None else self._create(batch, headers))
            if provider_id is None:  # it was never submitted
                await self._end(batch)
                for pending in batch.requests.values():
                    pending.is_queued = False
                    if pending.is_taken:
                        self.requests.enqueue(pending)
                return
            await self.writer.write(batches.set_id(batch.row.number, provider_id))
            self._ids[batch.row.number] = provider_id
            batch.row = replace(batch.row, id=provider_id)
        if headers is None:
            number = len(batch.requests)
            self.on_batch(f"waiting for {provider_id}, submitted by an earlier run: {number:,} requests")
        await self._wait_and_fetch(batch)

    async def _create(self, batch: OpenBatch, headers: Headers) -> str:
        """Submit a batch exactly once, and return the provider's id of it."""
        provider, row = batch.provider, batch.row
        bodies = [one.body for one in batch.requests.values()]
        waits, attempts, file = _list_waits(), 0, None
        while True:
            try:
                if file is None:
                    file = await provider.upload(row.key, bodies, row.endpoint)
                return await provider.create(row.key, bodies, file, row.endpoint, headers)
            except Exception as error:  # noqa: BLE001 - any failure of a client
                failure = error
            if not is_permanent(failure):  # the batch may have been created despite it
                self._last_problem = f"; the provider does not answer: {describe_error(failure)}"
                await asyncio.sleep(next(waits))
                if file is not None and (found := await self._find(batch)) is not None:
                    return found
                attempts += file is None or not is_transient(failure)
            if is_permanent(failure) or attempts == _MAX_ATTEMPTS:
                raise await self._refuse(batch, describe_error(failure)) from failure

    async def _find(self, batch: OpenBatch) -> str | None:
        """Return the provider's id of a batch that may have been created; None if it was not."""
        row, size = batch.row, len(batch.requests)
        return await self._retry(
            batch, lambda: batch.provider.find(row.key, row.created_at, size, self._ids.values())
        )

    async def _wait_and_fetch(self, batch: OpenBatch) -> None:
        """Wait until a batch has ended, and hand on its answers."""
        waits = _list_waits()
        while True:
            await asyncio.sleep(next(waits))
            state = await self._retry(batch, lambda: batch.provider.retrieve(batch.name))
            batch.done = state.done
            self.report_waiting()
            if state.ending is not None:
                break
        if state.ending == "refused":
            raise await self._refuse(batch, quote(state.reason or "no reason given"))
        results = await self._retry(batch, lambda: self._read_results(batch, state))
        for _ in range(_MAX_REREADS):  # a file that lacks results may have been cut off on its way
            if len(results) >= min(state.done, len(batch.requests)):
                break
            await asyncio.sleep(next(waits))
            results = await self._retry(batch, lambda: self._read_results(batch, state)) | results
        missing = [line for line in batch.requests if line not in results]
        # Those that were processed may be charged, although no line about them can be read.
        lost = {*missing[: max(0, state.done - len(results))]}
        answers = [
            (pending, results.get(line, Answer(lost=line in lost)))
            for line, pending in batch.requests.items()
        ]
        answered = [pair for pair in answers if pair[1].packed is not None]
        said = f"{batch.name} has ended: {len(answered):,} of {len(answers):,} requests are answered"
        if state.ending == "cancelled":
            await self._end(batch, answered)
            msg = (
                f"{said}, because it was cancelled at the provider. These answers are kept. To collect the "
                "rest, run the same command again: it submits another batch"
            )
            raise CollectionError(msg)
        live = len(answers) - len(answered)
        self.on_batch(said + (f"; the other {live:,} are sent live, at full price" if live else ""))
        await self._end(batch, answers)

    async def _read_results(self, batch: OpenBatch, state: BatchState) -> dict[int, Answer]:
        """Return the first answer of each line of a batch.

        Raises a `ValueError` if nothing can be read: live calls in place of all answers would be paid twice.
        Raises `CollectionError` if all results are of other requests.
        """
        key, foreign = batch.row.key, list[str]()
        results: dict[int, Answer] = {}
        lines = {make_id(key, line): line for line in batch.requests}
        async for id_, answer in batch.provider.read_results(state):
            line = lines.get(id_)
            if line is not None and (line not in results or results[line].packed is None):
                results[line] = answer
            elif not id_.startswith(make_id(key, "")):
                foreign.append(id_)
        if foreign and not results:
            msg = (
                f"returns the results of other requests for {batch.name}: {len(foreign):,} ids such as "
                f"{foreign[0][:40]!r}, none of them {make_id(key, '...')!r}. The batch was charged: ask the "
                "provider, or pay again with another store"
            )
            raise batch.make_error(msg)
        if not results and (state.done or state.files):
            msg = "none of its results can be read"
            raise ValueError(msg)
        return results

    async def _end(self, batch: OpenBatch, answers: Sequence[tuple[PendingRequest, Answer]] = ()) -> None:
        """Hand on the answers of a batch that has ended; requests without a result are forgotten."""
        del self._batches[batch.row.number]
        await self.requests.write_answers(answers, batches.end_batch(batch.row.number))

    async def _refuse(self, batch: OpenBatch, reason: str) -> CollectionError:
        """End a batch that was not submitted or not processed, and return the error about it."""
        await self._end(batch)
        return batch.make_error(
            f"refuses a batch of {len(batch.requests):,} requests to {batch.row.model}: {reason}. It was not "
            "charged. If too many tokens are queued, collect fewer prompts; if batches are not supported, "
            "use another store and live calls"
        )

    async def _retry(self, batch: OpenBatch, call: Callable[[], Awaitable[T]]) -> T:
        """Make a call that costs nothing, as often as necessary while its failures are transient.

        A reply that cannot be read, perhaps of a gateway, is not the provider's last word either.
        """
        waits, attempts = _list_waits(), 0
        while True:
            attempts += 1
            try:
                result = await call()
            except CollectionError:
                raise
            except Exception as error:
                if is_permanent(error) or (attempts >= _MAX_ATTEMPTS and not is_transient(error)):
                    msg = (
                        f"reports no state or results of {batch.name}: {describe_error(error)}. Nothing is "
                        "lost: with a key of the account that submitted it, the same command fetches it"
                    )
                    raise batch.make_error(msg) from error
                # A provider that answers cannot always say yet which batch was submitted.
                is_open = isinstance(error, TimeoutError)
                problem = str(error) if is_open else f"the provider does not answer: {describe_error(error)}"
                self._last_problem = f"; {problem}"
                self.report_waiting()
                await asyncio.sleep(next(waits))
            else:
                self._last_problem = ""
                return result
