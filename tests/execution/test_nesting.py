"""Runnables inside runnables: no deadlock, the concurrency limit holds, and the earlier deadline applies."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, TypeAlias

import pytest
from langchain_core.runnables import Runnable, RunnableConfig, RunnableLambda

from langchain_cfc import CalibrationArtifact, CFCResult, CFCRunnable
from langchain_cfc.errors import ServingTimeoutError
from langchain_cfc.sampling import DrawnCandidate
from langchain_cfc.verifiers import from_evaluator
from tests.concurrency import PATIENCE, ConcurrencyCounter, fail_if_stuck, wait_until
from tests.factories import make_artifact, make_chain
from tests.fakes import TEXTS, N, ScriptedModel, score_of, slot_of, verify

ONE = RunnableConfig(max_concurrency=1)
Serve: TypeAlias = Callable[..., list[CFCResult]]


@pytest.fixture(scope="module")
def artifact() -> CalibrationArtifact:
    return make_artifact()


def run_invoke(chain: Runnable[Any, Any], config: RunnableConfig | None = None) -> list[Any]:
    return [chain.invoke("x", config)]


def run_ainvoke(chain: Runnable[Any, Any], config: RunnableConfig | None = None) -> list[Any]:
    return [asyncio.run(chain.ainvoke("x", config))]


def run_batch(chain: Runnable[Any, Any], config: RunnableConfig | None = None) -> list[Any]:
    return chain.batch(["x", "y", "z"], config)


def run_abatch(chain: Runnable[Any, Any], config: RunnableConfig | None = None) -> list[Any]:
    return asyncio.run(chain.abatch(["x", "y", "z"], config))


every_way = pytest.mark.parametrize("serve", [run_invoke, run_ainvoke, run_batch, run_abatch])


def text_of(result: CFCResult) -> str:
    """The text of the best answer, which says its score."""
    assert result.best is not None
    return result.best


def assert_served(call: Callable[[], list[Any]]) -> None:
    found = fail_if_stuck(call)
    assert found
    assert all(isinstance(result, CFCResult) and not result.abstained for result in found)


def make_counting_generator(gauge: ConcurrencyCounter) -> Runnable[Any, str]:
    """A generator that counts its calls at once."""

    def generate(_: Any, config: RunnableConfig) -> str:
        with gauge.counted():
            manager: Any = config["callbacks"]
            return TEXTS[slot_of(manager.tags, 0)]

    return RunnableLambda(generate)


@every_way
@pytest.mark.parametrize(("own", "config"), [(1, None), (None, ONE), (1, ONE)])
def test_chain_inside_the_generator_of_another_does_not_deadlock(
    serve: Serve, own: int | None, config: RunnableConfig | None
) -> None:
    inner = make_chain(max_concurrency=own) | RunnableLambda(text_of)
    assert_served(lambda: serve(make_chain(generator=inner, max_concurrency=own), config))


@every_way
def test_chain_as_the_fallback_of_another_does_not_deadlock(serve: Serve) -> None:
    abstains = make_chain(generator=ScriptedModel(texts=["lima|0.9"] * N), verifier=verify, max_concurrency=1)
    # Under the same artifact, the same generator would not be asked again.
    fallback = make_chain(make_artifact(seed=1), max_concurrency=1)
    assert_served(lambda: serve(abstains.or_else(fallback), ONE))


@every_way
def test_one_chain_as_generator_and_fallback_does_not_deadlock(serve: Serve) -> None:
    inner = make_chain(max_concurrency=1)
    generator = inner | RunnableLambda(text_of)
    outer = make_chain(generator=generator, max_concurrency=1)
    assert_served(lambda: serve(outer.or_else(inner), ONE))


@every_way
@pytest.mark.parametrize(("own", "config"), [(1, None), (None, ONE)])
def test_chain_that_invokes_itself_does_not_deadlock(
    serve: Serve, own: int | None, config: RunnableConfig | None
) -> None:
    """Part of a question is a question: its calls are made in the place that is held already."""
    chains: list[CFCRunnable] = []

    def generate(prompt: str) -> str:
        return "lima|0.3" if prompt.startswith("part") else text_of(chains[0].invoke(f"part of {prompt}"))

    chains.append(make_chain(generator=RunnableLambda(generate), max_concurrency=own))
    assert_served(lambda: serve(chains[0], config))


@every_way
@pytest.mark.parametrize("part", ["generator", "verifier", "metadata"])
def test_batch_inside_a_part_of_another_chain_does_not_deadlock(serve: Serve, part: str) -> None:
    inner = make_chain(generator=make_counting_generator(ConcurrencyCounter()), max_concurrency=1)

    def generate(_: Any) -> str:
        return text_of(inner.batch(["a", "b"])[0])

    def judge(prompt: Any, candidates: list[DrawnCandidate]) -> list[float]:
        inner.batch(["a", "b"])
        return verify(prompt, candidates)

    def describe(_: Any) -> dict[str, str]:
        inner.batch(["a", "b"])
        return {}

    parts: dict[str, Any] = {"generator": RunnableLambda(generate), "verifier": judge, "metadata": describe}
    assert_served(lambda: serve(make_chain(max_concurrency=1, **{part: parts[part]}), ONE))


@every_way
def test_verifier_invoked_inside_parts_does_not_deadlock(serve: Serve) -> None:
    judge = from_evaluator(lambda _, text: score_of(text), higher_is_better=False)

    def generate(prompt: Any) -> str:
        scores = judge.invoke({"prompt": prompt, "candidates": [DrawnCandidate(text) for text in TEXTS]})
        return TEXTS[scores.index(min(scores))]

    def opaque(prompt: Any, candidates: list[DrawnCandidate]) -> list[float]:
        return judge.invoke({"prompt": prompt, "candidates": candidates})

    for own, config in ((1, None), (None, ONE)):
        chain = make_chain(generator=RunnableLambda(generate), verifier=opaque, max_concurrency=own)
        assert_served(lambda: serve(chain, config))  # noqa: B023 - called at once


@every_way
@pytest.mark.parametrize("most", [1, 2])
def test_max_concurrency_holds_for_nested_chains_together(serve: Serve, most: int) -> None:
    gauge = ConcurrencyCounter()
    inner = make_chain(generator=make_counting_generator(gauge)) | RunnableLambda(text_of)
    outer = make_chain(generator=inner)
    # One limit for what `batch` serves, one for each prompt that is served alone.
    assert_served(lambda: serve(outer, {"max_concurrency": most}))
    assert gauge.most <= most


def test_nested_chains_without_limit_run_all_calls_at_once() -> None:
    """The control of the test above: n times n calls meet."""
    gauge, meeting = ConcurrencyCounter(), threading.Barrier(N * N)

    def meet(text: str) -> str:
        with gauge.counted():
            meeting.wait(PATIENCE)
        return text

    inner = make_chain(generator=ScriptedModel(texts=TEXTS) | RunnableLambda(_text) | meet)
    assert_served(lambda: run_invoke(make_chain(generator=inner | RunnableLambda(text_of))))
    assert gauge.most == N * N


def _text(message: Any) -> str:
    return str(message.text)


@every_way
def test_config_of_every_part_holds_no_limiter(serve: Serve) -> None:
    seen: list[Any] = []

    def look(value: Any, config: RunnableConfig) -> Any:
        seen.append(config.get("configurable"))
        return value

    def generate(_: Any, config: RunnableConfig) -> str:
        look(None, config)
        # What a function calls without a config inherits one.
        return str(RunnableLambda(look).invoke("lima|0.3"))

    def judge(given: Any, config: RunnableConfig) -> list[float]:
        look(None, config)
        return [score_of(one.text) for one in given["candidates"]]

    chain = make_chain(
        generator=RunnableLambda(look) | RunnableLambda(generate).with_config(tags=["bound"]),
        verifier=RunnableLambda(judge).with_config(tags=["bound"]),
        answer=RunnableLambda(look).with_config(tags=["bound"]),
        metadata=RunnableLambda(lambda _, config: look({}, config)).with_config(tags=["bound"]),
    )
    config = RunnableConfig(max_concurrency=2, configurable={"mine": 1})
    assert_served(lambda: serve(chain, config))
    assert len(seen) > N
    assert [one for one in seen if one != {"mine": 1}] == []


def test_timeout_of_the_outer_chain_stops_calls_of_the_inner_one() -> None:
    """The inner one has no timeout: yet in the thread that was given up, no further call of it starts."""
    released, over = threading.Event(), threading.Event()
    gauge = ConcurrencyCounter()

    def generate(_: Any) -> str:
        with gauge.counted():
            released.wait(PATIENCE)
        return "lima|0.3"

    inner = make_chain(generator=RunnableLambda(generate), max_concurrency=1)

    def generate_by_inner(prompt: Any) -> str:
        try:
            return text_of(inner.invoke(prompt))
        finally:
            over.set()

    outer = make_chain(generator=RunnableLambda(generate_by_inner), max_concurrency=1, timeout=0.5)
    with pytest.raises(ServingTimeoutError, match=r"not decided within 0\.5 seconds"):
        outer.invoke("x")
    wait_until(lambda: gauge.passed == 1 or over.is_set())
    released.set()
    assert over.wait(PATIENCE)
    assert gauge.passed <= 1


def test_nested_chains_without_timeout_start_all_calls() -> None:
    """The control of the test above."""
    gauge = ConcurrencyCounter()
    inner = make_chain(generator=make_counting_generator(gauge), max_concurrency=1) | RunnableLambda(text_of)
    assert_served(lambda: run_invoke(make_chain(generator=inner, max_concurrency=1)))
    assert gauge.passed == N * N
