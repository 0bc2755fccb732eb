"""A chain is a Runnable like any other, and keeps its promises inside larger ones."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda
from langchain_core.utils.function_calling import convert_to_openai_tool

from langchain_cfc import CalibrationArtifact, CFCResult
from langchain_cfc.errors import DrawError, VerifierError
from langchain_cfc.sampling import DrawnCandidate
from tests.factories import make_chain, with_prompt_kind
from tests.fakes import TEXTS, N, ScriptedModel, answer_of, verify


def best_of(result: CFCResult) -> str:
    return result.best if result.best is not None else "I do not know"


def test_chain_follows_a_prompt_template_in_a_sequence() -> None:
    model = ScriptedModel(texts=TEXTS)
    template: Runnable[Any, Any] = ChatPromptTemplate.from_template("Capital of {land}?")
    chain = template | make_chain(generator=model, answer=answer_of)
    assert chain.invoke({"land": "Peru"}).answers == ("lima",)
    assert asyncio.run(chain.ainvoke({"land": "Peru"})).answers == ("lima",)
    assert model.drawn == ["Capital of Peru?"] * (2 * N)


def test_chain_precedes_a_function_in_a_sequence() -> None:
    chain = make_chain(answer=answer_of) | RunnableLambda(best_of)
    assert chain.invoke("x") == "lima"
    assert chain.batch(["x", "y"]) == ["lima", "lima"]
    assert asyncio.run(chain.ainvoke("x")) == "lima"
    assert list(chain.stream("x")) == ["lima"]


def test_as_tool_returns_the_result_of_the_chain() -> None:
    chain: Runnable[Any, Any] = RunnableLambda(lambda given: given["question"]) | make_chain()
    with pytest.warns(match="beta"):
        tool = chain.as_tool(name="ask", description="Answers or abstains.", arg_types={"question": str})
    assert tool.invoke({"question": "x"}) == chain.invoke({"question": "x"})


def test_astream_events_ends_with_the_result() -> None:
    chain = make_chain()

    async def events() -> list[Any]:
        return [event async for event in chain.astream_events("x", version="v2")]

    seen = asyncio.run(events())
    own = [event for event in seen if event["name"] == "CFCRunnable"]
    assert [event["event"] for event in own] == ["on_chain_start", "on_chain_end"]
    assert own[-1]["data"]["output"] == chain.invoke("x")


def test_with_retry_draws_n_new_candidates_per_attempt() -> None:
    attempts: list[Any] = []

    def judge(prompt: Any, candidates: list[DrawnCandidate]) -> list[float]:
        attempts.append(prompt)
        if len(attempts) == 1:
            msg = "busy"
            raise ConnectionError(msg)
        return verify(prompt, candidates)

    model = ScriptedModel(texts=TEXTS)
    chain = make_chain(generator=model, verifier=judge)
    retried = chain.with_retry(retry_if_exception_type=(VerifierError,), wait_exponential_jitter=False)
    assert retried.invoke("x").best == "lima|0.1"
    assert (len(attempts), len(model.drawn)) == (2, 2 * N)


def test_with_fallbacks_answers_with_the_guarantee_of_the_fallback_chain(
    two_levels: CalibrationArtifact,
) -> None:
    broken = make_chain(generator=ScriptedModel(failing=frozenset({0})))
    spare = make_chain(two_levels, alpha="0.5")
    chain = broken.with_fallbacks([spare])
    for result in (chain.invoke("x"), asyncio.run(chain.ainvoke("x"))):
        assert result.guarantee.alpha == "0.5"
        assert result.best == "lima|0.1"
    with pytest.raises(DrawError):
        broken.with_fallbacks([broken]).invoke("x")


def test_batch_with_return_exceptions_keeps_the_other_results() -> None:
    def draw(prompt: str) -> str:
        if prompt == "bad":
            msg = "no"
            raise RuntimeError(msg)
        return "lima|0.3"

    chain = make_chain(generator=draw)
    for found in (
        chain.batch(["good", "bad"], return_exceptions=True),
        asyncio.run(chain.abatch(["good", "bad"], return_exceptions=True)),
    ):
        assert [type(one) for one in found] == [CFCResult, DrawError]
    completed: dict[int, Any] = dict(chain.batch_as_completed(["bad", "good"], return_exceptions=True))
    assert [type(completed[position]) for position in (0, 1)] == [DrawError, CFCResult]
    with pytest.raises(DrawError):
        chain.batch(["good", "bad"])
    with pytest.raises(DrawError):
        asyncio.run(chain.abatch(["good", "bad"]))


def test_output_schema_of_a_chain_is_that_of_cfc_result() -> None:
    chain = make_chain()
    assert chain.OutputType is CFCResult
    assert chain.get_output_schema() is CFCResult
    schema = chain.get_output_jsonschema()
    assert set(schema["properties"]) == set(CFCResult.model_fields)
    assert (RunnableLambda(lambda x: x) | chain).get_output_jsonschema() == schema


@pytest.mark.filterwarnings("ignore:This API is in beta")
def test_as_tool_takes_a_text_or_the_fields_of_the_template(artifact: CalibrationArtifact) -> None:
    chain = make_chain(artifact, answer=answer_of)
    assert chain.get_input_jsonschema()["type"] == "string"
    template = ChatPromptTemplate.from_template("The capital of {land}?") | ScriptedModel(texts=TEXTS)
    for asked, argument, field in (
        (chain, "Where?", "tool_input"),
        (chain.or_else(lambda _: "no one"), "Where?", "tool_input"),
        (
            make_chain(with_prompt_kind(artifact, "object"), generator=template, answer=answer_of),
            {"land": "Peru"},
            "land",
        ),
    ):
        tool = asked.as_answer(text=True).as_tool(name="capital", description="Names a capital.")
        assert tool.args[field]["type"] == "string"
        offered = convert_to_openai_tool(tool)["function"]["parameters"]
        [(name, described)] = offered["properties"].items()
        assert described["type"] == "string"
        call = {"name": "capital", "args": {name: "x"}, "id": "1", "type": "tool_call"}
        assert tool.invoke(argument) == tool.invoke(call).content == "lima"


def test_result_is_true_for_an_answer_and_false_for_an_abstention() -> None:
    assert make_chain().invoke("x")
    assert not make_chain(generator=ScriptedModel(texts=(" ",) * N)).invoke("x")


def test_two_chains_can_share_one_unchanged_model(two_levels: CalibrationArtifact) -> None:
    model = ScriptedModel(texts=("a|0.6",) * N)
    loose, strict = make_chain(two_levels, generator=model, alpha=0.5), make_chain(generator=model)
    accepted = [[one.accepted for one in chain.invoke("x").candidates] for chain in (loose, strict)]
    assert accepted == [[True, False, False, False], [True] * N]
    assert (model.cache, model.disable_streaming) == (None, False)
