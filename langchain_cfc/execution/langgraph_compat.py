"""All uses of private names of LangChain and LangGraph, so that an incompatible release breaks one module.

Exceptions are the underscore methods that LangChain asks subclasses to override or call, such as `_generate`
and `_call_with_config`: these are its interface for subclasses and are used there.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler, BaseCallbackManager
from langchain_core.language_models import BaseChatModel, LangSmithParams
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.utils.utils import LC_ID_PREFIX

# Tag that keeps LangGraph from streaming the tokens and messages of models.
NOSTREAM = "nostream"
# The one setting of a graph that is kept for inner code: it holds the store and context of the graph's run.
_RUNTIME_KEY = "__pregel_runtime"
_CHECKPOINT_KEYS = {"checkpoint_ns", "checkpoint_id", "checkpoint_map"}
# Attribute in which `init_chat_model` keeps the settings of a model that is made at each call.
_DEFERRED_SETTINGS = "_default_config"


def detach_from_graph(config: RunnableConfig) -> RunnableConfig:
    """Return a config without the stream handlers and the checkpointer of an enclosing LangGraph run.

    LangGraph passes both to everything that runs below a node. A tag can exclude models from streaming, but
    not graphs that draw candidates, such as agents, nor functions with the same name as the node. Graphs that
    run under the returned config are independent of the enclosing one.
    """
    changes: dict[str, Any] = {}
    if settings := config.get("configurable"):
        changes["configurable"] = {
            name: value
            for name, value in settings.items()
            if name == _RUNTIME_KEY or not (name in _CHECKPOINT_KEYS or name.startswith("__pregel_"))
        }
    callbacks = config.get("callbacks")
    if isinstance(callbacks, BaseCallbackManager) and any(map(_is_stream_handler, callbacks.handlers)):
        without_streams = callbacks.copy()
        without_streams.set_handlers([one for one in callbacks.handlers if not _is_stream_handler(one)])
        changes["callbacks"] = without_streams
    return {**config, **changes} if changes else config  # type: ignore[typeddict-item]  # as above


def _is_stream_handler(handler: BaseCallbackHandler) -> bool:
    """Return whether a handler is one of LangGraph's stream handlers, whose classes are not public."""
    return type(handler).__module__.startswith("langgraph.")


def is_made_at_each_call(part: Any) -> bool:
    """Return whether a part is a model of `init_chat_model` that is only made when it is called."""
    return isinstance(part, Runnable) and _DEFERRED_SETTINGS in getattr(part, "__dict__", {})


def get_tracing_params(
    model: BaseChatModel, /, stop: list[str] | None = None, **kwargs: Any
) -> LangSmithParams:
    """Return the parameters that a chat model reports for tracing."""
    return model._get_ls_params(stop=stop, **kwargs)  # noqa: SLF001 - the documented hook for tracing


def make_message_id(run_id: UUID) -> str:
    """Return the id that LangChain gives to the message of the run `run_id`."""
    return f"{LC_ID_PREFIX}-{run_id}"
