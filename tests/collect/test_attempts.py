"""Calls that are made again, what is waited for between two, and the turns that they wait for."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from email.utils import format_datetime
from functools import partial
from typing import Any
from unittest import mock

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_openai import ChatOpenAI
from tenacity import AsyncRetrying

from langchain_cfc.collect import CallPolicy, executor
from langchain_cfc.collect.executor import RetryPolicy, StageCalls, TokenRateLimiter
from langchain_cfc.collect.failures import is_transient, read_retry_after
from langchain_cfc.errors import ServingTimeoutError, VerifierError
from langchain_cfc.execution import CallLimits, ConcurrencyLimiter
from tests.collect.fakes import MemoryJournal
from tests.collect.virtual import virtually
from tests.serving.openai_bodies import Answer
from tests.serving.openai_server import Fault, Script, serving

FREE = CallLimits()


def error_of_client(fault: Fault | None, **settings: Any) -> Exception:
    """What a client makes of a fault."""
    script = Script({"where?": [Answer("there")]}, faults=[] if fault is None else [fault])
    client: dict[str, Any] = {"model": "recorded", "api_key": "none", "max_retries": 0, **settings}
    with serving(script) as url:
        model = ChatOpenAI(**{"base_url": url, **client})
        with pytest.raises(Exception) as error:  # noqa: PT011 - whatever the client raises
            model.invoke("where?")
    return error.value


# What passes by itself


@pytest.mark.parametrize(
    ("kind", "passes"),
    [
        ("status 408", True),
        ("status 409", True),
        ("status 425", True),
        ("status 429", True),
        ("status 500", True),
        ("status 503", True),
        ("status 529", True),
        ("dropped", True),
        ("truncated", True),
        ("status 400", False),
        ("status 401", False),
        ("status 403", False),
        ("status 404", False),
        ("status 422", False),
        ("no choices", False),
    ],
)
def test_failures_of_a_real_client_are_told_apart(kind: str, passes: bool) -> None:
    error = error_of_client(Fault(kind))
    assert is_transient(error) == passes, repr(error)
    # What our own errors are made of counts.
    wrapped = VerifierError("the verifier failed")
    wrapped.__cause__ = error
    assert is_transient(wrapped) == passes


def test_a_server_that_is_slow_or_away_may_come_back() -> None:
    assert is_transient(error_of_client(Fault("slow", seconds=5.0), timeout=0.05))
    assert is_transient(error_of_client(None, base_url="http://127.0.0.1:9/v1"))


def test_what_is_no_failure_of_a_connection_is_not_repeated() -> None:
    for error in (
        ValueError("x"),
        KeyError("x"),
        VerifierError("no score"),
        AssertionError(),
        OSError("disk"),
    ):
        assert not is_transient(error)
    for passing in (
        ConnectionResetError(),
        TimeoutError(),
        httpx.ReadError("x"),
        ServingTimeoutError("late"),
    ):
        assert is_transient(passing)
    for outcome in ("text", None, 429, True):
        assert not is_transient(outcome)


class OfGoogle(Exception):  # noqa: N818 - named like a client's
    def __init__(self, code: Any) -> None:
        self.code = code


def test_a_status_is_found_under_any_of_its_names() -> None:
    assert is_transient(OfGoogle(429))
    assert not is_transient(OfGoogle(403))
    # A text, or a boolean, is no status.
    assert not is_transient(OfGoogle("429"))
    assert not is_transient(OfGoogle(code=True))


# How long a server asks to be left alone


class Asking(Exception):  # noqa: N818 - named like a client's
    """A failure with headers."""

    def __init__(self, headers: dict[str, str]) -> None:
        self.response = httpx.Response(429, headers=headers)
        self.status_code = 429


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "7"}, 7.0),
        ({"retry-after": "0.25"}, 0.25),
        ({"RETRY-AFTER": "-3"}, 0.0),
        ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5),
        ({"retry-after-ms": "soon", "retry-after": "9"}, 9.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": ""}, None),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0.0),
        ({}, None),
    ],
)
def test_what_a_server_asks_for_is_read(headers: dict[str, str], seconds: float | None) -> None:
    assert read_retry_after(Asking(headers)) == seconds
    wrapped = VerifierError("failed")
    wrapped.__cause__ = Asking(headers)
    assert read_retry_after(wrapped) == seconds


@pytest.mark.parametrize(
    "written",
    [
        partial(format_datetime, usegmt=True),
        format_datetime,
        # Without a zone, or with one that says nothing, it is UTC all the same.
        lambda when: format(when, "%a, %d %b %Y %H:%M:%S"),
        lambda when: format(when, "%a, %d %b %Y %H:%M:%S -0000"),
    ],
)
def test_a_date_is_as_far_as_it_is_away(written: Callable[[datetime], str]) -> None:
    when = datetime.now(tz=timezone.utc) + timedelta(seconds=100)
    found = read_retry_after(Asking({"Retry-After": written(when)}))
    # It is written in whole seconds.
    assert found is not None
    assert 90 < found <= 100


def test_without_headers_no_wait_is_asked_for() -> None:
    assert read_retry_after(ValueError("x")) is None
    assert read_retry_after("an answer") is None
    error = error_of_client(Fault("status 429", seconds=3.0))
    assert read_retry_after(error) == 3.0


# Calls that are made again


class Failing:
    """Fails so many times, then answers.

    Args:
        *errors: What it fails with.
    """

    def __init__(self, *errors: Exception) -> None:
        self.left = list(errors)
        self.calls = 0

    async def __call__(self, item: Any) -> Any:
        self.calls += 1
        if self.left:
            raise self.left.pop(0)
        return item


def outcome(repeated: RetryPolicy, call: Any, within: CallLimits = FREE) -> tuple[Any, float]:
    """What came of a call, and the virtual seconds that it took."""
    return virtually(StageCalls(repeated, MemoryJournal()).aoutcome(call, "item", within))


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds between calls, which are not waited for."""
    found: list[float] = []

    async def note(seconds: float) -> None:
        found.append(seconds)

    monkeypatch.setattr(executor, "AsyncRetrying", partial(AsyncRetrying, sleep=note))
    return found


