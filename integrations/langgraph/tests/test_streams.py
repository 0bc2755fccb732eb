"""Streams and events of a graph contain no rejected candidate."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from langchain_cfc_langgraph import CFCState, make_guarded_graph
from langchain_core.runnables import Runnable, RunnableLambda
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import MessagesState
from langgraph.types import Command

from integrations.langgraph.tests.parts import (
    EASY,
    GOOD,
    MARK,
    QUESTIONS,
    UNSURE,
    WATCHES,
    N,
    Naive,
    Talk,
    make_chain,
    naive_graph,
    one_node_graph,
    read_last_text,
    streamed,
    thread,
)
from langchain_cfc import CFCRunnable
from tests.lengths import mostly_long
from tests.serving.openai_server import Script

pytestmark = pytest.mark.filterwarnings("ignore::langchain_core._api.beta_decorator.LangChainBetaWarning")
every_watch = pytest.mark.parametrize("watch", WATCHES)
both_places = pytest.mark.parametrize("nested", [False, True], ids=["alone", "nested"])
# They show what models say, or what nodes write there; a guarded graph without a conversation does neither.
SILENT = {"messages, sync", "messages, async", "custom, sync", "custom, async", "tokens"}


def place_graph(make: Any, state: Any, *, nested: bool) -> Any:
    """A graph of its own, or in another one."""
    return one_node_graph(make(None), state, InMemorySaver()) if nested else make(InMemorySaver())


@every_watch
@mostly_long(("outcome", "nested"), itertools.product(QUESTIONS, [False, True]), quick=3)
def test_streams_show_no_rejected_candidate(
    chain: CFCRunnable, served: Script, watch: str, outcome: str, nested: bool
) -> None:
    graph = place_graph(lambda saver: make_guarded_graph(chain, checkpointer=saver), CFCState, nested=nested)
    shown = repr(WATCHES[watch](graph, {"question": QUESTIONS[outcome]}, thread()))
    assert len(served.requests) == N
    assert MARK not in shown
    # Otherwise the test would show less than it says.
    assert (outcome in shown) == (watch not in SILENT)


@every_watch
@both_places
def test_streams_show_every_draw_of_a_naive_node(chain: CFCRunnable, watch: str, nested: bool) -> None:
    # The negative control, to the same watchers.
    graph = place_graph(lambda saver: naive_graph(chain.generator, saver), Naive, nested=nested)  # type: ignore[arg-type]
    assert MARK in repr(WATCHES[watch](graph, {"question": UNSURE}, thread()))


def make_graph_generator(model: Runnable[Any, Any]) -> Runnable[Any, Any]:
    """A generator that is a graph, as an agent is."""
    draws = one_node_graph(lambda state: {"messages": [model.invoke(state["messages"])]}, MessagesState)
    asked: Any = RunnableLambda(lambda question: {"messages": [("human", question)]})
    made: Runnable[Any, Any] = asked | draws | RunnableLambda(lambda state: state["messages"][-1])
    return made


def make_function_generator(model: Runnable[Any, Any]) -> Runnable[Any, Any]:
    """A generator that bears the name of the node that it runs in."""

    def decide(question: str) -> Any:
        return model.invoke(question)

    return RunnableLambda(decide)


@every_watch
@pytest.mark.parametrize("make", [make_graph_generator, make_function_generator])
def test_generators_of_any_kind_show_no_rejected_candidate(
    artifact_path: Path, url: str, chain: CFCRunnable, watch: str, make: Any
) -> None:
    model: Any = chain.generator
    quiet = model.model_copy(update={"streaming": False, "disable_streaming": True, "cache": False})
    bot = make_chain(artifact_path, url, generator=make(quiet))
    graph = make_guarded_graph(bot, checkpointer=InMemorySaver())
    assert MARK not in repr(WATCHES[watch](graph, {"question": EASY}, thread()))


@every_watch
def test_streams_of_a_conversation_show_only_the_answer(chain: CFCRunnable, watch: str) -> None:
    graph = make_guarded_graph(chain, checkpointer=InMemorySaver(), state=Talk, question=read_last_text)
    shown = repr(WATCHES[watch](graph, {"messages": [("human", EASY)]}, thread()))
    assert MARK not in shown
    assert (GOOD in shown) == (watch not in {"custom, sync", "custom, async", "tokens"})


def test_messages_stream_holds_each_answer_once(chain: CFCRunnable) -> None:
    graph = make_guarded_graph(chain, state=Talk, question=read_last_text, checkpointer=InMemorySaver())
    watch = streamed("messages")
    said = watch(graph, {"messages": [("human", EASY)]}, thread())
    assert [message.text for _, (message, _) in said] == [GOOD]
    assert watch(graph, {"messages": [("human", UNSURE)]}, thread()) == []
    said = watch(graph, Command(resume="Santiago"), thread())
    assert [message.text for _, (message, _) in said] == ["Santiago"]
    assert said[0][1][0].response_metadata == {"cfc": {"by": "person", "name": None, "guarantee": None}}
