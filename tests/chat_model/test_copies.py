"""The facade is a Runnable like any other: copied, configured, retried, replaced and written down."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.language_models import FakeListChatModel
from langchain_core.load import dumps
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import ConfigurableField
from langchain_openai import ChatOpenAI

from langchain_cfc import CalibrationArtifact, CFCChatModel
from langchain_cfc.errors import DrawError
from tests.runnable.parts import TEXTS, N, ScriptedModel, verify

from .parts import HOPELESS, Ask, both_ways, facade_of, look_up

SECRET = "sk-do-not-tell"  # noqa: S105 - nobody's
PROMPT = "Be brief, and never mention the lighthouse. {question}"

COPIES: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda facade: pickle.loads(pickle.dumps(facade)),  # noqa: S301 - our own bytes
    "model_copy": lambda facade: facade.model_copy(),
    "deep model_copy": lambda facade: facade.model_copy(deep=True),
}


@both_ways
@pytest.mark.parametrize("way", COPIES)
def test_copies_say_the_same(artifact: CalibrationArtifact, way: str, ask: Ask) -> None:
    generator = FakeListChatModel(responses=["lima|0.1"])
    facade = facade_of(artifact, generator=generator, verifier=verify)
    # Once with arguments first, so that there is something kept to copy.
    expected = [ask(facade, "where?", stop=["x"]).text, ask(facade, "where?").text]
    copied = COPIES[way](facade)
    assert copied is not facade
    assert copied.abstain_message == facade.abstain_message
    assert (
        [ask(copied, "where?", stop=["x"]).text, ask(copied, "where?").text] == expected == ["lima|0.1"] * 2
    )


def test_a_changed_copy_says_something_else(artifact: CalibrationArtifact) -> None:
    facade = facade_of(artifact, generator=ScriptedModel(texts=HOPELESS))
    assert facade.model_copy(update={"abstain_message": "No idea."}).invoke("x").text == "No idea."
    assert facade.invoke("x").text == "I do not know."


@both_ways
def test_retries_ask_again(artifact: CalibrationArtifact, ask: Ask) -> None:
    model = ScriptedModel(texts=TEXTS, failing=frozenset(range(N)), failures=1)
    facade = facade_of(artifact, generator=model)
    with pytest.raises(DrawError):
        ask(facade, "x")
    model = ScriptedModel(texts=TEXTS, failing=frozenset(range(N)), failures=1)
    retried = facade_of(artifact, generator=model).with_retry(
        retry_if_exception_type=(DrawError,), wait_exponential_jitter=False
    )
    assert ask(retried, "x").text == "lima|0.1"
    assert len(model.drawn) == 2 * N


@both_ways
def test_a_fallback_speaks_where_the_facade_fails(artifact: CalibrationArtifact, ask: Ask) -> None:
    broken = facade_of(artifact, generator=ScriptedModel(failing=frozenset(range(N))))
    spare = facade_of(artifact)
    message = ask(broken.with_fallbacks([spare]), "x")
    assert message.text == "lima|0.1"
    assert message.response_metadata["cfc"]["reason"] == "answered"


@both_ways
def test_fields_and_alternatives_are_configured_per_call(artifact: CalibrationArtifact, ask: Ask) -> None:
    facade = facade_of(artifact, generator=ScriptedModel(texts=HOPELESS))
    fields = facade.configurable_fields(abstain_message=ConfigurableField(id="sorry"))
    assert ask(fields, "x").text == "I do not know."
    assert ask(fields, "x", {"configurable": {"sorry": "No idea."}}).text == "No idea."
    either = facade.configurable_alternatives(ConfigurableField(id="who"), other=facade_of(artifact))
    assert ask(either, "x", {"configurable": {"who": "other"}}).text == "lima|0.1"


def test_written_down_it_holds_no_secret_and_no_prompt(artifact: CalibrationArtifact) -> None:
    model = ChatOpenAI(
        model="gpt-4o-mini",
        api_key=SECRET,  # type: ignore[arg-type]
        default_headers={"Authorization": SECRET},
    )
    generator = ChatPromptTemplate.from_template(PROMPT) | model
    facade = facade_of(artifact, generator=generator)
    # The negative control: what it is made of does show them.
    assert SECRET in repr(model)
    assert "lighthouse" in repr(generator)
    written = [dumps(facade), repr(facade), str(facade), str(facade._identifying_params)]
    written.append(dumps(facade.bind_tools([look_up])))
    for text in written:
        assert SECRET not in text
        assert "lighthouse" not in text
    assert artifact.digest in dumps(facade)


def test_it_goes_where_chat_models_go(artifact: CalibrationArtifact) -> None:
    facade: CFCChatModel = facade_of(artifact)
    chain = ChatPromptTemplate.from_template("Capital of {land}?") | facade
    assert chain.invoke({"land": "Peru"}).text == "lima|0.1"
    assert chain.get_graph().to_json()
    assert facade.get_input_jsonschema()
    assert facade.get_output_jsonschema()