def test_a_call_is_made_again_until_it_succeeds(waits: list[float]) -> None:
    call = Failing(Asking({}), ConnectionError())
    assert outcome(RetryPolicy(), call)[0] == "item"
    assert call.calls == 3
    assert len(waits) == 2


def test_the_last_failure_is_the_outcome(waits: list[float]) -> None:
    errors = [ConnectionError(str(number)) for number in range(9)]
    for most in (1, 2, 5):
        waits.clear()
        call = Failing(*errors)
        assert outcome(RetryPolicy(most), call)[0] is errors[most - 1]
        assert call.calls == most
        assert len(waits) == most - 1


def test_what_does_not_pass_is_not_repeated(waits: list[float]) -> None:
    refused = OfGoogle(401)
    call = Failing(ConnectionError(), refused, ConnectionError())
    assert outcome(RetryPolicy(), call)[0] is refused
    assert call.calls == 2
    assert len(waits) == 1


def test_waits_grow_with_full_jitter_and_are_capped(waits: list[float]) -> None:
    for seed in range(300):
        random.seed(seed)
        outcome(
            RetryPolicy(max_attempts=7, initial_wait=1.0, max_wait=10.0), Failing(*[ConnectionError()] * 7)
        )
    # Between calls k and k + 1 uniform in [0, min(2^(k - 1), 10)]. The largest of 300 is below nine tenths of
    # the end with probability 0.9^300 < 2e-14, the smallest above a tenth with as little.
    for k, end in enumerate((1.0, 2.0, 4.0, 8.0, 10.0, 10.0)):
        found = waits[k::6]
        assert 0.9 * end < max(found) <= end
        assert 0.0 <= min(found) < 0.1 * end


