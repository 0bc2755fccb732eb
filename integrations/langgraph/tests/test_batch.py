"""A node decides a list of questions together, once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain_cfc_langgraph import make_batch_node
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from typing_extensions import TypedDict

from langchain_cfc import CFCRunnable, calibrate
from langchain_cfc.demo import load_recording
from langchain_cfc.demo.replay import make_replay_parts
from langchain_cfc.errors import InputError
from langchain_cfc.runnable import BatchResult
from tests.recordings import list_facts


class BatchState(TypedDict, total=False):
    questions: Any
    asked: Any
    batch: Any


@pytest.fixture(scope="module")
def chain() -> CFCRunnable:
    artifact = calibrate(list_facts()[:600], max_wrong_of_all="0.1")
    return CFCRunnable(artifact=artifact, **make_replay_parts(load_recording()))


QUESTIONS = [one.input for one in list_facts()[600:630]]


def make_graph(chain: CFCRunnable) -> Any:
    graph: StateGraph[Any, Any, Any, Any] = StateGraph(BatchState)
    graph.add_node("decide", make_batch_node(chain, max_wrong_share=0.1))
    graph.add_edge(START, "decide")
    graph.add_edge("decide", END)
    return graph.compile(checkpointer=InMemorySaver())


def test_the_state_holds_the_decisions_of_the_runnable(chain: CFCRunnable) -> None:
    graph, expected = make_graph(chain), chain.answer_batch(QUESTIONS, 0.1)
    state = graph.invoke({"questions": QUESTIONS}, {"configurable": {"thread_id": "1"}})
    assert BatchResult.model_validate(state["batch"]) == expected
    again = asyncio.run(graph.ainvoke({"questions": QUESTIONS}, {"configurable": {"thread_id": "2"}}))
    assert again == state
    with pytest.raises(InputError, match="decided already"):
        graph.invoke({"questions": QUESTIONS}, {"configurable": {"thread_id": "1"}})


def test_streams_show_no_answer_before_the_decision(chain: CFCRunnable) -> None:
    thread = {"configurable": {"thread_id": "3"}}
    modes = ["updates", "messages", "custom"]
    shown = list(make_graph(chain).stream({"questions": QUESTIONS}, thread, stream_mode=modes))
    assert [mode for mode, _ in shown] == ["updates"]


def test_anything_but_a_list_of_questions_is_refused(chain: CFCRunnable) -> None:
    for given in ("one question", None, QUESTIONS[:1]):
        with pytest.raises(InputError):
            make_graph(chain).invoke({"questions": given}, {"configurable": {"thread_id": "4"}})
    with pytest.raises(InputError, match="CFCRunnable itself"):
        make_batch_node(chain.with_retry())  # type: ignore[arg-type]
