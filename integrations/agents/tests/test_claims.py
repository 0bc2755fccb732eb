"""A guard whose chain keeps claims: no dropped claim leaves the agent."""

from __future__ import annotations

from typing import Any

from langchain.agents import create_agent
from langchain_cfc_agents import GuardedAnswer
from langchain_core.language_models import FakeListChatModel
from langchain_core.runnables import RunnableLambda

from tests.claims.chains import ANSWER, LEFT, SCORES, make_chain

DROPPED = "It has 9 moons."


def read_last_text(prompt: list[dict[str, Any]]) -> str:
    return str(prompt[-1]["content"])


def test_guarded_answer_ends_the_run_with_the_supported_claims() -> None:
    assert DROPPED in ANSWER
    assert DROPPED in SCORES
    chain = make_chain()
    guard = GuardedAnswer(RunnableLambda(read_last_text) | chain)
    agent = create_agent(FakeListChatModel(responses=[DROPPED]), middleware=[guard])
    question: Any = {"messages": [{"role": "user", "content": "Tell me about Lima."}]}
    said = agent.invoke(question)["messages"][-1]
    assert said.text == LEFT
    assert said.response_metadata["cfc"]["reason"] == "answered"
    assert "no unsupported claim is left" in chain.find_guarantee(said).sentence
    messages: Any = agent.stream(question, stream_mode="messages")
    assert [message.text for message, _ in messages] == [LEFT]
    assert DROPPED not in str(list(agent.stream(question, stream_mode="values")))
