"""A stream contains the whole decision once, and no rejected candidate."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.messages import AIMessageChunk, BaseMessage
from langchain_core.runnables import Runnable, RunnableLambda
from langchain_core.tracers._streaming import _StreamingCallbackHandler
from langgraph.graph import START, MessagesState, StateGraph

from langchain_cfc import CalibrationArtifact, CFCChatModel
from tests.calls import Invoke
from tests.chat_model.facades import (
    HOPELESS,
    RunWatcher,
    invoke_streaming,
    invoke_streaming_async,
    make_facade,
)
from tests.factories import make_chain
from tests.fakes import TEXTS, N, StreamingModel
from tests.runnable.test_draw_rules import make_artifact as make_stopping_artifact
from tests.runnable.test_draw_rules import make_chain as make_stopping_chain

Shown = Callable[[Runnable[Any, Any]], list[str]]


def make_streaming_model(texts: Any = TEXTS) -> StreamingModel:
    return StreamingModel(texts=texts)


def make_graph(model: Runnable[Any, Any]) -> Any:
    """A graph whose one node asks a model."""

    def answer(state: MessagesState) -> dict[str, Any]:
        return {"messages": [model.invoke(state["messages"])]}

    async def aanswer(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("model", RunnableLambda(answer, aanswer))
    graph.add_edge(START, "model")
    return graph.compile()


ASKED: dict[str, Any] = {"messages": [("user", "where?")]}


def stream_graph(model: Runnable[Any, Any]) -> list[str]:
    parts = make_graph(model).stream(ASKED, stream_mode="messages")
    return [str(message.text) for message, _ in parts if message.content]


def astream_graph(model: Runnable[Any, Any]) -> list[str]:
    async def parts() -> list[BaseMessage]:
        found = make_graph(model).astream(ASKED, stream_mode="messages")
        return [message async for message, _ in found]

    return [str(message.text) for message in asyncio.run(parts()) if message.content]


def stream_events(model: Runnable[Any, Any], given: Any = "where?") -> list[str]:
    async def events() -> list[Any]:
        return [event async for event in model.astream_events(given, version="v2")]

    tokens = [event for event in asyncio.run(events()) if event["event"] == "on_chat_model_stream"]
    texts = [str(token["data"]["chunk"].text) for token in tokens]
    return [text for text in texts if text]


def stream_graph_events(model: Runnable[Any, Any]) -> list[str]:
    return stream_events(make_graph(model), ASKED)


every_stream = pytest.mark.parametrize(
    "shown", [stream_graph, astream_graph, stream_events, stream_graph_events]
)


@every_stream
def test_streams_show_only_the_decision(shown: Shown) -> None:
    assert shown(make_facade(generator=make_streaming_model())) == ["lima|0.1"]
    assert shown(make_facade(generator=make_streaming_model(HOPELESS))) == ["I do not know."]


@every_stream
def test_streams_show_every_draw_of_a_function_without_chat_model(shown: Shown) -> None:
    # The negative control: these streams do forward what models below the node say.
    model = make_streaming_model()

    def best(messages: Any) -> Any:
        return [model.invoke(messages) for _ in range(N)][2]

    async def abest(messages: Any) -> Any:
        return [await model.ainvoke(messages) for _ in range(N)][2]

    told = "".join(shown(RunnableLambda(best, abest)))
    for text in TEXTS:
        assert text in told


@pytest.mark.parametrize("shown", [stream_graph, astream_graph])
def test_graph_streams_the_whole_answer_of_a_fallback(artifact: CalibrationArtifact, shown: Shown) -> None:
    chain = make_chain(artifact, generator=make_streaming_model(HOPELESS)).or_else(
        make_streaming_model(["lima"] * N)
    )
    assert shown(CFCChatModel(chain=chain)) == ["lima"]


@pytest.mark.parametrize("ask", [invoke_streaming, invoke_streaming_async])
def test_stream_yields_one_last_chunk(ask: Any) -> None:
    watcher = RunWatcher()
    chunk = ask(make_facade(generator=make_streaming_model()), "where?", {"callbacks": [watcher]})
    assert isinstance(chunk, AIMessageChunk)
    assert chunk.chunk_position == "last"
    assert chunk.text == "lima|0.1"
    (top,) = [run for run, parent in watcher.parents.items() if parent is None]
    assert watcher.tokens == [(top, "lima|0.1")]


class StreamDemander(RunWatcher, _StreamingCallbackHandler[Any]):
    """Makes models stream that are only invoked, as a graph's handler does."""

    def tap_output_iter(self, run_id: Any, output: Any) -> Any:
        del run_id
        return output

    def tap_output_aiter(self, run_id: Any, output: Any) -> Any:
        del run_id
        return output


def test_call_streamed_by_a_handler_keeps_draws_below_its_run(invoke: Invoke) -> None:
    watcher = StreamDemander()
    invoke(make_facade(generator=make_streaming_model()), "where?", {"callbacks": [watcher]})
    assert list(watcher.kinds.values()).count("model") == 1 + N
    (top,) = [run for run, parent in watcher.parents.items() if parent is None]
    assert watcher.tokens == [(top, "lima|0.1")]


def test_invoke_with_stream_true_reports_its_token(invoke: Invoke) -> None:
    watcher = RunWatcher()
    # The generator is a function, which no argument could reach.
    facade = make_facade(generator=lambda _: "lima|0.1")
    assert invoke(facade, "where?", {"callbacks": [watcher]}, stream=True).text == "lima|0.1"
    assert [token for _, token in watcher.tokens] == ["lima|0.1"]


def test_plain_invoke_reports_no_tokens() -> None:
    watcher = RunWatcher()
    make_facade(generator=make_streaming_model()).invoke("where?", {"callbacks": [watcher]})
    assert watcher.tokens == []


def test_disable_streaming_reports_no_tokens(artifact: CalibrationArtifact) -> None:
    watcher = RunWatcher()
    facade = CFCChatModel(chain=make_chain(artifact), disable_streaming=True)
    (chunk,) = facade.stream("where?", {"callbacks": [watcher]})
    assert chunk.text == "lima|0.1"
    assert watcher.tokens == []


@pytest.mark.filterwarnings("ignore::langchain_core._api.beta_decorator.LangChainBetaWarning")
def test_stream_events_v3_hold_only_the_decision() -> None:
    watcher = RunWatcher()
    facade = make_facade(generator=make_streaming_model())
    stream = facade.stream_events("where?", {"callbacks": [watcher]}, version="v3")
    events = list(stream)
    assert "quito" not in repr(events)
    assert stream.output.text == "lima|0.1"
    # The draws are below the run here, too.
    assert sum(parent is None for parent in watcher.parents.values()) == 1


@every_stream
@pytest.mark.parametrize("draws", ["lead(2, rounds=3+1+4)", "below(0.2, rounds=3+1+4)"])
@pytest.mark.filterwarnings("ignore::langchain_cfc.errors.FingerprintWarning")
def test_streams_of_a_draw_rule_show_only_the_decision(shown: Shown, draws: str) -> None:
    model = make_streaming_model(("a|0.3", "b|0.4", "a|0.3", "a|0.1", *["d|0.9"] * 4))
    chain = make_stopping_chain(make_stopping_artifact(draws), generator=model)
    assert shown(CFCChatModel(chain=chain)) == ["a"]
    assert len(model.drawn) == 4
