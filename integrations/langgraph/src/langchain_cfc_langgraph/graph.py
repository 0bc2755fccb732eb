"""`make_guarded_graph`: a graph made of all nodes of this package."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, get_args, get_type_hints

from langchain_core.runnables import Runnable
from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Checkpointer, RetryPolicy

from langchain_cfc.errors import InputError
from langchain_cfc.runnable import ABSTAIN_MESSAGE
from langchain_cfc_langgraph.node import Question, clear_decision, make_cfc_node, make_say_node
from langchain_cfc_langgraph.person import ask_person
from langchain_cfc_langgraph.state import CFCState, Outcome, read_outcome

_ESCALATION_OUTCOMES: tuple[Outcome, ...] = ("abstained", "not_certifiable")


def make_guarded_graph(
    chain: Runnable[Any, Any],
    *,
    checkpointer: Checkpointer = None,
    state: type[Any] = CFCState,
    question: Question = "question",
    escalate: Collection[Outcome] = _ESCALATION_OUTCOMES,
    abstain_message: str = ABSTAIN_MESSAGE,
    retry: RetryPolicy | Sequence[RetryPolicy] | None = None,
) -> CompiledStateGraph[Any, Any, Any, Any]:
    """Return a graph that answers, or abstains and asks a person.

    Its nodes are `clear`, `decide`, `ask_person` (with `escalate`) and `say` (if the state has `messages`).

    Args:
        chain: A `CFCRunnable`; see `make_cfc_node`.
        checkpointer: Stores a thread while a person thinks; a subgraph uses that of its parent.
        state: The state's type, derived from `CFCState`.
        question: Where to read the question; see `make_cfc_node`.
        escalate: The outcomes for which a person is asked; for all other outcomes the graph ends.
        abstain_message: The message added to `messages` if there is no answer.
        retry: LangGraph's policy for decisions that fail, such as `RetryPolicy(retry_on=(DrawError,
            ServingTimeoutError))`. It draws again, so use it only for failures that do not depend on the
            candidates; if a verifier fails, its own `with_retry()` keeps the draws.

    Returns:
        The compiled graph.

    Raises:
        InputError: If the state lacks keys of `CFCState`, or `escalate` holds anything but `abstained` and
            `not_certifiable`.
    """
    keys = get_type_hints(state)
    _check_graph(keys, escalate)
    graph: StateGraph[Any, Any, Any, Any] = StateGraph(state)
    graph.add_node("clear", clear_decision)
    graph.add_node("decide", make_cfc_node(chain, question=question), retry_policy=retry)
    graph.add_edge(START, "clear")
    graph.add_edge("clear", "decide")
    last = END
    if "messages" in keys:
        last = "say"
        graph.add_node("say", make_say_node(abstain_message=abstain_message))
        graph.add_edge("say", END)
    if escalate:
        graph.add_node("ask_person", ask_person)
        graph.add_edge("ask_person", last)
    ways = {one: "ask_person" if one in escalate else last for one in get_args(Outcome)}
    graph.add_conditional_edges("decide", read_outcome, ways)
    return graph.compile(checkpointer=checkpointer)


def _check_graph(keys: Collection[str], escalate: Collection[Outcome]) -> None:
    missing = [key for key in CFCState.__annotations__ if key not in {*keys, "question"}]
    if missing:
        msg = f"the state lacks {', '.join(missing)}: derive it from CFCState"
        raise InputError(msg)
    unknown = [repr(one) for one in escalate if one not in _ESCALATION_OUTCOMES]
    if unknown:
        msg = f"escalate= holds {', '.join(unknown)}; expected some of {', '.join(_ESCALATION_OUTCOMES)}"
        raise InputError(msg)
