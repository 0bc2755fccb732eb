"""A server that answers prompts without recordings: it calls tools where it is offered any."""

from __future__ import annotations

import re
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any

from tests.serving.openai_bodies import Answer, Json
from tests.serving.openai_server import Script


@dataclass
class Responder(Script):
    """Answers each request by what it holds; any prompt will do."""

    answers: dict[str, Any] = field(default_factory=dict)

    def _next(self, body: Json, odd: AbstractSet[str]) -> list[Answer]:
        del odd
        return [_answer(body)] * int(body.get("n") or 1)


def _answer(body: Json) -> Answer:
    text = _text(body["messages"][-1])
    tool = _chosen(body, text)
    if tool is None:
        return Answer(f"You said: {text}")
    arguments = _filled(tool.get("parameters", {}), text)
    return Answer(tools=((tool["name"], arguments),))


def _text(message: Json) -> str:
    content = message["content"] or ""
    return content if isinstance(content, str) else " ".join(one.get("text", "") for one in content)


def _chosen(body: Json, text: str) -> Json | None:
    """The tool to call: the one demanded, else one that the prompt names, else the first."""
    tools = [tool["function"] for tool in body.get("tools", ())]
    choice = body.get("tool_choice")
    # A request with the result of a tool is answered with that result.
    if not tools or choice == "none" or body["messages"][-1]["role"] == "tool":
        return None
    wanted = choice["function"]["name"] if isinstance(choice, dict) else None
    found = [tool for tool in tools if tool["name"] == wanted or (wanted is None and tool["name"] in text)]
    chosen: Json = (found or tools)[0]
    return chosen


def _filled(schema: Json, text: str) -> Json:
    """Arguments that fit a schema: numbers that the prompt holds, and for texts all of it."""
    number = re.search(r"\d+", text)
    values = {"integer": int(number.group()) if number else 1, "string": text}
    return {name: values.get(one.get("type"), text) for name, one in schema.get("properties", {}).items()}
