"""A node finds its question or questions in any kind of state, and decides them once, at one level."""

from __future__ import annotations

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
from langgraph.graph import END, START, MessagesState, StateGraph
from pydantic import BaseModel
from typing_extensions import TypedDict

from integrations.langgraph.tests.parts import EASY, GOOD, HARD, QUESTIONS, UNSURE, N, Talk, read_last_text
from integrations.tests.graphs import make_one_node_graph, run_ainvoke, run_invoke, thread
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
