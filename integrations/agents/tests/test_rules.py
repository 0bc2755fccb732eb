"""Errors contain no content, and drawing does not stream into a surrounding graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, ModelRetryMiddleware
from langchain_cfc_agents import GuardedAnswer
from langchain_core.runnables import Runnable, RunnableLambda
from langgraph.checkpoint.sqlite import SqliteSaver

from integrations.agents.tests.parts import (
    HIDDEN,
    MODES,
    PLAIN,
    RIGHT,
    Agent,
    agent_of,
    asked,
    chain_at,
    last,
    model_at,
    parts_of,
)
from langchain_cfc import CalibrationArtifact
from langchain_cfc.errors import CFCError, VerifierError

CONFIG: Any = {"configurable": {"thread_id": "1"}}


def fail_with_quotes(prompt: Any, candidates: Sequence[Any]) -> list[float]:
    """A verifier that says what it could not read."""
    del prompt
    msg = f"cannot read {[candidate.text for candidate in candidates]}"
    raise ValueError(msg)


def find_shown(agent: Agent) -> tuple[set[str], Exception | None]:
    """Return the hidden texts that any stream shows, in whole or in part, and how the run ended."""
    seen: list[str] = []
    failed = None
    try:
        seen.extend(map(repr, agent.stream(asked(PLAIN), CONFIG, stream_mode=MODES, subgraphs=True)))
    except CFCError as error:
        failed = error
    return {text for text in HIDDEN if any(part in "".join(seen) for part in parts_of(text))}, failed


def find_stored(folder: Path) -> list[str]:
    stored = "".join(file.read_bytes().decode("utf-8", "replace") for file in folder.iterdir())
    return [text for text in HIDDEN if text in stored]


@pytest.mark.parametrize("retries", [False, True])
def test_failing_verifier_shows_no_candidate(
    url: str, artifact: CalibrationArtifact, tmp_path: Path, retries: bool
) -> None:
    # Retries put the error's words into the conversation, where the model reads them in the next turn.
    outside = [ModelRetryMiddleware(max_retries=1, initial_delay=0.0)] if retries else []
    guard = GuardedAnswer(chain_at(url, artifact, verifier=fail_with_quotes))
    with SqliteSaver.from_conn_string(str(tmp_path / "threads.db")) as memory:
        seen, failed = find_shown(agent_of(model_at(url), [*outside, guard], checkpointer=memory))
    assert seen == set()
    assert isinstance(failed, CFCError if retries else VerifierError)
    assert find_stored(tmp_path) == []


def make_agent_generator(url: str) -> Runnable[Any, Any]:
    """A generator that is an agent itself."""
    asked_with: Any = RunnableLambda(lambda prompt: {"messages": prompt})
    agent: Runnable[Any, Any] = asked_with | create_agent(model_at(url), [])
    return agent | RunnableLambda(lambda state: state["messages"][-1])


def make_function_generator(url: str) -> Runnable[Any, Any]:
    """A generator that bears the name of the agent's node."""

    def model(prompt: Any) -> Any:
        return model_at(url).invoke(prompt)

    return RunnableLambda(model)


@pytest.mark.filterwarnings("ignore::langchain_cfc.errors.CFCWarning")
@pytest.mark.parametrize("make", [make_agent_generator, make_function_generator])
def test_generators_of_any_kind_show_no_rejected_candidate(
    url: str, artifact: CalibrationArtifact, tmp_path: Path, make: Callable[[str], Any]
) -> None:
    guard = GuardedAnswer(chain_at(url, artifact, generator=make(url)))
    with SqliteSaver.from_conn_string(str(tmp_path / "threads.db")) as memory:
        agent = agent_of(model_at(url), [guard], checkpointer=memory)
        assert find_shown(agent) == (set(), None)
        assert last(agent.get_state(CONFIG).values).text == RIGHT
    assert find_stored(tmp_path) == []


class Forgetting(AgentMiddleware[Any, Any, Any]):
    """Rewrites a decision without its guarantee."""

    def after_model(self, state: Any, runtime: Any) -> dict[str, Any]:
        del runtime
        noted = {"cfc": {"seen": True}}
        return {"messages": [state["messages"][-1].model_copy(update={"response_metadata": noted})]}


def test_guard_refuses_a_message_that_lost_its_guarantee(url: str, artifact: CalibrationArtifact) -> None:
    agent = agent_of(model_at(url), [GuardedAnswer(chain_at(url, artifact)), Forgetting()])
    with pytest.raises(CFCError, match="not what the chain decided"):
        agent.invoke(asked(PLAIN))
