"""`on_abstain="raise"`: code that handles errors handles abstentions, and counts of them stay right."""

from __future__ import annotations

import asyncio
import pickle
from typing import Any

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.runnables import Runnable, RunnableLambda

from langchain_cfc import CalibrationArtifact, CFCChatModel, CFCResult
from langchain_cfc.errors import AbstentionError, InputError
from langchain_cfc.sampling.fingerprints import compute_fingerprint
from tests.calls import Invoke
from tests.factories import make_chain
from tests.fakes import TEXTS, ScriptedModel, topic_of

HOPELESS = (" ",) * 4
# Drawn for every prompt of these topics by a chain whose artifact has a threshold per topic.
REASONS = {"only_blank_answers": "an easy", "not_certifiable": "a hopeless"}


class AnswersByPrompt(ScriptedModel):
    """Gives answers that are rejected to prompts that say so, and good ones to others."""

    def _message(self, messages: Any, run_manager: Any) -> AIMessage:
        chosen = HOPELESS if "rejected" in str(messages[-1].text) else TEXTS
        return ScriptedModel(texts=chosen)._message(messages, run_manager)


def make_raising(kind: str, **fields: Any) -> Runnable[Any, Any]:
    """A chain or a chat model that raises its abstentions."""
    if kind == "chain":
        return make_chain(on_abstain="raise", **fields)
    # The chain's own setting, the model's, and the model's over a chain that would raise as well.
    if kind == "model over a raising chain":
        return CFCChatModel(chain=make_chain(on_abstain="raise", **fields))
    return CFCChatModel(chain=make_chain(**fields), on_abstain="raise")


every_kind = pytest.mark.parametrize("kind", ["chain", "model", "model over a raising chain"])


def text_of(answer: Any) -> str:
    """The text of an answer of a chain, a chat model or a fallback."""
    return str(answer.best if isinstance(answer, CFCResult) else getattr(answer, "text", answer))


@every_kind
def test_with_fallbacks_asks_the_fallback_only_after_an_abstention(kind: str, invoke: Invoke) -> None:
    helper = FakeListChatModel(responses=["Ada knows."])
    chain = make_raising(kind, generator=AnswersByPrompt()).with_fallbacks([helper])
    assert text_of(invoke(chain, "rejected")) == "Ada knows."
    assert text_of(invoke(chain, "good")) == "lima|0.1"
    assert [text_of(one) for one in chain.batch(["good", "rejected"])] == ["lima|0.1", "Ada knows."]


@every_kind
def test_batch_returns_abstention_errors_in_their_places(kind: str) -> None:
    chain = make_raising(kind, generator=AnswersByPrompt())
    prompts: list[Any] = ["good", "rejected", "good"]
    for found in (
        chain.batch(prompts, return_exceptions=True),
        asyncio.run(chain.abatch(prompts, return_exceptions=True)),
    ):
        first, error, last = found
        assert text_of(first) == text_of(last) == "lima|0.1"
        assert isinstance(error, AbstentionError)
        assert error.result.reason == "only_blank_answers"
    with pytest.raises(AbstentionError):
        chain.batch(prompts)


@every_kind
def test_stream_yields_nothing_before_an_abstention_error(kind: str) -> None:
    chain = make_raising(kind, generator=AnswersByPrompt())
    helper = FakeListChatModel(responses=["Ada"])
    streamed: list[Any] = []

    async def astream(asked: Runnable[Any, Any], prompt: str) -> None:
        async for chunk in asked.astream(prompt):
            streamed.append(chunk)  # noqa: PERF401 - also those before an error

    with pytest.raises(AbstentionError):
        streamed.extend(chain.stream("rejected"))
    with pytest.raises(AbstentionError):
        asyncio.run(astream(chain, "rejected"))
    assert streamed == []
    # So a fallback can take over: it tries the next one only where the first chunk is an error.
    caught = chain.with_fallbacks([helper])
    assert "".join(text_of(one) for one in caught.stream("rejected")) == "Ada"
    asyncio.run(astream(caught, "rejected"))
    assert "".join(text_of(one) for one in streamed) == "Ada"
    assert [text_of(one) for one in chain.stream("good")] == ["lima|0.1"]


@pytest.mark.parametrize("reason", REASONS)
def test_abstention_error_carries_the_result_for_every_reason(
    by_topics: CalibrationArtifact, reason: str, invoke: Invoke
) -> None:
    model = ScriptedModel(texts=HOPELESS)
    chain = make_chain(by_topics, generator=model, metadata=topic_of)
    for one in (
        chain.model_copy(update={"on_abstain": "raise"}),
        CFCChatModel(chain=chain, on_abstain="raise"),
    ):
        with pytest.raises(AbstentionError, match=rf" \({reason}\); answer") as raised:
            invoke(one, REASONS[reason])
        assert raised.value.result == invoke(chain, REASONS[reason])
        assert raised.value.result.reason == reason
        again = pickle.loads(pickle.dumps(raised.value))  # noqa: S301 - our own bytes
        assert (str(again), again.result) == (str(raised.value), raised.value.result)
        # What is raised may be logged: no candidate is quoted.
        assert "|" not in str(raised.value)


