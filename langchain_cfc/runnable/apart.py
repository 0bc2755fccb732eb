"""Runs that no graph around them streams or stores.

LangGraph hands its streams and its checkpointer to whatever runs below a node. By tags it can be told to
leave models out, but not graphs that draw candidates, such as agents, nor functions that bear the name of the
node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from langchain_core.callbacks import BaseCallbackHandler, BaseCallbackManager

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig

# Keeps LangGraph from streaming the tokens and messages of models.
NOSTREAM = "nostream"
# Of what a graph hands down, what code may ask for: the store and the context of its run.
_OPEN = "__pregel_runtime"
_PLACE = {"checkpoint_ns", "checkpoint_id", "checkpoint_map"}


def apart(config: RunnableConfig) -> RunnableConfig:
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
