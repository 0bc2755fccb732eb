"""Candidates that call tools or are structured, prompts that hold images, and models that are replaced."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.documents import Document
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.messages.tool import invalid_tool_call
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import Runnable, RunnableConfig, RunnableLambda
from pydantic import BaseModel, Field

from langchain_cfc import CalibrationArtifact, CFCResult
from langchain_cfc.errors import FingerprintWarning, SamplingWarning
from langchain_cfc.records import Candidate, Provenance
from langchain_cfc.sampling import DrawnCandidate
from tests.calls import Invoke
from tests.factories import make_artifact, make_chain, with_prompt_kind
from tests.fakes import TEXTS, N, StreamingModel, slot_of

from .test_draws import TokenListener


class MessageModel(FakeListChatModel):
    """Answers each slot with a message of its own."""

    responses: list[str] = Field(default_factory=list)
    messages: Sequence[AIMessage]
    seen: list[list[BaseMessage]] = Field(default_factory=list)

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        del stop, kwargs
        self.seen.append(messages)
        message = self.messages[slot_of(run_manager.tags if run_manager else [], 0)]
        return ChatResult(generations=[ChatGeneration(message=message.model_copy(deep=True))])


def make_caller(messages: Sequence[AIMessage]) -> Runnable[Any, Any]:
    """Make a generator with a tool, so that a call of it is an answer."""
    return MessageModel(messages=messages).bind(tools=[{"name": "look_up"}])


def call_tool(town: str, number: int) -> AIMessage:
    return AIMessage("", tool_calls=[{"name": "look_up", "args": {"town": town}, "id": f"call-{number}"}])


CALLS = [
    call_tool("Lima", 0),
    call_tool("Quito", 1),
    call_tool("Lima", 2),
    AIMessage("I do not need to look."),
]


def score_by_town(_: Any, candidates: list[DrawnCandidate]) -> list[float]:
    return [0.1 if "Lima" in one.text else 0.9 for one in candidates]


def test_equal_tool_calls_are_one_answer(invoke: Invoke) -> None:
    chain = make_chain(generator=make_caller(CALLS), verifier=score_by_town)
    result = invoke(chain, "x")
    expected = {"content": "", "tool_calls": [{"name": "look_up", "args": {"town": "Lima"}}]}
    assert [json.loads(answer) for answer in result.answers] == [expected]
    assert [one.data for one in result.candidates] == [expected, None, expected, None]
    assert result.parsed == expected
    assert CFCResult.model_validate_json(result.model_dump_json()) == result


def test_parsed_is_none_for_text_and_for_an_abstention(invoke: Invoke) -> None:
    texts = make_chain(verifier=lambda _, candidates: [0.1] * len(candidates))
    assert invoke(texts, "x").parsed is None
    answered = invoke(make_chain(generator=make_caller(CALLS), verifier=score_by_town), "x")
    withheld = answered.model_copy(update={"abstained": True, "best": None, "answers": ()})
    assert withheld.parsed is None


class City(BaseModel):
    name: str


@dataclass
class Place:
    name: str


@pytest.mark.parametrize("schema", [City, Place, dict])
def test_parsed_is_the_object_that_the_parser_made(schema: Any, invoke: Invoke) -> None:
    def answer(_: Any) -> Any:
        return schema(name="Lima")

    result = invoke(make_chain(generator=answer, verifier=score_by_town), "x")
    assert result.parsed == schema(name="Lima")
    assert type(result.parsed) is schema
    assert result.repeat().parsed == result.parsed
    again = CFCResult.model_validate_json(result.model_dump_json())
    assert again == result
    assert again.parsed == {"name": "Lima"}


def test_answer_key_of_a_recorded_tool_call_equals_the_served_answer() -> None:
    result = make_chain(generator=make_caller(CALLS), verifier=score_by_town).invoke("x")
    record = Candidate(message=result.candidates[0].data, score=0.1, correct=True)
    assert record.answer_key == result.best


def test_extractor_can_make_different_tool_calls_one_answer(invoke: Invoke) -> None:
    """The answer extractor says what is equal: here, which tool is called, whatever it is asked."""

    def tool_of(text: str) -> str:
        return str(json.loads(text)["tool_calls"][0]["name"]) if text.startswith("{") else "none"

    chain = make_chain(
        make_artifact(extracted=True),
        generator=make_caller(CALLS),
        verifier=lambda _, candidates: [0.1] * len(candidates),
        answer=tool_of,
    )
    assert invoke(chain, "x").answers == ("look_up", "none")


def test_to_message_returns_the_best_tool_call_with_a_new_id(invoke: Invoke) -> None:
    chain = make_chain(generator=make_caller(CALLS), verifier=score_by_town)
    message = invoke(chain, "x").to_message("no")
    (made,) = message.tool_calls
    assert (made["name"], made["args"]) == ("look_up", {"town": "Lima"})
    assert made["id"]
    assert made["id"] != invoke(chain, "x").to_message("no").tool_calls[0]["id"]


def test_to_message_returns_an_invalid_tool_call_unchanged() -> None:
    unread = invalid_tool_call(name="look_up", args="{Lima", id="call-0", error=None)
    unreadable = AIMessage("", invalid_tool_calls=[unread])
    chain = make_chain(generator=make_caller([unreadable, *CALLS[1:]]), verifier=score_by_town)
    message = chain.invoke("x").to_message("no")
    assert message.tool_calls == []
    (made,) = message.invalid_tool_calls
    assert (made["name"], made["args"]) == ("look_up", "{Lima")


class Town(BaseModel):
    """Structured output."""

    name: str
    people: int


def test_structured_output_is_a_candidate_with_data(invoke: Invoke) -> None:
    chain = make_chain(generator=lambda _: Town(name="Lima", people=10), verifier=score_by_town)
    result = invoke(chain, "x")
    assert result.candidates[0].data == {"name": "Lima", "people": 10}
    assert result.best is not None
    assert Town.model_validate_json(result.best) == Town(name="Lima", people=10)


IMAGE = {"type": "image", "base64": "iVBORw0KGgo=", "mime_type": "image/png"}


def test_images_reach_generator_and_verifier_unchanged(artifact: CalibrationArtifact, invoke: Invoke) -> None:
    model = MessageModel(messages=[AIMessage("a dog|0.1")] * N)
    prompt = [HumanMessage([{"type": "text", "text": "What is this?"}, IMAGE])]
    verified: list[Any] = []

    def judge(given: Any, candidates: list[DrawnCandidate]) -> list[float]:
        verified.append(given)
        return [0.1] * len(candidates)

    chain = make_chain(with_prompt_kind(artifact, "messages"), generator=model, verifier=judge)
    assert invoke(chain, prompt).best == "a dog|0.1"
    assert verified == [prompt]
    assert [seen[0].content[1] for seen in model.seen] == [IMAGE] * N


def make_versioned(version: str | None) -> CalibrationArtifact:
    generator = {"id": "mine"} if version is None else {"id": "mine", "model_version": version}
    provenance = Provenance(n=N, generator=generator, verifier={"id": "judge"})
    return make_artifact(provenance=provenance)


def make_answering(name: str) -> MessageModel:
    return MessageModel(messages=[AIMessage("lima|0.1", response_metadata={"model_name": name})] * N)


def make_served(name: str, calibrated: str | None) -> Any:
    return make_chain(
        make_versioned(calibrated), generator=make_answering(name), generator_id="mine", verifier_id="judge"
    )


def test_changed_model_version_in_answers_warns_once(invoke: Invoke) -> None:
    chain = make_served("gpt-2", "gpt-1")
    with pytest.warns(
        FingerprintWarning, match="now reports version 'gpt-2', in calibration it was 'gpt-1'"
    ) as told:
        results = [invoke(chain, "x"), invoke(chain, "y")]
    assert len(told) == 1
    assert [result.models for result in results] == [("gpt-2",)] * 2


@pytest.mark.parametrize("calibrated", ["gpt-1", None])
def test_calibrated_model_version_in_answers_does_not_warn(calibrated: str | None, invoke: Invoke) -> None:
    # Warnings are errors here.
    assert invoke(make_served("gpt-1", calibrated), "x").models == ("gpt-1",)


def test_result_models_are_known_behind_a_parser(invoke: Invoke) -> None:
    generator = make_answering("gpt-1") | RunnableLambda(lambda message: str(message.text))
    assert invoke(make_chain(generator=generator), "x").models == ("gpt-1",)


class ModelHolder(Runnable[Any, Any]):
    """Something that holds a model where LangChain does not look, as an agent does."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:  # noqa: A002 - LangChain's name
        return self._model.invoke(input, config, **kwargs)


