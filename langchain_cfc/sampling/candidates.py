"""`DrawnCandidate`: one candidate as it was drawn."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, is_dataclass
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage

from langchain_cfc.errors import DrawError

_MEDIA = {"image", "audio", "video", "file", "text-plain"}


@dataclass(frozen=True)
class DrawnCandidate:
    """One candidate as it was drawn.

    Attributes:
        text: What a reader sees; canonical JSON of `data` where the candidate is structured or calls tools,
            and empty where the provider marks the message as a refusal.
        message: The chat message, where the generator returned one.
        data: Structured output, or a message's text and tool calls, as a JSON object; what records hold as
            `message`. None where the candidate is text.
    """

    text: str
    message: BaseMessage | None = None
    data: dict[str, Any] | None = None


def make_candidate(slot: int, output: Any) -> DrawnCandidate:
    """A generator's output as a candidate.

    Args:
        slot: Its request slot, for messages.
        output: A message, text, a pydantic object, a dataclass or plain data.

    Returns:
        The candidate.

    Raises:
        DrawError: If it cannot be read as text.
    """
    if isinstance(output, BaseMessage):
        called = _tool_calls(output)
        if called is None:
            return DrawnCandidate(_text(slot, output), output)
        return DrawnCandidate(_canonical(slot, called), output, called)
    if isinstance(output, str):
        return DrawnCandidate(output)
    if output is None:
        msg = f"candidate {slot} is None: the generator returned nothing, as a parser that failed may do"
        raise DrawError(msg)
    data = _plain(slot, output)
    return DrawnCandidate(_canonical(slot, data), None, data if isinstance(data, dict) else None)


def _text(slot: int, message: BaseMessage) -> str:
    """A message's text; refused where it is empty because the message holds something else."""
    if _is_refusal(message):
        # Blank in records as in serving, so that set rules treat it alike: it is never an answer.
        return ""
    text = str(message.text)
    media = [] if text else [block["type"] for block in message.content_blocks if block["type"] in _MEDIA]
    if media:
        msg = (
            f"candidate {slot} is a message of {', '.join(media)} without text, and all such would pass for "
            "one and the same answer: let the generator return text or plain data"
        )
        raise DrawError(msg)
    return text


def _is_refusal(message: BaseMessage) -> bool:
    """Return whether the provider marks a message as a refusal, as OpenAI's two interfaces do."""
    if message.additional_kwargs.get("refusal"):
        return True
    blocks = [] if isinstance(message.content, str) else message.content
    return any(isinstance(block, dict) and block.get("type") == "refusal" for block in blocks)


def _tool_calls(message: BaseMessage) -> dict[str, Any] | None:
    """A message that calls tools, as plain data; None for any other.

    The calls' ids are left out: they are made up anew for each message, and equal calls are equal answers.
    """
    if not isinstance(message, AIMessage) or not (message.tool_calls or message.invalid_tool_calls):
        return None
    calls = [{"name": call["name"], "args": call["args"]} for call in message.tool_calls]
    data: dict[str, Any] = {"content": str(message.text), "tool_calls": calls}
    if message.invalid_tool_calls:
        data["invalid_tool_calls"] = [
            {"name": call["name"], "args": call["args"]} for call in message.invalid_tool_calls
        ]
    return data


def _plain(slot: int, output: Any) -> Any:
    """Structured output as plain data; whatever else as it is."""
    if is_dataclass(output) and not isinstance(output, type):
        return asdict(output)
    try:
        return output.model_dump(mode="json") if hasattr(output, "model_dump") else output
    except (TypeError, ValueError) as error:
        raise _unreadable(slot, output) from error


def _canonical(slot: int, data: Any) -> str:
    """JSON as records write it, so that answers are told apart and measured alike offline."""
    try:
        return json.dumps(data, sort_keys=True, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise _unreadable(slot, data) from error


def _unreadable(slot: int, output: Any) -> DrawError:
    return DrawError(
        f"candidate {slot} is a {type(output).__name__}, which cannot be read as text: let the "
        "generator return a message, text or plain data"
    )
