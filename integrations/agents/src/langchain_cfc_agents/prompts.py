"""Convert the messages at which an agent answers to plain data, in the same way for records and serving."""

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
# Response metadata that determines how content blocks are interpreted.
_BLOCK_METADATA = ("output_version", "model_provider")


def make_prompt_data(messages: Sequence[BaseMessage]) -> list[dict[str, Any]]:
    """Return messages as plain data, in the form that records hold and chat models accept.

    Data that a model is not shown is left out: message ids, usage, tool artifacts, and response metadata,
    including earlier decisions. Tool calls keep their ids, because tool results refer to them.

    Args:
        messages: The messages that the agent's model is shown, system prompt first.

    Returns:
        For each message its `role` (`system`, `user`, `assistant`, `tool`), its `content` and its other
        fields; JSON data if the content is. LangChain's `convert_to_messages` restores the messages.

    Raises:
        InputError: If a message is of another kind.
    """
    return [_to_data(message) for message in messages]


def _to_data(message: BaseMessage) -> dict[str, Any]:
    role = next((role for kind, role in _ROLES.items() if isinstance(message, kind)), None)
    if role is None:
        msg = (
            f"the agent's model got a {type(message).__name__}; expected messages of system, user, "
            "assistant and tools"
        )
        raise InputError(msg)
    further = {name: value for name, value in message.additional_kwargs.items() if value is not None}
    optional: dict[str, Any] = {"name": message.name}
    if isinstance(message, ToolMessage):
        status = "error" if message.status == "error" else None
        optional |= {"tool_call_id": message.tool_call_id, "status": status}
    if isinstance(message, AIMessage) and message.invalid_tool_calls:
        # LangChain restores invalid calls from the provider's field only, and then ignores `tool_calls`.
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
        known = message.response_metadata
        optional["response_metadata"] = {name: known[name] for name in _BLOCK_METADATA if name in known}
    optional["additional_kwargs"] = further
    stated = {name: value for name, value in optional.items() if value}
    return {"role": role, "content": message.content, **stated}


def _to_raw_call(call: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tool call in OpenAI's format, with its arguments as text."""
    function = {"name": call["name"], "arguments": call["args"] or ""}
    return {"id": call["id"], "type": "function", "function": function}
