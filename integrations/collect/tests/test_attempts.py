"""Options of a run, retries, the waits between them, and rate limits of calls."""

from __future__ import annotations

import asyncio
import io
import math
import random
import time
from pathlib import Path
from typing import Any
from unittest import mock

import httpx
import pytest
from langchain_cfc_collect import (
    CallPolicy,
    CollectionOptions,
    CollectionStatus,
    Components,
    Journal,
    calls,
    collect,
    show_progress,
)
from langchain_cfc_collect.calls import StageCalls
from langchain_cfc_collect.costs import Usage
from langchain_cfc_collect.failures import is_transient, read_retry_after
from rich.console import Console

from integrations.collect.tests.virtual import run_in_virtual_time
from langchain_cfc.errors import InputError, ServingTimeoutError, VerifierError
from langchain_cfc.execution import CallLimits, ConcurrencyLimiter
from langchain_cfc.labelers import NormalisedMatch
from langchain_cfc.records import Example
from tests.execution.test_failures import (
    HEAD,
    JSON,
    MALFORMED,
    Reply,
    make_model,
    score_equally,
    serve,
)

FREE = CallLimits()


# Transient failures


class ErrorWithCode(Exception):  # noqa: N818 - named like a client's
    def __init__(self, code: Any) -> None:
        self.code = code


def test_is_transient_accepts_connection_and_timeout_errors_and_codes_of_a_status() -> None:
    for error in (ValueError("x"), KeyError("x"), VerifierError("no"), AssertionError(), OSError("disk")):
        assert not is_transient(error)
    for passing in (ConnectionResetError(), TimeoutError(), httpx.ReadError("x"), ServingTimeoutError("x")):
        assert is_transient(passing)
    for result in ("text", None, 429, True):
        assert not is_transient(result)
    for status in (408, 409, 429, 500):
        assert is_transient(ErrorWithCode(status))
    # A text, or a boolean, is no status.
    for code in (400, 401, 403, 404, "429", True):
        assert not is_transient(ErrorWithCode(code))


# Waits that a server asks for


class RateLimitError(Exception):
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
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, None),
        ({}, None),
    ],
)
def test_read_retry_after_reads_seconds_and_milliseconds(
    headers: dict[str, str], seconds: float | None
) -> None:
    assert read_retry_after(RateLimitError(headers)) == seconds
    wrapped = VerifierError("failed")
    wrapped.__cause__ = RateLimitError(headers)
    assert read_retry_after(wrapped) == seconds
    # Nothing without headers, or without a failure.
    assert read_retry_after(ValueError("x")) is read_retry_after("an answer") is None


# Retries


class FailingCall:
    """A call that raises given errors first and then returns its argument.

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


def make_calls(policy: CallPolicy | None = None) -> StageCalls:
    """Calls of one stage; by default without a time limit."""
    return StageCalls(policy or CallPolicy(timeout=None), None, Journal())


def run_call(policy: CallPolicy, call: Any, within: CallLimits = FREE) -> tuple[Any, float]:
    """Return the result or error of a call, and the virtual seconds that it took."""
    return run_in_virtual_time(make_calls(policy).acall(call, "item", within))


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds between attempts, which are recorded instead of waited for."""
    found: list[float] = []

    async def note(seconds: float) -> None:
        found.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", note)
    return found


def test_stage_calls_return_the_last_error_after_max_attempts(waits: list[float]) -> None:
    errors = [ConnectionError(str(number)) for number in range(9)]
    for most in (1, 2, 5):
        waits.clear()
        call = FailingCall(*errors)
        assert run_call(CallPolicy(attempts=most), call)[0] is errors[most - 1]
        assert call.calls == most
        assert len(waits) == most - 1
    # Control: a permanent error is the last one.
    refused = ErrorWithCode(401)
    call = FailingCall(ConnectionError(), refused, ConnectionError())
    assert run_call(CallPolicy(), call)[0] is refused
    assert call.calls == 2


def test_retry_waits_grow_exponentially_with_full_jitter_up_to_max_wait(
    waits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "_MAX_WAIT", 10.0)
    for seed in range(300):
        random.seed(seed)
        run_call(CallPolicy(attempts=7), FailingCall(*[ConnectionError()] * 7))
    # Between calls k and k + 1 uniform in [0, min(2^(k - 1), 10)]. The largest of 300 is below nine tenths of
    # the end with probability 0.9^300 < 2e-14, the smallest above a tenth with as little.
    for k, end in enumerate((1.0, 2.0, 4.0, 8.0, 10.0, 10.0)):
        found = waits[k::6]
        assert 0.9 * end < max(found) <= end
        assert 0.0 <= min(found) < 0.1 * end


def test_retry_waits_for_retry_after_up_to_max_wait(waits: list[float]) -> None:
    for _ in range(50):
        run_call(CallPolicy(attempts=2), FailingCall(RateLimitError({"Retry-After": "30"})))
    assert set(waits) == {30.0}
    waits.clear()
    run_call(CallPolicy(attempts=2), FailingCall(RateLimitError({"Retry-After": "3600"})))
    assert waits == [120.0]


def test_call_that_always_times_out_reports_the_timeout() -> None:
    async def hang(_: Any) -> None:
        await asyncio.sleep(1000)

    limit = ConcurrencyLimiter(1)
    found, _ = run_call(CallPolicy(attempts=2, timeout=5.0), hang, CallLimits(limit))
    assert isinstance(found, TimeoutError)
    assert str(found) == "no answer within 5 seconds"
    assert limit._free == 1


