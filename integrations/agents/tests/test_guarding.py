"""The guard replaces an agent's final answer by its chain's decision, and observers see nothing else.

Discarded and rejected texts are planted, and looked for whole and in the pieces that the server streams them
in. The same watchers find them in the agents of the controls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from langchain.agents.middleware import (
    AgentMiddleware,
    ModelCallLimitMiddleware,
    ModelFallbackMiddleware,
    ModelRetryMiddleware,
    dynamic_prompt,
)
from langchain.agents.structured_output import ProviderStrategy, ToolStrategy
from langchain_cfc_agents import GuardedAnswer, asking
from langchain_core.callbacks import get_usage_metadata_callback
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.messages.ai import add_usage
from langchain_core.runnables import RunnableLambda
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.types import interrupt
from pydantic import BaseModel

from integrations.agents.tests.parts import (
    ABSTAINED,
    COMPARED,
    DISCARDED,
    HIDDEN,
    HOPELESS,
    LOOKED_UP,
    NOTED,
    PLAIN,
    RIGHT,
    SYSTEM,
    Agent,
    N,
    Way,
    Wrapping,
    agent_of,
    ask,
    asked,
    both_ways,
    chain_at,
    direct,
    last,
    look_up,
    model_at,
    parts_of,
    sent,
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
from langchain_cfc.errors import (
    CFCError,
    DrawError,
    FingerprintWarning,
    InputError,
    ServingError,
    VerifierError,
)
from tests.serving.openai_bodies import Answer
from tests.serving.openai_server import Fault, Script

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


def test_discarded_answer_shows_if_its_model_streams_or_messages_are_not_hidden(
    guarded: Callable[..., Agent], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        # A wrong guard, which lets the agent's model stream.
        patch.setattr(asking, "without_streaming_and_cache", lambda model, **_: model)
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


@both_ways
@pytest.mark.parametrize("question", [PLAIN, LOOKED_UP, COMPARED, HOPELESS])
def test_run_ends_with_the_decision_of_the_chain(
    guarded: Callable[..., Agent], way: Way, question: str
) -> None:
    said = last(way(guarded(), question))
    decision = said.response_metadata["cfc"]
    expected = (ABSTAINED, "only_blank_answers") if question == HOPELESS else (RIGHT, "answered")
    assert (said.text, decision["reason"]) == expected
    assert decision["guarantee"]["alpha"] == "0.1"
    assert decision["guarantee"]["kind"] != "heuristic"


def test_conversation_continues_from_a_file(
    url: str, artifact: CalibrationArtifact, served: Script, tmp_path: Path
) -> None:
    """Of a class that it does not know, LangGraph's serializer restores nothing: a message holds none."""
    texts, config = [], {"configurable": {"thread_id": "one"}}
    for question in (HOPELESS, LOOKED_UP):
        # A new agent each time, as in a new process.
        with SqliteSaver.from_conn_string(str(tmp_path / "memory.db")) as saver:
            saver.serde = JsonPlusSerializer(allowed_msgpack_modules=None)
            agent = agent_of(model_at(url), [GuardedAnswer(chain_at(url, artifact))], checkpointer=saver)
            state = ask(agent, question, config)  # type: ignore[arg-type]  # a config
        texts.append([message.text for message in state["messages"] if message.type == "ai"])
    assert texts == [[ABSTAINED], [ABSTAINED, "", RIGHT]]
    # The model and the chain both learn that there was an abstention, and nothing of the decision.
    discarded, *draws = sent(served.requests)[-1 - N :]
    assert ABSTAINED in discarded
    assert set(draws) == {discarded}
    assert "cfc" not in discarded
    kept = (tmp_path / "memory.db").read_bytes()
    assert RIGHT.encode() in kept
    assert not [text for text in HIDDEN if text.encode() in kept]


def test_chain_receives_the_messages_of_the_model(
    guarded: Callable[..., Agent], served: Script, url: str
) -> None:
    state = ask(guarded(), COMPARED)
    # What calls tools passes unchanged, and without a guard the model's own answer is the last message.
    plain = ask(agent_of(model_at(url), []), COMPARED)
    assert state["messages"][1].usage_metadata == plain["messages"][1].usage_metadata
    assert last(plain).text == DISCARDED
    assert len(state["messages"][1].tool_calls) == 2
    assert [message.text for message in state["messages"] if isinstance(message, ToolMessage)] == [NOTED] * 2
    called, discarded, *draws = sent(served.requests)[: 2 + N]
    assert SYSTEM in discarded
    assert NOTED in discarded
    assert set(draws) == {discarded}
    assert called != discarded
    assert [bool(request.get("tools")) for request in served.requests[: 2 + N]] == [True, True, *[False] * N]


