"""Convert the messages of a request to LangChain's messages."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    InvalidToolCall,
    SystemMessage,
    ToolCall,
    ToolMessage,
)
from langchain_core.messages.tool import invalid_tool_call, tool_call

from langchain_cfc_server import schema


def to_langchain_messages(messages: Sequence[schema.Message]) -> list[BaseMessage]:
    """Return the messages of a request as LangChain messages, one for one.

    Args:
        messages: The messages of the request.

    Returns:
        The LangChain messages, in the same order.
    """
    return [_to_message(message) for message in messages]


def _to_message(message: schema.Message) -> BaseMessage:
    content, name = _to_content(message.content), message.name
    if isinstance(message, schema.UserMessage):
        return HumanMessage(content, name=name)
    if isinstance(message, schema.SystemMessage):
        # LangChain's OpenAI client distinguishes system and developer messages by this field.
        said = {"__openai_role__": "developer"} if message.role == "developer" else {}
        return SystemMessage(content, name=name, additional_kwargs=said)
    if isinstance(message, schema.ToolMessage):
        return ToolMessage(content, name=name, tool_call_id=message.tool_call_id)
    calls, invalid = _to_calls(message.tool_calls or ())
    return AIMessage(content, name=name, tool_calls=calls, invalid_tool_calls=invalid)


def _to_content(content: str | Sequence[schema.TextPart | schema.ImagePart] | None) -> Any:
    if content is None or isinstance(content, str):
        return content or ""
    return [part.model_dump(exclude_none=True) for part in content]


def _to_calls(calls: Sequence[schema.ToolCall]) -> tuple[list[ToolCall], list[InvalidToolCall]]:
    """Return earlier tool calls as two lists: valid ones, and those whose arguments are not a JSON object."""
    valid, invalid = [], []
    for call in calls:
        name, text = call.function.name, call.function.arguments
        arguments = _parse_object(text)
        if arguments is None:
            invalid.append(invalid_tool_call(name=name, args=text, id=call.id, error="not a JSON object"))
        else:
            valid.append(tool_call(name=name, args=arguments, id=call.id))
    return valid, invalid


def _parse_object(text: str) -> dict[str, Any] | None:
    try:
        found = json.loads(text)
        # Values that other parsers could not read (NaN, lone surrogates) make the call an invalid one.
        json.dumps(found, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
