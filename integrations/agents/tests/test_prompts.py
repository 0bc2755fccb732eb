"""Prompts as plain data: exactly the messages that a model is sent."""

from __future__ import annotations

import json
from typing import Any

import pytest
from langchain_cfc_agents import make_prompt_data
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    ChatMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)

from integrations.agents.tests.parts import NOTED, model_at
from langchain_cfc.errors import InputError
from langchain_cfc.records import Example
from tests.serving.openai_server import Script

PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGVsbG8="}}
CALL = {"name": "look_up", "args": {"topic": "towns", "deep": [1, None]}, "id": "c1", "type": "tool_call"}
UNREAD = {"name": "measure", "args": '{"town": ', "id": "c2", "error": "no JSON", "type": "invalid_tool_call"}
CONVERSATIONS: dict[str, list[BaseMessage]] = {
    "texts": [
        SystemMessage("Be short."),
        HumanMessage("Where?", name="ana", id="h1"),
        AIMessage("Lima", name="clerk"),
        HumanMessage("Sure?"),
        AIMessageChunk(content="Yes."),
        HumanMessage("Where?"),
    ],
    "picture": [HumanMessage([{"type": "text", "text": "Where?"}, PICTURE])],
    "tools": [
        HumanMessage("Where?"),
        AIMessage("", tool_calls=[CALL, {**CALL, "id": "c3"}], invalid_tool_calls=[UNREAD], id="a1"),
        ToolMessage("no", tool_call_id="c1", name="look_up", status="error"),
        ToolMessage("no", tool_call_id="c2", status="error"),
        ToolMessage(NOTED, tool_call_id="c3", artifact=object()),
    ],
    "developer": [SystemMessage("Be short.", additional_kwargs={"__openai_role__": "developer"})],
}


@pytest.mark.parametrize("messages", CONVERSATIONS.values(), ids=[*CONVERSATIONS])
def test_prompt_data_sends_the_same_request(url: str, served: Script, messages: list[BaseMessage]) -> None:
    model = model_at(url)
    served.answers = dict.fromkeys(["Where?", "Sure?", NOTED, "no", "Be short."], served.answers[NOTED])
    data = make_prompt_data(messages)
    read = json.loads(Example(id="one", input=data).model_dump_json())["input"]
    for given in (messages, data, read):
        model.invoke(given)
    bodies = [request["messages"] for request in served.requests]
    assert bodies[0] == bodies[1] == bodies[2]


def test_prompt_data_omits_response_metadata_and_usage() -> None:
    decided = {"cfc": {"best": "Lima"}, "model_name": "m"}
    usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
    said = AIMessage("Lima", id="a1", response_metadata=decided, usage_metadata=usage)
    assert make_prompt_data([said]) == [{"role": "assistant", "content": "Lima"}]


@pytest.mark.parametrize("message", [ChatMessage(content="x", role="critic"), RemoveMessage("x")])
def test_prompt_data_refuses_other_messages(message: Any) -> None:
    with pytest.raises(InputError, match=type(message).__name__):
        make_prompt_data([message])
