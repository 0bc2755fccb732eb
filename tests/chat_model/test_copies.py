"""`CFCChatModel` can be copied, configured, retried, replaced and serialised like any Runnable."""

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
from tests.calls import Invoke
from tests.chat_model.facades import HOPELESS, look_up, make_facade
from tests.fakes import TEXTS, N, ScriptedModel, verify

SECRET = "sk-do-not-tell"  # noqa: S105 - not a real one
PROMPT = "Be brief, and never mention the lighthouse. {question}"

COPIES: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda facade: pickle.loads(pickle.dumps(facade)),  # noqa: S301 - our own bytes
    "model_copy": lambda facade: facade.model_copy(),
    "deep model_copy": lambda facade: facade.model_copy(deep=True),
}


@pytest.mark.parametrize("way", COPIES)
def test_copied_chat_models_answer_alike(way: str, invoke: Invoke) -> None:
    generator = FakeListChatModel(responses=["lima|0.1"])
    facade = make_facade(generator=generator, verifier=verify)
    # Once with arguments first, so that there is something kept to copy.
    expected = [invoke(facade, "where?", stop=["x"]).text, invoke(facade, "where?").text]
    copied = COPIES[way](facade)
    assert copied is not facade
    assert copied.abstain_message == facade.abstain_message
    assert (
        [invoke(copied, "where?", stop=["x"]).text, invoke(copied, "where?").text]
        == expected
        == ["lima|0.1"] * 2
    )


def test_model_copy_can_change_abstain_message() -> None:
    facade = make_facade(generator=ScriptedModel(texts=HOPELESS))
    assert facade.model_copy(update={"abstain_message": "No idea."}).invoke("x").text == "No idea."
    assert facade.invoke("x").text == "I do not know."


def test_with_retry_repeats_a_failed_chat_model(invoke: Invoke) -> None:
    model = ScriptedModel(texts=TEXTS, failing=frozenset(range(N)), failures=1)
    facade = make_facade(generator=model)
    with pytest.raises(DrawError):
        invoke(facade, "x")
    model = ScriptedModel(texts=TEXTS, failing=frozenset(range(N)), failures=1)
    retried = make_facade(generator=model).with_retry(
        retry_if_exception_type=(DrawError,), wait_exponential_jitter=False
    )
    assert invoke(retried, "x").text == "lima|0.1"
    assert len(model.drawn) == 2 * N


def test_with_fallbacks_answers_if_the_chat_model_fails(invoke: Invoke) -> None:
    broken = make_facade(generator=ScriptedModel(failing=frozenset(range(N))))
    spare = make_facade()
    message = invoke(broken.with_fallbacks([spare]), "x")
    assert message.text == "lima|0.1"
    assert message.response_metadata["cfc"]["reason"] == "answered"


def test_configurable_fields_and_alternatives_apply_per_call(invoke: Invoke) -> None:
    facade = make_facade(generator=ScriptedModel(texts=HOPELESS))
    fields = facade.configurable_fields(abstain_message=ConfigurableField(id="sorry"))
    assert invoke(fields, "x").text == "I do not know."
    assert invoke(fields, "x", {"configurable": {"sorry": "No idea."}}).text == "No idea."
    either = facade.configurable_alternatives(ConfigurableField(id="who"), other=make_facade())
    assert invoke(either, "x", {"configurable": {"who": "other"}}).text == "lima|0.1"


def test_dumps_and_repr_of_a_chat_model_hold_no_secret_or_prompt(artifact: CalibrationArtifact) -> None:
    model = ChatOpenAI(
        model="gpt-4o-mini",
        api_key=SECRET,  # type: ignore[arg-type]
        default_headers={"Authorization": SECRET},
    )
    generator = ChatPromptTemplate.from_template(PROMPT) | model
    facade = make_facade(artifact, generator=generator)
    # The negative control: what it is made of does show them.
    assert SECRET in repr(model)
    assert "lighthouse" in repr(generator)
    written = [dumps(facade), repr(facade), str(facade), str(facade._identifying_params)]
    written.append(dumps(facade.bind_tools([look_up])))
    for text in written:
        assert SECRET not in text
        assert "lighthouse" not in text
    assert artifact.digest in dumps(facade)


def test_chat_model_works_behind_a_prompt_template() -> None:
    facade: CFCChatModel = make_facade()
    chain = ChatPromptTemplate.from_template("Capital of {land}?") | facade
    assert chain.invoke({"land": "Peru"}).text == "lima|0.1"
    assert chain.get_graph().to_json()
    assert facade.get_input_jsonschema()
    assert facade.get_output_jsonschema()
