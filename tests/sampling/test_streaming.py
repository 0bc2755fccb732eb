"""Copies that do not stream: no candidate is seen before it is accepted; models of users stay as they are."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from typing import Any, TypedDict

import pytest
from langchain_core.language_models import BaseChatModel, FakeListChatModel, FakeListLLM
from langchain_core.messages import AIMessageChunk
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
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph
from pydantic import BaseModel

from langchain_cfc import CalibrationArtifact, CFCResult
from langchain_cfc.sampling import Sampler, without_streaming_and_cache
from tests.factories import make_artifact, make_chain
from tests.fakes import N, NumberedModel, NumberedStreamingModel
from tests.sampling.drawing import PROMPT, Draw, numbered_answers, sorted_texts
from tests.serving.openai_server import Script

MakeModel = Callable[..., ChatOpenAI]
MODEL = FakeListChatModel(responses=["a"])
OTHER = FakeListChatModel(responses=["c"])
TEMPLATE: Runnable[Any, Any] = ChatPromptTemplate.from_template("{input}")


def list_models(found: Any) -> list[BaseChatModel]:
    """Every chat model that a Runnable holds, however deep, in the order of its fields."""
    if isinstance(found, BaseChatModel):
        return [found]
    if isinstance(found, BaseModel):
        return [model for name in type(found).model_fields for model in list_models(getattr(found, name))]
    if isinstance(found, dict):
        return [model for one in found.values() for model in list_models(one)]
    if isinstance(found, Sequence) and not isinstance(found, str):
        return [model for one in found for model in list_models(one)]
    return []


class OwnStep(RunnableSerializable[Any, Any]):
    """A user's own step that holds a model in a field."""

    judge: Any

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:  # noqa: A002 - LangChain's name
        return self.judge.invoke(input, config, **kwargs)


class Holder(BaseModel):
    """What is no Runnable itself, as a document compressor."""

    model: Any

    def invoke(self, given: Any, config: RunnableConfig | None, **kwargs: Any) -> Any:
        return self.model.invoke(given, config, **kwargs)


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
    "held": (OwnStep(judge=Holder(model=MODEL)), 1),
}


@pytest.mark.parametrize("name", GENERATORS)
def test_without_streaming_and_cache_changes_every_model_in_a_field(name: str) -> None:
    generator, models = GENERATORS[name]
    found = list_models(without_streaming_and_cache(generator))
    assert [(model.cache, model.disable_streaming) for model in found] == [(False, True)] * models


@pytest.mark.parametrize("name", GENERATORS)
def test_without_streaming_keeps_the_cache_of_judges(name: str) -> None:
    generator, models = GENERATORS[name]
    found = list_models(without_streaming_and_cache(generator, fresh=False))
    assert [(model.cache, model.disable_streaming) for model in found] == [(None, True)] * models


@pytest.mark.parametrize("name", GENERATORS)
def test_without_streaming_and_cache_leaves_the_original_unchanged(name: str) -> None:
    generator, models = GENERATORS[name]
    before = repr(generator)
    without_streaming_and_cache(generator)
    assert repr(generator) == before
    untouched = [(model.cache, model.disable_streaming) for model in list_models(generator)]
    assert untouched == [(None, False)] * models


@pytest.mark.parametrize("name", GENERATORS)
def test_copy_without_streaming_answers_like_the_original(name: str) -> None:
    generator, _ = GENERATORS[name]
    prompt: Any = {"input": "x"} if name in {"sequence", "two models", "assign", "deep"} else "x"
    if name == "each":
        prompt = ["x", "y"]
    said, quietly = (repr(one.invoke(prompt)) for one in (generator, without_streaming_and_cache(generator)))
    # Each message has an id of its own.
    assert re.sub("lc_run--[-0-9a-f]+", "", quietly) == re.sub("lc_run--[-0-9a-f]+", "", said)


def test_copy_without_streaming_keeps_bound_arguments() -> None:
    copy: Any = without_streaming_and_cache(
        MODEL.bind(stop=["x"], n=3, stream=True).with_config(tags=["mine"])
    )
    assert copy.config["tags"] == ["mine"]
    assert copy.kwargs == {"stop": ["x"]}


