"""The guard replaces an agent's final answer by its chain's decision and changes nothing else."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, wrap_tool_call
from langchain_cfc_agents import GuardedAnswer
from langchain_core.callbacks import get_usage_metadata_callback
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.messages.ai import add_usage
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import interrupt
from pydantic import BaseModel

from integrations.agents.tests.parts import (
    ABSTAINED,
    CALLED,
    COMPARED,
    DISCARDED,
    HOPELESS,
    LOOKED_UP,
    NOTED,
    PLAIN,
    RIGHT,
    SYSTEM,
    WAYS,
    Agent,
    N,
    Way,
    agent_of,
    artifact_in,
    ask,
    chain_at,
    judge,
    last,
    look_up,
    measure,
    model_at,
    sent,
)
from langchain_cfc import CalibrationArtifact, CFCRunnable
from langchain_cfc.errors import (
    CFCError,
    DrawError,
    FingerprintWarning,
    InputError,
    ServingError,
    VerifierError,
)
from tests.serving.openai_bodies import TOKENS_OUT, Answer
from tests.serving.openai_server import Fault, Script

both_ways = pytest.mark.parametrize("way", WAYS)


@both_ways
@pytest.mark.parametrize("question", [PLAIN, LOOKED_UP, COMPARED])
def test_guarded_answer_ends_the_run_with_the_answer_of_the_chain(
    guarded: Callable[..., Agent], way: Way, question: str
) -> None:
    said = last(way(guarded(), question))
    assert said.text == RIGHT
    decision = said.response_metadata["cfc"]
    assert decision["reason"] == "answered"
    assert decision["guarantee"]["alpha"] == "0.1"
    assert decision["guarantee"]["kind"] != "heuristic"


@both_ways
def test_guarded_answer_abstains_where_the_chain_does(guarded: Callable[..., Agent], way: Way) -> None:
    said = last(way(guarded(), HOPELESS))
    assert said.text == ABSTAINED
    assert said.response_metadata["cfc"]["reason"] == "only_blank_answers"


@both_ways
def test_guarded_answer_under_a_draw_rule_reports_its_draws(
    url: str, served: Script, tmp_path: Path, way: Way
) -> None:
    stopping = artifact_in(tmp_path, alpha=0.1, draws="below(0.5, at_most=3)")
    agent = agent_of(model_at(url), [GuardedAnswer(chain_at(url, stopping), full_result=True)])
    # The second of the three is right; where none is, all are drawn. One more is the agent's own.
    for question, text, drawn in ((PLAIN, RIGHT, 2), (HOPELESS, ABSTAINED, N)):
        before = len(served.requests)
        said = last(way(agent, question))
        assert said.text == text
        assert len(served.requests) == before + 1 + drawn
        assert len(said.response_metadata["cfc"]["candidates"]) == drawn
        assert said.usage_metadata is not None
        assert said.usage_metadata["output_tokens"] == TOKENS_OUT * drawn
    served.faults = [Fault("status 500", on=set(range(len(served.requests) + 2, 1000)))]
    with pytest.raises(DrawError) as failure:
        way(agent, PLAIN)
    assert "first candidate 1" in str(failure.value)


@both_ways
def test_guarded_answer_uses_the_max_wrong_rate_of_the_chain(url: str, tmp_path: Path, way: Way) -> None:
    bot = artifact_in(tmp_path, max_wrong_rate=[0.1, 0.2])
    agent = agent_of(model_at(url), [GuardedAnswer(chain_at(url, bot, max_wrong_rate=0.2))])
    decision = last(way(agent, PLAIN)).response_metadata["cfc"]
    assert decision["guarantee"]["kind"] == "certified"
    assert decision["guarantee"]["wrong_answers"] == {"max_wrong_rate": "0.2"}


class RetryMiddleware(AgentMiddleware[Any, Any, Any]):
    """Asks a second time after any error, as LangChain's retries and fallbacks do."""

    def wrap_model_call(self, request: Any, handler: Any) -> Any:
        try:
            return handler(request)
        except CFCError:
            return handler(request)


