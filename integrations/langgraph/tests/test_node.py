"""Nodes of a graph decide a question once, at one level, or ask a person, whose reply is not certified."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pytest
from langchain_cfc_langgraph import (
    CFCState,
    Outcome,
    ask_person,
    clear_decision,
    make_batch_node,
    make_cfc_node,
    make_guarded_graph,
    read_outcome,
)
from langchain_cfc_langgraph.state import read_decision
from langchain_core.prompts import ChatPromptTemplate
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Command
from pydantic import BaseModel
from typing_extensions import TypedDict

from integrations.langgraph.tests.parts import (
    EASY,
    GOOD,
    HARD,
    MARK,
    QUESTIONS,
    UNSURE,
    N,
    Talk,
    read_last_text,
)
from integrations.tests.graphs import (
    both_ways,
    make_one_node_graph,
    read_stored,
    run_ainvoke,
    run_invoke,
    thread,
)
from langchain_cfc import CFCChatModel, CFCRunnable, calibrate
from langchain_cfc.demo import demo_chain, load_recording
from langchain_cfc.demo.replay import make_replay_parts
from langchain_cfc.errors import InputError
from langchain_cfc.runnable import BatchResult, ClaimsResult
from tests.claims.chains import LEFT
from tests.claims.chains import make_chain as make_claims_chain
from tests.recordings import list_facts
from tests.serving.openai_server import Script


def make_graph(node: Any, state: Any = CFCState) -> Any:
    """A graph of one node, and where it goes from there."""
    graph: StateGraph[Any, Any, Any, Any] = StateGraph(state)
    graph.add_node("decide", node)
    graph.add_edge(START, "decide")
    for name in get_args(Outcome):
        graph.add_node(name, lambda _: {})
        graph.add_edge(name, END)
    graph.add_conditional_edges("decide", read_outcome)
    return graph.compile()


def find_way(graph: Any, given: Any) -> str:
    """Return the last node that a graph visited."""
    *_, last = graph.stream(given, stream_mode="updates")
    return str(next(iter(last)))


@pytest.mark.parametrize("on_abstain", ["return", "raise"])
@pytest.mark.parametrize(("outcome", "question"), QUESTIONS.items())
def test_conditional_edges_follow_the_outcome(
    chain: CFCRunnable, outcome: str, question: str, on_abstain: str
) -> None:
    graph = make_graph(make_cfc_node(chain.model_copy(update={"on_abstain": on_abstain})))
    assert find_way(graph, {"question": question}) == outcome
    assert (run_ainvoke(graph, {"question": question})["answer"] is not None) == (outcome == "answered")


class Elsewhere(CFCState, total=False):
    """A state that keeps its question under another key."""

    topic: str


class Model(BaseModel):
    """A state that is an object."""

    question: str
    decision: Any = None
    answer: Any = None
    asked: Any = None
    alpha: Any = None


AS_MESSAGE = [{"role": "user", "content": EASY}]


@pytest.mark.parametrize(
    ("state", "question", "given", "asked"),
    [
        (CFCState, "question", {"question": EASY}, EASY),
        (CFCState, "question", {"question": [("human", EASY)]}, AS_MESSAGE),
        (Elsewhere, "topic", {"topic": EASY}, EASY),
        (Talk, "messages", {"messages": [("human", EASY)]}, AS_MESSAGE),
        (Talk, read_last_text, {"messages": [("human", EASY)]}, EASY),
        (
            Elsewhere,
            lambda state: ChatPromptTemplate.from_template("easy: {land}?").invoke({"land": state["topic"]}),
            {"topic": "Peru"},
            AS_MESSAGE,
        ),
        (Model, "question", {"question": EASY}, EASY),
    ],
)
def test_node_reads_the_question_from_the_state(
    chain: CFCRunnable, state: Any, question: Any, given: Any, asked: Any
) -> None:
    graph = make_graph(make_cfc_node(chain, question=question), state)
    for found in (run_invoke(graph, given), run_ainvoke(graph, given)):
        assert found["asked"] == asked
        assert found["answer"]["text"] == GOOD


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({}, "no question"),
        ({"question": object()}, "not plain data"),
        ({"question": {"x": float("nan")}}, "not plain"),
    ],
)
def test_node_refuses_missing_or_invalid_questions_before_drawing(
    chain: CFCRunnable, served: Script, given: Any, why: str
) -> None:
    with pytest.raises(InputError, match=why):
        make_cfc_node(chain).invoke(given)
    assert served.requests == []


def test_node_uses_alpha_of_the_state_once(chain: CFCRunnable, served: Script) -> None:
    graph = make_guarded_graph(chain, checkpointer=InMemorySaver())
    levels = []
    for given in ({"alpha": "0.2"}, {}, {"alpha": 0.2}):
        state = graph.invoke({"question": EASY, **given}, thread())
        levels.append(state["decision"]["guarantee"]["alpha"])
        assert state["alpha"] is None
    assert levels == ["0.2", "0.1", "0.2"]
    drawn = len(served.requests)
    with pytest.raises(InputError, match=r"0\.3"):
        graph.invoke({"question": EASY, "alpha": "0.3"}, thread())
    assert len(served.requests) == drawn == 3 * N


def test_node_uses_the_rate_of_the_state_once() -> None:
    bot = calibrate(load_recording(), max_wrong_rate=[0.1, 0.3], features="1")
    graph = make_guarded_graph(demo_chain(bot, max_wrong_rate=0.1), escalate=())
    rates = []
    for given in ({"max_wrong_rate": 0.3}, {}):
        state = graph.invoke({"question": "What is the capital of Peru?", **given})
        rates.append(state["decision"]["guarantee"]["wrong_answers"]["max_wrong_rate"])
        assert state["max_wrong_rate"] is state["promise"] is None
    assert rates == ["0.3", "0.1"]
    of_all = calibrate(load_recording(), max_wrong_of_all=[0.05, 0.1])
    graph = make_guarded_graph(demo_chain(of_all), escalate=())
    state = graph.invoke({"question": "What is the capital of Peru?", "max_wrong_of_all": 0.05})
    assert "Of all questions asked, at most 5 %" in state["decision"]["guarantee"]["claim"]
    assert state["max_wrong_of_all"] is state["promise"] is None


def test_node_refuses_two_promises_at_once(chain: CFCRunnable) -> None:
    graph = make_guarded_graph(chain, escalate=())
    with pytest.raises(InputError, match="different promises"):
        graph.invoke({"question": "1 + 1", "alpha": 0.1, "max_wrong_rate": 0.3})


def test_node_refuses_to_decide_a_question_twice(chain: CFCRunnable, served: Script) -> None:
    """Drawing again until a question is answered would break the promise; a user may ask it once more."""
    again: StateGraph[Any, Any, Any, Any] = StateGraph(CFCState)
    again.add_node("clear", clear_decision)
    again.add_node("decide", make_cfc_node(chain))
    again.add_edge(START, "clear")
    again.add_edge("clear", "decide")
    ways: Any = {"answered": END, "abstained": "decide", "not_certifiable": "decide"}
    again.add_conditional_edges("decide", read_outcome, ways)
    looping = again.compile()
    for _ in range(2):
        assert looping.invoke({"question": EASY})["answer"]["text"] == GOOD
    for question in (UNSURE, HARD):
        served.requests.clear()
        with pytest.raises(InputError, match="has been decided already"):
            looping.invoke({"question": question})
        assert len(served.requests) == N


def test_node_refuses_runnables_that_return_other_values(chain: CFCRunnable) -> None:
    for other in (chain.as_answer(), CFCChatModel(chain=chain), chain.or_else(lambda _: "a guess")):
        with pytest.raises(InputError, match="expected CFCResult"):
            make_cfc_node(other).invoke({"question": UNSURE})


def test_outcome_and_ask_person_refuse_states_without_decision(chain: CFCRunnable) -> None:
    for state in ({}, {"decision": None}):
        with pytest.raises(InputError, match="no decision"):
            read_outcome(state)  # type: ignore[arg-type]  # what a graph may hand over
        with pytest.raises(InputError, match="no decision"):
            ask_person(state, {})  # type: ignore[arg-type]  # as above
    decision = make_cfc_node(chain).invoke({"question": EASY})["decision"]
    for changed in ({**decision, "reason": "a hunch"}, {**decision, "trust": 1}):
        with pytest.raises(InputError, match=r"cannot be read \((reason|trust)\)"):
            read_outcome({"decision": changed})


class Bare(TypedDict):
    """A state that was not derived."""

    question: str


def test_guarded_graph_refuses_unsuitable_states(chain: CFCRunnable) -> None:
    for state in (Bare, MessagesState):
        with pytest.raises(InputError, match="derive it from CFCState"):
            make_guarded_graph(chain, state=state)
    with pytest.raises(InputError, match="'answered'"):
        make_guarded_graph(chain, escalate=["answered"])


def test_node_keeps_only_the_supported_claims() -> None:
    graph = make_graph(make_cfc_node(make_claims_chain()))
    state = graph.invoke({"question": "?"})
    assert state["decision"]["best"] == LEFT
    decision = read_decision(state)
    assert isinstance(decision, ClaimsResult)
    assert [one.kept for one in decision.claims] == [True, False, True]
    assert "moons" not in str(state)
    assert find_way(graph, {"question": "?"}) == "answered"


class BatchState(TypedDict, total=False):
    questions: Any
    asked: Any
    batch: Any


@pytest.fixture(scope="module")
def batch_chain() -> CFCRunnable:
    artifact = calibrate(list_facts()[:600], max_wrong_of_all="0.1")
    return CFCRunnable(artifact=artifact, **make_replay_parts(load_recording()))


ASKED = [one.input for one in list_facts()[600:630]]


def make_batch_graph(chain: CFCRunnable) -> Any:
    return make_one_node_graph(make_batch_node(chain, max_wrong_share=0.1), BatchState, InMemorySaver())


def test_the_state_holds_the_decisions_of_the_runnable(batch_chain: CFCRunnable) -> None:
    graph, expected = make_batch_graph(batch_chain), batch_chain.answer_batch(ASKED, 0.1)
    state = graph.invoke({"questions": ASKED}, thread())
    assert BatchResult.model_validate(state["batch"]) == expected
    again = run_ainvoke(graph, {"questions": ASKED}, thread("2"))
    assert again == state
    with pytest.raises(InputError, match="decided already"):
        graph.invoke({"questions": ASKED}, thread())


def test_streams_show_no_answer_before_the_decision(batch_chain: CFCRunnable) -> None:
    modes = ["updates", "messages", "custom"]
    shown = list(make_batch_graph(batch_chain).stream({"questions": ASKED}, thread(), stream_mode=modes))
    assert [mode for mode, _ in shown] == ["updates"]


def test_anything_but_a_list_of_questions_is_refused(batch_chain: CFCRunnable) -> None:
    for given in ("one question", None, ASKED[:1]):
        with pytest.raises(InputError):
            make_batch_graph(batch_chain).invoke({"questions": given}, thread())
    with pytest.raises(InputError, match="CFCRunnable itself"):
        make_batch_node(batch_chain.with_retry())  # type: ignore[arg-type]


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
