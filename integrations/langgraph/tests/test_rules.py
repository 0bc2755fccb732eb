"""Streaming of draws, the level, the messages, and that a decided question is not drawn again."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from langchain_cfc_langgraph import (
    CFCState,
    clear_decision,
    make_cfc_node,
    make_guarded_graph,
    read_outcome,
)
from langchain_core.runnables import Runnable, RunnableLambda
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph

from integrations.langgraph.tests.parts import (
    EASY,
    MARK,
    WATCHES,
    make_chain,
    thread,
)
from langchain_cfc import CalibrationArtifact, Candidate, CFCRunnable, PromptRecord, calibrate
from langchain_cfc.errors import CFCError

# Who hears what draws


def make_graph_generator(model: Runnable[Any, Any]) -> Runnable[Any, Any]:
    """A generator that is a graph, as an agent is."""
    graph: StateGraph[Any, Any, Any, Any] = StateGraph(MessagesState)
    graph.add_node("draw", lambda state: {"messages": [model.invoke(state["messages"])]})
    graph.add_edge(START, "draw")
    graph.add_edge("draw", END)
    asked: Any = RunnableLambda(lambda question: {"messages": [("human", question)]})
    inside: Runnable[Any, Any] = asked | graph.compile()
    return inside | RunnableLambda(lambda state: state["messages"][-1])


def make_function_generator(model: Runnable[Any, Any]) -> Runnable[Any, Any]:
    """A generator that bears the name of the node that it runs in."""

    def decide(question: str) -> Any:
        return model.invoke(question)

    return RunnableLambda(decide)


@pytest.mark.filterwarnings("ignore:The v3 streaming protocol")
@pytest.mark.parametrize("watch", WATCHES)
@pytest.mark.parametrize("make", [make_graph_generator, make_function_generator])
def test_generators_of_any_kind_show_no_rejected_candidate(
    artifact_path: Path, url: str, chain: CFCRunnable, watch: str, make: Any
) -> None:
    model: Any = chain.generator
    quiet = model.model_copy(update={"streaming": False, "disable_streaming": True, "cache": False})
    graph = make_guarded_graph(
        make_chain(artifact_path, url, generator=make(quiet)), checkpointer=InMemorySaver()
    )
    shown = repr(WATCHES[watch](graph, {"question": EASY}, thread()))
    assert MARK not in shown


# Which level holds


# What is said


# Drawing again

ALPHA, PROMPTS = "0.4", 200
SURE, UNSURELY = 0.1, 0.9


def make_guesses(prompt: str, luck: random.Random) -> list[tuple[str, float]]:
    """Two candidates with scores: hard prompts are wrong, and as often sure of it as not."""
    sure = prompt.startswith("easy") or luck.random() < 0.5
    text = "right" if prompt.startswith("easy") else "wrong"
    return [(text, SURE if sure else UNSURELY)] * 2


def make_redrawing_chain(folder: Path) -> CFCRunnable:
    """A chain, calibrated on such prompts and read from a file: prompts that it is unsure of are flagged."""
    luck = random.Random(0)  # noqa: S311 - no secret hangs on it
    prompts = [f"{'hard' if number % 2 else 'easy'} {number}" for number in range(2000)]
    # Of those that it is sure of a third are wrong, less than alpha.
    records = [
        PromptRecord(
            id=prompt,
            input=prompt,
            candidates=tuple(
                Candidate(text=text, score=score, correct=text == "right")
                for text, score in make_guesses(prompt, luck)
            ),
        )
        for prompt in prompts
    ]
    found = calibrate(records, alpha=ALPHA, features="mean_score", allow_unattainable=True)
    found.save(folder / "artifact.json")
    drawn: dict[str, tuple[str, float]] = {}

    def draw(prompt: str) -> str:
        # Both candidates of a draw are of one kind.
        if prompt not in drawn:
            drawn[prompt] = make_guesses(prompt, luck)[0]
        return drawn[prompt][0]

    def judge(prompt: str, candidates: Sequence[Any]) -> list[float]:
        _, score = drawn.pop(prompt)
        return [score] * len(candidates)

    return CFCRunnable(
        generator=RunnableLambda(draw),
        verifier=judge,
        artifact=CalibrationArtifact.load(folder / "artifact.json"),
        max_concurrency=1,
    )


def measure_kept(graph: Any, prompts: Sequence[str]) -> float:
    """Return how often the promise is kept: a correct answer, or a flagged prompt."""
    states = [graph.invoke({"question": prompt}) for prompt in prompts]
    decisions = [state["decision"] for state in states]
    held: list[bool] = [one["reason"] == "not_certifiable" or "right" in one["answers"] for one in decisions]
    return sum(held) / len(prompts)


@pytest.mark.filterwarnings("ignore::langchain_cfc.errors.CFCWarning")
def test_node_refuses_to_decide_a_question_twice(tmp_path: Path) -> None:
    """Asked until it is answered, a graph breaks its promise, so the second time is refused.

    Hard prompts are flagged or answered wrong, by chance. Of what is promised, 60 %, one draw keeps 75 % in
    expectation; of 100 hard prompts fewer than 20 are flagged with probability below exp(-18) (Hoeffding).
    """
    chain = make_redrawing_chain(tmp_path)
    prompts = [f"{'hard' if number % 2 else 'easy'} {number}" for number in range(PROMPTS)]
    assert measure_kept(make_guarded_graph(chain, escalate=()), prompts) >= 0.6

    again: StateGraph[Any, Any, Any, Any] = StateGraph(CFCState)
    again.add_node("clear", clear_decision)
    again.add_node("decide", make_cfc_node(chain))
    again.add_edge(START, "clear")
    again.add_edge("clear", "decide")
    again.add_conditional_edges(
        "decide", read_outcome, {"answered": END, "abstained": "decide", "not_certifiable": "decide"}
    )
    looping = again.compile()
    with pytest.raises(CFCError, match="decided"):
        assert measure_kept(looping, prompts) >= 0.6