@pytest.mark.parametrize("outside", [False, True])
def test_raised_abstention_is_said_and_drawn_once(
    url: str, artifact: CalibrationArtifact, served: Script, outside: bool
) -> None:
    guard, again = GuardedAnswer(chain_at(url, artifact, on_abstain="raise")), RetryMiddleware()
    agent = agent_of(model_at(url), [again, guard] if outside else [guard, again])
    said = last(ask(agent, HOPELESS))
    assert (said.text, said.response_metadata["cfc"]["reason"]) == (ABSTAINED, "only_blank_answers")
    assert len(served.requests) == 1 + N


def test_agent_without_guard_answers_with_its_model(url: str) -> None:
    assert last(ask(agent_of(model_at(url), []), PLAIN)).text == DISCARDED


def test_guarded_answer_abstains_if_the_verifier_judges_none(url: str, artifact: CalibrationArtifact) -> None:
    """A right answer without a verdict is not given either."""

    def blind(prompt: Any, candidates: Any) -> list[None]:
        del prompt
        return [None] * len(candidates)

    given: list[tuple[Any, str]] = [(judge, RIGHT), (blind, ABSTAINED)]
    for verifier, said in given:
        agent = agent_of(model_at(url), [GuardedAnswer(chain_at(url, artifact, verifier=verifier))])
        assert last(ask(agent, PLAIN)).text == said


# --- calls of tools ---


class ResponseRecorder(AgentMiddleware[Any, Any, Any]):
    """Notes what comes back from further in."""

    def __init__(self, name: str) -> None:
        self.responses: list[Any] = []
        self._name = name

    @property
    def name(self) -> str:
        return self._name

    def wrap_model_call(self, request: Any, handler: Any) -> Any:
        self.responses.append(handler(request))
        return self.responses[-1]


def test_tool_calls_pass_the_guard_unchanged(guarded: Callable[..., Agent], url: str) -> None:
    outside, inside = ResponseRecorder("outside"), ResponseRecorder("inside")
    state = ask(guarded(outside=[outside], inside=[inside]), COMPARED)
    # Not a copy: the very response.
    assert outside.responses[0] is inside.responses[0]
    called = state["messages"][1]
    assert called is inside.responses[0].result[0]
    plain = ask(agent_of(model_at(url), []), COMPARED)["messages"][1]
    same = ("content", "tool_calls", "usage_metadata", "additional_kwargs")
    assert [len(called.tool_calls), called.usage_metadata["total_tokens"]] == [2, 13]
    for name in same[:1] + same[2:]:
        assert getattr(called, name) == getattr(plain, name)
    # The control: what ends the run is another message than came from further in.
    assert state["messages"][-1] is not inside.responses[-1].result[0]


def test_chain_is_asked_after_all_tools_have_run(guarded: Callable[..., Agent], served: Script) -> None:
    state = ask(guarded(), COMPARED)
    assert [message.text for message in state["messages"] if isinstance(message, ToolMessage)] == [NOTED] * 2
    # One request that calls, one answer that is thrown away, and n candidates.
    assert len(served.requests) == 1 + 1 + N


def test_chain_receives_the_messages_of_the_model(guarded: Callable[..., Agent], served: Script) -> None:
    ask(guarded(), COMPARED)
    called, discarded, *draws = sent(served.requests)
    assert SYSTEM in discarded
    assert NOTED in discarded
    assert set(draws) == {discarded}
    assert called != discarded
    assert [bool(request.get("tools")) for request in served.requests] == [True, True, *[False] * N]


