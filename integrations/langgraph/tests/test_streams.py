"""Streams and events of a graph contain no rejected candidate."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from langchain_cfc_langgraph import CFCState, make_guarded_graph
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from integrations.langgraph.tests.parts import (
    EASY,
    GOOD,
    MARK,
    QUESTIONS,
    UNSURE,
    N,
    Naive,
    Talk,
    make_chain,
    naive_graph,
    read_last_text,
)
from integrations.tests.graphs import (
    MODES,
    Watch,
    every_generator,
    every_watch,
    list_streams,
    list_tokens,
    make_one_node_graph,
    thread,
)
from langchain_cfc import CFCRunnable
from tests.lengths import mostly_long
from tests.serving.openai_server import Script

pytestmark = pytest.mark.filterwarnings("ignore::langchain_core._api.beta_decorator.LangChainBetaWarning")


def place_graph(make: Any, state: Any, *, nested: bool) -> Any:
    """A graph of its own, or in another one."""
    return make_one_node_graph(make(None), state, InMemorySaver()) if nested else make(InMemorySaver())


@every_watch
@mostly_long(("outcome", "nested"), itertools.product(QUESTIONS, [False, True]), quick=3)
def test_streams_show_no_rejected_candidate(
    chain: CFCRunnable, served: Script, watch: Watch, outcome: str, nested: bool
) -> None:
    graph = place_graph(lambda saver: make_guarded_graph(chain, checkpointer=saver), CFCState, nested=nested)
    shown = repr(watch(graph, {"question": QUESTIONS[outcome]}, thread()))
    assert len(served.requests) == N
    assert MARK not in shown
    # Otherwise the test would show less than it says.
    assert (outcome in shown) == (watch is not list_tokens)


@every_watch
@pytest.mark.parametrize("nested", [False, True], ids=["alone", "nested"])
def test_streams_show_every_draw_of_a_naive_node(chain: CFCRunnable, watch: Watch, nested: bool) -> None:
    # The negative control, to the same watchers.
    graph = place_graph(lambda saver: naive_graph(chain.generator, saver), Naive, nested=nested)  # type: ignore[arg-type]
    shown = watch(graph, {"question": UNSURE}, thread())
    assert MARK in repr(shown)
    if watch is list_streams:
        assert {mode for _, mode, piece in shown if MARK in repr(piece)} == set(MODES)


@every_watch
@every_generator
def test_generators_of_any_kind_show_no_rejected_candidate(
    artifact_path: Path, url: str, chain: CFCRunnable, watch: Watch, make: Any
) -> None:
    model: Any = chain.generator
    quiet = model.model_copy(update={"streaming": False, "disable_streaming": True, "cache": False})
    bot = make_chain(artifact_path, url, generator=make(quiet, "decide"))
    graph = make_guarded_graph(bot, checkpointer=InMemorySaver(), question=lambda state: [state["question"]])
    assert MARK not in repr(watch(graph, {"question": EASY}, thread()))


@every_watch
def test_streams_of_a_conversation_show_only_the_answer(chain: CFCRunnable, watch: Watch) -> None:
    graph = make_guarded_graph(chain, checkpointer=InMemorySaver(), state=Talk, question=read_last_text)
    shown = repr(watch(graph, {"messages": [("human", EASY)]}, thread()))
    assert MARK not in shown
    assert (GOOD in shown) == (watch is not list_tokens)


def test_messages_stream_holds_each_answer_once(chain: CFCRunnable) -> None:
    graph = make_guarded_graph(chain, state=Talk, question=read_last_text, checkpointer=InMemorySaver())

    def list_said(given: Any) -> list[Any]:
        return [message for message, _ in graph.stream(given, thread(), stream_mode="messages")]

    assert [message.text for message in list_said({"messages": [("human", EASY)]})] == [GOOD]
    assert list_said({"messages": [("human", UNSURE)]}) == []
    (said,) = list_said(Command(resume="Santiago"))
    assert said.text == "Santiago"
    assert said.response_metadata == {"cfc": {"by": "person", "name": None, "guarantee": None}}
