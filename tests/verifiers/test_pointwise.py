"""`pointwise`: one judgement per candidate makes a set-wise verifier."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from langchain_core.language_models import FakeListChatModel
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableConfig, RunnableLambda
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from langchain_cfc.errors import VerifierError
from langchain_cfc.sampling import DrawnCandidate
from langchain_cfc.sampling.fingerprints import compute_fingerprint
from langchain_cfc.verifiers import VerifierInput, pointwise
from langchain_cfc.verifiers.base import check_scores
from tests.calls import copies_of

GIVEN = VerifierInput(
    prompt="where?", candidates=[DrawnCandidate("lima"), DrawnCandidate("quito"), DrawnCandidate("lima")]
)
EXPECTED = [0.1, 0.9, 0.1]


def judge(prompt: Any, text: str) -> float:
    assert prompt == "where?"
    return 0.1 if text == "lima" else 0.9


async def ajudge(prompt: Any, text: str) -> float:
    await asyncio.sleep(0)
    return judge(prompt, text)


class Judge:
    """A judge that holds something, such as a client."""

    def __call__(self, prompt: Any, text: str) -> float:
        return judge(prompt, text)


class AsyncJudge:
    """Asynchronous counterpart of the class above."""

    async def __call__(self, prompt: Any, text: str) -> float:
        return await ajudge(prompt, text)


async def ajudge_pair(pair: dict[str, Any]) -> float:
    return await ajudge(pair["prompt"], pair["candidate"])


PLAIN = [judge, Judge(), RunnableLambda(lambda pair: judge(pair["prompt"], pair["candidate"]))]
ASYNC = [ajudge, AsyncJudge(), RunnableLambda(ajudge_pair)]


@pytest.mark.parametrize("one", PLAIN)
def test_pointwise_runs_plain_judges_sync_and_async(one: Any) -> None:
    verifier = pointwise(one)
    assert verifier.invoke(GIVEN) == EXPECTED
    assert asyncio.run(verifier.ainvoke(GIVEN)) == EXPECTED


@pytest.mark.parametrize("one", ASYNC)
def test_pointwise_awaits_async_judges(one: Any) -> None:
    assert asyncio.run(pointwise(one).ainvoke(GIVEN)) == EXPECTED


@pytest.mark.parametrize("one", ASYNC)
def test_pointwise_invoke_refuses_async_judges(one: Any) -> None:
    with pytest.raises(VerifierError, match="ainvoke"):
        pointwise(one).invoke(GIVEN)


def test_pointwise_takes_a_chain_as_judge() -> None:
    template: Runnable[Any, Any] = ChatPromptTemplate.from_template("{prompt} Is it {candidate}?")
    model = FakeListChatModel(responses=["10", "90"])
    chain = template | model | RunnableLambda(lambda message: int(message.text) / 100)
    assert pointwise(chain).invoke(GIVEN, {"max_concurrency": 1}) == EXPECTED


def test_pointwise_judgements_run_concurrently() -> None:
    everyone = threading.Barrier(2, timeout=30.0)

    def slow(prompt: Any, text: str) -> float:
        everyone.wait()
        return judge(prompt, text)

    assert pointwise(slow).invoke(GIVEN) == EXPECTED
    assert asyncio.run(pointwise(slow).ainvoke(GIVEN)) == EXPECTED


def test_pointwise_async_judgements_run_concurrently() -> None:
    waiting: list[str] = []

    async def all_wait() -> list[float]:
        everyone = asyncio.Event()

        async def slow(prompt: Any, text: str) -> float:
            waiting.append(text)
            if len(waiting) == 2:
                everyone.set()
            await asyncio.wait_for(everyone.wait(), 30.0)
            return judge(prompt, text)

        found: list[float] = await pointwise(slow).ainvoke(GIVEN)
        return found

    assert asyncio.run(all_wait()) == EXPECTED


def test_pointwise_judge_that_fails_raises_verifier_error() -> None:
    def picky(_: Any, text: str) -> float:
        return {"lima": 0.1}[text]

    with pytest.raises(VerifierError, match="the judge failed with KeyError: 'quito'"):
        pointwise(picky).invoke(GIVEN)
    with pytest.raises(VerifierError, match="the judge failed with KeyError: 'quito'"):
        asyncio.run(pointwise(picky).ainvoke(GIVEN))


def test_pointwise_run_is_named_pointwise() -> None:
    assert pointwise(judge).get_name() == "pointwise"


def test_pointwise_is_a_runnable_verifier() -> None:
    assert isinstance(pointwise(judge), Runnable)
    assert check_scores(pointwise(judge).invoke(GIVEN), 3) == EXPECTED


@pytest.mark.parametrize("asynchronous", [False, True])
def test_pointwise_judges_equal_texts_once(asynchronous: bool) -> None:
    asked: list[str] = []

    def counting(prompt: Any, text: str) -> float:
        asked.append(text)
        return judge(prompt, text)

    verifier = pointwise(counting)
    found = asyncio.run(verifier.ainvoke(GIVEN)) if asynchronous else verifier.invoke(GIVEN)
    assert found == EXPECTED
    assert sorted(asked) == ["lima", "quito"]


def test_pointwise_keeps_max_concurrency_of_its_config() -> None:
    inside = threading.Semaphore(1)

    def one_at_a_time(prompt: Any, text: str) -> float:
        assert inside.acquire(blocking=False)
        found = judge(prompt, text)
        inside.release()
        return found

    config = RunnableConfig(max_concurrency=1)
    assert pointwise(one_at_a_time).invoke(GIVEN, config) == EXPECTED
    assert asyncio.run(pointwise(one_at_a_time).ainvoke(GIVEN, config)) == EXPECTED


def test_pointwise_fingerprint_is_that_of_its_judge() -> None:
    model = ChatOpenAI(model="judge-1", api_key=SecretStr("none"))
    template: Runnable[Any, Any] = ChatPromptTemplate.from_template("{prompt} Is it {candidate}?")
    assert pointwise(model).fingerprint == compute_fingerprint(model)
    assert pointwise(template | model).fingerprint["prompt_digest"].startswith("sha256:")
    assert pointwise(judge).fingerprint == {}


def test_pointwise_can_be_copied_and_pickled() -> None:
    for verifier in copies_of(pointwise(judge)):
        assert verifier.invoke(GIVEN) == EXPECTED