def test_invalid_tool_calls_are_replaced_by_the_guard(url: str, artifact: CalibrationArtifact) -> None:
    broken = [{"name": "look_up", "args": "{", "id": "c1", "error": "no JSON"}]

    class Mumbling(FakeListChatModel):
        """Calls a tool by something that is no JSON."""

        def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
            del tools, kwargs
            return RunnableLambda(lambda _: AIMessage(DISCARDED, invalid_tool_calls=broken))

    mumbling = Mumbling(responses=[""])
    assert last(ask(agent_of(mumbling, []), PLAIN)).text == DISCARDED
    guard = GuardedAnswer(chain_at(url, artifact))
    assert last(ask(agent_of(mumbling, [guard]), PLAIN)).text == RIGHT


def test_failed_tool_is_retried_by_the_agent(guarded: Callable[..., Agent], served: Script) -> None:
    @wrap_tool_call
    def excusing(request: Any, handler: Any) -> Any:
        try:
            return handler(request)
        except ValueError:
            return ToolMessage("try another", tool_call_id=request.tool_call["id"], status="error")

    served.answers = {
        **served.answers,
        LOOKED_UP: [Answer(tools=(("measure", {"town": "nowhere"}),))],
        "try another": [Answer(tools=(("measure", {"town": "Lima"}),))],
    }
    agent = guarded(outside=[excusing])
    kinds = [(message.type, message.text) for message in ask(agent, LOOKED_UP)["messages"]]
    assert [text for kind, text in kinds if kind == "tool"] == ["try another", NOTED]
    assert kinds[-1] == ("ai", RIGHT)


# --- what it costs ---


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


# --- what is refused ---


class Town(BaseModel):
    """Structured output."""

    name: str


def test_guard_refuses_response_format_before_any_request(
    guarded: Callable[..., Agent], served: Script
) -> None:
    from langchain.agents.structured_output import ProviderStrategy, ToolStrategy

    for form in (Town, ToolStrategy(Town), ProviderStrategy(Town)):
        with pytest.raises(InputError, match="response_format"):
            ask(guarded(response_format=form), PLAIN)
    assert served.requests == []


@tool(return_direct=True)
def direct(topic: str) -> str:
    """Answer at once."""
    del topic
    return NOTED


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
    with pytest.raises(InputError, match="no CFCRunnable"):
        GuardedAnswer(model_at(url))
    with pytest.raises(InputError, match="no CFCRunnable"):
        GuardedAnswer(RunnableLambda(lambda prompt: prompt))


def test_guard_refuses_candidates_that_call_tools(
    url: str, artifact: CalibrationArtifact, served: Script
) -> None:
    def fond(prompt: Any, candidates: Any) -> list[float]:
        del prompt
        return [0.05 for _ in candidates]

    called = Answer(tools=(("look_up", {"topic": "towns"}),))
    served.answers = {**served.answers, PLAIN: [Answer(DISCARDED), *[called] * N]}
    # Without bound tools, such candidates are no answers.
    with pytest.warns(FingerprintWarning, match="tools_digest"):
        chain = chain_at(url, artifact, generator=model_at(url).bind_tools([look_up]), verifier=fond)
    guard = GuardedAnswer(chain)
    with pytest.raises(ServingError, match=r"calls tools \(look_up\).*tool_choice='none'"):
        ask(agent_of(model_at(url), [guard]), PLAIN)


@both_ways
def test_failing_chain_raises_a_typed_error(
    guarded: Callable[..., Agent], url: str, artifact: CalibrationArtifact, served: Script, way: Way
) -> None:
    # The first request is the agent's own.
    served.faults = [Fault("status 500", on=set(range(1, 100)))]
    with pytest.raises(DrawError, match="candidates could not be drawn"):
        way(guarded(), PLAIN)
    served.faults = []

    def failing(prompt: Any, candidates: Any) -> list[float]:
        del prompt
        return [float("nan")] * len(candidates)

    with pytest.raises(VerifierError, match="nan"):
        way(agent_of(model_at(url), [GuardedAnswer(chain_at(url, artifact, verifier=failing))]), PLAIN)


