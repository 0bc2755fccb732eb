"""Turns of calls, so that many keep to a rate: so many calls, or so many tokens, per second."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import dataclass

from langchain_core.rate_limiters import BaseRateLimiter, InMemoryRateLimiter


def request_turns(per_second: float) -> BaseRateLimiter:
    """Turns of so many calls per second, LangChain's own limiter.

    Args:
        per_second: Calls per second, above 0; a second's worth may come at once.
    """
    return InMemoryRateLimiter(
        requests_per_second=per_second,
        check_every_n_seconds=min(0.1, 0.5 / per_second),
        max_bucket_size=max(1.0, per_second),
    )


class TokenTurns(BaseRateLimiter):
    """Turns of calls that together take so many tokens per second.

    What a call takes is known only afterwards: each is charged the mean of those before it, and settled once
    it is over. Over any length of time the rate is kept, but for what is in flight.

    Args:
        per_second: Tokens per second, prompt and answer together, above 0.
    """

    def __init__(self, per_second: float) -> None:
        self._per_second = per_second
        self._free_at = time.monotonic()
        self._settled = _Sum()
        self._charged = _Sum()
        self._lock = threading.Lock()

    def acquire(self, *, blocking: bool = True) -> bool:
        """Wait for a turn in a thread."""
        wait = self._wait(blocking=blocking)
        if wait is None:
            return False
        time.sleep(wait)
        return True

    async def aacquire(self, *, blocking: bool = True) -> bool:
        """Wait for a turn on an event loop."""
        wait = self._wait(blocking=blocking)
        if wait is None:
            return False
        await asyncio.sleep(wait)
        return True

    def settle(self, calls: int, tokens: int) -> None:
        """Say what calls took.

        Args:
            calls: How many are over; those that failed, or asked no model, were charged as well.
            tokens: What they took together.
        """
        with self._lock:
            charged = min(calls, self._charged.calls) * self._charged.mean
            self._charged.add(-min(calls, self._charged.calls), -charged)
            self._settled.add(calls, tokens)
            self._free_at += (tokens - charged) / self._per_second

    def _wait(self, *, blocking: bool) -> float | None:
        """Seconds until the turn, which is taken; None where it is not now and nobody wants to wait."""
        with self._lock:
            now = time.monotonic()
            wait = max(0.0, self._free_at - now)
            if wait > 0 and not blocking:
                return None
            charge = self._settled.mean
            self._charged.add(1, charge)
            self._free_at = max(now, self._free_at) + charge / self._per_second
            return wait


class TokenBill(BaseRateLimiter):
    """Turns that are settled together, when all are over.

    Args:
        turns: Where they are taken.
    """

    def __init__(self, turns: TokenTurns) -> None:
        self._turns = turns
        self._taken = 0

    def acquire(self, *, blocking: bool = True) -> bool:
        """Wait for a turn in a thread."""
        return self._counted(self._turns.acquire(blocking=blocking))

    async def aacquire(self, *, blocking: bool = True) -> bool:
        """Wait for a turn on an event loop."""
        return self._counted(await self._turns.aacquire(blocking=blocking))

    def settle(self, tokens: int) -> None:
        """Say what all of them took together."""
        taken, self._taken = self._taken, 0
        self._turns.settle(taken, tokens)

    def _counted(self, came: bool) -> bool:
        self._taken += came
        return came


@dataclass
class _Sum:
    """Tokens of some calls."""

    calls: int = 0
    tokens: float = 0.0

    @property
    def mean(self) -> float:
        return self.tokens / self.calls if self.calls else 0.0

    def add(self, calls: int, tokens: float) -> None:
        self.calls += calls
        self.tokens += tokens
