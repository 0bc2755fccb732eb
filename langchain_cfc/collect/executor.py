"""`LocalExecutor`: prompts worked on in this process, by the code that serves them later.

Calls that are made again: what passes by itself is waited for, what does not is a failure at once.

A call is repeated where its failure looks like one of the network, of a server under load, or of a limit:
status 408, 409, 425, 429 or any from 500 on, a connection that broke, a time-out. Between two calls lies an
exponential back-off with full jitter, or as long as the server asked for by `Retry-After`. A refused key or
a malformed request is not repeated, and nor is what the user's own code raises.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from functools import partial
from hashlib import blake2b
from typing import Any

from langchain_core.load import dumps
from langchain_core.rate_limiters import BaseRateLimiter, InMemoryRateLimiter
from langchain_core.runnables import Runnable, RunnableConfig
from tenacity import AsyncRetrying, RetryCallState, stop_after_attempt, wait_random_exponential

from langchain_cfc.collect.stages import Journal, Labels, Outcome, Usage
from langchain_cfc.errors import CFCError, InputError, ServingTimeoutError, StoreError
from langchain_cfc.execution import (
    CallLimits,
    ConcurrencyLimiter,
    Progress,
    Steps,
    Target,
    acomplete,
    tagged,
    with_call_limits,
)
from langchain_cfc.fingerprints import fingerprint
from langchain_cfc.labelers import Labeler, LabelerInput, Labelling, Reads
from langchain_cfc.records import Example, Provenance
from langchain_cfc.sampling import DrawnCandidate, Sampler, SamplingName, UsageRecorder, resolved
from langchain_cfc.sampling.description import Description
from langchain_cfc.verifiers import Verifier, VerifierEnsemble, VerifierInput
from langchain_cfc.verifiers.base import ByFirst, ByOne


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
class RetryPolicy:
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

    def billed(self, journal: Journal | None = None) -> RetryPolicy:
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

    async def aoutcome(self, arun: Callable[[Any], Awaitable[Any]], item: Any, within: CallLimits) -> Any:
        """Call, and call again after failures that may pass by themselves."""
        found = await self._once(arun, item, within)
        if not transient(found):
            # To set the machinery up costs more than many a call.
            return found
        return await AsyncRetrying(**self._policy)(_First(found, partial(self._once, arun, item, within)))

    async def _once(self, arun: Callable[[Any], Awaitable[Any]], item: Any, within: CallLimits) -> Any:
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


@dataclass(frozen=True)
class Components:
    """What makes records, as `CFCRunnable` takes it, and what labels them.

    Attributes:
        generator: The chat model or chain, or a model's name such as `openai:gpt-4o-mini`.
        verifier: One verifier, or a mapping of several by name, the first of which gives the `score`.
        labeler: What labels candidates.
        n: Number of candidates for each prompt, at least 1.
        answer: Text to extracted answer; None without an extractor.
        metadata: Prompt to metadata, as when serving; None where the dataset's own will do.
        sampling: How candidates are drawn, see `CFCRunnable`.
        reads: What the labeler is shown where there is an extractor, see `Labelling`.
        generator_id: What the generator is called in the records, if it cannot say itself.
        verifier_id: The same for the verifier.
        labeler_id: The same for the labeler.
        answer_id: The same for the answer extractor.
    """

    generator: Runnable[Any, Any] | Callable[[Any], Any] | str
    verifier: Verifier | Mapping[str, Verifier]
    labeler: Labeler
    n: int
    answer: Target | None = None
    metadata: Target | None = None
    sampling: SamplingName = "requests"
    reads: Reads = "answer"
    generator_id: str | None = None
    verifier_id: str | None = None
    labeler_id: str | None = None
    answer_id: str | None = None


class LocalExecutor:
    """Works on prompts in this process.

    Args:
        parts: What draws, scores and labels.
        limit: Places for the calls of all prompts.
        attempts: How calls are made.
        config: LangChain config that all runs inherit, such as callbacks that trace them.

    Raises:
        InputError: If n is less than 1, or the generator has a fixed seed.
        CFCError: If a part is none of its kind.
    """

    def __init__(
        self,
        parts: Components,
        limit: ConcurrencyLimiter | None = None,
        attempts: RetryPolicy | None = None,
        config: RunnableConfig | None = None,
    ) -> None:
        if not isinstance(parts.n, int) or parts.n < 1:  # type: ignore[redundant-expr]  # files hold anything
            msg = f"n is {parts.n!r}; expected a whole number of candidates, at least 1"
            raise InputError(msg)
        self.parts = parts
        generator = resolved(parts.generator)
        verifier: Any = parts.verifier
        if isinstance(verifier, Mapping):
            verifier = VerifierEnsemble(verifier)
        self._scoring = ByFirst(verifier) if isinstance(verifier, VerifierEnsemble) else ByOne(verifier)
        self._labelling = Labelling(parts.labeler, parts.reads)
        self._sampler = Sampler(generator, parts.sampling)
        self._description = Description(parts.answer, parts.metadata)
        self._limit = limit
        self._attempts = attempts
        self._config: RunnableConfig = config or {}
        self.provenance = Provenance(
            n=parts.n,
            generator=fingerprint(generator, parts.generator_id),
            verifier=fingerprint(verifier, parts.verifier_id),
            labeler=fingerprint(parts.labeler, parts.labeler_id),
            answer=None if parts.answer is None else fingerprint(parts.answer, parts.answer_id),
        )

    @property
    def configuration(self) -> dict[str, Any]:
        """Whatever makes other records, as plain data."""
        said = self.provenance.model_dump(include={"n", "generator", "verifier", "labeler", "answer"})
        metadata = None if self.parts.metadata is None else fingerprint(self.parts.metadata)
        return {**said, "sampling": self.parts.sampling, "reads": self.parts.reads, "metadata": metadata}

    async def draw(self, example: Example, journal: Journal) -> Outcome:
        """Draw n candidates, but for those that the journal knows."""
        witness = UsageRecorder()
        config = self._sampler.witnessed(self._config, witness)
        keeper = _JournalKeeper(journal, witness)
        steps = self._sampler.draws(example.input, self.parts.n, config, Progress(), witness, keeper=keeper)
        return await self._outcome(steps, witness, journal)

    async def score(self, example: Example, draws: Sequence[DrawnCandidate], journal: Journal) -> Outcome:
        """Score them."""
        witness = UsageRecorder()
        given = VerifierInput(prompt=example.input, candidates=list(draws))
        steps = self._scoring.scored(given, tagged(witness.heard_in(self._config), "cfc:verifier"))
        return await self._outcome(steps, witness, journal)

    async def label(self, example: Example, draws: Sequence[DrawnCandidate], journal: Journal) -> Outcome:
        """Label them, tell their answers apart and describe the prompt."""
        witness = UsageRecorder()
        steps = self._labelled(example, draws, witness.heard_in(self._config))
        return await self._outcome(steps, witness, journal)

    async def _outcome(self, steps: Steps[Any], witness: UsageRecorder, journal: Journal) -> Outcome:
        attempts = None if self._attempts is None else self._attempts.billed(journal)
        result: Any
        try:
            with with_call_limits(CallLimits(self._limit, attempts=attempts), self._config):
                result = await acomplete(steps)
        except StoreError:  # the journal's, and no fault of the prompt
            raise
        except CFCError as error:
            result = error
        paid = Usage.seen_by(witness)
        if attempts is not None:
            attempts.settle(paid.tokens)
        return Outcome(result, paid)

    def _labelled(
        self, example: Example, draws: Sequence[DrawnCandidate], config: RunnableConfig
    ) -> Steps[Labels]:
        metadata = yield from self._description.metadata(example.input, config)
        answers = yield from self._description.answers(draws, config)
        extracted = answers if self._description.extracts else None
        given = LabelerInput(
            id=example.id, prompt=example.input, reference=example.reference, candidates=list(draws)
        )
        labels = yield from self._labelling.labels(given, extracted, config)
        return Labels(labels, extracted, metadata)


class _JournalKeeper:
    """Hands a sampler's candidates on to a journal, with what they took.

    Args:
        journal: Where they are kept.
        witness: Sees all models that answer.
    """

    def __init__(self, journal: Journal, witness: UsageRecorder) -> None:
        self._journal = journal
        self._witness = witness

    def known(self, prepared: Any) -> Mapping[int, DrawnCandidate]:
        """Candidates that were drawn for the same prepared input."""
        # What LangChain cannot write is written with its address, and is never the same.
        return self._journal.resume(blake2b(dumps(prepared).encode(), digest_size=8).hexdigest())

    def keep(self, slot: int, draw: DrawnCandidate) -> None:
        """Take in a candidate."""
        self._journal.keep(slot, draw, Usage.seen_by(self._witness))

    def discard(self) -> None:
        """Drop all candidates, which were refused."""
        self._journal.discard()
