"""Where the chain abstains a person is asked, and the person's reply is not stated as certified."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from langchain_cfc_langgraph import make_guarded_graph
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.types import Command

from integrations.langgraph.tests.parts import (
    EASY,
    GOOD,
    HARD,
    MARK,
    UNSURE,
    N,
    Talk,
    read_last_text,
)
from integrations.tests.graphs import both_ways, read_stored, thread
from langchain_cfc import CFCRunnable
from tests.serving.openai_server import Script


@pytest.fixture
def graph(chain: CFCRunnable) -> Any:
    return make_guarded_graph(chain, checkpointer=InMemorySaver())


@both_ways
@pytest.mark.parametrize(("question", "outcome"), [(UNSURE, "abstained"), (HARD, "not_certifiable")])
def test_person_is_asked_and_their_answer_has_no_guarantee(
    graph: Any, served: Script, question: str, outcome: str, ask: Any
) -> None:
    state = ask(graph, {"question": question}, thread())
    assert state["answer"] is None
    (interrupt,) = state["__interrupt__"]
    asked = json.loads(json.dumps(interrupt.value))
    assert set(asked) == {"question", "outcome", "why", "promised", "reply"}
    assert (asked["question"], asked["outcome"]) == (question, outcome)
    assert asked["promised"] == state["decision"]["guarantee"]["sentence"]
    assert MARK not in str(asked)
    state = ask(graph, Command(resume={interrupt.id: {"answer": "Santiago", "by": "Ana"}}), thread())
    person = {"text": "Santiago", "answers": ["Santiago"], "by": "person", "name": "Ana", "guarantee": None}
    assert state["answer"] == person
    # The decision stays what it was, and nothing was drawn for the person.
    assert state["decision"]["abstained"]
    assert len(served.requests) == N


@both_ways
@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (5, "of type int"),
        (["Santiago"], "of type list"),
        (" ", "empty"),
        ({"text": "Santiago"}, "'text'"),
        ({"by": "Ana"}, "no `answer`"),
        ({"answer": 5}, "`answer` is of type int"),
        ({"answer": ""}, "`answer` is empty"),
        ({"answer": "Santiago", "by": 5}, "`by` is of type int"),
        ({"answer": "Santiago", "guarantee": {"alpha": "0.1"}}, "'guarantee'"),
    ],
)
def test_invalid_reply_is_refused_and_the_next_one_counts(graph: Any, reply: Any, why: str, ask: Any) -> None:
    ask(graph, {"question": UNSURE}, thread())
    for _ in range(2):
        state = ask(graph, Command(resume=reply), thread())
        (interrupt,) = state["__interrupt__"]
        assert why in interrupt.value["refused"]
        assert interrupt.value["question"] == UNSURE
        assert state["answer"] is None
    state = ask(graph, Command(resume="Santiago"), thread())
    assert state["answer"]["text"] == "Santiago"
    assert "__interrupt__" not in state


def test_person_may_reply_with_no_answer(graph: Any) -> None:
    graph.invoke({"question": UNSURE}, thread())
    state = graph.invoke(Command(resume={"answer": None}), thread())
    assert (state["answer"]["text"], state["answer"]["answers"]) == (None, [])
    assert (state["answer"]["by"], state["answer"]["guarantee"]) == ("person", None)


def test_second_reply_changes_nothing(graph: Any) -> None:
    waiting = graph.invoke({"question": UNSURE}, thread())["__interrupt__"][0].id
    first = graph.invoke(Command(resume="first"), thread())["answer"]
    for late in ("second", {waiting: "second"}):
        assert graph.invoke(Command(resume=late), thread())["answer"] == first
    state = graph.invoke({"question": HARD}, thread())
    assert state["answer"] is None
    # By the id of what it answers, a reply finds its question or none.
    state = graph.invoke(Command(resume={waiting: "late"}), thread())
    assert state["answer"] is None
    assert state["__interrupt__"][0].value["question"] == HARD


def test_escalate_chooses_the_outcomes_for_a_person(chain: CFCRunnable) -> None:
    graph = make_guarded_graph(chain, escalate=["not_certifiable"], checkpointer=InMemorySaver())
    assert "__interrupt__" not in graph.invoke({"question": UNSURE}, thread("1"))
    assert "__interrupt__" in graph.invoke({"question": HARD}, thread("2"))
    unattended = make_guarded_graph(chain, escalate=())
    assert "ask_person" not in unattended.get_graph().nodes
    state = unattended.invoke({"question": HARD})
    assert (state["answer"], state["decision"]["reason"]) == (None, "not_certifiable")


def test_conversation_holds_answers_of_model_and_person(chain: CFCRunnable) -> None:
    graph = make_guarded_graph(
        chain,
        state=Talk,
        question=read_last_text,
        checkpointer=InMemorySaver(),
        abstain_message="No one knows.",
    )
    graph.invoke({"messages": [("human", EASY)]}, thread())
    graph.invoke({"messages": [("human", UNSURE)]}, thread())
    graph.invoke(Command(resume="Santiago"), thread())
    graph.invoke({"messages": [("human", HARD)]}, thread())
    messages = graph.invoke(Command(resume={"answer": None}), thread())["messages"]
    assert [message.text for message in messages[1::2]] == [GOOD, "Santiago", "No one knows."]
    said = [message.response_metadata["cfc"] for message in messages[1::2]]
    assert [one["guarantee"] is None for one in said] == [False, True, True]
    silent = make_guarded_graph(chain, state=Talk, question=read_last_text, escalate=())
    (_, message) = silent.invoke({"messages": [("human", UNSURE)]})["messages"]
    assert message.text == "I do not know."
    assert message.response_metadata["cfc"]["reason"] == "only_blank_answers"


def test_thread_continues_from_a_file_without_drawing_again(
    chain: CFCRunnable, served: Script, tmp_path: Path
) -> None:
    def run(given: Any) -> Any:
        # A new graph each time, as in a new process; it restores no objects of unknown classes.
        with SqliteSaver.from_conn_string(str(tmp_path / "threads.db")) as saver:
            saver.serde = JsonPlusSerializer(allowed_msgpack_modules=None)
            return make_guarded_graph(chain, checkpointer=saver).invoke(given, thread(), durability="sync")

    asked = run({"question": UNSURE})
    (waiting,) = asked["__interrupt__"]
    assert waiting.value["question"] == UNSURE
    answered = run(Command(resume={"answer": "Santiago", "by": "Ana"}))
    assert answered["answer"]["by"] == "person"
    assert answered["decision"] == asked["decision"]
    # Nothing was drawn again.
    assert len(served.requests) == N
    assert MARK not in read_stored(tmp_path)
