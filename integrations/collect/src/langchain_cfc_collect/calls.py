"""Calls of models in a collection: limits, rates and retries, with the journal of the stage that makes them.

**Retries.** A call is repeated if its failure looks transient (network, overloaded server or rate limit):
status 408, 409, 425, 429 or at least 500, a broken connection, or a time-out. The delay between two calls is
an exponential back-off with full jitter, and at least what the server asks for by `Retry-After`. A refused
key, a malformed request or an error in the user's own code is not retried.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from langchain_core.rate_limiters import BaseRateLimiter, InMemoryRateLimiter

from langchain_cfc.errors import InputError
from langchain_cfc.execution import CallLimits
from langchain_cfc_collect.failures import (
    follows_answer,
    is_transient,
    may_be_charged,
    read_retry_after,
)
from langchain_cfc_collect.stages import Journal

# Maximum seconds between the first and the second call; it doubles from there.
_INITIAL_WAIT = 1.0
# Maximum seconds between two calls, even if the server asks for more: a server that asks for an hour is down,
# and no call should hold up its prompt that long.
_MAX_WAIT = 120.0
_MIN_SPARE_PROMPTS = 8


@dataclass(frozen=True)
class CallPolicy:
    """Limits, rates and retries of the calls of a collection.

    Attributes:
        concurrency: Maximum number of concurrent calls of generator, verifier and labeler, at least 1.
        requests_per_second: Maximum calls per second, above 0; a call that uses several models counts once.
            None for no limit.
        attempts: Maximum number of times that a call with a transient failure is made, at least 1.
        timeout: Seconds that one call may take, above 0; None for no limit.
        batch: Whether requests of ChatOpenAI and ChatAnthropic go through their providers' batches, at half
            the price and taking up to 24 hours per stage. The other limits then apply to live calls only.

    Raises:
        InputError: If a value is out of range.
    """

    concurrency: int = 8
    requests_per_second: float | None = None
    attempts: int = 5
    timeout: float | None = 120.0
    batch: bool = False

    def __post_init__(self) -> None:
        """Validate the values."""
        for name in ("concurrency", "attempts"):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < 1:
                msg = f"{name} is {getattr(self, name)!r}; expected a whole number of at least 1"
                raise InputError(msg)
        for name in ("requests_per_second", "timeout"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, int | float) and 0 < value < math.inf):
                msg = f"{name} is {value!r}; expected a number above 0, or None for no limit"
                raise InputError(msg)

    @property
    def prompts_at_once(self) -> int:
        """Number of prompts in progress at a time.

        It exceeds `concurrency`, because some prompts wait for the disk while others make calls.
        """
        return self.concurrency + max(_MIN_SPARE_PROMPTS, self.concurrency // 2)

    def create_rate_limiter(self) -> BaseRateLimiter | None:
        """Create the rate limiter that each call waits for; None if there is no limit."""
        rate = self.requests_per_second
        if rate is None:
            return None
        often, burst = min(0.1, 0.5 / rate), max(1.0, rate)
        return InMemoryRateLimiter(
            requests_per_second=rate, check_every_n_seconds=often, max_bucket_size=burst
        )


# Calls


class StageCalls:
    """Makes the calls of one stage of a prompt, with the retries of a policy and its rate limiter.

    Each call waits until the journal of the stage is committed.
    """

    def __init__(self, policy: CallPolicy, rate_limiter: BaseRateLimiter | None, journal: Journal) -> None:
        self._policy = policy
        self._rate_limiter = rate_limiter
        self._journal = journal

    async def acall(self, arun: Callable[[Any], Awaitable[Any]], item: Any, within: CallLimits) -> Any:
        """Call, and retry transient failures; return the last call's result, or its exception."""
        attempt = 1
        while True:
            outcome = await self._call_once(arun, item, within)
            if attempt == self._policy.attempts or not is_transient(outcome):
                return outcome
            await asyncio.sleep(_choose_wait(outcome, attempt))
            attempt += 1

    async def _call_once(self, arun: Callable[[Any], Awaitable[Any]], item: Any, within: CallLimits) -> Any:
        timeout = self._policy.timeout
        with await within.aacquire_permit():
            if self._rate_limiter is not None:
                await self._rate_limiter.aacquire()
            await self._journal.flush()
            try:
                return await asyncio.wait_for(arun(item), timeout)
            except asyncio.TimeoutError as error:
                # The time-out above has no message, and one raised by the user's code may have none.
                limit = "in time" if timeout is None else f"within {timeout:g} seconds"
                return self._record_failure(error if str(error) else TimeoutError(f"no answer {limit}"))
            except Exception as error:  # noqa: BLE001 - an outcome like any other; the flow looks at it
                return self._record_failure(error)

    def _record_failure(self, error: Exception) -> Exception:
        if may_be_charged(error) and not follows_answer(error):
            self._journal.record_lost_request()
        return error


def _choose_wait(outcome: Any, attempt: int) -> float:
    """Return the seconds to wait after a failed attempt, of which the first is number 1."""
    # A larger exponent would be no float.
    highest = min(_INITIAL_WAIT * 2.0 ** min(attempt - 1, 100), _MAX_WAIT)
    backoff = random.uniform(0.0, highest)  # noqa: S311 - no secret
    return min(max(read_retry_after(outcome) or 0.0, backoff), _MAX_WAIT)
