"""What graphs and agents show: streams, events, tokens and stored bytes. A server for their models."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias, get_args

import pytest
from langchain_core.runnables import Runnable, RunnableConfig, RunnableLambda
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import StreamMode

from tests.serving.openai_server import Script, serving

MODES: tuple[str, ...] = get_args(StreamMode)
Watch: TypeAlias = Callable[[Any, Any, RunnableConfig], list[Any]]


@pytest.fixture
def url(served: Script, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a server that answers as the fixture `served` says."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with serving(served) as address:
        yield address


def thread(name: str = "1") -> RunnableConfig:
    return {"configurable": {"thread_id": name}}


def run_invoke(graph: Any, given: Any, config: RunnableConfig | None = None) -> Any:
    """Run a graph, and return its state."""
    return graph.invoke(given, config)


def run_ainvoke(graph: Any, given: Any, config: RunnableConfig | None = None) -> Any:
    """Run a graph on an event loop, and return its state."""
    return asyncio.run(graph.ainvoke(given, config))


both_ways = pytest.mark.parametrize("ask", [run_invoke, run_ainvoke])


def _collect(stream: AsyncIterator[Any]) -> list[Any]:
    async def collect() -> list[Any]:
        return [one async for one in stream]

    return asyncio.run(collect())


def list_streams(graph: Any, given: Any, config: RunnableConfig) -> list[Any]:
    """Return what a graph and its subgraphs stream: namespace, mode and content of each piece."""
    return list(graph.stream(given, config, stream_mode=[*MODES], subgraphs=True))


def list_async_streams(graph: Any, given: Any, config: RunnableConfig) -> list[Any]:
    """Asynchronous counterpart of `list_streams`."""
    return _collect(graph.astream(given, config, stream_mode=[*MODES], subgraphs=True))


def list_parts(graph: Any, given: Any, config: RunnableConfig) -> list[Any]:
    """Return what a graph and its subgraphs stream in version 2 of the protocol."""
    return list(graph.stream(given, config, stream_mode=[*MODES], subgraphs=True, version="v2"))


def list_events(graph: Any, given: Any, config: RunnableConfig) -> list[Any]:
    """Return all events but those of runs that are tagged as trace data."""
    return _collect(graph.astream_events(given, config, version="v2", exclude_tags=["nostream"]))


def list_protocol_events(graph: Any, given: Any, config: RunnableConfig) -> list[Any]:
    """Return all events of LangGraph's own protocol."""
    return list(graph.stream_events(given, config, version="v3"))


def list_tokens(graph: Any, given: Any, config: RunnableConfig) -> list[Any]:
    """Return the tokens of all models, whatever their tags."""
    found = _collect(graph.astream_events(given, config, version="v2"))
    return [event["data"] for event in found if event["event"] == "on_chat_model_stream"]


# Tokens come last: a guarded graph has none.
WATCHES: tuple[Watch, ...] = (
    list_streams,
    list_async_streams,
    list_parts,
    list_events,
    list_protocol_events,
    list_tokens,
)
every_watch = pytest.mark.parametrize("watch", WATCHES)


def read_stored(folder: Path) -> str:
    """Return all bytes of a database, its log included, as text."""
    return "".join(file.read_bytes().decode("utf-8", "replace") for file in sorted(folder.iterdir()))


def make_one_node_graph(node: Any, state: Any, checkpointer: Any = None) -> Any:
    """Return a graph of a single node, which may be a graph itself."""
    graph: StateGraph[Any, Any, Any, Any] = StateGraph(state)
    graph.add_node("only", node)
    graph.add_edge(START, "only")
    graph.add_edge("only", END)
    return graph.compile(checkpointer=checkpointer)


def make_graph_generator(model: Runnable[Any, Any], _: str) -> Runnable[Any, Any]:
    """Return a generator that is a graph, as an agent is."""
    draws = make_one_node_graph(lambda state: {"messages": [model.invoke(state["messages"])]}, MessagesState)
    asked: Any = RunnableLambda(lambda prompt: {"messages": prompt})
    made: Runnable[Any, Any] = asked | draws | RunnableLambda(lambda state: state["messages"][-1])
    return made


def make_function_generator(model: Runnable[Any, Any], node: str) -> Runnable[Any, Any]:
    """Return a generator that bears the name of the node that it runs in."""

    def draw(prompt: Any) -> Any:
        return model.invoke(prompt)

    return RunnableLambda(draw, name=node)


every_generator = pytest.mark.parametrize("make", [make_graph_generator, make_function_generator])