def test_no_call_comes_sooner_than_the_server_asked(waits: list[float]) -> None:
    for _ in range(50):
        outcome(RetryPolicy(max_attempts=2, initial_wait=1.0), Failing(Asking({"Retry-After": "30"})))
    assert set(waits) == {30.0}
    waits.clear()
    outcome(RetryPolicy(max_attempts=2, max_wait=5.0), Failing(Asking({"Retry-After": "3600"})))
    assert waits == [5.0]


def test_a_real_servers_wish_is_heard() -> None:
    script = Script({"where?": [Answer("there")]}, faults=[Fault("status 429", on={0}, seconds=1.0)])
    begun = time.monotonic()
    with serving(script) as url:
        model = ChatOpenAI(model="recorded", base_url=url, api_key="none", max_retries=0)  # type: ignore[arg-type]  # pydantic makes a secret of it
        found = asyncio.run(
            StageCalls(RetryPolicy(initial_wait=0.001), MemoryJournal()).aoutcome(
                model.ainvoke, "where?", FREE
            )
        )
    assert found.text == "there"
    assert time.monotonic() - begun >= 1.0
    assert len(script.requests) == 2


def test_a_call_that_hangs_is_given_up_and_made_again() -> None:
    begun: list[None] = []

    async def hang_once(item: Any) -> Any:
        begun.append(None)
        if len(begun) == 1:
            await asyncio.sleep(1000)
        return item

    found, seconds = outcome(RetryPolicy(timeout=5.0, initial_wait=1.0), hang_once)
    assert found == "item"
    assert 5.0 <= seconds <= 6.0


def test_a_call_that_always_hangs_says_for_how_long() -> None:
    async def hang(item: Any) -> None:
        del item
        await asyncio.sleep(1000)

    limit = ConcurrencyLimiter(1)
    found, _ = outcome(RetryPolicy(max_attempts=2, timeout=5.0), hang, CallLimits(limit))
    assert isinstance(found, TimeoutError)
    assert str(found) == "no answer within 5 seconds"
    assert limit._free == 1


@pytest.mark.parametrize("timeout", [None, 5.0])
def test_a_time_limit_of_the_users_own_is_an_outcome_as_well(timeout: float | None) -> None:
    # It says nothing, as that of `asyncio.timeout`.
    call = Failing(*[asyncio.TimeoutError()] * 3)
    found, _ = outcome(RetryPolicy(max_attempts=3, timeout=timeout), call)
    assert isinstance(found, TimeoutError)
    assert str(found).startswith("no answer")
    assert call.calls == 3


@pytest.mark.parametrize("after", [0.5, 3.0])
def test_cancellation_passes_and_releases_the_permit(after: float) -> None:
    limit, calls = ConcurrencyLimiter(1), 0

    async def fail_slowly(item: Any) -> None:
        nonlocal calls
        del item
        calls += 1
        await asyncio.sleep(1.0)
        raise ConnectionError

    async def cancelled() -> None:
        repeated = StageCalls(RetryPolicy(max_attempts=5, initial_wait=100.0, timeout=10.0), MemoryJournal())
        # The longest of waits, so that the second moment lies between two calls.
        with mock.patch("random.uniform", max):
            going = asyncio.ensure_future(repeated.aoutcome(fail_slowly, 1, CallLimits(limit)))
            await asyncio.sleep(after)
            going.cancel()
            with pytest.raises(asyncio.CancelledError):
                await going

    virtually(cancelled())
    assert calls == 1
    assert limit._free == 1


def test_no_permit_is_held_between_two_calls() -> None:
    limit = ConcurrencyLimiter(1)
    order: list[str] = []

    async def both() -> None:
        first = Failing(ConnectionError())

        async def note(item: str) -> str:
            order.append(item)
            return str(await first(item)) if item == "first" else item

        repeated = StageCalls(RetryPolicy(initial_wait=50.0), MemoryJournal())
        bounds = CallLimits(limit)
        with mock.patch("random.uniform", max):
            await asyncio.gather(*(repeated.aoutcome(note, one, bounds) for one in ("first", "second")))

    virtually(both())
    assert order == ["first", "second", "first"]


# Turns


