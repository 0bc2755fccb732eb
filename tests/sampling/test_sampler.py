"""Exactly n candidates, each drawn and paid for once, whatever fails, caches or repeats itself."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.caches import InMemoryCache
from langchain_core.messages import HumanMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.runnables import Runnable, RunnableConfig, RunnableLambda
from langchain_openai import ChatOpenAI

from langchain_cfc.errors import DrawError, InputError, VerifierError
from langchain_cfc.execution import CallLimits, ConcurrencyLimiter, apply_limits, run_flow
from langchain_cfc.sampling import Sampler
from tests.concurrency import ConcurrencyCounter
from tests.fakes import NumberedModel, RunRecorder, global_cache
from tests.sampling.drawing import PROMPT, Draw, numbered_answers, sorted_texts
from tests.serving.openai_server import Script

from .test_context import QUESTION, SHAPES, Parts

MakeModel = Callable[..., ChatOpenAI]
TOWNS = ["bogota", "la paz", "lima", "quito"]


@pytest.mark.parametrize("n", [1, 2, 7])
def test_sampler_draws_exactly_n_candidates(draw: Draw, sampling: Any, n: int) -> None:
    assert sorted_texts(draw(NumberedModel(), n, sampling)) == numbered_answers(n)


def test_sampler_bypasses_a_global_cache(draw: Draw, sampling: Any) -> None:
    with global_cache() as cache:
        assert sorted_texts(draw(NumberedModel(), 4, sampling)) == numbered_answers(4)
        chain = NumberedModel() | StrOutputParser()
        assert sorted_texts(draw(chain, 4, sampling)) == numbered_answers(4)
    # Nor is it filled with what other parts of a program would read.
    assert not cache._cache


def test_sampler_bypasses_the_cache_of_the_model(draw: Draw, sampling: Any) -> None:
    model = NumberedModel(cache=InMemoryCache())
    assert sorted_texts(draw(model, 4, sampling)) == numbered_answers(4)
    assert isinstance(model.cache, InMemoryCache)


def test_model_with_cache_repeats_its_first_answer() -> None:
    # The negative control of the two tests above.
    model = NumberedModel()
    with global_cache():
        assert {model.invoke(PROMPT).text for _ in range(4)} == {"answer 0"}
    own = NumberedModel(cache=InMemoryCache())
    assert {own.invoke(PROMPT).text for _ in range(4)} == {"answer 0"}


@pytest.mark.parametrize(
    "generator",
    [
        lambda model: model(n=5),
        lambda model: model(n=5) | StrOutputParser(),
        lambda model: model().bind(n=5),
        lambda model: model().bind(n=5).with_retry(),
        lambda model: model(extra_body={"n": 5}),
        lambda model: model().bind(extra_body={"n": 5, "top_k": 2}),
    ],
)
def test_separate_requests_ask_for_one_choice_despite_n(
    chat_model: MakeModel, script: Script, draw: Draw, generator: Any
) -> None:
    assert sorted_texts(draw(generator(chat_model), 4)) == TOWNS
    assert [request.get("n") or 1 for request in script.requests] == [1] * 4


def test_model_with_n_of_5_asks_for_five_choices(chat_model: MakeModel, script: Script) -> None:
    # The negative control of the test above.
    assert chat_model(n=5).invoke(PROMPT).text == "lima"
    assert chat_model(extra_body={"n": 5}).invoke(PROMPT).text == "quito"
    assert [request["n"] for request in script.requests] == [5, 5]


def test_sampler_keeps_other_fields_of_extra_body(chat_model: MakeModel, script: Script, draw: Draw) -> None:
    draw(chat_model(extra_body={"n": 5, "top_k": 2}), 2)
    assert [request["top_k"] for request in script.requests] == [2, 2]


def test_n_of_the_model_does_not_change_the_number_of_candidates(draw: Draw, sampling: Any) -> None:
    assert sorted_texts(draw(NumberedModel(n=2), 4, sampling)) == numbered_answers(4)


SEEDED: dict[str, Runnable[Any, Any]] = {
    "field": NumberedModel(seed=7),
    "zero": NumberedModel(seed=0),
    "model_kwargs": NumberedModel(model_kwargs={"seed": 7}),
    "extra_body": NumberedModel(extra_body={"seed": 7}),
    "bound": NumberedModel().bind(seed=7),
    "bound in the body": NumberedModel().bind(extra_body={"seed": 7}),
    "in a chain": NumberedModel(seed=7).with_retry() | StrOutputParser(),
    "a fallback": NumberedModel().with_fallbacks([NumberedModel(seed=7)]),
}


@pytest.mark.parametrize("name", SEEDED)
def test_sampler_refuses_a_fixed_seed(name: str, sampling: Any) -> None:
    with pytest.raises(InputError, match=r"has the fixed seed \d.*the same candidate n times"):
        Sampler(SEEDED[name], sampling)


@pytest.mark.parametrize(
    "generator",
    [
        NumberedModel(),
        NumberedModel(seed=-1),
        NumberedModel(seed=None),
        NumberedModel().bind(seed=-1),
        NumberedModel(extra_body={"top_k": 1}),
    ],
)
def test_sampler_accepts_models_without_fixed_seed(generator: Any) -> None:
    Sampler(generator)


def test_sampler_accepts_a_seed_before_the_answering_model(draw: Draw) -> None:
    # A model that writes the query of a search is no model that draws.
    parts = Parts(SHAPES["history"])
    helper = NumberedModel(seed=7, echoing=True)
    chain = SHAPES["history"](parts.model, helper, parts.library)
    assert len(draw(chain, 2, prompt=QUESTION)) == 2
    with pytest.raises(InputError, match="fixed seed"):
        Sampler(SHAPES["history"](NumberedModel(seed=7), helper, parts.library))


@pytest.mark.parametrize("failing", [frozenset({0}), frozenset({1, 2}), frozenset({3, 4})])
def test_sampler_keeps_successful_draws_and_repeats_failed_ones(draw: Draw, failing: frozenset[int]) -> None:
    model = NumberedModel(failing=failing)
    assert sorted_texts(draw(model, 4)) == numbered_answers(4)
    assert len(model.requests) == 4 + len(failing)


def test_agenerate_loses_successful_draws() -> None:
    # The negative control: what was paid for is lost with the one that failed.
    model = NumberedModel(failing=frozenset({1}))
    with pytest.raises(ConnectionError):
        asyncio.run(model.agenerate([[HumanMessage(PROMPT)]] * 4))
    assert len(model.requests) == 4


def test_draw_error_of_user_code_does_not_suggest_with_retry(draw: Draw) -> None:
    def broken(message: Any) -> str:
        raise KeyError(message.text)

    with pytest.raises(DrawError, match="KeyError") as failure:
        draw(NumberedModel() | RunnableLambda(broken), 2)
    assert "with_retry" not in str(failure.value)


def test_failing_step_before_the_model_raises_before_drawing(draw: Draw) -> None:
    def look_up(question: str) -> str:
        msg = f"no index for {question}"
        raise LookupError(msg)

    model = NumberedModel()
    expected = r"a step before the model failed with LookupError: no index for where\?; nothing was drawn"
    with pytest.raises(DrawError, match=expected) as failure:
        draw(RunnableLambda(look_up) | model, 4)
    assert isinstance(failure.value.__cause__, LookupError)
    assert model.requests == []


def test_sampler_does_not_wrap_errors_of_the_package(draw: Draw) -> None:
    def look_up(question: str) -> str:
        raise VerifierError(question)

    with pytest.raises(VerifierError, match="where"):
        draw(RunnableLambda(look_up) | NumberedModel(), 2)


class BusyFunction(ConcurrencyCounter):
    """Counts how many of its calls run at once."""

    def __call__(self, given: Any) -> Any:
        with self.counted():
            time.sleep(0.01)
        return given


@pytest.mark.parametrize("most", [1, 2])
def test_sampler_keeps_max_concurrency_of_the_config(draw: Draw, most: int) -> None:
    busy = BusyFunction()
    draw(RunnableLambda(busy), 6, prompt="x", config=RunnableConfig(max_concurrency=most))
    assert busy.most <= most


def test_preparation_counts_towards_the_concurrency_limit() -> None:
    # Two prompts in one limit of one: neither retrieval nor requests of both run at once.
    busy = BusyFunction()
    sampler = Sampler(RunnableLambda(busy) | NumberedModel())
    within = CallLimits(ConcurrencyLimiter(1))

    def serve() -> None:
        with apply_limits(within):
            run_flow(sampler.draw_steps(PROMPT, 1, RunnableConfig()))

    threads = [threading.Thread(target=serve) for _ in range(3)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert busy.most == 1


def test_runs_of_candidates_are_tagged(draw: Draw, sampling: Any) -> None:
    seen = RunRecorder()
    config = RunnableConfig(callbacks=[seen], tags=["mine"])
    draw(RunnableLambda(str) | NumberedModel(), 2, sampling, config=config)
    slots = [set()] if sampling == "single_request" else [{"cfc:candidate:0"}, {"cfc:candidate:1"}]
    expected = [frozenset({"mine", "cfc:candidate"} | slot) for slot in slots]
    assert sorted(map(sorted, (tags for _, tags in seen.of("model")))) == sorted(map(sorted, expected))
    assert [(name, tags) for name, tags in seen.of("chain")] == [("str", frozenset({"mine", "cfc:context"}))]


def test_sampler_draws_candidates_concurrently(draw: Draw) -> None:
    # All wait for all: one after the other they would never meet. Without a limit, nothing keeps them apart.
    everyone = threading.Barrier(4, timeout=30)

    def answer(_: Any) -> str:
        return f"answer {everyone.wait()}"

    assert sorted_texts(draw(RunnableLambda(answer), 4)) == numbered_answers(4)
