"""Calls that are made again: what passes by itself is waited for, what does not is a failure at once.

A call is repeated where its failure looks like one of the network, of a server under load, or of a limit:
status 408, 409, 425, 429 or any from 500 on, a connection that broke, a time-out. Between two calls lies an
exponential back-off with full jitter, or as long as the server asked for by `Retry-After`. A refused key or
a malformed request is not repeated, and nor is what the user's own code raises.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any

from langchain_core.rate_limiters import BaseRateLimiter
from tenacity import AsyncRetrying, RetryCallState, stop_after_attempt, wait_random_exponential

from langchain_cfc.calls import Bounds
from langchain_cfc.collect.stages import Journal
from langchain_cfc.collect.turns import TokenBill, TokenTurns
from langchain_cfc.errors import CFCError, ServingTimeoutError

_TRANSIENT_STATUS = {408, 409, 425, 429}
_CLIENT_ERROR = 400
_SERVER_ERROR = 500
# Somebody on the way waited in vain for an answer that may have been made all the same.
_ANSWERED_STATUS = {408, 504}
# What clients and the system call it when there is no connection.
_NEVER_REACHED = {
    "ConnectError",
    "ConnectTimeout",
    "ConnectionRefusedError",
    "gaierror",
    "ClientConnectorError",
    "NewConnectionError",
}
# Clients have types of their own for these, without a common base; the names agree.
_TRANSIENT_NAMES = (
    "Connect",
    "Timeout",
    "RemoteProtocol",
    "ReadError",
    "WriteError",
    "RateLimit",
    "Overloaded",
)
# A server that asks for more is down, and no call should hold its prompt for an hour.
LONGEST_WAIT = 120.0


@dataclass(frozen=True)
class Repeated:
    """Calls made as often as need be, each in a place within the bounds and in its turn.

    Args:
        most: Most calls in all, at least 1.
        timeout: Seconds that one call may take; None for no limit.
        turns: What each call waits for before it is made, such as a LangChain rate limiter.
        first_wait: Most seconds between the first and the second call; it doubles from there.
        longest_wait: Most seconds between two calls.
        journal: Where requests that were lost are noted; None for nowhere.
    """

    most: int = 5
    timeout: float | None = None
    turns: tuple[BaseRateLimiter, ...] = ()
    first_wait: float = 1.0
    longest_wait: float = LONGEST_WAIT
    journal: Journal | None = None

    def billed(self, journal: Journal | None = None) -> Repeated:
        """The same for the calls of one stage of a prompt, whose tokens are settled together.

        Args:
            journal: Of the stage; each call waits until it is durable.
        """
        turns = (TokenBill(turn) if isinstance(turn, TokenTurns) else turn for turn in self.turns)
        return replace(self, turns=tuple(turns), journal=journal)

    def settle(self, tokens: int) -> None:
        """Say what the calls that were billed took."""
        for turn in self.turns:
            if isinstance(turn, TokenBill):
                turn.settle(tokens)

    async def aoutcome(self, arun: Callable[[Any], Awaitable[Any]], item: Any, within: Bounds) -> Any:
        """Call, and call again after failures that may pass by themselves."""
        found = await self._once(arun, item, within)
        if not transient(found):
            # To set the machinery up costs more than many a call.
            return found
        return await AsyncRetrying(**self._policy)(_First(found, partial(self._once, arun, item, within)))

    async def _once(self, arun: Callable[[Any], Awaitable[Any]], item: Any, within: Bounds) -> Any:
        with await within.aheld():
            for turn in self.turns:
                await turn.aacquire()
            if self.journal is not None:
                await self.journal.flushed()
            try:
                if self.timeout is None:
                    return await arun(item)
                return await _in_time(arun(item), self.timeout)
            except asyncio.TimeoutError as error:
                # That of the time given here says nothing, and nor may one of the user's own.
                return self._noted(error if str(error) else TimeoutError(_no_answer(self.timeout)))
            except Exception as error:  # noqa: BLE001 - an outcome like any other; the flow looks at it
                return self._noted(error)

    def _noted(self, error: Exception) -> Exception:
        if self.journal is not None and may_be_paid(error):
            self.journal.lose()
        return error

    @property
    def _policy(self) -> dict[str, Any]:
        return {
            "stop": stop_after_attempt(self.most),
            "wait": self._wait,
            "retry": _is_transient,
            "retry_error_callback": _last,
        }

    def _wait(self, state: RetryCallState) -> float:
        outcome = _last(state)
        asked = retry_after(outcome)
        backed_off = wait_random_exponential(multiplier=self.first_wait, max=self.longest_wait)(state)
        return min(max(asked, backed_off) if asked is not None else backed_off, self.longest_wait)


def _no_answer(seconds: float | None) -> str:
    return "no answer in time" if seconds is None else f"no answer within {seconds:g} seconds"


async def _in_time(awaited: Awaitable[Any], seconds: float) -> Any:
    if sys.version_info < (3, 11):
        return await asyncio.wait_for(awaited, seconds)
    # Without a task of its own for each call.
    async with asyncio.timeout(seconds):
        return await awaited


class _First:
    """The outcome of a call that was made already, then those of further ones."""

    def __init__(self, found: Any, once: Callable[[], Awaitable[Any]]) -> None:
        self._found: list[Any] = [found]
        self._once = once

    async def __call__(self) -> Any:
        return self._found.pop() if self._found else await self._once()


def _last(state: RetryCallState) -> Any:
    return state.outcome.result() if state.outcome is not None else None


def _is_transient(state: RetryCallState) -> bool:
    # What was raised, and not returned, is no outcome of a call: it ends the flow.
    return state.outcome is not None and not state.outcome.failed and transient(state.outcome.result())


def transient(outcome: Any) -> bool:
    """Whether an outcome is a failure that may pass by itself.

    Args:
        outcome: What was returned, or an exception.

    Returns:
        False for whatever is no exception.
    """
    if not isinstance(outcome, Exception):
        return False
    if isinstance(outcome, CFCError) and not isinstance(outcome, ServingTimeoutError):
        # What it was made of: a verifier's call that failed is a `VerifierError`.
        return outcome.__cause__ is not None and transient(outcome.__cause__)
    status = _status(outcome)
    if status is not None:
        return status in _TRANSIENT_STATUS or status >= _SERVER_ERROR
    if isinstance(outcome, (ConnectionError, TimeoutError, asyncio.TimeoutError)):
        return True
    names = [kind.__name__ for kind in type(outcome).__mro__]
    return any(word in name for name in names for word in _TRANSIENT_NAMES)


def may_be_paid(error: BaseException) -> bool:
    """Whether a server may have answered a request, and charge for it, though the call failed.

    Args:
        error: What the call raised.

    Returns:
        False where the server refused the request, or was not reached at all.
    """
    chain: list[BaseException] = []
    while error not in chain:
        chain.append(error)
        error = error.__cause__ or error.__context__ or error
    statuses = [
        status for one in chain if isinstance(one, Exception) and (status := _status(one)) is not None
    ]
    if statuses:
        return statuses[0] in _ANSWERED_STATUS or statuses[0] < _CLIENT_ERROR
    kinds = {kind.__name__ for one in chain for kind in type(one).__mro__}
    return not kinds & _NEVER_REACHED


def retry_after(error: Any) -> float | None:
    """How long a server asked to be left alone.

    Args:
        error: An exception of a client, with the response or its headers on it.

    Returns:
        Seconds from now, at least 0; None where it did not ask, or not in a form that can be read.
    """
    while isinstance(error, CFCError) and error.__cause__ is not None:
        error = error.__cause__
    headers = getattr(getattr(error, "response", None), "headers", None) or getattr(error, "headers", None)
    if not isinstance(headers, Mapping):
        return None
    said = {str(name).lower(): str(value) for name, value in headers.items()}
    units = {"retry-after-ms": 0.001, "retry-after": 1.0}
    asked = (_seconds(said[name], unit) for name, unit in units.items() if name in said)
    return next((seconds for seconds in asked if seconds is not None), None)


def _seconds(written: str, unit: float) -> float | None:
    try:
        return max(0.0, float(written) * unit)
    except ValueError:
        pass
    try:
        when = parsedate_to_datetime(written)
    except ValueError:
        return None
    if when.tzinfo is None:  # HTTP knows no other
        when = when.replace(tzinfo=timezone.utc)
    return max(0.0, (when - datetime.now(tz=timezone.utc)).total_seconds())


def _status(error: Exception) -> int | None:
    """The HTTP status that a client's exception carries; also where it is called `code`, as by Google's."""
    response = getattr(error, "response", None)
    for holder, name in (
        (error, "status_code"),
        (response, "status_code"),
        (error, "status"),
        (error, "code"),
    ):
        value = getattr(holder, name, None)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return None
