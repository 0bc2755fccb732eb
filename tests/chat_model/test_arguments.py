"""Tools, stop sequences and other arguments of `CFCChatModel` reach the model that draws."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.runnables import ConfigurableField, Runnable, RunnableLambda
from pydantic import BaseModel

from langchain_cfc import CalibrationArtifact, CFCChatModel, CFCRunnable, calibrate
from langchain_cfc.errors import FingerprintError, FingerprintWarning, InputError
from langchain_cfc.records import Provenance
from langchain_cfc.runnable import changes_generator
from langchain_cfc.runnable.chat_model import _CACHE_SIZE
from langchain_cfc.sampling import DrawnCandidate
from langchain_cfc.sampling.fingerprints import compute_fingerprint
from tests.calls import Invoke
from tests.chat_model.facades import (
    RunWatcher,
    accept_all,
    every_way,
    look_up,
    make_client,
    make_facade,
    reject_all,
)
from tests.factories import make_chain, make_records
from tests.fakes import N, ScriptedModel
from tests.serving.openai_bodies import Answer
from tests.serving.openai_server import Script, serving

from .responder import Responder


def make_hosted(artifact: CalibrationArtifact, url: str, **fields: Any) -> CFCChatModel:
    return make_facade(artifact, **{"generator": make_client(url), "verifier": accept_all, **fields})


@every_way
def test_bind_tools_reaches_every_draw_and_returns_a_tool_call(
    artifact: CalibrationArtifact, url: str, responder: Responder, ask: Invoke
) -> None:
    bound = make_hosted(artifact, url).bind_tools([look_up], tool_choice="any")
    message = ask(bound, "Lima")
    assert len(responder.requests) == N
    for request in responder.requests:
        assert [tool["function"]["name"] for tool in request["tools"]] == ["look_up"]
        assert request["tool_choice"] == "required"
    (call,) = message.tool_calls
    assert (call["name"], call["args"]) == ("look_up", {"town": "Lima"})
    assert message.response_metadata["cfc"]["reason"] == "answered"


def test_chat_model_returns_the_best_accepted_tool_call(
    artifact: CalibrationArtifact, invoke: Invoke
) -> None:
    towns = ("Quito", "Lima", "Bogota", "Quito")
    answers = [Answer(tools=(("look_up", {"town": town}),)) for town in towns]

    def by_town(_: Any, candidates: list[DrawnCandidate]) -> list[float]:
        scores = {"Quito": 0.9, "Lima": 0.1, "Bogota": 0.3}
        return [scores[(one.data or {})["tool_calls"][0]["args"]["town"]] for one in candidates]

    with serving(Script({"where?": answers})) as url:
        facade = make_hosted(artifact, url, verifier=by_town)
        bound = facade.bind_tools([look_up])
        message, again = invoke(bound, "where?"), invoke(bound, "where?")
    (call,) = message.tool_calls
    assert call["args"] == {"town": "Lima"}
    assert "Quito" not in message.model_dump_json()
    # The ids of the draws must not be answered, and no two messages share one.
    assert not str(call["id"]).startswith("call_0_")
    assert call["id"] != again.tool_calls[0]["id"]


def test_chat_model_without_bound_tools_offers_none(
    artifact: CalibrationArtifact, url: str, responder: Responder, invoke: Invoke
) -> None:
    # The negative control; and what one binding adds stays with it.
    facade = make_hosted(artifact, url)
    facade.bind_tools([look_up])
    assert invoke(facade, "Lima").text == "You said: Lima"
    assert all("tools" not in request for request in responder.requests)


def test_tool_loop_ends_with_an_answer(artifact: CalibrationArtifact, url: str, invoke: Invoke) -> None:
    bound = make_hosted(artifact, url).bind_tools([look_up])
    asked = HumanMessage("Lima")
    called = invoke(bound, [asked])
    told = look_up.invoke(called.tool_calls[0])
    assert invoke(bound, [asked, called, told]).text == "You said: Lima is a town."


class Town(BaseModel):
    """A town."""

    name: str
    people: int


def test_with_structured_output_reads_the_accepted_tool_call(
    artifact: CalibrationArtifact, url: str, invoke: Invoke
) -> None:
    watcher = RunWatcher()
    structured = make_hosted(artifact, url).with_structured_output(Town)
    assert invoke(structured, "Lima has 10 people", {"callbacks": [watcher]}) == Town(
        name="Lima has 10 people", people=10
    )
    # One run of the facade, which tracers are told the schema of, and n of its draws.
    models = [run for run, kind in watcher.kinds.items() if kind == "model"]
    assert len(models) == 1 + N
    formats = [options.get("ls_structured_output_format", {}) for options in watcher.options]
    assert formats[0]["schema"]["title"] == "Town"
    assert formats[1:] == [{}] * N


def test_with_structured_output_returns_none_on_abstention(
    artifact: CalibrationArtifact, url: str, invoke: Invoke
) -> None:
    facade = make_hosted(artifact, url, verifier=reject_all)
    assert invoke(facade.with_structured_output(Town), "Lima") is None
    found = invoke(facade.with_structured_output(Town, include_raw=True), "Lima")
    assert (found["parsed"], found["parsing_error"]) == (None, None)
    assert found["raw"].response_metadata["cfc"]["reason"] == "only_blank_answers"


def test_temperature_and_max_tokens_of_the_chat_model_reach_every_draw(
    artifact: CalibrationArtifact, url: str, responder: Responder, invoke: Invoke
) -> None:
    chain = make_hosted(artifact, url, generator=make_client(url, temperature=0.7)).chain
    facade = CFCChatModel(chain=chain, temperature=0.1, max_tokens=5)
    invoke(facade, "where?")
    asked = [(request["temperature"], request["max_completion_tokens"]) for request in responder.requests]
    assert asked == [(0.1, 5)] * N
    # What a call says goes before.
    invoke(facade.bind(temperature=0.2), "where?")
    assert [request["temperature"] for request in responder.requests[N:]] == [0.2] * N
    assert facade._get_ls_params()["ls_max_tokens"] == 5


@every_way
def test_stop_sequences_reach_every_draw(
    artifact: CalibrationArtifact, url: str, responder: Responder, ask: Invoke
) -> None:
    chain = make_hosted(artifact, url, generator=make_client(url, stop=["model"])).chain
    for facade, given, expected in [
        (CFCChatModel(chain=chain), None, ["model"]),
        (CFCChatModel(chain=chain), ["call"], ["call"]),
        (CFCChatModel(chain=chain, stop=["facade"]), None, ["facade"]),
        (CFCChatModel(chain=chain, stop=["facade"]), ["call"], ["call"]),
    ]:
        responder.requests.clear()
        ask(facade, "where?", stop=given)
        assert [request["stop"] for request in responder.requests] == [expected] * N


WRAPPERS: dict[str, Any] = {
    "binding": lambda model: model.bind(top_p=0.5),
    "binding of the same": lambda model: model.bind(tools=[], stop=["x"]),
    "retries": lambda model: model.with_retry(),
    "config": lambda model: model.with_config(tags=["x"]),
    "prompt": lambda model: ChatPromptTemplate([MessagesPlaceholder("m")]) | model,
    "parser": lambda model: model | RunnableLambda(lambda message: message),
    "bound sequence": lambda model: (model | RunnableLambda(lambda message: message)).with_retry(),
}


@pytest.mark.parametrize("way", WRAPPERS)
def test_bind_tools_reaches_models_inside_wrappers(
    artifact: CalibrationArtifact, url: str, responder: Responder, way: str, invoke: Invoke
) -> None:
    facade = make_hosted(artifact, url, generator=WRAPPERS[way](make_client(url)))
    message = invoke(facade.bind_tools([look_up]).bind(stop=["y"]), "Lima")
    assert message.tool_calls[0]["args"] == {"town": "Lima"}
    assert len(responder.requests) == N
    assert all(request["stop"] == ["y"] for request in responder.requests)


def test_bind_tools_reaches_only_the_model_that_answers(
    artifact: CalibrationArtifact, url: str, responder: Responder
) -> None:
    asks = make_client(url, model="asks") | StrOutputParser()
    facade = make_hosted(artifact, url, generator=asks | make_client(url, model="answers"))
    assert facade.bind_tools([look_up]).invoke("Lima").tool_calls
    offered = {request["model"]: "tools" in request for request in responder.requests}
    assert offered == {"asks": False, "answers": True}


def test_bind_tools_reaches_the_fallback_of_or_else(
    artifact: CalibrationArtifact, url: str, invoke: Invoke
) -> None:
    chain = make_chain(artifact, generator=make_client(url), verifier=reject_all).or_else(make_client(url))
    facade = CFCChatModel(chain=chain)
    message = invoke(facade.bind_tools([look_up]), "Lima")
    assert message.tool_calls[0]["args"] == {"town": "Lima"}
    assert message.response_metadata["cfc"]["guarantee"] is None
    # Someone who takes no tools answers without.
    person = make_chain(artifact, generator=make_client(url), verifier=reject_all).or_else(
        lambda _: "ask Ada"
    )
    assert invoke(CFCChatModel(chain=person).bind_tools([look_up]), "Lima").text == "ask Ada"


def test_bind_tools_refuses_generators_without_a_chat_model() -> None:
    drawn: list[Any] = []

    def draw(prompt: Any) -> str:
        drawn.append(prompt)
        return "lima|0.1"

    facade = make_facade(generator=draw)
    with pytest.raises(InputError, match="no chat model in this RunnableLambda that tools could reach"):
        facade.bind_tools([look_up])
    with pytest.raises(InputError, match="stop"):
        facade.invoke("x", stop=["y"])
    late: Any = ScriptedModel().configurable_fields(texts=ConfigurableField(id="texts"))
    with pytest.raises(InputError, match="no chat model in this RunnableConfigurableFields"):
        make_facade(generator=late).bind_tools([look_up])
    assert drawn == []


@pytest.mark.parametrize("method", ["json_schema", "function_calling", "json_mode"])
def test_changes_generator_compares_arguments_with_those_bound(
    artifact: CalibrationArtifact, url: str, method: str
) -> None:
    schema = {"title": "city", "description": "A city.", "type": "object", "properties": {}}
    model: Any = make_client(url)
    structured = model.with_structured_output(schema, method=method)
    chain = make_chain(artifact, generator=structured)
    bound = {
        name: value
        for step in structured.steps
        for name, value in getattr(step, "kwargs", {}).items()
        if name in {"tools", "tool_choice", "response_format"}
    }
    assert bound
    for name, value in bound.items():
        assert not changes_generator(chain, {name: value})
        assert changes_generator(chain, {name: None})
    for other in ({"response_format": {"type": "text"}}, {"tools": [{"type": "function"}]}, {"tools": 1}):
        assert changes_generator(chain, other)
    # Nothing is known of what a function does.
    assert changes_generator(make_chain(artifact, generator=RunnableLambda(str)), bound)
    assert changes_generator(RunnableLambda(str), bound)


def test_bind_tools_raises_if_the_model_supports_no_tools() -> None:
    facade = make_facade(generator=FakeListChatModel(responses=["lima|0.1"]))
    with pytest.raises(NotImplementedError):
        facade.bind_tools([look_up])
    with pytest.raises(NotImplementedError):
        facade.with_structured_output(Town)


@pytest.fixture(scope="module")
def named() -> CalibrationArtifact:
    """An artifact whose records say which model drew their candidates."""
    stated = compute_fingerprint(make_client("http://127.0.0.1", temperature=0.7), "mine")
    provenance = Provenance(n=N, generator=stated, verifier={"id": "certain"})
    return calibrate(make_records(), alpha=0.25, features="1", provenance=provenance)


@pytest.mark.parametrize("arguments", [{"model": "gpt-5"}, {"temperature": 0.0}])
def test_chat_model_refuses_arguments_that_were_not_calibrated(
    named: CalibrationArtifact, url: str, responder: Responder, arguments: dict[str, Any], invoke: Invoke
) -> None:
    model = make_client(url, temperature=0.7)
    ids = {"generator_id": "mine", "verifier_id": "certain"}
    facade = CFCChatModel(chain=CFCRunnable(generator=model, verifier=accept_all, artifact=named, **ids))
    with pytest.raises(FingerprintError, match="calibrated"):
        invoke(facade.bind(**arguments), "where?")
    with pytest.raises(FingerprintError, match=r"tools_digest is .sha256:.*., in calibration it was None"):
        invoke(facade.bind_tools([look_up]), "Lima")
    with pytest.raises(FingerprintError, match=r"stop is \['x'\], in calibration it was None"):
        invoke(facade.bind(stop=["x"]), "Lima")
    assert responder.requests == []


def test_arguments_of_a_call_are_unverified_despite_generator_id(url: str, invoke: Invoke) -> None:
    """The id was given to the generator without them, and these records state nothing to compare."""
    by_id = Provenance(n=N, generator={"id": "mine"}, verifier={"id": "certain"})
    artifact = calibrate(make_records(), alpha=0.25, features="1", provenance=by_id)
    ids = {"generator_id": "mine", "verifier_id": "certain"}
    chain = CFCRunnable(generator=make_client(url), verifier=accept_all, artifact=artifact, **ids)
    facade = CFCChatModel(chain=chain)
    assert invoke(facade, "Lima").response_metadata["cfc"]["guarantee"]["binding"] == "matched"
    with pytest.warns(FingerprintWarning, match="cannot verify that generator"):
        answered = invoke(facade.bind(stop=["x"]), "Lima")
    assert answered.response_metadata["cfc"]["guarantee"]["binding"] == "unverified"


def test_chains_for_call_arguments_are_cached(artifact: CalibrationArtifact, url: str) -> None:
    facade = make_hosted(artifact, url)
    made = facade._get_chain({}, {"stop": ["x"]})
    assert facade._get_chain({}, {"stop": ["x"]}) is made
    assert facade._get_chain({"alpha": "0.25"}, {"stop": ["x"]}) is not made
    assert facade._get_chain({}, {}) is facade.chain
    for number in range(_CACHE_SIZE):
        facade._get_chain({}, {"stop": [str(number)]})
    assert len(facade._chains) == _CACHE_SIZE
    assert facade._get_chain({}, {"stop": ["x"]}) is not made


def test_tools_list_that_was_extended_is_read_again(
    artifact: CalibrationArtifact, url: str, responder: Responder
) -> None:
    tools = [{"type": "function", "function": {"name": "one", "parameters": {}}}]
    facade = make_hosted(artifact, url)
    facade.invoke("x", tools=tools)
    tools.append({"type": "function", "function": {"name": "two", "parameters": {}}})
    facade.invoke("x", tools=tools)
    assert [len(request["tools"]) for request in responder.requests] == [1] * N + [2] * N


def test_model_copy_with_another_chain_serves_that_chain(
    artifact: CalibrationArtifact, url: str, responder: Responder
) -> None:
    facade = make_hosted(artifact, url, generator=make_client(url, model="first"))
    facade.invoke("x", stop=["y"])
    other = make_hosted(artifact, url, generator=make_client(url, model="second"))
    facade.model_copy(update={"chain": other.chain}).invoke("x", stop=["y"])
    assert [request["model"] for request in responder.requests] == ["first"] * N + ["second"] * N


def test_arguments_that_are_no_plain_data_reach_the_model() -> None:
    seen: list[Any] = []

    class Asked(ScriptedModel):
        def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> Any:
            seen.append(kwargs)
            return super()._generate(messages, stop, run_manager)

    facade = make_facade(generator=Asked(texts=["a|0.1"] * N))
    assert facade.invoke("x", response_format=Town).text == "a|0.1"
    assert seen == [{"response_format": Town}] * N


IMAGE = {"type": "image", "base64": "iVBORw0KGgo=", "mime_type": "image/png"}


@every_way
def test_images_reach_model_and_verifier_unchanged(
    artifact: CalibrationArtifact, url: str, responder: Responder, ask: Invoke
) -> None:
    seen: list[Any] = []

    def verifier(prompt: Any, candidates: list[DrawnCandidate]) -> list[float]:
        seen.append(prompt)
        return accept_all(prompt, candidates)

    content: list[Any] = [{"type": "text", "text": "What is this?"}, IMAGE]
    message = ask(make_hosted(artifact, url, verifier=verifier), [HumanMessage(content)])
    assert isinstance(message, AIMessage)
    (prompt,) = seen
    assert prompt[0].content == content
    assert len(responder.requests) == N
    for request in responder.requests:
        text, image = request["messages"][0]["content"]
        assert text["text"] == "What is this?"
        assert image["image_url"]["url"] == "data:image/png;base64,iVBORw0KGgo="


def test_invocation_params_for_tracers_are_plain_data(artifact: CalibrationArtifact, url: str) -> None:
    watcher = RunWatcher()
    bound: Runnable[Any, Any] = make_hosted(artifact, url).bind_tools([look_up])
    asyncio.run(bound.ainvoke("Lima", {"callbacks": [watcher]}))
    assert json.loads(json.dumps(watcher.params[0]))["tools"][0]["function"]["name"] == "look_up"
