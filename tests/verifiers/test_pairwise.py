"""`pairwise`: one judgement per candidate makes a set-wise verifier."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from langchain_core.language_models import FakeListChatModel
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda

from langchain_cfc.sampling import Draw
from langchain_cfc.verifiers import VerifierInput, checked_scores, pairwise, verifier_target

GIVEN = VerifierInput(prompt="where?", candidates=[Draw("lima"), Draw("quito"), Draw("lima")])
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
    """The same, async."""

    async def __call__(self, prompt: Any, text: str) -> float:
        return await ajudge(prompt, text)


async def ajudge_pair(pair: dict[str, Any]) -> float:
    return await ajudge(pair["prompt"], pair["candidate"])


PLAIN = [judge, Judge(), RunnableLambda(lambda pair: judge(pair["prompt"], pair["candidate"]))]
ASYNC = [ajudge, AsyncJudge(), RunnableLambda(ajudge_pair)]


@pytest.mark.parametrize("one", PLAIN)
def test_plain_judges_work_both_ways(one: Any) -> None:
    verifier = pairwise(one)
    assert verifier.invoke(GIVEN) == EXPECTED
    assert asyncio.run(verifier.ainvoke(GIVEN)) == EXPECTED


@pytest.mark.parametrize("one", ASYNC)
def test_async_judges_are_awaited(one: Any) -> None:
    assert asyncio.run(pairwise(one).ainvoke(GIVEN)) == EXPECTED


@pytest.mark.parametrize("one", ASYNC)
def test_async_judges_cannot_be_invoked(one: Any) -> None:
    with pytest.raises(TypeError, match="ainvoke"):
        pairwise(one).invoke(GIVEN)


def test_a_judge_model_and_its_parser() -> None:
    template: Runnable[Any, Any] = ChatPromptTemplate.from_template("{prompt} Is it {candidate}?")
    model = FakeListChatModel(responses=["10", "90", "10"])
    chain = template | model | RunnableLambda(lambda message: int(message.text) / 100)
    assert pairwise(chain).invoke(GIVEN, {"max_concurrency": 1}) == EXPECTED


def test_judgements_run_at_the_same_time() -> None:
    everyone = threading.Barrier(len(EXPECTED), timeout=30.0)

    def slow(prompt: Any, text: str) -> float:
        everyone.wait()
        return judge(prompt, text)

    assert pairwise(slow).invoke(GIVEN) == EXPECTED
    assert asyncio.run(pairwise(slow).ainvoke(GIVEN)) == EXPECTED


def test_async_judgements_run_at_the_same_time() -> None:
    waiting: list[str] = []

    async def all_wait() -> list[float]:
        everyone = asyncio.Event()

        async def slow(prompt: Any, text: str) -> float:
            waiting.append(text)
            if len(waiting) == len(EXPECTED):
                everyone.set()
            await asyncio.wait_for(everyone.wait(), 30.0)
            return judge(prompt, text)

        found: list[float] = await pairwise(slow).ainvoke(GIVEN)
        return found

    assert asyncio.run(all_wait()) == EXPECTED


def test_a_judge_that_fails_on_one_candidate_fails() -> None:
    def picky(_: Any, text: str) -> float:
        return {"lima": 0.1}[text]

    with pytest.raises(KeyError, match="quito"):
        pairwise(picky).invoke(GIVEN)
    with pytest.raises(KeyError, match="quito"):
        asyncio.run(pairwise(picky).ainvoke(GIVEN))


def test_its_runs_hang_under_one_of_that_name() -> None:
    assert pairwise(judge).get_name() == "pairwise"


def test_it_is_a_verifier() -> None:
    target = verifier_target(pairwise(judge))
    assert isinstance(target, Runnable)
    assert checked_scores(target.invoke(GIVEN), 3) == EXPECTED


def test_a_function_of_two_becomes_a_target_of_one() -> None:
    target = verifier_target(lambda prompt, candidates: [judge(prompt, one.text) for one in candidates])
    assert not isinstance(target, Runnable)
    assert target(GIVEN) == EXPECTED