@pytest.mark.parametrize("timeout", [None, 5.0])
def test_timeout_raised_by_the_call_itself_is_returned_as_its_outcome(timeout: float | None) -> None:
    # It says nothing, as that of `asyncio.timeout`.
    call = FailingCall(*[asyncio.TimeoutError()] * 3)
    found, _ = run_call(CallPolicy(attempts=3, timeout=timeout), call)
    assert isinstance(found, TimeoutError)
    assert str(found).startswith("no answer")
    assert call.calls == 3


@pytest.mark.parametrize("after", [0.5, 3.0])
def test_cancelling_a_call_releases_its_permit(after: float) -> None:
    limit, begun = ConcurrencyLimiter(1), 0

    async def fail_slowly(_: Any) -> None:
        nonlocal begun
        begun += 1
        await asyncio.sleep(1.0)
        raise ConnectionError

    async def cancelled() -> None:
        repeated = make_calls(CallPolicy(attempts=5, timeout=10.0))
        # The longest of waits, so that the second moment lies between two calls.
        with mock.patch("random.uniform", max), mock.patch.object(calls, "_INITIAL_WAIT", 100.0):
            going = asyncio.ensure_future(repeated.acall(fail_slowly, 1, CallLimits(limit)))
            await asyncio.sleep(after)
            going.cancel()
            with pytest.raises(asyncio.CancelledError):
                await going

    run_in_virtual_time(cancelled())
    assert begun == 1
    assert limit._free == 1


def test_waiting_between_attempts_holds_no_permit() -> None:
    limit = ConcurrencyLimiter(1)
    order: list[str] = []

    async def both() -> None:
        first = FailingCall(ConnectionError())

        async def note(item: str) -> str:
            order.append(item)
            return str(await first(item)) if item == "first" else item

        repeated = make_calls()
        bounds = CallLimits(limit)
        with mock.patch("random.uniform", max), mock.patch.object(calls, "_INITIAL_WAIT", 50.0):
            await asyncio.gather(*(repeated.acall(note, one, bounds) for one in ("first", "second")))

    run_in_virtual_time(both())
    assert order == ["first", "second", "first"]


# Rate limits


def test_requests_per_second_limits_the_rate_of_calls() -> None:
    async def run_all() -> None:
        policy = CallPolicy(requests_per_second=200.0)
        repeated = StageCalls(policy, policy.create_rate_limiter(), Journal())
        await asyncio.gather(*(repeated.acall(FailingCall(), number, FREE) for number in range(60)))

    begun = time.perf_counter()
    asyncio.run(run_all())
    # A bucket that is empty at first fills at the rate: 60 calls take 0.3 s, less the clock's own grain.
    assert time.perf_counter() - begun >= 0.29


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"concurrency": 0}, "concurrency is 0; expected a whole number of at least 1"),
        ({"attempts": 2.5}, "attempts is 2.5; expected a whole number of at least 1"),
        ({"requests_per_second": 0}, "requests_per_second is 0; expected a number above 0, or None"),
        ({"timeout": math.inf}, "timeout is inf; expected a number above 0, or None"),
        ({"timeout": math.nan}, "timeout is nan; expected a number above 0, or None"),
    ],
)
def test_call_policy_refuses_invalid_values(given: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        CallPolicy(**given)


def make_status(**given: Any) -> CollectionStatus:
    counts: dict[str, Any] = {"total": 8, "labelled": 4, "failed": 1, "covered": 3, "usage": Usage()}
    return CollectionStatus(**{**counts, "candidates": [5, 3], "score_sums": [4.0, 0.6], **given})


def show(*statuses: CollectionStatus) -> str:
    """Return what a terminal of 160 columns is shown."""
    out = io.StringIO()
    with show_progress(Console(file=out, force_terminal=True, width=160, color_system=None)) as update:
        for status in statuses:
            update(status)
    return next(line for line in reversed(out.getvalue().splitlines()) if "/min" in line)


@pytest.mark.parametrize(
    ("statuses", "shown"),
    [
        (
            [{}, {"labelled": 6, "cost": 0.0123}],
            [
                "7 of 8 prompts",
                "a right answer for 50 %",
                "correct 0.20, wrong 0.80",
                "1 failed",
                "cost 0.0123",
            ],
        ),
        (
            [{"unit": "claims", "waiting": "1 batch [/v1], 20 requests"}],
            ["8 claims, 0.38 of them supported", "unsupported 0.80", "1 batch [/v1], 20 requests"],
        ),
    ],
)
def test_progress_bar_shows_what_is_known(statuses: list[dict[str, Any]], shown: list[str]) -> None:
    line = show(*(make_status(**one) for one in statuses))
    for words in shown:
        assert words in line, words


MESSAGE = {"role": "assistant", "content": "Lima"}
GOOD: Reply = (200, JSON, {**HEAD, "choices": [{"index": 0, "message": MESSAGE, "finish_reason": "stop"}]})


PROMPTS = [Example(id=str(number), input=f"{number}?", reference="Lima") for number in range(2)]
FAST = CallPolicy(concurrency=4, attempts=2)


@pytest.mark.parametrize("name", ["null choices", "no choice", "HTML"])
def test_collect_retries_a_first_wave_of_malformed_responses(tmp_path: Path, name: str) -> None:
    with serve(*[MALFORMED[name]] * 3, GOOD) as (url, asked):
        made_of = Components(make_model(url), score_equally, NormalisedMatch(), n=3, verifier_id="equal")
        found = collect(PROMPTS, made_of, tmp_path / "s.db", CollectionOptions(call_policy=FAST)).status
    assert (found.labelled, found.failed, found.unanswered, len(asked)) == (2, 0, 3, 9)