def test_model_that_streams_while_drawing_warns_once(invoke: Invoke) -> None:
    chain = make_chain(generator=ModelHolder(StreamingModel(texts=TEXTS)))
    config = {"callbacks": [TokenListener()]}
    with pytest.warns(SamplingWarning, match="a model streamed while it drew") as told:
        assert [invoke(chain, "x", config=config).best for _ in range(2)] == ["lima|0.1"] * 2
    assert len(told) == 1


def test_result_models_exclude_models_that_prepare_the_request(invoke: Invoke) -> None:
    rewriting = (
        RunnableLambda(str) | make_answering("rewriter") | RunnableLambda(lambda message: str(message.text))
    )
    retriever = PageRetriever()
    chain = make_chain(
        make_versioned("gpt-1"),
        generator=rewriting | retriever | RunnableLambda(str) | make_answering("gpt-1"),
        generator_id="mine",
        verifier_id="judge",
    )
    # Warnings are errors here.
    assert invoke(chain, "x").models == ("gpt-1",)


class PageRetriever(BaseRetriever):
    """Finds the same page always."""

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        del query, run_manager
        return [Document("Lima is the capital of Peru.")]


def test_several_calibrated_model_versions_are_accepted() -> None:
    generator = {"id": "mine", "model_version": ["gpt-1", "gpt-2"]}
    provenance = Provenance(n=N, generator=generator, verifier={"id": "judge"})
    chain = make_chain(
        make_artifact(provenance=provenance),
        generator=make_answering("gpt-2"),
        generator_id="mine",
        verifier_id="judge",
    )
    assert chain.invoke("x").models == ("gpt-2",)
