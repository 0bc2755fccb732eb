"""Write a decision in the form of OpenAI's Responses API, whole or as a stream of events."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from langchain_cfc_server import schema
from langchain_cfc_server.answers import Answer
from langchain_cfc_server.errors import encode_json
from langchain_cfc_server.schema import Item, ResponsesRequest


def list_messages(asked: ResponsesRequest) -> list[schema.Message]:
    """Return the conversation of a request as chat completions messages."""
    given: list[schema.Message] = []
    if asked.instructions is not None:
        given.append(schema.SystemMessage(role="system", content=asked.instructions))
    if isinstance(asked.input, str):
        return [*given, schema.UserMessage(role="user", content=asked.input)]
    return [*given, *map(_to_message, asked.input)]


def _to_message(item: Item) -> schema.Message:
    content = item.content
    if not isinstance(content, str):
        content = [schema.TextPart(type="text", text=part.text) for part in content]  # type: ignore[assignment]
    if item.role == "assistant":
        return schema.AssistantMessage(role="assistant", content=content)  # type: ignore[arg-type]
    if item.role == "user":
        return schema.UserMessage(role="user", content=content)  # type: ignore[arg-type]
    return schema.SystemMessage(role=item.role, content=content)  # type: ignore[arg-type]


@dataclass(frozen=True)
class ResponseWriter:
    """Writes an answer as a response of the Responses API.

    Attributes:
        asked: The request.
        answer: The answer.
    """

    asked: ResponsesRequest
    answer: Answer

    def to_response(self) -> bytes:
        """Return the whole response as JSON."""
        return encode_json(self._make_response(done=True))

    def to_events(self) -> bytes:
        """Return server-sent events: the initial response, each item as a whole, and the final response."""
        events = enumerate(self._list_events())
        return b"".join(
            b"event: %b\ndata: %b\n\n"
            % (kind.encode(), encode_json({"type": kind, "sequence_number": number, **data}))
            for number, (kind, data) in events
        )

    def _list_events(self) -> Iterator[tuple[str, dict[str, Any]]]:
        begun = {"response": self._make_response(done=False)}
        yield "response.created", begun
        yield "response.in_progress", begun
        for index, item in enumerate(self._list_items()):
            at = {"output_index": index}
            within = {**at, "item_id": item["id"]}
            started = {**item, "status": "in_progress"}
            if item["type"] == "message":
                [part] = item["content"]
                within["content_index"] = 0
                yield "response.output_item.added", {**at, "item": {**started, "content": []}}
                yield "response.content_part.added", {**within, "part": {**part, "text": ""}}
                said = {**within, "logprobs": []}
                yield "response.output_text.delta", {**said, "delta": part["text"]}
                yield "response.output_text.done", {**said, "text": part["text"]}
                yield "response.content_part.done", {**within, "part": part}
            else:
                yield "response.output_item.added", {**at, "item": {**started, "arguments": ""}}
                yield "response.function_call_arguments.delta", {**within, "delta": item["arguments"]}
                done = {"name": item["name"], "arguments": item["arguments"]}
                yield "response.function_call_arguments.done", {**within, **done}
            yield "response.output_item.done", {**at, "item": item}
        yield "response.completed", {"response": self._make_response(done=True)}

    def _make_response(self, *, done: bool) -> dict[str, Any]:
        answer, asked = self.answer, self.asked
        used = answer.usage
        usage: dict[str, Any] | None = used and {
            "input_tokens": used["prompt_tokens"],
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": used["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": used["total_tokens"],
        }
        return {
            "id": answer.id,
            "object": "response",
            "created_at": answer.created,
            "status": "completed" if done else "in_progress",
            "model": answer.model,
            "output": self._list_items() if done else [],
            "error": None,
            "incomplete_details": None,
            "instructions": asked.instructions,
            "metadata": asked.metadata or {},
            "parallel_tool_calls": True,
            "temperature": None,
            "tool_choice": "auto",
            "tools": [],
            "top_p": None,
            "usage": usage if done else None,
            **({"cfc": answer.cfc} if done else {}),
        }

    def _list_items(self) -> list[dict[str, Any]]:
        number = self.answer.id.partition("_")[2]
        calls = [
            {
                "id": f"fc_{number}_{position}",
                "type": "function_call",
                "status": "completed",
                "call_id": call,
                "name": name,
                "arguments": arguments,
            }
            for position, (call, name, arguments) in enumerate(self.answer.calls)
        ]
        text = str(self.answer.message.text)
        if calls and not text:
            return calls
        part = {"type": "output_text", "text": text, "annotations": []}
        message = {"id": f"msg_{number}", "type": "message", "status": "completed", "role": "assistant"}
        return [{**message, "content": [part]}, *calls]
