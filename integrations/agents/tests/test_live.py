"""The guard over a real model on this machine, whose answers are not known beforehand."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain_cfc_agents import GuardedAnswer, RecordPrompt, answer_prompts
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.outputs import LLMResult
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from integrations.agents.tests.parts import (
    ABSTAINED,
    SYSTEM,
    WAYS,
    Agent,
    N,
    Way,
    agent_of,
    artifact_in,
    asked,
    chain_at,
    last,
)
from langchain_cfc.records import Example
from tests.conformance.test_live import installed, local_model

QUESTION = "What is the capital of France?"

pytestmark = [
    pytest.mark.live,
    pytest.mark.long,
    pytest.mark.skipif(
        not installed(),
        reason="no local model: pip install xllamacpp && python examples/local_model/local_model.py get",
    ),
]


class Answers(BaseCallbackHandler):
    """Every answer of the model, visible to users or not."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def on_llm_end(self, response: LLMResult, *, tags: list[str] | None = None, **kwargs: Any) -> None:
        del kwargs
        if "nostream" in (tags or []):
            self.texts.append(response.generations[0][0].text)


@pytest.fixture(scope="module")
def model() -> Iterator[ChatOpenAI]:
    """A small real model behind a server of its own."""
    example = local_model()
    with pytest.MonkeyPatch.context() as patch, example.running_server(example.get(), slots=N) as url:
        patch.setenv("NO_PROXY", "127.0.0.1")
        yield ChatOpenAI(
            model=example.MODEL_NAME,
            base_url=url,
            api_key=SecretStr("none"),
            temperature=1.0,
            max_completion_tokens=12,
            # A connection that is kept does not outlive the event loop of its test.
            default_headers={"Connection": "close"},
        )


def make_guarded(model: ChatOpenAI, folder: Path, *, fond: bool) -> Agent:
    """An agent whose verifier likes the first candidate, or has no verdict."""

    def verifier(prompt: Any, candidates: Any) -> list[float | None]:
        del prompt
        return [(0.05 if slot == 0 else 0.95) if fond else None for slot in range(len(candidates))]

    artifact = artifact_in(folder, model.model_name)
    chain = chain_at("", artifact, generator=model, verifier=verifier)
    return agent_of(model, [GuardedAnswer(chain)], tools=[])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("fond", [True, False])
def test_guarded_agent_with_a_real_model_follows_the_chain(
    model: ChatOpenAI, tmp_path: Path, way: Way, fond: bool
) -> None:
    answers = Answers()
    said = last(way(make_guarded(model, tmp_path, fond=fond), QUESTION, {"callbacks": [answers]}))
    assert len(answers.texts) == 1 + N
    decision = said.response_metadata["cfc"]
    assert fond or said.text == ABSTAINED
    assert decision["reason"] == ("answered" if fond else "only_blank_answers")
    assert not fond or said.text in answers.texts[1:]
    assert decision["routing"]["usage"]["output_tokens"] > 0


@pytest.mark.parametrize("fond", [True, False])
def test_guarded_agent_with_a_real_model_streams_only_the_decision(
    model: ChatOpenAI, tmp_path: Path, fond: bool
) -> None:
    agent = make_guarded(model, tmp_path, fond=fond)
    shown = [message.text for message, _ in agent.stream(asked(QUESTION), stream_mode="messages")]
    assert len(shown) == 1
    assert (shown == [ABSTAINED]) is not fond

    async def tokens() -> list[str]:
        events = agent.astream_events(asked(QUESTION), version="v2")
        return [
            event["data"]["chunk"].text async for event in events if event["event"] == "on_chat_model_stream"
        ]

    assert len(asyncio.run(tokens())) == 1
    # The control: this model does stream in pieces.
    loose = agent_of(model, [], tools=[])
    pieces = [message.text for message, _ in loose.stream(asked(QUESTION), stream_mode="messages")]
    assert len(pieces) > 1


def test_record_prompt_with_a_real_model(model: ChatOpenAI) -> None:
    agent = agent_of(model, [RecordPrompt()], tools=[])
    (prompt,) = answer_prompts(agent, [Example(id="one", input=QUESTION)])
    expected = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": QUESTION}]
    assert prompt.input == expected