def test_chat_model_inherits_on_abstain_from_its_chain(invoke: Invoke) -> None:
    returning = make_chain(generator=ScriptedModel(texts=HOPELESS))
    raised = returning.model_copy(update={"on_abstain": "raise"})
    assert invoke(CFCChatModel(chain=returning), "x").text == "I do not know."
    with pytest.raises(AbstentionError):
        invoke(CFCChatModel(chain=raised), "x")
    said = invoke(CFCChatModel(chain=raised, on_abstain="return"), "x")
    assert said.text == "I do not know."
    assert said.response_metadata["cfc"]["reason"] == "only_blank_answers"
    for wrong in ("ignore", True):
        with pytest.raises(InputError, match=r"on_abstain is .*; expected 'return'"):
            CFCChatModel(chain=returning, on_abstain=wrong)


def test_or_else_is_asked_before_the_chat_model_raises(invoke: Invoke) -> None:
    weak = make_chain(generator=ScriptedModel(texts=HOPELESS))
    helped = CFCChatModel(chain=weak.or_else(lambda _: "Ada"), on_abstain="raise")
    assert invoke(helped, "x").text == "Ada"
    both = CFCChatModel(chain=weak.or_else(weak), on_abstain="raise")
    with pytest.raises(AbstentionError):
        invoke(both, "x")


def test_agent_fallback_middleware_handles_raised_abstentions() -> None:
    # Agents of today need a younger LangGraph than the oldest supported LangChain does.
    agents = pytest.importorskip("langchain.agents", exc_type=ImportError)
    middleware = pytest.importorskip("langchain.agents.middleware", exc_type=ImportError)
    model: Any = make_raising("model", generator=AnswersByPrompt())
    helper = FakeListChatModel(responses=["Ada knows."])
    agent: Any = agents.create_agent(model, [], middleware=[middleware.ModelFallbackMiddleware(helper)])
    for prompt, expected in (("rejected", "Ada knows."), ("good", "lima|0.1")):
        state = agent.invoke({"messages": [("human", prompt)]})
        assert state["messages"][-1].text == expected
    # The negative control: an abstention in words does not trigger it.
    quiet: Any = CFCChatModel(chain=make_chain(generator=AnswersByPrompt()))
    agent = agents.create_agent(quiet, [], middleware=[middleware.ModelFallbackMiddleware(helper)])
    assert agent.invoke({"messages": [("human", "rejected")]})["messages"][-1].text == "I do not know."


def test_on_abstain_and_full_result_do_not_change_fingerprints() -> None:
    chain = make_chain(generator=FakeListChatModel(responses=["lima|0.1"]))
    plain = CFCChatModel(chain=chain)
    raising = CFCChatModel(chain=chain, on_abstain="raise", full_result=True)
    assert compute_fingerprint(raising) == compute_fingerprint(plain)
    assert compute_fingerprint(chain.model_copy(update={"on_abstain": "raise"})) == compute_fingerprint(chain)
    assert guarantee_of("return") == guarantee_of("raise")


def guarantee_of(on_abstain: str) -> Any:
    """The guarantee of a chain, whose digest and binding say what was compared."""
    return make_chain(on_abstain=on_abstain).guarantee


class ResultRecorder(BaseCallbackHandler):
    """Keeps the results that chain runs end with, returned or raised."""

    def __init__(self) -> None:
        self.ended: list[Any] = []
        self.raised: list[BaseException] = []

    def on_chain_end(self, outputs: Any, **kwargs: Any) -> None:
        del kwargs
        self.ended.append(outputs)

    def on_chain_error(self, error: BaseException, **kwargs: Any) -> None:
        del kwargs
        self.raised.append(error)

    def on_llm_error(self, error: BaseException, **kwargs: Any) -> None:
        del kwargs
        self.raised.append(error)


def test_callbacks_receive_the_result_of_a_raised_abstention(invoke: Invoke) -> None:
    for kind in ("chain", "model", "model over a raising chain"):
        recorder = ResultRecorder()
        with pytest.raises(AbstentionError):
            invoke(
                make_raising(kind, generator=ScriptedModel(texts=HOPELESS)), "x", {"callbacks": [recorder]}
            )
        carried = [error.result for error in recorder.raised if isinstance(error, AbstentionError)]
        assert {one.reason for one in [*carried, *recorder.ended]} == {"only_blank_answers"}
        # The chain's own run ends with the result where only the model raises.
        assert len(recorder.ended) == (kind == "model")


def test_raised_abstention_stops_the_rest_of_a_sequence() -> None:
    reached: list[Any] = []
    sequence: Any = make_raising("model", generator=AnswersByPrompt()) | RunnableLambda(reached.append)
    with pytest.raises(AbstentionError):
        sequence.invoke("rejected")
    assert reached == []
    sequence.invoke("good")
    assert [type(one) for one in reached] == [AIMessage]
    assert not isinstance(reached[0], AIMessageChunk)
