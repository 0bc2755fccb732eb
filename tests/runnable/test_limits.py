"""`max_concurrency` holds for draws and verification of all prompts; `timeout` ends waiting."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.runnables import ConfigurableField, Runnable, RunnableConfig, RunnableLambda

from langchain_cfc import CalibrationArtifact, CFCRunnable
from langchain_cfc.errors import DrawError, ServingTimeoutError
from langchain_cfc.verifiers import from_evaluator
from tests.concurrency import wait_until
from tests.factories import make_artifact, make_chain
from tests.fakes import N
from tests.runnable.test_bot import with_bot

# Long enough for the slowest machine; it only passes where a test would otherwise hang.
PATIENCE = 30.0


class Gauge:
    """A generator and a judge that count how many of their calls run at once."""

    def __init__(self) -> None:
        self.most = 0
        self.calls = 0
        self._now = 0
        self._lock = threading.Lock()

    def _enter(self) -> int:
        with self._lock:
            self.calls += 1
            self._now += 1
            self.most = max(self.most, self._now)
            return self.calls

    def _leave(self) -> None:
        with self._lock:
            self._now -= 1

    def draw(self, prompt: Any) -> str:
        del prompt
        number = self._enter()
        time.sleep(0.002)
        self._leave()
        return f"answer {number}|0.3"

    async def adraw(self, prompt: Any) -> str:
        del prompt
        number = self._enter()
        await asyncio.sleep(0.002)
        self._leave()
        return f"answer {number}|0.3"

    def judge(self, prompt: Any, text: str) -> float:
        self.draw(prompt)
        return float(text.rpartition("|")[2])

    async def ajudge(self, prompt: Any, text: str) -> float:
        await self.adraw(prompt)
        return float(text.rpartition("|")[2])

    def chain(self, artifact: CalibrationArtifact, **fields: Any) -> CFCRunnable:
        """A chain of both."""
        judge = from_evaluator(RunnableLambda(self._pair, self._apair), higher_is_better=False)
        return make_chain(artifact, generator=RunnableLambda(self.draw, self.adraw), verifier=judge, **fields)

    def _pair(self, pair: dict[str, Any]) -> float:
        return self.judge(pair["prompt"], pair["candidate"])

    async def _apair(self, pair: dict[str, Any]) -> float:
        return await self.ajudge(pair["prompt"], pair["candidate"])


PROMPTS = [f"prompt {number}" for number in range(6)]
Batch = Callable[[Runnable[Any, Any], Any], list[Any]]


def run_batch(chain: Runnable[Any, Any], config: Any) -> list[Any]:
    return chain.batch(PROMPTS, config)


def run_abatch(chain: Runnable[Any, Any], config: Any) -> list[Any]:
    return asyncio.run(chain.abatch(PROMPTS, config))


def run_completed(chain: Runnable[Any, Any], config: Any) -> list[Any]:
    return [
        result for _, result in sorted(chain.batch_as_completed(PROMPTS, config), key=lambda pair: pair[0])
    ]


def run_acompleted(chain: Runnable[Any, Any], config: Any) -> list[Any]:
    async def collected() -> list[Any]:
        return [pair async for pair in chain.abatch_as_completed(PROMPTS, config)]

    return [result for _, result in sorted(asyncio.run(collected()), key=lambda pair: pair[0])]


every_batch = pytest.mark.parametrize("batch", [run_batch, run_abatch, run_completed, run_acompleted])


@every_batch
def test_batch_keeps_max_concurrency_over_draws_and_verification(
    artifact: CalibrationArtifact, batch: Batch
) -> None:
    gauge = Gauge()
    found = batch(gauge.chain(artifact), RunnableConfig(max_concurrency=3))
    assert len(found) == len(PROMPTS)
    assert gauge.calls == 2 * N * len(PROMPTS)
    assert gauge.most == 3


@every_batch
def test_chain_keeps_its_own_max_concurrency_in_batches(artifact: CalibrationArtifact, batch: Batch) -> None:
    gauge = Gauge()
    batch(gauge.chain(artifact, max_concurrency=2), None)
    assert gauge.most == 2


@every_batch
def test_batch_without_limit_exceeds_the_tested_concurrency(
    artifact: CalibrationArtifact, batch: Batch
) -> None:
    # The negative control: there is more to hold back than the limits above allow.
    gauge = Gauge()
    batch(gauge.chain(artifact), None)
    assert gauge.most > 3


def test_batch_of_a_sequence_keeps_max_concurrency(artifact: CalibrationArtifact) -> None:
    gauge = Gauge()
    before: Runnable[Any, Any] = RunnableLambda(str)
    chain = before | gauge.chain(artifact) | RunnableLambda(lambda result: result.best)
    assert len(chain.batch(PROMPTS, {"max_concurrency": 3})) == len(PROMPTS)
    assert gauge.most == 3


@every_batch
def test_or_else_shares_max_concurrency_of_the_batch(artifact: CalibrationArtifact, batch: Batch) -> None:
    gauge = Gauge()
    unsure = gauge.chain(with_bot(artifact, cut=0.1), max_wrong_rate="0.05")  # so that the fallback is asked
    fallback = gauge.chain(make_artifact(alpha=0.5))
    found = batch(unsure.or_else(fallback), RunnableConfig(max_concurrency=2))
    assert [result.reason for result in found] == ["answered"] * len(PROMPTS)
    assert gauge.most == 2


def test_or_else_fallback_config_holds_no_limiter() -> None:
    seen: list[Any] = []

    def ask(_: Any, config: RunnableConfig) -> str:
        seen.append(config.get("configurable"))
        return "someone knows"

    cautious = make_chain(with_bot(make_artifact(), cut=0.1), max_wrong_rate="0.05", generator=Gauge().draw)
    unsure = cautious.or_else(RunnableLambda(ask))
    unsure.batch(PROMPTS, {"max_concurrency": 2, "configurable": {"mine": 1}})
    assert seen == [{"mine": 1}] * len(PROMPTS)


def test_generator_config_holds_no_limiter() -> None:
    # Models that are configured per call take every configurable key for a setting.
    seen: list[dict[str, Any]] = []

    def draw(_: Any, config: RunnableConfig) -> str:
        seen.append(dict(config.get("configurable") or {}))
        return "lima|0.3"

    chain = make_chain(generator=draw)
    chain.batch(PROMPTS, {"max_concurrency": 2, "configurable": {"mine": 1}})
    assert [set(one) for one in seen] == [{"mine"}] * (N * len(PROMPTS))


def test_configurable_fields_refuses_the_number_of_candidates() -> None:
    with pytest.raises(ValueError, match="Configuration key n not found"):
        make_chain().configurable_fields(n=ConfigurableField(id="n"))


@pytest.mark.parametrize("wrong", [{"timeout": 0}, {"timeout": float("inf")}, {"max_concurrency": 0}])
def test_chain_refuses_invalid_timeout_and_max_concurrency(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        make_chain(**wrong)


def test_invoke_raises_serving_timeout_error_after_the_timeout() -> None:
    go_on = threading.Event()

    def draw(_: Any) -> str:
        assert go_on.wait(PATIENCE)
        return "lima|0.3"

    chain = make_chain(generator=draw, timeout=0.05)
    with pytest.raises(ServingTimeoutError, match=r"not decided within 0\.05 seconds"):
        chain.invoke("x")
    go_on.set()


def test_invoke_starts_no_further_call_after_a_timeout() -> None:
    over, verified = threading.Event(), threading.Event()

    def draw(_: Any) -> str:
        assert over.wait(PATIENCE)
        return "lima|0.3"

    def verify(_: Any, candidates: list[Any]) -> list[float]:
        verified.set()
        return [0.3] * len(candidates)

    chain = make_chain(generator=draw, verifier=verify, timeout=0.05)
    before = set(threading.enumerate())
    with pytest.raises(ServingTimeoutError):
        chain.invoke("x")
    over.set()
    wait_until(lambda: not set(threading.enumerate()) - before)
    assert not verified.is_set()


def test_ainvoke_cancels_its_draws_after_a_timeout() -> None:
    cancelled: list[str] = []

    async def draw(_: Any) -> str:
        try:
            await asyncio.sleep(PATIENCE)
        except asyncio.CancelledError:
            cancelled.append("draw")
            raise
        return "lima|0.3"

    async def served() -> None:
        with pytest.raises(ServingTimeoutError, match=r"not decided within 0\.5 seconds"):
            await make_chain(generator=draw, timeout=0.5, max_concurrency=2).ainvoke("x")
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(served())
    assert cancelled == ["draw"] * 2


@pytest.mark.parametrize("asynchronous", [False, True])
def test_timeout_does_not_change_a_result_in_time(asynchronous: bool) -> None:
    chain = make_chain(timeout=PATIENCE)
    result = asyncio.run(chain.ainvoke("x")) if asynchronous else chain.invoke("x")
    assert result == make_chain().invoke("x")


@pytest.mark.parametrize("asynchronous", [False, True])
def test_timeout_error_of_the_generator_stays_a_draw_error(asynchronous: bool) -> None:
    def draw(_: Any) -> str:
        raise TimeoutError

    chain = make_chain(generator=draw, timeout=PATIENCE)
    with pytest.raises(DrawError, match="4 of 4 candidates could not be drawn"):
        asyncio.run(chain.ainvoke("x")) if asynchronous else chain.invoke("x")
