"""What follows a decision: return a message or text, or ask a fallback."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from langchain_core.language_models import FakeListChatModel
from langchain_core.load import dumps
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import RunnableLambda
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from langchain_cfc import CalibrationArtifact, CFCChatModel, CFCResult, CFCRunnable, calibrate
from langchain_cfc.demo import load_recording
from langchain_cfc.demo.replay import make_replay_parts
from langchain_cfc.errors import AbstentionError, InputError, ServingError
from langchain_cfc.runnable import Answer, OrElse
from tests.calls import Invoke, copies_of
from tests.factories import make_artifact, make_chain
from tests.fakes import TEXTS, N, RunRecorder, ScriptedModel, answer_of
from tests.recordings import list_facts

HOPELESS = (" ",) * N


def test_as_answer_returns_a_message_that_states_the_guarantee(
    artifact: CalibrationArtifact, invoke: Invoke
) -> None:
    chain = make_chain(artifact, answer=answer_of)
    message = invoke(chain.as_answer(), "x")
    assert isinstance(message, AIMessage)
    assert message.text == "lima"
    said = message.response_metadata["cfc"]
    assert said == {
        "reason": "answered",
        "guarantee": {
            "kind": "conditional",
            "alpha": "0.25",
            "target_coverage": 0.75,
            "stated_coverage": 0.75,
            "binding": "unbound",
            "artifact_digest": artifact.digest,
        },
    }
    # A message is sent and stored: nothing of the rejected candidates is in it.
    assert "quito" not in message.model_dump_json()


def test_as_answer_says_abstain_message_on_abstention(invoke: Invoke) -> None:
    chain = make_chain(generator=ScriptedModel(texts=HOPELESS))
    message = invoke(chain.as_answer(abstain_message="No idea."), "x")
    assert message.text == "No idea."
    assert message.response_metadata["cfc"]["reason"] == "only_blank_answers"
    assert invoke(chain.as_answer(text=True), "x") == "I do not know."


def test_as_answer_reports_the_token_usage_of_all_draws() -> None:
    model = ScriptedModel(texts=TEXTS, usage={"input_tokens": 2, "output_tokens": 1, "total_tokens": 3})
    message = make_chain(generator=model).as_answer().invoke("x")
    assert isinstance(message, AIMessage)
    assert message.usage_metadata is not None
    assert message.usage_metadata == {
        "input_tokens": 2 * N,
        "output_tokens": N,
        "total_tokens": 3 * N,
    }
    silent = make_chain().as_answer().invoke("x")
    assert isinstance(silent, AIMessage)
    assert silent.usage_metadata is None


def test_full_result_puts_the_whole_result_into_the_message(
    artifact: CalibrationArtifact, invoke: Invoke
) -> None:
    for model in (ScriptedModel(texts=TEXTS), ScriptedModel(texts=HOPELESS)):
        chain = make_chain(artifact, generator=model)
        result = invoke(chain, "x")
        for whole in (chain.as_answer(full_result=True), CFCChatModel(chain=chain, full_result=True)):
            message = invoke(whole, "x")
            assert CFCResult.model_validate(message.response_metadata["cfc"]) == result
            json.dumps(message.response_metadata, allow_nan=False)
        # The short form is a part of it, under the same names.
        short = invoke(CFCChatModel(chain=chain), "x").response_metadata["cfc"]
        assert set(short) - {"unscored"} == {"reason", "guarantee"}
        assert short["reason"] == message.response_metadata["cfc"]["reason"]
        assert short["guarantee"].items() <= message.response_metadata["cfc"]["guarantee"].items()


def test_as_answer_metadata_takes_fewer_than_500_bytes() -> None:
    chain = make_chain()
    message = chain.as_answer().invoke("x")
    assert isinstance(message, AIMessage)
    assert len(json.dumps(message.response_metadata)) < 500
    # The whole guarantee is many times as long.
    assert len(chain.guarantee.model_dump_json()) > 1500


def test_or_else_asks_the_fallback_only_after_an_abstention(invoke: Invoke) -> None:
    asked: list[Any] = []
    answers = make_chain().or_else(asked.append)
    assert invoke(answers, "x").best == "lima|0.1"
    assert asked == []
    abstains = make_chain(generator=ScriptedModel(texts=HOPELESS))
    escalated = abstains.or_else(lambda prompt: f"a person was asked: {prompt}")
    assert invoke(escalated, "where?") == "a person was asked: where?"


def test_or_else_with_another_chain_answers_with_its_guarantee(
    artifact: CalibrationArtifact, two_levels: CalibrationArtifact, invoke: Invoke
) -> None:
    weak = make_chain(artifact, generator=ScriptedModel(texts=HOPELESS))
    strong = make_chain(two_levels, alpha="0.5")
    result = invoke(weak.or_else(strong), "x")
    assert result.guarantee.artifact_digest == two_levels.digest != artifact.digest
    # And on: each escalates to the next.
    both_weak = weak.or_else(weak).or_else(lambda _: "no one knows")
    assert invoke(both_weak, "x") == "no one knows"


@pytest.mark.parametrize(
    "said", ["a person's words", AIMessage("a person's words"), HumanMessage("a person's words")]
)
def test_answer_of_an_or_else_fallback_claims_no_guarantee(said: Any, invoke: Invoke) -> None:
    chain = make_chain(generator=ScriptedModel(texts=HOPELESS)).or_else(lambda _: said)
    message = invoke(chain.as_answer(), "x")
    assert isinstance(message, AIMessage)
    assert message.text == "a person's words"
    assert message.response_metadata["cfc"] == {"guarantee": None}


def test_or_else_fallback_that_returns_none_raises_serving_error(invoke: Invoke) -> None:
    abstains = make_chain(generator=ScriptedModel(texts=HOPELESS))
    notified: list[Any] = []
    for chain in (abstains.or_else(notified.append), abstains.or_else(notified.append).as_answer()):
        with pytest.raises(ServingError, match=r"fallback .* of or_else returned None, which is no answer"):
            invoke(chain, "where?")
    assert notified == ["where?", "where?"]
    with pytest.raises(ServingError, match="the fallback returned None"):
        Answer().to_message(None)


def test_or_else_handles_raised_and_returned_abstentions(invoke: Invoke) -> None:
    returning = make_chain(generator=ScriptedModel(texts=HOPELESS))
    raising = returning.model_copy(update={"on_abstain": "raise"})
    someone: Any = RunnableLambda(lambda prompt: f"asked: {prompt}")
    for chain in (returning, raising):
        assert invoke(chain.or_else(someone), "where?") == "asked: where?"
    # LangChain's fallbacks are asked where it is raised only.
    caught = raising.with_fallbacks([someone], exceptions_to_handle=(AbstentionError,))
    assert invoke(caught, "where?") == "asked: where?"
    assert not invoke(returning.with_fallbacks([someone]), "where?")


def test_alpha_given_to_or_else_is_that_of_the_first_chain() -> None:
    # 39 prompts certify nothing at 0.01.
    artifact = make_artifact(alpha=["0.01", "0.25"], allow_unattainable=True)
    chain = make_chain(artifact, alpha=0.25).or_else(lambda _: "escalated")
    assert chain.invoke("x").best == "lima|0.1"
    assert chain.invoke("x", alpha=0.01) == "escalated"


def test_or_else_child_runs_are_named() -> None:
    runs = RunRecorder()
    chain = make_chain(generator=ScriptedModel(texts=HOPELESS)).or_else(
        RunnableLambda(lambda _: "x", name="person")
    )
    chain.invoke("x", {"callbacks": [runs]})
    names = [name for kind, name, _ in runs.runs if kind == "chain"]
    assert names == ["OrElse", "CFCRunnable", "person"]


def test_copied_and_pickled_or_else_chains_answer_alike() -> None:
    chain = make_chain(generator=FakeListChatModel(responses=["lima|0.1"])).or_else(answer_of)
    for one in (copy.copy(chain), *copies_of(chain)):
        assert isinstance(one, OrElse)
        assert isinstance(one.invoke("x"), CFCResult)
        assert one.invoke("x") == chain.invoke("x")


def test_dumps_of_a_chain_is_short() -> None:
    # LangChain writes what it cannot load again as its repr: short, and without prompts.
    chain = make_chain(generator=FakeListChatModel(responses=["lima|0.1"]))
    assert len(dumps(chain)) < 1000


def test_dumps_and_repr_of_a_chain_hold_no_api_key() -> None:
    model = ChatOpenAI(model="gpt-4o-mini", api_key=SecretStr("sk-very-secret"))
    chain = make_chain(generator=model)
    for written in (
        dumps(chain),
        repr(chain),
        str(chain),
        dumps(chain.or_else(model)),
        dumps(chain.as_answer()),
    ):
        assert "very-secret" not in written


def test_max_wrong_rate_chooses_one_of_several_certified_rates() -> None:
    recording = load_recording()
    artifact = calibrate(recording, max_wrong_rate=["0.02", "0.1", "0.3"])
    parts = make_replay_parts(recording)
    answered = []
    prompts = [record.input for record in list_facts()[:20]]
    strictest = CFCRunnable(artifact=artifact, max_wrong_rate="0.02", **parts)
    for rate in ("0.02", "0.1", "0.3"):
        chain = CFCRunnable(artifact=artifact, max_wrong_rate=rate, **parts)
        results = [chain.invoke(prompt) for prompt in prompts]
        certified = {
            one.guarantee.wrong_answers.max_wrong_rate for one in results if one.guarantee.wrong_answers
        }
        assert certified == {rate}
        # A call may name another rate; the next call has the chain's own again.
        assert strictest.batch(prompts, max_wrong_rate=rate) == results
        answered.append({number for number, one in enumerate(results) if one})
    assert answered[0] < answered[1] < answered[2]
    with pytest.raises(InputError, match="before asking any question, name one"):
        CFCRunnable(artifact=artifact, **parts)
    with pytest.raises(InputError, match="is not certified"):
        CFCRunnable(artifact=artifact, max_wrong_rate="0.5", **parts)
