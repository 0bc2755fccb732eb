"""Other middleware, outside and inside the guard: what is allowed and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from langchain.agents.middleware import (
    AgentMiddleware,
    ModelCallLimitMiddleware,
    ModelFallbackMiddleware,
    dynamic_prompt,
)
from langchain_core.messages import AIMessage, ToolMessage

from integrations.agents.tests.parts import (
    LOOKED_UP,
    NOTED,
    PLAIN,
    RIGHT,
    SYSTEM,
    Agent,
    N,
    Way,
    Wrapping,
    both_ways,
    last,
    model_at,
    sent,
)
from langchain_cfc.errors import DrawError, ServingError
from tests.serving.openai_server import Fault, Script

places = pytest.mark.parametrize("place", ["outside", "inside"])


@both_ways
@places
def test_chain_receives_messages_changed_by_other_middleware(
    guarded: Callable[..., Agent], served: Script, way: Way, place: str
) -> None:
    @dynamic_prompt
    def by_the_state(request: Any) -> str:
        return f"There are {len(request.state['messages'])} messages."

    shortening = Wrapping(lambda request: request.override(messages=request.messages[-1:]))
    agent = guarded(**{place: [by_the_state, shortening]})
    assert last(way(agent, PLAIN)).text == RIGHT
    discarded, *draws = sent(served.requests)
    assert "There are 1 messages." in discarded
    assert SYSTEM not in discarded
    assert draws == [discarded] * N


@both_ways
@places
def test_model_fallback_calls_tools_and_never_answers(
    guarded: Callable[..., Agent], url: str, served: Script, way: Way, place: str
) -> None:
    other = ModelFallbackMiddleware(model_at(url, model_kwargs={"user": "fallback"}))
    served.faults = [Fault("status 500", on={0})]
    agent = guarded(**{place: [other]})
    state = way(agent, LOOKED_UP)
    assert [message.text for message in state["messages"] if isinstance(message, ToolMessage)] == [NOTED]
    assert last(state).text == RIGHT
    assert [request.get("user") for request in served.requests[:2]] == [None, "fallback"]
    # The chain fails: the other model must not answer in its stead.
    served.requests.clear()
    served.faults = [Fault("status 500", on=set(range(1, 1 + N)))]
    if place == "inside":
        assert last(way(agent, PLAIN)).text == RIGHT
        drawn = served.requests[1:]
        assert len(drawn) == 2 * N
        assert {request.get("user") for request in drawn} == {None}
    served.requests.clear()
    served.faults = [Fault("status 500", on=set(range(1, 100)) - {1 + N})]
    with pytest.raises(DrawError):
        way(agent, PLAIN)


def replace_answer(responses: list[Any]) -> Any:
    """Answer in the place of the model."""
    return responses[0] if responses[0].result[-1].tool_calls else AIMessage("this has no guarantee")


@both_ways
def test_guard_refuses_answers_of_other_middleware(guarded: Callable[..., Agent], way: Way) -> None:
    replacing = Wrapping(choose=replace_answer)
    with pytest.raises(ServingError, match="inner middleware answered in place of the chain"):
        way(guarded(inside=[replacing]), PLAIN)
    with pytest.raises(ServingError, match="is not what the chain decided"):
        way(guarded(outside=[replacing]), PLAIN)
    # This is allowed, and no guarantee is stated.
    said = last(way(guarded(outside=[replacing], strict=False), PLAIN))
    assert said.text == "this has no guarantee"
    assert "cfc" not in said.response_metadata


class Rewriting(AgentMiddleware[Any, Any, Any]):
    """Changes the answer after it was decided, and leaves all else on it."""

    def __init__(self, update: dict[str, Any]) -> None:
        self.update = update

    def after_model(self, state: Any, runtime: Any) -> Any:
        del runtime
        said = state["messages"][-1]
        return None if said.tool_calls else {"messages": [said.model_copy(update=self.update)]}


@both_ways
@places
@pytest.mark.parametrize("update", [{"content": "Quito"}, {"response_metadata": {"cfc": {"seen": True}}}])
def test_guard_refuses_answers_changed_after_the_model(
    guarded: Callable[..., Agent], way: Way, place: str, update: dict[str, Any]
) -> None:
    changing: Any = {place: [Rewriting(update)]}
    with pytest.raises(ServingError, match="is not what the chain decided"):
        way(guarded(**changing), LOOKED_UP)
    said = last(way(guarded(strict=False, **changing), PLAIN))
    assert said.model_copy(update=update) == said


@both_ways
def test_guard_refuses_runs_ended_by_call_limits(guarded: Callable[..., Agent], way: Way) -> None:
    limit = ModelCallLimitMiddleware(run_limit=1, exit_behavior="end")
    assert last(way(guarded(outside=[limit]), PLAIN)).text == RIGHT
    with pytest.raises(ServingError, match="is not what the chain decided"):
        way(guarded(outside=[limit]), LOOKED_UP)
    said = last(way(guarded(outside=[limit], strict=False), LOOKED_UP))
    assert "limits exceeded" in str(said.text)
    assert "cfc" not in said.response_metadata
