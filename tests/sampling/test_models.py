"""The models inside a generator: given by name, made late, or hidden in functions."""

from __future__ import annotations

import asyncio
import importlib
import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest
from langchain.chat_models import init_chat_model
from langchain_core.caches import InMemoryCache
from langchain_core.language_models import FakeListLLM
from langchain_core.output_parsers import StrOutputParser
from langchain_core.runnables import (
    Runnable,
    RunnableConfig,
    RunnableLambda,
    RunnableParallel,
    RunnablePassthrough,
)
from langchain_openai import ChatOpenAI

from langchain_cfc import CFCRunnable
from langchain_cfc.errors import DrawError, InputError, MissingExtraError, SamplingWarning
from langchain_cfc.sampling import Sampler, resolve_generator, without_streaming_and_cache
from langchain_cfc.sampling.models import (
    has_model,
    list_hidden_models,
    list_opaque_parts,
    walk_runnables,
)
from tests.factories import make_artifact
from tests.fakes import NumberedModel, global_cache
from tests.sampling.drawing import PROMPT, Draw
from tests.serving.openai_server import Script

TOWNS = ["bogota", "la paz", "lima", "quito"]
QUIET: dict[str, Any] = {"cache": False, "disable_streaming": True}


def collect_warnings(make: Callable[[], Any]) -> list[str]:
    """Collect the sampling warnings of a block."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        make()
    return [str(one.message) for one in caught if issubclass(one.category, SamplingWarning)]


# Given by name, or as something that is no Runnable yet.


@pytest.mark.parametrize("serve", ["invoke", "ainvoke"])
def test_chain_takes_a_generator_by_name(base_url: str, script: Script, serve: str) -> None:
    assert base_url
    chain = CFCRunnable(
        generator="openai:recorded",
        verifier=lambda _, candidates: [0.1 if one.text == "lima" else 0.9 for one in candidates],
        artifact=make_artifact(),
    )
    result = chain.invoke(PROMPT) if serve == "invoke" else asyncio.run(chain.ainvoke(PROMPT))
    assert result.answers == ("lima",)
    assert [request["model"] for request in script.requests] == ["recorded"] * 4
    assert chain.get_name() == "CFCRunnable"


def test_resolve_generator_makes_a_chat_model_from_a_name(base_url: str) -> None:
    model = resolve_generator("openai:gpt-4o-mini")
    assert isinstance(model, ChatOpenAI)
    assert str(model.root_client.base_url) == f"{base_url}/"


def test_resolve_generator_of_a_name_requires_langchain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "langchain.chat_models", raising=False)
    found = importlib.import_module

    def without(name: str, *args: Any) -> Any:
        if name.startswith("langchain."):
            raise ModuleNotFoundError(name)
        return found(name, *args)

    monkeypatch.setattr(importlib, "import_module", without)
    expected = r"a generator given by its name \('openai:x'\) needs langchain, which is not installed"
    with pytest.raises(MissingExtraError, match=expected):
        resolve_generator("openai:x")


def test_resolve_generator_names_all_missing_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("langchain", "langchain_openai"):
        monkeypatch.setitem(sys.modules, module, None)
    expected = r"needs langchain and langchain_openai, .*: pip install 'langchain-cfc\[langchain,openai\]'"
    for name in ("openai:x", "gpt-4o-mini"):
        with pytest.raises(MissingExtraError, match=expected):
            resolve_generator(name)
    with pytest.raises(MissingExtraError, match=r"needs langchain, .* 'langchain-cfc\[langchain\]'"):
        resolve_generator("anthropic:x")


def test_resolve_generator_takes_runnables_functions_and_mappings() -> None:
    model = NumberedModel()
    assert resolve_generator(model) is model
    assert resolve_generator(str).invoke(7) == "7"
    assert isinstance(resolve_generator({"out": model}), RunnableParallel)


def make_at_each_call() -> Any:
    return init_chat_model("openai:recorded", configurable_fields="any")


def test_models_that_are_made_at_each_call_are_refused() -> None:
    made = make_at_each_call()
    for part in (made, made.bind_tools([]), made | StrOutputParser(), RunnableParallel(a=made)):
        for fresh in (True, False):
            with pytest.raises(InputError, match="made at each call"):
                without_streaming_and_cache(part, fresh=fresh)


# Models that functions have closed over.


def call_in_function(model: Any) -> Runnable[Any, Any]:
    def answer(prompt: Any, config: RunnableConfig) -> Any:
        return model.invoke(prompt, config)

    return RunnableLambda(answer)


def call_in_async_function(model: Any) -> Runnable[Any, Any]:
    async def answer(prompt: Any) -> Any:
        return await model.ainvoke(prompt)

    return RunnableLambda(answer)


def call_in_lambda(model: Any) -> Runnable[Any, Any]:
    return RunnableLambda(lambda prompt: model.invoke(prompt))  # noqa: PLW0108 - the point of it


WAYS_TO_HIDE = [call_in_function, call_in_async_function, call_in_lambda]


@pytest.mark.parametrize("hide", WAYS_TO_HIDE)
def test_sampler_warns_once_of_a_model_hidden_in_a_function(
    hide: Callable[[Any], Runnable[Any, Any]],
) -> None:
    function = hide(NumberedModel())
    (said,) = collect_warnings(lambda: Sampler(function))
    assert f"NumberedModel in {function.get_name()}" in said
    assert "give the model cache=False and disable_streaming=True" in said
    # Wherever it stands, and however often.
    (said,) = collect_warnings(lambda: Sampler(RunnableParallel(one=function, two=function) | str))
    assert said.count("NumberedModel") == 1


@pytest.mark.parametrize("hide", WAYS_TO_HIDE)
@pytest.mark.parametrize(
    "model",
    [
        lambda: NumberedModel(**QUIET),
        lambda: NumberedModel(**QUIET).with_retry() | StrOutputParser(),
        lambda: FakeListLLM(responses=["x"], cache=False),
    ],
)
def test_sampler_does_not_warn_of_hidden_models_without_cache(
    hide: Callable[[Any], Runnable[Any, Any]], model: Any
) -> None:
    assert collect_warnings(lambda: Sampler(hide(model()))) == []


@pytest.mark.parametrize(
    ("model", "named"),
    [
        (lambda: NumberedModel(cache=False), "NumberedModel"),
        (lambda: NumberedModel(disable_streaming=True), "NumberedModel"),
        (lambda: NumberedModel(cache=False, disable_streaming="tool_calling"), "NumberedModel"),
        (lambda: RunnableParallel(a=NumberedModel(**QUIET), b=NumberedModel()), "NumberedModel"),
        (lambda: FakeListLLM(responses=["x"]), "FakeListLLM"),
        (make_at_each_call, "_ConfigurableModel"),
        (lambda: call_in_function(NumberedModel()), "NumberedModel"),
    ],
)
def test_sampler_warns_of_hidden_models_that_cache_or_stream(model: Any, named: str) -> None:
    (said,) = collect_warnings(lambda: Sampler(call_in_function(model())))
    assert f"{named} in answer" in said


def test_sampler_does_not_warn_of_functions_that_only_prepare() -> None:
    # Its answer is no candidate, and it is asked once.
    find = RunnableLambda(lambda prompt: prompt)
    chain = (
        RunnablePassthrough.assign(context=call_in_function(NumberedModel()) | find)
        | str
        | NumberedModel(**QUIET)
    )
    assert len(collect_warnings(lambda: Sampler(chain))) == 1, "no retriever follows: it may be a draft"
    assert collect_warnings(lambda: Sampler(find | NumberedModel())) == []


def test_sampler_does_not_warn_of_models_in_fields() -> None:
    for generator in (
        NumberedModel(),
        NumberedModel() | StrOutputParser(),
        RunnableParallel(a=NumberedModel()),
    ):
        assert collect_warnings(lambda one=generator: Sampler(one)) == []  # type: ignore[misc]


class Bot:
    """Keeps its model where LangChain does not look."""

    def __init__(self) -> None:
        self.model = NumberedModel()

    def answer(self, prompt: Any) -> Any:
        return self.model.invoke(prompt)


def test_repeated_prompts_under_a_global_cache_in_a_function_are_refused(draw: Draw) -> None:
    sampler = Sampler(RunnableLambda(Bot().answer))
    with global_cache():
        sampler.draw(PROMPT, 1)
        with pytest.raises(DrawError, match="as if from a cache"):
            sampler.draw(PROMPT, 2)
    assert collect_warnings(lambda: draw(RunnableLambda(Bot().answer), 2)) == []


def test_walk_runnables_yields_parts_in_order() -> None:
    first, second = NumberedModel(), NumberedModel()
    chain = RunnableParallel(a=first.bind(stop=["x"]), b=second) | RunnableLambda(str)
    assert [one for one in walk_runnables(chain) if isinstance(one, NumberedModel)] == [first, second]
    assert next(walk_runnables(chain)) is chain
    assert list(walk_runnables("text")) == []


def test_chain_serves_models_with_fields_that_hold_themselves() -> None:
    table: dict[str, Any] = {"names": ["lima"]}
    table["names"].append(table)
    model = FakeListLLM(responses=["lima"])
    for generator in (
        model.bind(extra=table),
        model.model_copy(update={"metadata": table}),
        {"x": model.bind(y=[table])},
    ):
        chain = CFCRunnable(
            generator=generator, verifier=lambda _, drawn: [0.0] * len(drawn), artifact=make_artifact()
        )
        assert chain.invoke("peru").answers
    table["model"] = model
    with pytest.raises(InputError, match="holds models and itself"):
        without_streaming_and_cache(model.bind(extra=table))


def test_models_in_bound_arguments_are_not_cached() -> None:
    def answer(prompt: Any, models: Any = ()) -> Any:
        return models[0].invoke(prompt)

    for more in ({}, {"n": 2}):
        model = NumberedModel(cache=InMemoryCache())
        drawn = Sampler(RunnableLambda(answer).bind(models=[model], **more)).draw(PROMPT, 3)
        assert len({one.text for one in drawn}) == 3


def test_has_model_sees_models_in_fields_and_functions() -> None:
    assert has_model(NumberedModel().with_fallbacks([NumberedModel()]))
    assert has_model(call_in_function(NumberedModel()))
    assert has_model(make_at_each_call())
    assert not has_model(RunnableLambda(str) | StrOutputParser())
    assert list_hidden_models(NumberedModel()) == []
    assert list_opaque_parts(RunnableLambda(Bot().answer) | StrOutputParser()) == ["answer"]
