"""Every verifier reads prompts with the same function, so none silently drops what others keep."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
    convert_to_messages,
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


def read(prompt: Any) -> Any:
    return read_prompt(prompt, "say something else", VerifierError)


@pytest.mark.parametrize(
    "prompt",
    [
        ILLUSTRATED,
        ChatPromptValue(messages=ILLUSTRATED),
        [("human", "Look."), ("human", [IMAGE])],
        [HumanMessage([{"type": "input_audio", "input_audio": {}}])],
        [HumanMessage([QUESTION, {"type": "file", "base64": "aaaa"}])],
        [HumanMessage([QUESTION, {"unknown": 1}])],
        [SystemMessage("Be brief.")],
        [HumanMessage([QUESTION], name="ana")],
        [
            SystemMessage("Be brief."),
            AIMessage([{"type": "tool_use", "id": "1", "name": "search", "input": {}}], tool_calls=[CALL]),
            ToolMessage("In Peru.", tool_call_id="1"),
        ],
    ],
)
def test_read_prompt_keeps_messages_with_more_than_one_text(prompt: Any) -> None:
    listed = prompt.messages if isinstance(prompt, ChatPromptValue) else prompt
    assert read(prompt) == convert_to_messages(listed)


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
    assert read(prompt) == "Where does it live?"


def test_read_prompt_reads_an_object_as_canonical_json() -> None:
    assert read({"b": 1, "a": "ü"}) == '{"a":"ü","b":1}'


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        (7, "a int, which cannot be read as text or messages: say something else"),
        ([], "a list, which cannot be read as text or messages"),
        ([object()], "a list that does not hold messages"),
        ({"a": object()}, "a mapping with the keys a, is not JSON"),
        ({"a": float("nan")}, "a mapping with the keys a, is not JSON"),
    ],
)
def test_read_prompt_refuses_other_values(prompt: Any, message: str) -> None:
    with pytest.raises(VerifierError, match=message):
        read(prompt)
