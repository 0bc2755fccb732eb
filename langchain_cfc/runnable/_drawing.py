"""Build the graphs of serving chains that `Runnable.get_graph` returns."""

from __future__ import annotations

from typing import Any

from langchain_core.runnables import Runnable, RunnableLambda
from langchain_core.runnables.graph import Graph

from langchain_cfc.verifiers import VerifierEnsemble


def draw_serving_graph(
    decides: Runnable[Any, Any], *, generator: Runnable[Any, Any], verifier: Any, draws: str
) -> Graph:
    """Return the graph of a runnable that draws candidates, scores them and decides."""
    graph = Graph()
    nodes = [
        graph.add_node(part)
        for part in (
            decides.get_input_schema(),
            generator,
            _as_named_runnable(verifier),
            decides,
            decides.get_output_schema(),
        )
    ]
    for first, second, label in zip(nodes, nodes[1:], [draws, None, None, None], strict=False):
        graph.add_edge(first, second, label)
    return graph


def draw_fallback_graph(
    either: Runnable[Any, Any], first: Runnable[Any, Any], fallback: Runnable[Any, Any]
) -> Graph:
    """Return the graph of a runnable that asks the first chain, and the fallback if that abstains."""
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


def _as_named_runnable(verifier: Any) -> Runnable[Any, Any]:
    """Return a verifier as a node with a readable name."""
    if isinstance(verifier, Runnable):
        return verifier
    name = (
        " + ".join(verifier.names)
        if isinstance(verifier, VerifierEnsemble)
        else getattr(verifier, "__name__", None)
    )
    return RunnableLambda(lambda given: given, name=name or type(verifier).__name__)
