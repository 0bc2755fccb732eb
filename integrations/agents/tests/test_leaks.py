"""Observers of an agent see tool calls and the decision, no discarded answer and no rejected one.

The texts are planted, and looked for whole and in the pieces that the server streams them in. The agents of
the controls are watched by the same eyes.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
from langchain.agents.middleware import AgentMiddleware
from langchain_cfc_agents import asking
from langgraph.checkpoint.memory import InMemorySaver

from integrations.agents.tests.parts import (
    ABSTAINED,
    DISCARDED,
    HIDDEN,
    HOPELESS,
    LOOKED_UP,
    PLAIN,
    RIGHT,
    WATCHES,
    Agent,
    Resampling,
    Watch,
    agent_of,
    asked,
    in_events,
    model_at,
    parts_of,
)

pytestmark = pytest.mark.filterwarnings(
    "ignore:The v3 streaming protocol:langchain_core._api.LangChainBetaWarning"
)
every_watch = pytest.mark.parametrize("watch", WATCHES)


class OtherModel(AgentMiddleware[Any, Any, Any]):
    """Puts another model in the place of the agent's, as a fallback does."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def wrap_model_call(self, request: Any, handler: Any) -> Any:
        return handler(request.override(model=self.model))

    async def awrap_model_call(self, request: Any, handler: Any) -> Any:
        return await handler(request.override(model=self.model))


def find_shown(watch: Watch, agent: Agent, question: str, texts: tuple[str, ...] = HIDDEN) -> set[str]:
    """Return the hidden texts that are shown, in whole or in part."""
    shown = watch(agent, question)
    assert question in shown
    return {text for text in texts if any(part in shown for part in parts_of(text))}


@every_watch
@pytest.mark.parametrize("question", [PLAIN, LOOKED_UP, HOPELESS])
def test_streams_of_a_guarded_agent_show_only_the_decision(
    guarded: Callable[..., Agent], watch: Watch, question: str
) -> None:
    agent = guarded(checkpointer=InMemorySaver())
    shown = watch(agent, question)
    assert (ABSTAINED if question == HOPELESS else RIGHT) in shown
    assert not [part for part in parts_of(*HIDDEN) if part in shown]


@every_watch
def test_streams_show_hidden_texts_of_resampling_middleware(url: str, watch: Watch) -> None:
    # The negative control: these eyes see what is to be seen.
    agent = agent_of(model_at(url), [Resampling()], checkpointer=InMemorySaver())
    assert find_shown(watch, agent, HOPELESS) == set(HIDDEN)


def keep_streaming(model: Any, *, fresh: bool) -> Any:
    """A wrong guard, which lets the agent's model stream."""
    del fresh
    return model


def test_discarded_answer_shows_in_pieces_if_its_model_streams(
    guarded: Callable[..., Agent], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "without_streaming_and_cache", keep_streaming)
    assert find_shown(in_events, guarded(checkpointer=InMemorySaver()), PLAIN) == {DISCARDED}


def test_discarded_answer_shows_if_messages_are_not_hidden(
    guarded: Callable[..., Agent], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "_hide_messages", nullcontext)
    found = [find_shown(watch, guarded(checkpointer=InMemorySaver()), PLAIN) for watch in WATCHES]
    assert found == [{DISCARDED}] * len(WATCHES)


@every_watch
def test_model_of_other_middleware_does_not_stream(
    guarded: Callable[..., Agent], url: str, watch: Watch
) -> None:
    other = OtherModel(model_at(url, streaming=True))
    for settings in ({"outside": [other]}, {"inside": [other]}):
        agent = guarded(checkpointer=InMemorySaver(), **settings)
        assert find_shown(watch, agent, PLAIN) == set()
        assert find_shown(watch, agent, HOPELESS) == set()
    loose = agent_of(model_at(url), [other, Resampling()], checkpointer=InMemorySaver())
    assert find_shown(watch, loose, HOPELESS) == set(HIDDEN)


def test_answer_streams_as_one_chunk_and_tool_calls_whole(guarded: Callable[..., Agent]) -> None:
    streamed = [
        message
        for message, _ in guarded().stream(asked(LOOKED_UP), stream_mode="messages")
        if message.type != "tool"
    ]
    called, said = streamed
    assert [call["name"] for call in called.tool_calls] == ["look_up"]
    assert said.text == RIGHT
    assert said.response_metadata["cfc"]["guarantee"]["alpha"] == "0.1"
