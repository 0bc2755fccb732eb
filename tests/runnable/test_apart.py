"""A graph around a chain neither streams nor stores its draws, even if the generator is a graph."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.runnables import Runnable, RunnableLambda
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph

from langchain_cfc import CalibrationArtifact, CFCRunnable
from tests.factories import make_chain
from tests.fakes import ScriptedModel

MODES: Any = ["values", "updates", "messages", "checkpoints", "tasks", "debug", "custom"]
ACCEPTED, REJECTED = "lima|0.1", "REJECTED|0.9"
SETTINGS: Any = {"configurable": {"thread_id": "1"}}


def compile_graph(node: Any, name: str, **settings: Any) -> Any:
    graph: StateGraph[Any, Any, Any, Any] = StateGraph(MessagesState)
    graph.add_node(name, node)
    graph.add_edge(START, name)
    graph.add_edge(name, END)
    return graph.compile(**settings)


def graph_generator(model: ScriptedModel) -> Runnable[Any, Any]:
    """A generator that is a graph, as an agent is."""
    drawing = compile_graph(lambda state: {"messages": [model.invoke(state["messages"])]}, "draw")

    def draw(prompt: str) -> Any:
        return drawing.invoke({"messages": [("human", prompt)]})["messages"][-1]

    return RunnableLambda(draw)


def namesake_generator(model: ScriptedModel) -> Runnable[Any, Any]:
    """A generator that bears the name of the node that it runs in."""

    def answer(prompt: Any) -> Any:
        return model.invoke(prompt)

    return RunnableLambda(answer)


def make_graph(generator: Runnable[Any, Any], artifact: CalibrationArtifact) -> tuple[Any, InMemorySaver]:
    chain = make_chain(artifact, generator=generator)

    def answer(state: Any) -> Any:
        return {"messages": [("ai", chain.invoke(state["messages"][-1].text).best)]}

    async def aanswer(state: Any) -> Any:
        return {"messages": [("ai", (await chain.ainvoke(state["messages"][-1].text)).best)]}

    saver = InMemorySaver()
    return compile_graph(RunnableLambda(answer, aanswer, name="answer"), "answer", checkpointer=saver), saver


def stream_graph(graph: Any) -> str:
    question = {"messages": [("human", "x")]}
    return repr(list(graph.stream(question, SETTINGS, stream_mode=MODES, subgraphs=True)))


def stream_graph_async(graph: Any) -> str:
    async def watch() -> list[Any]:
        stream = graph.astream({"messages": [("human", "x")]}, SETTINGS, stream_mode=MODES, subgraphs=True)
        return [piece async for piece in stream]

    return repr(asyncio.run(watch()))


@pytest.mark.filterwarnings("ignore::langchain_cfc.errors.CFCWarning")
@pytest.mark.parametrize("make", [graph_generator, namesake_generator])
@pytest.mark.parametrize("watch", [stream_graph, stream_graph_async])
def test_graph_streams_and_checkpoints_hold_no_rejected_candidate(
    artifact: CalibrationArtifact, make: Callable[[ScriptedModel], Any], watch: Callable[[Any], str]
) -> None:
    texts = [ACCEPTED, REJECTED, REJECTED, REJECTED]
    graph, saver = make_graph(make(ScriptedModel(texts=texts)), artifact)
    shown = watch(graph)
    assert ACCEPTED in shown
    assert REJECTED not in shown
    assert REJECTED not in repr([saver.storage, saver.writes, saver.blobs])


@pytest.mark.filterwarnings("ignore::langchain_cfc.errors.CFCWarning")
@pytest.mark.parametrize("make", [graph_generator, namesake_generator])
def test_graph_stream_shows_rejected_candidates_without_detaching(
    artifact: CalibrationArtifact, make: Callable[[ScriptedModel], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control of the same watch."""
    monkeypatch.setattr("langchain_cfc.runnable.running.detach_from_graph", lambda config: config)
    texts = [ACCEPTED, REJECTED, REJECTED, REJECTED]
    graph, _ = make_graph(make(ScriptedModel(texts=texts)), artifact)
    assert REJECTED in stream_graph(graph)


def test_generator_config_keeps_user_keys_and_drops_the_checkpointer(artifact: CalibrationArtifact) -> None:
    asked: list[dict[str, Any]] = []

    def draw(prompt: Any, config: Any) -> str:
        del prompt
        asked.append(dict(config["configurable"]))
        return ACCEPTED

    graph, _ = make_graph(RunnableLambda(draw), artifact)
    graph.invoke({"messages": [("human", "x")]}, {"configurable": {"thread_id": "1", "user": "ada"}})
    assert all(one["user"] == "ada" and "__pregel_runtime" in one for one in asked)
    assert not any("__pregel_checkpointer" in one or "checkpoint_ns" in one for one in asked)


def test_chain_outside_a_graph_accepts_configurable_keys() -> None:
    chain = make_chain(generator=ScriptedModel(texts=[ACCEPTED, REJECTED, REJECTED, REJECTED]))
    assert isinstance(chain, CFCRunnable)
    assert chain.invoke("x", {"configurable": {"user": "ada"}}).best == ACCEPTED