@both_ways
def test_guard_refuses_chains_that_interrupt(url: str, artifact: CalibrationArtifact, way: Way) -> None:
    chain = chain_at(url, artifact).or_else(interrupt)
    agent = agent_of(model_at(url), [GuardedAnswer(chain)], checkpointer=InMemorySaver())
    with pytest.raises(ServingError, match="draw again"):
        way(agent, HOPELESS, {"configurable": {"thread_id": "t"}})


# --- around the chain ---


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


def test_guard_takes_a_function_before_a_chain_on_texts(url: str, tmp_path: Path) -> None:
    artifact = artifact_in(tmp_path, prompt=str)
    asked_for: list[Any] = []

    def texts(prompt: Any, candidates: Any) -> list[float]:
        asked_for.append(prompt)
        return judge(prompt, candidates)

    question: Any = RunnableLambda(lambda prompt: prompt[-1]["content"])
    guard = GuardedAnswer(question | chain_at(url, artifact, verifier=texts), abstain_message="No.")
    agent = agent_of(model_at(url), [guard])
    assert [last(ask(agent, one)).text for one in (PLAIN, HOPELESS)] == [RIGHT, "No."]
    assert asked_for == [PLAIN]  # the other question got no answer to judge


def test_conversation_continues_after_an_abstention(guarded: Callable[..., Agent], served: Script) -> None:
    agent = guarded(checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": "one"}}
    assert last(ask(agent, HOPELESS, config)).text == ABSTAINED
    state = ask(agent, LOOKED_UP, config)
    assert [message.text for message in state["messages"] if message.type == "ai"] == [ABSTAINED, "", RIGHT]
    # The model and the chain are both told that there was an abstention, and nothing of the decision.
    discarded, *draws = sent(served.requests)[-1 - N :]
    assert ABSTAINED in discarded
    assert set(draws) == {discarded}
    assert "cfc" not in discarded


def test_guarded_answer_keeps_the_name_of_the_agent(guarded: Callable[..., Agent]) -> None:
    assert last(ask(guarded(name="clerk"), PLAIN)).name == "clerk"


def test_agent_without_tools_is_guarded(guarded: Callable[..., Agent]) -> None:
    assert last(ask(guarded(tools=[]), PLAIN)).text == RIGHT


def test_guarded_agent_can_be_a_tool_of_another(
    guarded: Callable[..., Agent], served: Script, url: str
) -> None:
    clerk = guarded()

    @tool
    def ask_clerk(question: str) -> str:
        """Ask the clerk."""
        return str(last(ask(clerk, question)).text)

    called = Answer(tools=(("ask_clerk", {"question": PLAIN}),))
    served.answers = {**served.answers, "who?": [called], RIGHT: [Answer("yes")]}
    outer = create_agent(model_at(url), [ask_clerk])
    assert [message.text for message in ask(outer, "who?")["messages"][-2:]] == [RIGHT, "yes"]


def test_guarded_answer_can_be_pickled(artifact: CalibrationArtifact) -> None:
    chain = CFCRunnable(
        generator=FakeListChatModel(responses=[RIGHT]),
        verifier=judge,
        artifact=artifact,
        **CALLED,
    )
    guard = pickle.loads(pickle.dumps(GuardedAnswer(chain, abstain_message="No.", strict=False)))  # noqa: S301 - our own
    agent = create_agent(FakeListChatModel(responses=[DISCARDED]), middleware=[guard])
    said = last(ask(agent, PLAIN))
    assert said.text == RIGHT
    assert said.response_metadata["cfc"]["guarantee"]["alpha"] == "0.1"


def test_guard_needs_only_the_chain_as_argument(url: str, artifact: CalibrationArtifact) -> None:
    agent = create_agent(
        model_at(url), [look_up, measure], middleware=[GuardedAnswer(chain_at(url, artifact))]
    )
    assert last(ask(agent, LOOKED_UP)).text == RIGHT
