"""What LangChain draws of a runnable: what is asked for what, in which order."""

from __future__ import annotations

from typing import Any

from langchain_core.runnables import Runnable, RunnableLambda
from langchain_core.runnables.graph import Graph

from langchain_cfc.verifiers import Panel


def serving_graph(
    decides: Runnable[Any, Any], *, generator: Runnable[Any, Any], verifier: Any, n: int
) -> Graph:
    """Draw, score, decide.

    Args:
        decides: The runnable that turns scores into a set or an abstention.
        generator: What it draws from.
        verifier: What scores the candidates.
        n: Number of candidates.

    Returns:
        The graph from input to result.
    """
    graph = Graph()
    asked = graph.add_node(decides.get_input_schema())
    drawn = graph.add_node(generator)
    scored = graph.add_node(_named(verifier))
    decided = graph.add_node(decides)
    result = graph.add_node(decides.get_output_schema())
    graph.add_edge(asked, drawn, f"{n} draws")
    graph.add_edge(drawn, scored)
    graph.add_edge(scored, decided)
    graph.add_edge(decided, result)
    return graph


def fallback_graph(
    either: Runnable[Any, Any], first: Runnable[Any, Any], fallback: Runnable[Any, Any]
) -> Graph:
    """Ask the first, and where it abstains the fallback.

    Args:
        either: The runnable that does so.
        first: What is asked first.
        fallback: What is asked on abstention.

    Returns:
        The graph from input to result.
    """
    graph = Graph()
    asked = graph.add_node(either.get_input_schema())
    answered = graph.add_node(first)
    escalated = graph.add_node(fallback)
    result = graph.add_node(either.get_output_schema())
    graph.add_edge(asked, answered)
    graph.add_edge(answered, result, "answered", conditional=True)
    graph.add_edge(answered, escalated, "abstained", conditional=True)
    graph.add_edge(escalated, result)
    return graph


def _named(verifier: Any) -> Runnable[Any, Any]:
    """A verifier as a node with a readable name."""
    if isinstance(verifier, Runnable):
        return verifier
    name = " + ".join(verifier.names) if isinstance(verifier, Panel) else getattr(verifier, "__name__", None)
    return RunnableLambda(lambda given: given, name=name or type(verifier).__name__)