def test_requests_keep_their_rate() -> None:
    async def calls() -> None:
        repeated = StageCalls(CallPolicy(requests_per_second=200.0).create_retry_policy(), MemoryJournal())
        await asyncio.gather(*(repeated.aoutcome(Failing(), number, FREE) for number in range(60)))

    begun = time.perf_counter()
    asyncio.run(calls())
    # A bucket that is empty at first fills at the rate: 60 calls take 0.3 s, less the clock's own grain.
    assert time.perf_counter() - begun >= 0.29


RATE, LATENCY, STAGES, CALLS, LARGEST = 1000.0, 2.0, 6, 5, 900
# Of the calls of a stage one answers nothing, as a plain function or a failure does.
SILENT = 1


async def spend_tokens(turns: TokenRateLimiter, seed: int, stages: int = 300) -> list[tuple[float, int]]:
    """When calls began, and the tokens that each took, for stages several of which go on at once."""
    chance = random.Random(seed)  # noqa: S311 - a simulation
    found: list[tuple[float, int]] = []
    left = iter(range(stages))

    async def call(tokens: int) -> int:
        found.append((time.monotonic(), tokens))
        await asyncio.sleep(chance.uniform(0.5, 1.5) * LATENCY)
        return tokens

    async def work() -> None:
        for _ in left:
            sizes = [0] * SILENT + [chance.randrange(LARGEST) for _ in range(CALLS - SILENT)]
            billed = StageCalls(RetryPolicy(rate_limiters=(turns,)), MemoryJournal())
            await asyncio.gather(*(billed.aoutcome(call, size, FREE) for size in sizes))
            billed.settle(sum(sizes))

    await asyncio.gather(*(work() for _ in range(STAGES)))
    return found


class Forgetful(TokenRateLimiter):
    """Gives back nothing for calls that answered nothing, as if they had not been charged."""

    def settle(self, calls: int, tokens: int) -> None:
        super().settle(calls - SILENT, tokens)


def excess(found: list[tuple[float, int]]) -> float:
    """The most tokens that were begun within any length of time beyond what the rate allows for it."""
    most = lowest = total = 0.0
    for when, tokens in found:
        lowest = min(lowest, total - RATE * when)
        total += tokens
        most = max(most, total - RATE * when - lowest)
    return most


@pytest.mark.parametrize("seed", range(5))
def test_tokens_keep_their_rate_and_use_it(seed: int) -> None:
    found, seconds = virtually(spent_with(TokenRateLimiter, seed))
    # What is in flight, and not settled yet, is known to nobody: so many stages, of so many calls.
    assert excess(found) <= STAGES * (CALLS - SILENT) * LARGEST
    # Nor are calls held up for nothing. At the end, stages that wait no more for turns take a latency.
    total = sum(tokens for _, tokens in found)
    assert seconds <= 1.05 * total / RATE + 2 * LATENCY
    # Whoever forgets that a call without an answer was charged as well, is slower by its share.
    _, slower = virtually(spent_with(Forgetful, seed))
    assert slower > 1.15 * total / RATE


async def spent_with(kind: Callable[[float], TokenRateLimiter], seed: int) -> list[tuple[float, int]]:
    return await spend_tokens(kind(RATE), seed)


def test_a_turn_is_not_waited_for_unless_asked() -> None:
    turns = TokenRateLimiter(1.0)
    assert turns.acquire(blocking=False)
    turns.settle(1, 60)
    assert not turns.acquire(blocking=False)

    async def taken() -> bool:
        return await turns.aacquire(blocking=False)

    assert not asyncio.run(taken())


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 10**6)), max_size=20))
def test_whatever_is_settled_the_charge_is_no_nonsense(settled: list[tuple[int, int]]) -> None:
    turns = TokenRateLimiter(1e9)
    for calls, tokens in settled:
        assert turns.acquire(blocking=True)
        turns.settle(calls, tokens)
        assert turns._settled.mean >= 0.0
        assert turns._charged.calls >= 0
        assert turns._charged.tokens >= -1e-6
