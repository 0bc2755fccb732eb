"""The prompts at which an agent answers: as plain data, and recorded up to an artifact for them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from langchain_cfc_agents import (
    GuardedAnswer,
    RecordPrompt,
    aanswer_prompts,
    answer_prompts,
    make_prompt_data,
)
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

from integrations.agents.tests.parts import (
    COMPARED,
    DISCARDED,
    NOTED,
    PLAIN,
    SYSTEM,
    Agent,
    agent_of,
    ask,
    chain_at,
    direct,
    model_at,
)
from langchain_cfc import CalibrationArtifact
from langchain_cfc.errors import CollectionError, InputError
from langchain_cfc.records import Example
from tests.serving.openai_bodies import Answer
from tests.serving.openai_server import Script


def make_example(number: int, text: Any) -> Example:
    return Example(id=f"q{number}", input=text, reference="Lima", metadata={"topic": "town"}, cluster="c")


def make_recording_agent(url: str, **settings: Any) -> Agent:
    return agent_of(model_at(url), [RecordPrompt()], **settings)


def record_prompts(agent: Agent, questions: list[Example]) -> list[Example]:
    return sorted(answer_prompts(agent, questions), key=lambda one: one.id)


def arecord_prompts(agent: Agent, questions: list[Example]) -> list[Example]:
    async def prompts() -> list[Example]:
        return [one async for one in aanswer_prompts(agent, questions)]

    return sorted(asyncio.run(prompts()), key=lambda one: one.id)


both_ways = pytest.mark.parametrize("record", [record_prompts, arecord_prompts])


@both_ways
def test_answer_prompts_records_the_prompts_of_the_chain(
    url: str, artifact: CalibrationArtifact, served: Script, record: Callable[..., list[Example]]
) -> None:
    earlier = [{"role": "user", "content": "Hello."}, {"role": "assistant", "content": "Hello."}]
    questions = [
        make_example(0, PLAIN),
        make_example(1, COMPARED),
        make_example(2, [*earlier, {"role": "user", "content": PLAIN}]),
        make_example(3, {"messages": [{"role": "user", "content": PLAIN}]}),
    ]
    prompts = record(make_recording_agent(url), questions)
    # Nothing was drawn: one request for each choice of the agent's model.
    assert len(served.requests) == 5
    given: list[Any] = []

    def watching(prompt: Any, candidates: Any) -> list[float]:
        given.append(prompt)
        return [0.05] * len(candidates)

    agent = agent_of(model_at(url), [GuardedAnswer(chain_at(url, artifact, verifier=watching))])
    for text in (PLAIN, COMPARED):
        ask(agent, text)
    agent.invoke({"messages": questions[2].input})
    agent.invoke(questions[3].input)
    assert [without_ids(one.input) for one in prompts] == [without_ids(prompt) for prompt in given]
    for one, prompt in zip(questions, prompts, strict=True):
        assert prompt.model_copy(update={"input": one.input}) == one
    assert prompts[0].input == [{"role": "system", "content": SYSTEM}, {"role": "user", "content": PLAIN}]
    compared: Any = prompts[1].input
    assert [message["role"] for message in compared][-3:] == ["assistant", "tool", "tool"]
    assert DISCARDED not in json.dumps([one.model_dump() for one in prompts])


def without_ids(prompt: Any) -> Any:
    """Calls of tools are given new ids each time."""
    text = json.dumps(prompt)
    ids = [call["id"] for message in prompt for call in message.get("tool_calls", ())]
    for number, name in enumerate(ids):
        text = text.replace(name, f"call {number}")
    return json.loads(text)


@both_ways
def test_answer_prompts_reports_runs_without_a_prompt_at_the_end(
    url: str, served: Script, record: Callable[..., list[Example]]
) -> None:
    served.answers = {**served.answers, "direct": [Answer(tools=(("direct", {"topic": "towns"}),))]}
    agent = make_recording_agent(url, tools=[direct])
    texts = ("unheard of", PLAIN, "direct", PLAIN)
    questions = [make_example(number, text) for number, text in enumerate(texts)]
    with pytest.raises(CollectionError, match="2 of 4 runs recorded no prompt"):
        record(agent, questions)
    with pytest.raises(CollectionError, match="'q2' first: it ended before the model gave a final answer"):
        record(agent, questions[1:])
    assert len(record(agent, [questions[1], questions[3]])) == 2


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
