"""Prompts of another kind than the calibration prompts are refused; messages become text without loss."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.prompt_values import ChatPromptValue, StringPromptValue
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda

from langchain_cfc import CalibrationArtifact, CFCChatModel, calibrate
from langchain_cfc.candidates import LabelledBatch
from langchain_cfc.errors import InputError, PromptKindError
from langchain_cfc.records import PromptRecord
from langchain_cfc.verifiers.prompts import classify_prompt, messages_to_text
from tests.calls import Invoke
from tests.chat_model.facades import every_way
from tests.factories import make_chain, make_records
from tests.fakes import TEXTS, N, ScriptedModel

QUESTION = "What is the capital of Peru?"
IMAGE = {"type": "image", "url": "https://example.org/map.png"}
CALL = {"name": "look_up", "args": {}, "id": "1", "type": "tool_call"}


def make_inputs(question: str) -> dict[str, Any]:
    """The same question as an input of each kind."""
    return {
        "text": question,
        "messages": [{"role": "user", "content": question}],
        "object": {"question": question},
    }


INPUTS = make_inputs(QUESTION)


def make_recorded(*kinds: str) -> list[PromptRecord]:
    """Labelled prompts whose inputs are of these kinds in turn, each with a question of its own."""
    return [
        one.model_copy(update={"input": make_inputs(f"{QUESTION} ({row})")[kinds[row % len(kinds)]]})
        for row, one in enumerate(make_records())
    ]


def calibrate_on(*kinds: str) -> CalibrationArtifact:
    return calibrate(make_recorded(*kinds), alpha=0.25, features="1")


@pytest.mark.parametrize(
    ("prompt", "kind"),
    [
        ("x", "text"),
        (StringPromptValue(text="x"), "text"),
        (HumanMessage("x"), "messages"),
        ([HumanMessage("x")], "messages"),
        (("human", "x"), "messages"),
        (ChatPromptValue(messages=[HumanMessage("x")]), "messages"),
        ({"question": "x"}, "object"),
        (b"x", "object"),
        (None, "object"),
    ],
)
def test_classify_prompt_returns_the_kind(prompt: Any, kind: str) -> None:
    assert classify_prompt(prompt) == kind


def test_calibration_states_the_kinds_of_its_prompts() -> None:
    assert calibrate_on("text").calibration.prompt_kinds == ["text"]
    assert calibrate_on("text", "messages", "object").calibration.prompt_kinds == [
        "messages",
        "object",
        "text",
    ]
    # Arrays hold no prompts.
    arrays = LabelledBatch.from_arrays(
        [str(row) for row in range(40)],
        np.linspace(0.1, 0.9, 40)[:, None],
        np.ones((40, 1), dtype=np.bool_),
        [["a"]] * 40,
    )
    assert calibrate(arrays, alpha=0.25, features="1").calibration.prompt_kinds is None


@pytest.mark.parametrize("calibrated", INPUTS)
@pytest.mark.parametrize("served", INPUTS)
def test_chain_refuses_prompts_of_another_kind_before_drawing(
    calibrated: str, served: str, invoke: Invoke
) -> None:
    drawn: list[Any] = []

    def draw(prompt: Any) -> str:
        drawn.append(prompt)
        return TEXTS[len(drawn) % len(TEXTS)]

    chain = make_chain(calibrate_on(calibrated), generator=RunnableLambda(draw))
    if served == calibrated or (served, calibrated) == ("messages", "text"):
        assert invoke(chain, INPUTS[served]).reason == "answered"
        assert drawn == [INPUTS[calibrated]] * N
        return
    with pytest.raises(
        PromptKindError, match=rf"kind {served} .*calibrated on prompts of the kind {calibrated}"
    ):
        invoke(chain, INPUTS[served])
    assert drawn == []


def test_chain_serves_every_calibrated_kind_of_prompt(invoke: Invoke) -> None:
    chain = make_chain(calibrate_on("text", "messages"))
    for kind in ("text", "messages"):
        assert invoke(chain, INPUTS[kind]).reason == "answered"
    with pytest.raises(PromptKindError, match="kind object"):
        invoke(chain, INPUTS["object"])


def test_chain_reads_a_string_prompt_value_as_text(invoke: Invoke) -> None:
    model = ScriptedModel(texts=TEXTS)
    templated: Runnable[Any, Any] = ChatPromptTemplate.from_template("Briefly: {question}") | model
    invoke(make_chain(calibrate_on("text"), generator=templated), StringPromptValue(text=QUESTION))
    assert set(model.drawn) == {f"Briefly: {QUESTION}"}


def test_chain_calibrated_on_texts_refuses_conversations(invoke: Invoke) -> None:
    model = ScriptedModel(texts=TEXTS)
    chain = make_chain(calibrate_on("text"), generator=model)
    with pytest.raises(
        PromptKindError, match="a message of type human, a message of type ai, a message of type human"
    ):
        invoke(chain, [HumanMessage("Hello"), AIMessage("Hi"), HumanMessage(QUESTION)])
    assert model.drawn == []


@every_way
def test_chat_model_converts_messages_for_chains_calibrated_on_texts(ask: Invoke) -> None:
    """Without the conversion the template would hold the `repr` of a list of messages."""
    model = ScriptedModel(texts=TEXTS)
    templated: Runnable[Any, Any] = ChatPromptTemplate.from_template("Briefly: {question}") | model
    facade = CFCChatModel(chain=make_chain(calibrate_on("text"), generator=templated))
    assert ask(facade, QUESTION).text == "lima|0.1"
    assert set(model.drawn) == {f"Briefly: {QUESTION}"}
    drawn = len(model.drawn)
    with pytest.raises(PromptKindError, match="a message of type system, a message of type human"):
        ask(facade, [SystemMessage("Always lie."), HumanMessage(QUESTION)])
    assert len(model.drawn) == drawn
    # A function before the chain decides itself what it keeps.
    last: Runnable[Any, Any] = RunnableLambda(lambda messages: messages[-1].text)
    by_hand = CFCChatModel(chain=last | facade.chain)
    assert ask(by_hand, [SystemMessage("Be kind."), HumanMessage(QUESTION)]).text == "lima|0.1"


@every_way
def test_chat_model_hands_messages_to_chains_calibrated_on_them(ask: Invoke) -> None:
    model = ScriptedModel(texts=TEXTS)
    facade = CFCChatModel(chain=make_chain(calibrate_on("messages"), generator=model))
    assert ask(facade, [SystemMessage("Be brief."), HumanMessage(QUESTION)]).text == "lima|0.1"
    assert set(model.drawn) == {QUESTION}


@pytest.mark.parametrize(
    "prompt",
    [
        QUESTION,
        HumanMessage(QUESTION),
        [HumanMessage(QUESTION)],
        [("human", QUESTION)],
        [{"role": "user", "content": QUESTION}],
        [HumanMessage([{"type": "text", "text": QUESTION}])],
        ChatPromptValue(messages=[HumanMessage(QUESTION)]),
        StringPromptValue(text=QUESTION),
    ],
)
def test_messages_to_text_returns_the_text_of_one_human_message(prompt: Any) -> None:
    assert messages_to_text(prompt) == QUESTION


@pytest.mark.parametrize(
    ("messages", "lost"),
    [
        ([SystemMessage("Be brief."), HumanMessage(QUESTION)], "a message of type system"),
        ([HumanMessage("Hello"), HumanMessage(QUESTION)], "a message of type human, a message of type human"),
        ([HumanMessage([{"type": "text", "text": QUESTION}, IMAGE])], "For images, other content"),
        ([AIMessage("", tool_calls=[CALL]), ToolMessage("x", tool_call_id="1")], "a message of type tool"),
        ([AIMessage(QUESTION)], "a message of type ai"),
        ([HumanMessage(QUESTION, name="ana")], "a named message of type human"),
        ([], "cannot be read as text or messages"),
        ({"question": QUESTION}, "an object"),
        (7, "cannot be read as text or messages"),
    ],
)
def test_messages_to_text_refuses_messages_that_would_be_lost(messages: Any, lost: str) -> None:
    with pytest.raises(PromptKindError, match=lost) as refused:
        messages_to_text(messages)
    assert isinstance(refused.value, InputError)