def test_judge_copy_keeps_all_bound_arguments() -> None:
    copy: Any = without_streaming_and_cache(MODEL.bind(stop=["x"], n=3), fresh=False)
    assert copy.kwargs == {"stop": ["x"], "n": 3}


def test_copy_without_streaming_keeps_the_name_of_a_sequence() -> None:
    assert without_streaming_and_cache(RunnableSequence(TEMPLATE, MODEL, name="mine")).get_name() == "mine"


def test_copy_of_a_text_model_does_not_cache() -> None:
    assert without_streaming_and_cache(FakeListLLM(responses=["a"])).cache is False  # type: ignore[attr-defined]


class EagerModel(FakeListChatModel):
    """A model with a provider's own switch for streaming."""

    streaming: bool = True


def test_copy_without_streaming_disables_the_streaming_field() -> None:
    model = EagerModel(responses=["a"])
    copy: Any = without_streaming_and_cache(model)
    assert (copy.streaming, model.streaming) == (False, True)
    # A model without that switch does not get one.
    assert not hasattr(without_streaming_and_cache(MODEL), "streaming")


def test_without_streaming_and_cache_returns_parts_without_model_unchanged() -> None:
    function: Runnable[Any, Any] = RunnableLambda(lambda prompt: prompt)
    for part in (
        function,
        TEMPLATE,
        TEMPLATE | function,
        RunnableParallel(x=TEMPLATE, y=OwnStep(judge=None)),
    ):
        assert without_streaming_and_cache(part) is part


def test_configurable_alternative_made_late_does_not_stream() -> None:
    made: list[NumberedModel] = []

    def other() -> NumberedModel:
        made.append(NumberedStreamingModel())
        return made[-1]

    field = ConfigurableField(id="which")
    generator = NumberedStreamingModel().configurable_alternatives(field, other=other)
    chosen = generator.with_config(configurable={"which": "other"})
    assert asyncio.run(collect_streamed_texts(without_streaming_and_cache(chosen))) == []
    assert "".join(asyncio.run(collect_streamed_texts(chosen))) == "answer 0", "the negative control"
    # The draws' model and the user's are not the same, but both answered.
    assert [len(model.requests) for model in made] == [1, 1]


async def collect_streamed_texts(runnable: Runnable[Any, Any], **settings: Any) -> list[str]:
    """The pieces of messages in a Runnable's events."""
    events = [event async for event in runnable.astream_events(PROMPT, version="v2", **settings)]
    return [str(event["data"]["chunk"].text) for event in events if event["event"] == "on_chat_model_stream"]


def verify(_: Any, candidates: list[Any]) -> list[float]:
    """Accepts one answer of four, and lima."""
    return [0.1 if one.text == "lima" or one.text[-1] in "048" else 0.9 for one in candidates]


@pytest.fixture(scope="module")
def artifact() -> CalibrationArtifact:
    """Of four candidates, whose threshold is 0.75."""
    return make_artifact()


HOLDERS: dict[str, Callable[[NumberedModel], Any]] = {
    "model": lambda model: model,
    "several choices": lambda model: model.model_copy(update={"n": 3}),
    "several choices bound": lambda model: model.bind(n=3),
    "chain": lambda model: RunnablePassthrough() | model.with_retry() | StrOutputParser(),
}


@pytest.mark.parametrize("held", HOLDERS)
def test_events_of_a_chain_hold_no_piece_of_a_candidate(sampling: Any, held: str) -> None:
    chain = make_chain(generator=HOLDERS[held](NumberedStreamingModel()), verifier=verify, sampling=sampling)
    assert asyncio.run(collect_streamed_texts(chain)) == []


def test_events_of_a_model_show_mingled_choices() -> None:
    # The negative control: what a listener gets of n choices is one message that cannot be read.
    assert "".join(asyncio.run(collect_streamed_texts(NumberedStreamingModel()))) == "answer 0"
    assert "".join(asyncio.run(collect_streamed_texts(NumberedStreamingModel(n=2)))) == "aannsswweerr  01"


