"""Drawing: quiet copies, request slots, texts, and the tokens they cost."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Any, Literal

import pytest
from langchain_core.language_models import BaseChatModel, FakeListChatModel, FakeListLLM
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.messages.ai import InputTokenDetails, UsageMetadata
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import (
    ConfigurableField,
    Runnable,
    RunnableBranch,
    RunnableConfig,
    RunnableLambda,
    RunnableParallel,
    RunnablePassthrough,
    RunnableSequence,
    RunnableSerializable,
)
from pydantic import BaseModel

from langchain_cfc.errors import DrawError
from langchain_cfc.records import Candidate
from langchain_cfc.sampling import Draw, adraw, draw, quiet, total_usage

MODEL = FakeListChatModel(responses=["a"])
OTHER = FakeListChatModel(responses=["c"])
TEMPLATE: Runnable[Any, Any] = ChatPromptTemplate.from_template("{input}")


def drawn(generator: Any, n: int = 3, *, sync: bool = True) -> list[Draw]:
    configs = [RunnableConfig(tags=[str(slot)]) for slot in range(n)]
    runnable: Runnable[Any, Any] = generator if isinstance(generator, Runnable) else RunnableLambda(generator)
    return draw(runnable, "x", configs) if sync else asyncio.run(adraw(runnable, "x", configs))


both_ways = pytest.mark.parametrize("sync", [True, False])


def models_in(found: Any) -> list[BaseChatModel]:
    """Every chat model that a Runnable holds, however deep, in the order of its fields."""
    if isinstance(found, BaseChatModel):
        return [found]
    if isinstance(found, BaseModel):
        return [model for name in type(found).model_fields for model in models_in(getattr(found, name))]
    if isinstance(found, dict):
        return [model for one in found.values() for model in models_in(one)]
    if isinstance(found, Sequence) and not isinstance(found, str):
        return [model for one in found for model in models_in(one)]
    return []


class OwnStep(RunnableSerializable[Any, Any]):
    """A user's own step that holds a model in a field."""

    judge: Any

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:  # noqa: A002 - LangChain's name
        return self.judge.invoke(input, config, **kwargs)


class Town(BaseModel):
    """Structured output."""

    name: str
    capital: bool


GENERATORS: dict[str, tuple[Runnable[Any, Any], int]] = {
    "model": (MODEL, 1),
    "binding": (MODEL.bind(stop=["x"]), 1),
    "config": (MODEL.with_config(tags=["mine"]), 1),
    "retry": (MODEL.with_retry(), 1),
    "sequence": (TEMPLATE | MODEL | StrOutputParser(), 1),
    "two models": (TEMPLATE | MODEL | StrOutputParser() | OTHER, 2),
    "map": (RunnableParallel(first=MODEL, second=OTHER), 2),
    "assign": (RunnablePassthrough.assign(out=TEMPLATE | MODEL), 1),
    "fallbacks": (MODEL.with_fallbacks([OTHER, MODEL]), 3),
    "branch": (RunnableBranch((lambda _: True, MODEL), OTHER), 2),
    "configurable": (MODEL.configurable_fields(responses=ConfigurableField(id="responses")), 1),
    "alternatives": (MODEL.configurable_alternatives(ConfigurableField(id="which"), other=OTHER), 2),
    "each": (MODEL.map(), 1),
    "deep": ((TEMPLATE | MODEL.bind(stop=["x"]).with_retry()).with_config(tags=["mine"]), 1),
    "own": (OwnStep(judge=MODEL), 1),
}


@pytest.mark.parametrize("name", GENERATORS)
def test_every_model_in_a_field_becomes_quiet(name: str) -> None:
    generator, models = GENERATORS[name]
    found = models_in(quiet(generator))
    assert [(model.cache, model.disable_streaming) for model in found] == [(False, True)] * models


@pytest.mark.parametrize("name", GENERATORS)
def test_the_users_own_models_are_left_alone(name: str) -> None:
    generator, models = GENERATORS[name]
    before = repr(generator)
    quiet(generator)
    assert repr(generator) == before
    untouched = [(model.cache, model.disable_streaming) for model in models_in(generator)]
    assert untouched == [(None, False)] * models


@pytest.mark.parametrize("name", GENERATORS)
def test_a_quiet_copy_answers_as_before(name: str) -> None:
    generator, _ = GENERATORS[name]
    prompt: Any = {"input": "x"} if name in {"sequence", "two models", "assign", "deep"} else "x"
    if name == "each":
        prompt = ["x", "y"]
    said, quietly = (repr(one.invoke(prompt)) for one in (generator, quiet(generator)))
    # Each message has an id of its own.
    assert re.sub("lc_run--[-0-9a-f]+", "", quietly) == re.sub("lc_run--[-0-9a-f]+", "", said)


def test_a_quiet_copy_keeps_what_was_bound() -> None:
    copy: Any = quiet(MODEL.bind(stop=["x"]).with_config(tags=["mine"]))
    assert copy.config["tags"] == ["mine"]
    assert copy.kwargs == {"stop": ["x"]}


def test_a_named_sequence_keeps_its_name() -> None:
    assert quiet(RunnableSequence(TEMPLATE, MODEL, name="mine")).get_name() == "mine"


def test_text_models_do_not_cache() -> None:
    assert quiet(FakeListLLM(responses=["a"])).cache is False  # type: ignore[attr-defined]


