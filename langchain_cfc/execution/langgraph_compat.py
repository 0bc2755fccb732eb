"""Runs that no graph around them streams or stores.

LangGraph hands its streams and its checkpointer to whatever runs below a node. By tags it can be told to
leave models out, but not graphs that draw candidates, such as agents, nor functions that bear the name of the
node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from langchain_core.callbacks import BaseCallbackHandler, BaseCallbackManager
from langchain_core.runnables import Runnable, RunnableLambda
from langchain_core.runnables.graph import Graph

from langchain_cfc.verifiers import VerifierEnsemble

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig


# Keeps LangGraph from streaming the tokens and messages of models.
NOSTREAM = "nostream"
# Of what a graph hands down, what code may ask for: the store and the context of its run.
_OPEN = "__pregel_runtime"
_PLACE = {"checkpoint_ns", "checkpoint_id", "checkpoint_map"}


def detached_from_graph(config: RunnableConfig) -> RunnableConfig:
    """The same config without the streams and the checkpointer of a graph around it.

    Args:
        config: Config of child runs.

    Returns:
        The config; graphs that run under it are graphs by themselves.
    """
    changes: dict[str, Any] = {}
    if settings := config.get("configurable"):
        changes["configurable"] = {name: value for name, value in settings.items() if _is_own(name)}
    callbacks = config.get("callbacks")
    if isinstance(callbacks, BaseCallbackManager) and any(map(_is_stream, callbacks.handlers)):
        heard = callbacks.copy()
        heard.set_handlers([one for one in callbacks.handlers if not _is_stream(one)])
        changes["callbacks"] = heard
    return {**config, **changes} if changes else config  # type: ignore[typeddict-item]  # as above


def _is_own(name: str) -> bool:
    return name == _OPEN or not (name in _PLACE or name.startswith("__pregel_"))


def _is_stream(handler: BaseCallbackHandler) -> bool:
    """Whether a handler is one of LangGraph's streams, of which no name is public."""
    return type(handler).__module__.startswith("langgraph.")


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
    name = (
        " + ".join(verifier.names)
        if isinstance(verifier, VerifierEnsemble)
        else getattr(verifier, "__name__", None)
    )
    return RunnableLambda(lambda given: given, name=name or type(verifier).__name__)
