"""A chat model that calls tools through a JSON schema, for small models that know no native tool calls.

`JsonToolModel` asks an OpenAI-compatible server for JSON: either a list of calls such as
`[{"move":["Choir","Monday","09:00"]}]`, or a text, which is the answer. LangChain sees ordinary tool calls.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from typing import Any
from uuid import uuid4

from langchain_core.language_models import LanguageModelInput
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.messages.tool import tool_call
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool
from langchain_openai import ChatOpenAI
from pydantic import PrivateAttr

SYSTEM = """\
You run an office by tools. Reply with a JSON list of tool calls, or with a JSON text once all is \
done. Times are HH:MM.
find_contact(name), list_events(day), convert(value, unit): look up
book(title, day, start, minutes), move(title, day, start), cancel(title), draft_mail(to, subject): change"""
# What the person asks or tools return, and what the model replies, in turn.
EXAMPLES = (
    "Draft a mail to Rob about fees.",
    '[{"find_contact":["Rob"]}]',
    "Results: Rob is not in the contacts",
    '"Rob is not in the contacts"',
    "Book Lunch on Monday right after the Choir, for two hours.",
    '[{"list_events":["Monday"]}]',
    "Results: 09:00-09:45 Choir; 14:00-15:00 Golf",
    '[{"book":["Lunch","Monday","09:45",120]}]',
    "Results: booked",
    '"Done"',
    "Cancel what I have on Friday afternoon.",
    '[{"list_events":["Friday"]}]',
    "Results: 09:00-10:00 Choir; 13:30-14:30 Chess club",
    '[{"cancel":["Chess club"]}]',
    "Results: cancelled",
    '"Done"',
    "Book Chess club on Friday at half past one in the afternoon for an hour, and Choir on Monday from \
09:00 to 09:45.",
    '[{"book":["Chess club","Friday","13:30",60]},{"book":["Choir","Monday","09:00",45]}]',
    "Results: booked; booked",
    '"Done"',
    "Move the Tax meeting to Tuesday at 4:15 pm.",
    '[{"move":["Tax meeting","Tuesday","16:15"]}]',
    "Results: moved",
    '"Done"',
    "Cancel the Ski trip.",
    '[{"cancel":["Ski trip"]}]',
    "Results: cancelled",
    '"Done"',
    "Draft a mail to Olga about the lease.",
    '[{"find_contact":["Olga"]}]',
    "Results: Olga Lind: olin35@office.example",
    '[{"draft_mail":["olin35@office.example","the lease"]}]',
    "Results: drafted",
    '"Done"',
    "Please book Opera on Wednesday at eight o'clock in the morning for an hour and a half.",
    '[{"book":["Opera","Wednesday","08:00",90]}]',
    "Results: booked",
    '"Done"',
)


class JsonToolModel(ChatOpenAI):
    """A chat model whose tool calls are JSON that a schema constrains.

    Args:
        draws: How many messages a guarded turn has. If messages are sent again, all others are drawn in one
            request, which small servers answer much faster than one by one.
    """

    disable_streaming: bool = True
    draws: int = 1
    _names: dict[str, list[str]] = PrivateAttr(default_factory=dict)
    _drawn: dict[str, list[ChatGeneration]] = PrivateAttr(default_factory=dict)
    _lock: Any = PrivateAttr(default_factory=threading.Lock)

    def bind_tools(
        self, tools: Sequence[dict[str, Any] | type | Callable[..., Any] | BaseTool], **kwargs: Any
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """Constrain replies to calls of these tools, or a text; nothing of `kwargs` is supported."""
        del kwargs
        functions = [convert_to_openai_tool(one)["function"] for one in tools]
        calls = []
        for one in functions:
            arguments = one["parameters"]["properties"]
            self._names[one["name"]] = list(arguments)
            values: dict[str, Any] = {"type": "array", "prefixItems": list(arguments.values())}
            values |= {"minItems": len(arguments), "maxItems": len(arguments)}
            call = {"type": "object", "properties": {one["name"]: values}, "required": [one["name"]]}
            calls.append({**call, "additionalProperties": False})
        several = {"type": "array", "items": {"anyOf": calls}, "minItems": 1, "maxItems": 3}
        schema = {"name": "turn", "schema": {"anyOf": [several, {"type": "string", "maxLength": 120}]}}
        return self.bind(response_format={"type": "json_schema", "json_schema": schema})

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        asked = json.dumps([[one.type, one.text, getattr(one, "tool_calls", [])] for one in messages])
        with self._lock:
            if asked not in self._drawn:
                self._drawn[asked] = []
                return super()._generate(messages, *args, **kwargs)
            if not self._drawn[asked]:
                drawn = super()._generate(messages, *args, **kwargs, n=max(self.draws - 1, 1))
                self._drawn[asked] = list(drawn.generations)
            return ChatResult(generations=[self._drawn[asked].pop(0)])

    def _get_request_payload(
        self, input_: LanguageModelInput, *, stop: list[str] | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        messages = self._convert_input(input_).to_messages()
        return super()._get_request_payload(self._write_messages(messages), stop=stop, **kwargs)

    def _create_chat_result(self, response: Any, generation_info: dict[str, Any] | None = None) -> ChatResult:
        result = super()._create_chat_result(response, generation_info)
        for generation in result.generations:
            generation.message = self._read_reply(generation.message)
        return result

    def _write_messages(self, messages: Sequence[BaseMessage]) -> list[BaseMessage]:
        """Turn calls and their results into the texts that the model writes and reads."""
        kinds = (HumanMessage, AIMessage)
        examples = [kinds[place % 2](text) for place, text in enumerate(EXAMPLES)]
        written: list[BaseMessage] = [messages[0], *examples]
        for message in messages[1:]:
            if isinstance(message, ToolMessage) and isinstance(written[-1], HumanMessage):
                written[-1] = HumanMessage(f"{written[-1].text}; {message.text}")
            elif isinstance(message, ToolMessage):
                written.append(HumanMessage(f"Results: {message.text}"))
            elif isinstance(message, AIMessage):
                calls = [
                    {call["name"]: [call["args"].get(name) for name in self._names[call["name"]]]}
                    for call in message.tool_calls
                ]
                said: Any = calls or message.text
                written.append(AIMessage(json.dumps(said, ensure_ascii=False, separators=(",", ":"))))
            else:
                written.append(message)
        return written

    def _read_reply(self, message: BaseMessage) -> BaseMessage:
        """Read calls or an answer; JSON that was cut short stays text, without calls."""
        try:
            said = json.loads(message.text)
        except json.JSONDecodeError:
            return message
        if isinstance(said, str):
            return message.model_copy(update={"content": said})
        calls = [
            tool_call(name=name, args=dict(zip(self._names[name], values, strict=True)), id=str(uuid4()))
            for one in said
            for name, values in one.items()
        ]
        return message.model_copy(update={"content": "", "tool_calls": calls})
