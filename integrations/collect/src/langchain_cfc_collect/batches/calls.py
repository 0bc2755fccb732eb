"""Calls that may wait for a batch, without holding a permit and outside of the time limit while they wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from langchain_core.rate_limiters import BaseRateLimiter

from langchain_cfc.execution import CallLimits, ConcurrencyLimiter, set_context_variable
from langchain_cfc_collect.calls import CallPolicy, StageCalls
from langchain_cfc_collect.journal import BatchJournal


@dataclass(eq=False)
class RunningCalls:
    """Counter of the calls that do not wait for a batch; while there are any, more requests may come."""

    number: int = 0

    @contextmanager
    def count_one(self) -> Iterator[None]:
        """Count one more running call during a `with` block."""
        self.number += 1
        try:
            yield
        finally:
            self.number -= 1


@dataclass(eq=False)
class OpenCall:
    """Call of a stage that is being made."""

    journal: BatchJournal
    running_calls: RunningCalls
    limiter: ConcurrencyLimiter
    timeout: float | None  # seconds for which it may hold a permit at a time
    pending: int = 0  # number of its requests that wait for batches
    was_batched: bool = False
    has_permit: bool = False
    expired: asyncio.Event = field(default_factory=asyncio.Event)
    _timer: asyncio.TimerHandle | None = None

    @asynccontextmanager
    async def hold_permit(self) -> AsyncIterator[None]:
        """Hold a permit during a `with` block, except while the call waits for batches."""
        await self._acquire()
        try:
            yield
        finally:
            self._release()

    @asynccontextmanager
    async def wait_for_batch(self) -> AsyncIterator[None]:
        """Give the permit back during a `with` block, and acquire it again when nothing is pending."""
        self._change_pending(1)
        self._release()
        try:
            yield
        finally:
            self._change_pending(-1)
        if not self.pending and not self.has_permit:
            await self._acquire()
            if self.pending:  # another request of the call began to wait meanwhile
                self._release()

    def _change_pending(self, change: int) -> None:
        """Change the number of pending requests; a call counts as running while none is pending."""
        was_running = not self.pending
        self.pending += change
        self.running_calls.number += (not self.pending) - was_running

    async def _acquire(self) -> None:
        await self.limiter.aacquire()
        self.has_permit = True
        if self.timeout is not None:
            self._timer = asyncio.get_running_loop().call_later(self.timeout, self.expired.set)

    def _release(self) -> None:
        if self.has_permit:
            self.has_permit = False
            self.limiter.release()
        if self._timer is not None:
            self._timer.cancel()


# The call of a stage in whose context something runs; None outside of any.
CURRENT_CALL: ContextVar[OpenCall | None] = ContextVar("langchain_cfc_open_call", default=None)


class BatchedCalls(StageCalls):
    """Makes the calls of one stage of a prompt, whose requests may wait for batches.

    The policy's rate limits apply to live requests; its time limit and the limiter do not apply while a call
    waits for batches.
    """

    _journal: BatchJournal

    def __init__(
        self,
        policy: CallPolicy,
        rate_limiter: BaseRateLimiter | None,
        running: RunningCalls,
        limiter: ConcurrencyLimiter,
        journal: BatchJournal,
    ) -> None:
        super().__init__(policy, rate_limiter, journal)
        self._running_calls = running
        self._limiter = limiter

    async def acall(self, arun: Callable[[Any], Awaitable[Any]], item: Any, within: CallLimits) -> Any:
        """Call, and retry transient failures; return the last call's result, or its exception."""
        if CURRENT_CALL.get() is not None:  # a nested call: it is part of the outer one, and retried with it
            try:
                return await arun(item)
            except Exception as error:  # noqa: BLE001 - an outcome like any other; the flow looks at it
                return error
        with self._running_calls.count_one():
            return await super().acall(arun, item, within)

    async def _call_once(self, arun: Callable[[Any], Awaitable[Any]], item: Any, within: CallLimits) -> Any:
        del within
        call = OpenCall(self._journal, self._running_calls, self._limiter, self._policy.timeout)
        with set_context_variable(CURRENT_CALL, call):
            async with call.hold_permit():
                if self._rate_limiter is not None and not self._journal.is_batched:
                    await self._rate_limiter.aacquire()
                await self._journal.flush()
                try:
                    return await self._run(arun(item), call)
                except Exception as error:  # noqa: BLE001 - as above
                    # Batched requests and the live ones in their place record lost answers themselves.
                    return error if call.was_batched else self._record_failure(error)

    @staticmethod
    async def _run(given: Awaitable[Any], call: OpenCall) -> Any:
        """Await a call; cancel it and raise `TimeoutError` if it takes too long, waits for batches aside."""
        task, expired = asyncio.ensure_future(given), asyncio.ensure_future(call.expired.wait())
        try:
            await asyncio.wait([task, expired], return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                msg = f"no answer within {call.timeout:g} seconds"
                raise TimeoutError(msg)
            return task.result()
        finally:
            expired.cancel()
            task.cancel()
            await asyncio.wait([task, expired])