class State(TypedDict, total=False):
    """A graph's state."""

    question: str
    answer: str


Run = Callable[[Any, Any], list[Any]]


def run(graph: Any, modes: Any) -> list[Any]:
    return list(graph.stream({"question": PROMPT}, stream_mode=modes))


def arun(graph: Any, modes: Any) -> list[Any]:
    async def collected() -> list[Any]:
        return [one async for one in graph.astream({"question": PROMPT}, stream_mode=modes)]

    return asyncio.run(collected())


both_graphs = pytest.mark.parametrize("run", [run, arun])


def make_graph(runnable: Runnable[Any, Any], read: Callable[[Any], str]) -> Any:
    """A graph of one node, which answers the question."""

    def answer(state: State, config: RunnableConfig) -> State:
        return {"answer": read(runnable.invoke(state["question"], config))}

    async def aanswer(state: State, config: RunnableConfig) -> State:
        return {"answer": read(await runnable.ainvoke(state["question"], config))}

    graph = StateGraph(State)
    graph.add_node("answer", RunnableLambda(answer, aanswer))
    graph.add_edge(START, "answer")
    graph.add_edge("answer", END)
    return graph.compile()


def best(result: CFCResult) -> str:
    return str(result.best)


@both_graphs
@pytest.mark.parametrize("held", HOLDERS)
def test_graph_of_a_chain_streams_no_rejected_candidate(run: Run, sampling: Any, held: str) -> None:
    chain = make_chain(generator=HOLDERS[held](NumberedStreamingModel()), verifier=verify, sampling=sampling)
    graph = make_graph(chain, best)
    assert run(graph, "messages") == []
    # Nor is a rejected one in anything else that the graph gives away.
    assert run(graph, "values")[-1]["answer"].startswith("answer ")
    shown = repr(run(graph, ["messages", "values", "updates", "custom"]))
    assert len(set(re.findall(r"answer \d", shown))) == 1


@both_graphs
def test_graph_of_a_model_streams_its_answers(run: Run) -> None:
    # The negative control: such messages exist, and with several choices they cannot be read.
    for n, said in ((1, "answer 0"), (2, "aannsswweerr  01")):
        graph = make_graph(NumberedStreamingModel(n=n), lambda message: str(message.text))
        pieces = [piece for piece, _ in run(graph, "messages") if isinstance(piece, AIMessageChunk)]
        assert "".join(str(piece.text) for piece in pieces) == said


@both_graphs
def test_graph_with_a_client_over_http_streams_no_candidate(
    run: Run, chat_model: MakeModel, script: Script
) -> None:
    loud = chat_model(streaming=True)
    graph = make_graph(make_chain(generator=loud, verifier=verify), best)
    assert run(graph, "messages") == []
    assert len(script.requests) == N
    assert not any(request.get("stream") for request in script.requests)
    pieces = run(make_graph(loud, lambda message: str(message.text)), "messages")
    assert "".join(str(piece.text) for piece, _ in pieces) == "lima", "the negative control"
    assert script.requests[-1]["stream"] is True


def test_streaming_client_is_read_without_streaming(
    chat_model: MakeModel, script: Script, draw: Draw, sampling: Any
) -> None:
    assert sorted_texts(draw(chat_model(streaming=True), 4, sampling)) == [
        "bogota",
        "la paz",
        "lima",
        "quito",
    ]
    assert not any(request.get("stream") for request in script.requests)


def test_bound_stream_argument_is_dropped(chat_model: MakeModel, script: Script, draw: Draw) -> None:
    assert len(draw(chat_model().bind(stream=True), 2)) == 2
    assert not any(request.get("stream") for request in script.requests)


def test_copy_without_streaming_shares_resources() -> None:
    # What counts requests, limits rates or holds connections is shared, not copied.
    model = NumberedModel()
    Sampler(model).draw(PROMPT, 3)
    assert len(model.requests) == 3
    assert numbered_answers(4)[-1] == model.invoke(PROMPT).text
