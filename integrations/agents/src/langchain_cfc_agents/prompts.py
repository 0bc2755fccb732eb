"""The messages at which an agent answers, as plain data: in records and in serving the same."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)

from langchain_cfc.errors import InputError

_ROLES: dict[type[BaseMessage], str] = {
    HumanMessage: "user",
    AIMessage: "assistant",
    SystemMessage: "system",
    ToolMessage: "tool",
}
# Metadata that states how blocks of content are to be read.
_OF_BLOCKS = ("output_version", "model_provider")


def prompt_data(messages: Sequence[BaseMessage]) -> list[dict[str, Any]]:
    """Return messages as records hold them, and as chat models take them.

    What a model is not shown is left out: ids and usage of messages, artifacts of tools, and response
    metadata, earlier decisions among it. Calls of tools keep their ids, for results refer to them.

    Args:
        messages: What the agent's model is shown, the system prompt first.

    Returns:
        For each its `role` (`system`, `user`, `assistant`, `tool`), its `content`, and what else it has. All
        of it is JSON where the content is. LangChain's `convert_to_messages` makes the messages again.

    Raises:
        InputError: If a message is of another kind.
    """
    return [_to_data(message) for message in messages]


def _to_data(message: BaseMessage) -> dict[str, Any]:
    role = next((role for kind, role in _ROLES.items() if isinstance(message, kind)), None)
    if role is None:
        msg = (
            f"a {type(message).__name__} is among the messages that the agent's model is shown; expected "
            "those of system, user, assistant and tools"
        )
        raise InputError(msg)
    further = {name: value for name, value in message.additional_kwargs.items() if value is not None}
    optional: dict[str, Any] = {"name": message.name}
    if isinstance(message, ToolMessage):
        optional |= {"tool_call_id": message.tool_call_id, "status": _failure(message)}
    if isinstance(message, AIMessage) and message.invalid_tool_calls:
        # LangChain reads these again where providers put them, and then it reads no others.
        further["tool_calls"] = [
            *(
                _to_raw_call({**call, "args": json.dumps(call["args"]), "error": None})
                for call in message.tool_calls
            ),
            *map(_to_raw_call, message.invalid_tool_calls),
        ]
    elif isinstance(message, AIMessage):
        optional["tool_calls"] = message.tool_calls
    if not isinstance(message.content, str):
        optional["response_metadata"] = _block_format(message.response_metadata)
    optional["additional_kwargs"] = further
    stated = {name: value for name, value in optional.items() if value}
    return {"role": role, "content": message.content, **stated}


def _failure(message: ToolMessage) -> str | None:
    return "error" if message.status == "error" else None


def _to_raw_call(call: Mapping[str, Any]) -> dict[str, Any]:
    """Return a call as OpenAI writes it, with its arguments as text."""
    function = {"name": call["name"], "arguments": call["args"] or ""}
    return {"id": call["id"], "type": "function", "function": function}


def _block_format(metadata: Mapping[str, Any]) -> dict[str, Any]:
    return {name: metadata[name] for name in _OF_BLOCKS if name in metadata}
