"""Observers of an agent see tool calls and the decision, but no discarded answer and no rejected one.

The texts are planted, and looked for whole and in the pieces that the server streams them in. The same
watchers find them in the agents of the controls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from langchain.agents.middleware import ModelRetryMiddleware
from langchain_cfc_agents import GuardedAnswer, asking
from langchain_core.messages import AIMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver

from integrations.agents.tests.parts import (
    ABSTAINED,
    DISCARDED,
    HIDDEN,
    HOPELESS,
    LOOKED_UP,
    PLAIN,
    RIGHT,
    Agent,
    N,
    Wrapping,
    agent_of,
    asked,
    chain_at,
    last,
    model_at,
    parts_of,
)
from integrations.tests.graphs import (
    MODES,
    WATCHES,
    Watch,
    every_generator,
    every_watch,
    list_streams,
    list_tokens,
    read_stored,
    thread,
)
from langchain_cfc import CalibrationArtifact
from langchain_cfc.errors import CFCError, VerifierError

pytestmark = pytest.mark.filterwarnings(
    "ignore:The v3 streaming protocol:langchain_core._api.LangChainBetaWarning"
)


def choose_right(responses: list[Any]) -> Any:
    """A wrong guard, which lets the agent's model answer several times."""
    taken = [one for one in responses if one.result[0].text == RIGHT or one.result[0].tool_calls]
    return taken[0] if taken else AIMessage(ABSTAINED)


RESAMPLING: dict[str, Any] = {"choose": choose_right, "asks": 1 + N}


def find_hidden(shown: str) -> set[str]:
    """Return the hidden texts that are shown, in whole or in part."""
    return {text for text in HIDDEN if any(part in shown for part in parts_of(text))}


def find_shown(watch: Watch, agent: Agent, question: str) -> set[str]:
    shown = repr(watch(agent, asked(question), thread(question)))
    assert question in shown or watch is list_tokens
    return find_hidden(shown)


@every_watch
@pytest.mark.parametrize("question", [PLAIN, LOOKED_UP, HOPELESS])
def test_streams_of_a_guarded_agent_show_only_the_decision(
    guarded: Callable[..., Agent], watch: Watch, question: str
) -> None:
    shown = repr(watch(guarded(checkpointer=InMemorySaver()), asked(question), thread()))
    assert (ABSTAINED if question == HOPELESS else RIGHT) in shown
    assert find_hidden(shown) == set()


@every_watch
def test_streams_show_hidden_texts_of_resampling_middleware(url: str, watch: Watch) -> None:
    # The negative control: these watchers find what is shown.
    agent = agent_of(model_at(url), [Wrapping(**RESAMPLING)], checkpointer=InMemorySaver())
    assert find_shown(watch, agent, HOPELESS) == set(HIDDEN)


def keep_streaming(model: Any, **_: Any) -> Any:
    """A wrong guard, which lets the agent's model stream."""
    return model


def test_discarded_answer_shows_if_its_model_streams_or_messages_are_not_hidden(
    guarded: Callable[..., Agent], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(asking, "without_streaming_and_cache", keep_streaming)
        assert find_shown(list_tokens, guarded(checkpointer=InMemorySaver()), PLAIN) == {DISCARDED}
    monkeypatch.setattr(asking, "hide_messages", nullcontext)
    for watch in WATCHES:
        found = find_shown(watch, guarded(checkpointer=InMemorySaver()), PLAIN)
        assert found == (set() if watch is list_tokens else {DISCARDED})


@every_watch
def test_model_of_other_middleware_does_not_stream(
    guarded: Callable[..., Agent], url: str, watch: Watch
) -> None:
    model = model_at(url, streaming=True)
    kinds: list[dict[str, Any]] = [{}, RESAMPLING]
    other, loose = (Wrapping(lambda one: one.override(model=model), **kind) for kind in kinds)
    for place in ("outside", "inside"):
        agent = guarded(checkpointer=InMemorySaver(), **{place: [other]})
        for question in (PLAIN, HOPELESS):
            assert find_shown(watch, agent, question) == set()
    agent = agent_of(model_at(url), [loose], checkpointer=InMemorySaver())
    assert find_shown(watch, agent, HOPELESS) == set(HIDDEN)


def fail_with_quotes(_: Any, candidates: Sequence[Any]) -> list[float]:
    """A verifier that says what it could not read."""
    msg = f"cannot read {[candidate.text for candidate in candidates]}"
    raise ValueError(msg)


@pytest.mark.parametrize("retries", [False, True])
def test_failing_verifier_shows_no_candidate(
    url: str, artifact: CalibrationArtifact, tmp_path: Path, retries: bool
) -> None:
    # Retries put the error's words into the conversation, where the model reads them in the next turn.
    outside = [ModelRetryMiddleware(max_retries=1, initial_delay=0.0)] if retries else []
    # A chain that shows rejected texts quotes them in its errors as well.
    guard = GuardedAnswer(chain_at(url, artifact, verifier=fail_with_quotes, show_rejected=True))
    seen: list[str] = []
    with SqliteSaver.from_conn_string(str(tmp_path / "threads.db")) as memory:
        agent = agent_of(model_at(url), [*outside, guard], checkpointer=memory)
        stream = agent.stream(asked(PLAIN), thread(), stream_mode=[*MODES], subgraphs=True)
        with pytest.raises(CFCError if retries else VerifierError):
            seen.extend(map(repr, stream))
    assert seen
    assert find_hidden("".join(seen) + read_stored(tmp_path)) == set()


@pytest.mark.filterwarnings("ignore::langchain_cfc.errors.CFCWarning")
@every_generator
def test_generators_of_any_kind_show_no_rejected_candidate(
    url: str, artifact: CalibrationArtifact, tmp_path: Path, make: Any
) -> None:
    guard = GuardedAnswer(chain_at(url, artifact, generator=make(model_at(url), "model")))
    with SqliteSaver.from_conn_string(str(tmp_path / "threads.db")) as memory:
        agent = agent_of(model_at(url), [guard], checkpointer=memory)
        assert find_shown(list_streams, agent, PLAIN) == set()
        assert last(agent.get_state(thread(PLAIN)).values).text == RIGHT
    assert find_hidden(read_stored(tmp_path)) == set()