@both_ways
def test_guarded_answer_states_usage_of_the_discarded_answer(
    guarded: Callable[..., Agent], served: Script, way: Way
) -> None:
    with get_usage_metadata_callback() as counted:
        state = way(guarded(), LOOKED_UP)
    said = last(state)
    assert said.usage_metadata is not None
    assert said.usage_metadata["total_tokens"] == 13 * N
    decision = said.response_metadata["cfc"]
    assert decision["routing"]["models"] == ["recorded"]
    assert decision["routing"]["usage"]["total_tokens"] == 13
    stated = add_usage(state["messages"][1].usage_metadata, decision["routing"]["usage"])
    stated = add_usage(stated, said.usage_metadata)
    (total,) = counted.usage_metadata.values()
    assert stated["total_tokens"] == total["total_tokens"] == 13 * len(served.requests)
    # The control: without what was thrown away it does not add up.
    assert total["total_tokens"] != 13 + said.usage_metadata["total_tokens"]
    assert DISCARDED not in repr(said)


class Town(BaseModel):
    """Structured output."""

    name: str


def test_guard_refuses_response_format_before_any_request(
    guarded: Callable[..., Agent], served: Script
) -> None:
    for form in (Town, ToolStrategy(Town), ProviderStrategy(Town)):
        with pytest.raises(InputError, match="response_format"):
            ask(guarded(response_format=form), PLAIN)
    assert served.requests == []


@both_ways
def test_guard_refuses_return_direct_tools_when_strict(
    guarded: Callable[..., Agent], served: Script, way: Way
) -> None:
    with pytest.raises(InputError, match="direct would end the agent without the chain"):
        way(guarded(tools=[direct]), PLAIN)
    assert served.requests == []
    served.answers = {**served.answers, LOOKED_UP: [Answer(tools=(("direct", {"topic": "towns"}),))]}
    state = way(guarded(tools=[direct], strict=False), LOOKED_UP)
    assert isinstance(state["messages"][-1], ToolMessage)
    assert last(way(guarded(tools=[direct], strict=False), PLAIN)).text == RIGHT


def test_guarded_answer_requires_a_cfc_runnable(url: str) -> None:
    for other in (model_at(url), RunnableLambda(lambda prompt: prompt)):
        with pytest.raises(InputError, match="no CFCRunnable"):
            GuardedAnswer(other)


def test_guard_refuses_candidates_that_call_tools(
    url: str, artifact: CalibrationArtifact, served: Script
) -> None:
    called = Answer(tools=(("look_up", {"topic": "towns"}),))
    served.answers = {**served.answers, PLAIN: [Answer(DISCARDED), *[called] * N]}
    # Without bound tools, such candidates are no answers.
    calling = model_at(url).bind_tools([look_up])
    with pytest.warns(FingerprintWarning, match="tools_digest"):
        chain = chain_at(url, artifact, generator=calling, verifier=lambda _, drawn: [0.05] * len(drawn))
    with pytest.raises(ServingError, match=r"calls tools \(look_up\).*tool_choice='none'"):
        ask(agent_of(model_at(url), [GuardedAnswer(chain)]), PLAIN)


@both_ways
def test_guard_refuses_chains_that_interrupt(url: str, artifact: CalibrationArtifact, way: Way) -> None:
    chain = chain_at(url, artifact).or_else(interrupt)
    agent = agent_of(model_at(url), [GuardedAnswer(chain)], checkpointer=InMemorySaver())
    with pytest.raises(ServingError, match="draw again"):
        way(agent, HOPELESS, {"configurable": {"thread_id": "t"}})


@both_ways
def test_or_else_of_the_chain_answers_without_guarantee(
    url: str, artifact: CalibrationArtifact, way: Way
) -> None:
    prompts: list[Any] = []

    def person(prompt: Any) -> str:
        prompts.append(prompt)
        return "A person will answer."

    guard = GuardedAnswer(chain_at(url, artifact).or_else(person))
    agent = agent_of(model_at(url), [guard])
    said = last(way(agent, HOPELESS))
    assert said.text == "A person will answer."
    assert said.response_metadata["cfc"]["guarantee"] is None
    assert said.response_metadata["cfc"]["routing"]["usage"]["total_tokens"] == 13
    assert prompts == [[{"role": "system", "content": SYSTEM}, {"role": "user", "content": HOPELESS}]]
    assert last(way(agent, PLAIN)).response_metadata["cfc"]["guarantee"]["alpha"] == "0.1"


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