class EagerModel(FakeListChatModel):
    """A model with a provider's own switch for streaming."""

    streaming: bool = True


def test_a_providers_own_switch_for_streaming_is_off() -> None:
    model = EagerModel(responses=["a"])
    copy: Any = quiet(model)
    assert (copy.streaming, model.streaming) == (False, True)
    # A model without that switch does not get one.
    assert not hasattr(quiet(MODEL), "streaming")


def test_what_holds_no_model_is_left_as_it_is() -> None:
    function: Runnable[Any, Any] = RunnableLambda(lambda prompt: prompt)
    assert quiet(function) is function
    assert quiet(TEMPLATE).invoke({"input": "x"}) == TEMPLATE.invoke({"input": "x"})


@both_ways
def test_one_candidate_per_config_in_their_order(sync: bool) -> None:
    def generator(_: Any, config: RunnableConfig) -> str:
        # Tags are handed to children through the callback manager.
        manager: Any = config["callbacks"]
        return "".join(tag for tag in manager.tags if tag.isdigit())

    assert [one.text for one in drawn(generator, 5, sync=sync)] == ["0", "1", "2", "3", "4"]


@both_ways
@pytest.mark.parametrize(
    ("output", "text"),
    [
        ("plain", "plain"),
        ("", ""),
        (AIMessage("said"), "said"),
        (AIMessage(""), ""),
        (AIMessage([{"type": "text", "text": "in "}, {"type": "text", "text": "parts"}]), "in parts"),
        (HumanMessage("echoed"), "echoed"),
        ({"b": 1, "a": [True, None, 0.5]}, '{"a":[true,null,0.5],"b":1}'),
        (["a", "b"], '["a","b"]'),
        ({"town": "Bogotá"}, '{"town":"Bogotá"}'),
        (7, "7"),
        (Town(name="Lima", capital=True), '{"capital":true,"name":"Lima"}'),
    ],
)
def test_what_a_reader_sees_of_an_output(output: Any, text: str, sync: bool) -> None:
    found = drawn(lambda _: output, 1, sync=sync)
    assert [one.text for one in found] == [text]
    assert (found[0].message is not None) == isinstance(output, BaseMessage)


def test_structured_outputs_are_told_apart_as_in_records() -> None:
    # Answers are compared, and their lengths measured, offline by `answer_key` and online by the text.
    output = {"town": "Bogotá", "country": {"name": "Colombia", "code": [1, 2]}}
    record = Candidate(message=output, score=0.5, correct=True)
    assert drawn(lambda _: output, 1)[0].text == record.answer_key


@both_ways
@pytest.mark.parametrize(
    "output", [object(), {1, 2}, float("nan"), {"x": float("inf")}, b"x", [AIMessage("x")]]
)
def test_what_is_no_plain_data_is_refused(output: Any, sync: bool) -> None:
    with pytest.raises(DrawError, match=rf"candidate 0 is a {type(output).__name__}, which cannot be read"):
        drawn(lambda _: output, 2, sync=sync)


@both_ways
def test_failures_are_counted_and_the_first_is_the_cause(sync: bool) -> None:
    def generator(_: Any, config: RunnableConfig) -> str:
        manager: Any = config["callbacks"]
        slot = next(tag for tag in manager.tags if tag.isdigit())
        if slot in {"1", "3"}:
            msg = f"slot {slot}"
            raise TimeoutError(msg)
        return str(slot)

    with pytest.raises(
        DrawError, match="2 of 5 candidates could not be drawn, first candidate 1: Timeout"
    ) as e:
        drawn(generator, 5, sync=sync)
    assert str(e.value.__cause__) == "slot 1"


COUNTS: tuple[Literal["input_tokens", "output_tokens", "total_tokens"], ...] = (
    "input_tokens",
    "output_tokens",
    "total_tokens",
)


def usage(tokens: int, cached: int) -> UsageMetadata:
    return UsageMetadata(
        input_tokens=tokens,
        output_tokens=1,
        total_tokens=tokens + 1,
        input_token_details=InputTokenDetails(cache_read=cached),
    )


def said(metadata: UsageMetadata | None) -> Draw:
    return Draw("x", AIMessage("x", usage_metadata=metadata))


def test_tokens_add_up_over_the_draws() -> None:
    total = total_usage([said(usage(10, 2)), said(usage(20, 3)), said(None), Draw("x")])
    assert total is not None
    assert {key: total[key] for key in COUNTS} == {"input_tokens": 30, "output_tokens": 2, "total_tokens": 32}
    assert total["input_token_details"] == {"cache_read": 5}


def test_no_message_that_says_is_no_usage() -> None:
    assert total_usage([said(None), Draw("x"), Draw("x", HumanMessage("x"))]) is None
    assert total_usage([]) is None


@pytest.mark.parametrize(
    ("output", "says"),
    [
        (None, "is None: the generator returned nothing"),
        (
            AIMessage("", tool_calls=[{"name": "f", "args": {"x": 1}, "id": "1"}]),
            "is a message with tool calls",
        ),
    ],
)
def test_what_cannot_be_told_apart_as_an_answer_is_refused(output: Any, says: str) -> None:
    """Tool calls have an empty text, so that four different ones would pass for one and the same answer."""
    generator: RunnableLambda[str, Any] = RunnableLambda(lambda _: output)
    with pytest.raises(DrawError, match=says):
        draw(generator, "x", [RunnableConfig()] * 2)
