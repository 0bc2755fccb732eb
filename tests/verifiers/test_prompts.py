"""Every verifier reads prompts with the same function, so none silently drops what others keep."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_core.prompt_values import ChatPromptValue, StringPromptValue
from langchain_core.runnables import RunnableLambda

from langchain_cfc.errors import VerifierError
from langchain_cfc.sampling import DrawnCandidate
from langchain_cfc.verifiers import ModelJudge
from langchain_cfc.verifiers.prompts import read_prompt

IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
QUESTION = {"type": "text", "text": "Where does it live?"}
ILLUSTRATED = [HumanMessage([QUESTION, IMAGE])]
CALL: Any = {"name": "search", "args": {"query": "llama"}, "id": "1", "type": "tool_call"}
BROKEN_CALL: Any = {
    "name": "search",
    "args": "{",
    "id": "1",
    "error": "not JSON",
    "type": "invalid_tool_call",
}


def read(prompt: Any) -> Any:
    return read_prompt(prompt, "say something else", VerifierError)


@pytest.mark.parametrize(
    ("prompt", "part"),
    [
        (ILLUSTRATED, "image in message 0"),
        (ChatPromptValue(messages=ILLUSTRATED), "image in message 0"),
        ([("human", "Look."), ("human", [IMAGE])], "image in message 1"),
        ([HumanMessage([{"type": "input_audio", "input_audio": {}}])], "audio in message 0"),
        ([HumanMessage([QUESTION, {"type": "file", "base64": "aaaa"}])], "file in message 0"),
        ([HumanMessage([QUESTION, {"unknown": 1}])], "untyped part in message 0"),
        ([AIMessage("", invalid_tool_calls=[BROKEN_CALL])], "invalid tool call in message 0"),
    ],
)
def test_read_prompt_names_content_that_is_not_text(prompt: Any, part: str) -> None:
    assert read(prompt).other_parts == (part,)


def test_model_judge_shows_every_part_of_a_prompt() -> None:
    seen: list[list[BaseMessage]] = []

    def judge(messages: list[BaseMessage]) -> AIMessage:
        seen.append(messages)
        return AIMessage("Percent: 50")

    verifier = ModelJudge(RunnableLambda(judge), mode="line")
    for prompt in (ILLUSTRATED, [("human", [QUESTION, IMAGE])], ChatPromptValue(messages=ILLUSTRATED)):
        assert verifier.invoke({"prompt": prompt, "candidates": [DrawnCandidate("Peru")]}) == [0.5]
        assert seen[-1][0].content == [QUESTION, IMAGE]


@pytest.mark.parametrize(
    "prompt",
    [
        "Where does it live?",
        StringPromptValue(text="Where does it live?"),
        HumanMessage("Where does it live?"),
        [HumanMessage([QUESTION])],
        [("human", "Where does it live?")],
        [{"role": "user", "content": [QUESTION]}],
        ChatPromptValue(messages=[HumanMessage("Where does it live?")]),
    ],
)
def test_read_prompt_reads_one_question_in_every_form(prompt: Any) -> None:
    content = read(prompt)
    assert (content.kind, content.text, content.other_parts) == ("text", "Where does it live?", ())


def test_read_prompt_transcript_names_parts_not_shown() -> None:
    conversation = [
        SystemMessage("Be brief."),
        HumanMessage([QUESTION, IMAGE]),
        AIMessage([{"type": "tool_use", "id": "1", "name": "search", "input": {}}], tool_calls=[CALL]),
        ToolMessage("In Peru.", tool_call_id="1"),
    ]
    content = read(conversation)
    lines = content.text.splitlines()
    assert lines[:2] == ["System: Be brief.", "Human: Where does it live?[image]"]
    # The calls are shown, so the provider's own block of the same call is not missing.
    assert "'query': 'llama'" in lines[2]
    assert lines[3] == "Tool: In Peru."
    assert content.other_parts == ("image in message 1",)
    assert list(content.messages) == conversation


def test_read_prompt_keeps_the_role_of_a_single_message() -> None:
    assert read([SystemMessage("Be brief.")]).text == "System: Be brief."
    assert "search" in read([AIMessage("", tool_calls=[CALL])]).text


def test_read_prompt_reads_an_object_as_canonical_json() -> None:
    content = read({"b": 1, "a": "ü"})
    assert (content.kind, content.text) == ("object", '{"a":"ü","b":1}')


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        (7, "a int, which cannot be read as text or messages: say something else"),
        ([], "a list, which cannot be read as text or messages"),
        ([object()], "a list that does not hold messages"),
        ([RemoveMessage(id="1")], "a message that cannot be transcribed"),
        ({"a": object()}, "a mapping with the keys a, is not JSON"),
        ({"a": float("nan")}, "a mapping with the keys a, is not JSON"),
    ],
)
def test_read_prompt_refuses_other_values(prompt: Any, message: str) -> None:
    with pytest.raises(VerifierError, match=message):
        read(prompt)
