"""What drawing cost, and which models answered: counted once by every counter."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import pytest
from langchain_core.callbacks import get_usage_metadata_callback
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.messages.ai import InputTokenDetails, UsageMetadata
from langchain_core.output_parsers import StrOutputParser
from langchain_core.outputs import ChatGeneration, Generation, LLMResult
from langchain_core.runnables import Runnable, RunnableConfig, RunnableLambda
from langchain_openai import ChatOpenAI

from langchain_cfc import CFCRunnable
from langchain_cfc.sampling import UsageRecorder
from langchain_cfc.sampling.usage import DRAW_TAG
from tests.calls import Invoke
from tests.factories import make_artifact
from tests.fakes import TOKENS_IN, TOKENS_OUT, N, NumberedModel
from tests.sampling.drawing import PROMPT
from tests.serving import openai_bodies as bodies
from tests.serving.openai_server import Script

from .test_context import QUESTION, SHAPES, Parts

MakeModel = Callable[..., ChatOpenAI]


def make_accepting_chain(generator: Any, sampling: Any = "requests") -> CFCRunnable:
    """A chain of four candidates whose verifier accepts all."""
    return CFCRunnable(
        generator=generator,
        verifier=lambda _, candidates: [0.1] * len(candidates),
        artifact=make_artifact(),
        sampling=sampling,
    )


def token_counts(usage: Any) -> tuple[int, int, int]:
    return usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]


@pytest.mark.parametrize("parsed", [False, True])
def test_usage_over_http_is_counted_once(
    chat_model: MakeModel, script: Script, invoke: Invoke, sampling: Any, parsed: bool
) -> None:
    generator = chat_model() | StrOutputParser() if parsed else chat_model()
    with get_usage_metadata_callback() as callback:
        result = invoke(make_accepting_chain(generator, sampling), PROMPT)
    requests = 1 if sampling == "single_request" else N
    assert len(script.requests) == requests
    given = requests * bodies.TOKENS_IN
    expected = given, N * bodies.TOKENS_OUT, given + N * bodies.TOKENS_OUT
    assert token_counts(result.usage) == expected
    assert {name: token_counts(usage) for name, usage in callback.usage_metadata.items()} == {
        "recorded": expected
    }
    assert result.models == ("recorded",)


def test_client_repeats_the_usage_for_each_of_n_choices(chat_model: MakeModel) -> None:
    # The negative control: added up it is n-fold, and LangChain's own callback sees nothing.
    with get_usage_metadata_callback() as callback:
        (generations,) = chat_model().generate([[HumanMessage(PROMPT)]], n=N).generations
    messages: list[Any] = [one.message for one in generations if isinstance(one, ChatGeneration)]
    assert [one.usage_metadata["input_tokens"] for one in messages] == [bodies.TOKENS_IN] * N
    assert callback.usage_metadata == {}


def test_usage_includes_answers_that_a_parser_refused(invoke: Invoke) -> None:
    def checked(text: str) -> str:
        if text == "answer 0":
            msg = "no answer"
            raise ValueError(msg)
        return text

    model = NumberedModel()
    result = invoke(make_accepting_chain(model | StrOutputParser() | checked), PROMPT)
    # Drawing again until it can be read would select among the model's answers.
    assert len(model.requests) == N
    assert token_counts(result.usage)[:2] == (N * TOKENS_IN, N * TOKENS_OUT)
    assert result.models == ("numbered-1",)


def test_usage_includes_models_that_prepare_context(invoke: Invoke) -> None:
    parts = Parts(SHAPES["history"])
    asking: Runnable[Any, Any] = RunnableLambda(lambda _: QUESTION) | parts.chain
    result = invoke(make_accepting_chain(asking), PROMPT)
    assert len(parts.helper.requests) == 1
    assert token_counts(result.usage)[:2] == ((N + 1) * TOKENS_IN, (N + 1) * TOKENS_OUT)


def test_usage_includes_models_in_functions(invoke: Invoke) -> None:
    model = NumberedModel(cache=False, disable_streaming=True)

    def answer(prompt: str, config: RunnableConfig) -> str:
        return str(model.invoke(prompt, config).text)

    result = invoke(make_accepting_chain(RunnableLambda(answer)), PROMPT)
    assert token_counts(result.usage)[:2] == (N * TOKENS_IN, N * TOKENS_OUT)


def test_result_models_name_a_fallback_that_answered(invoke: Invoke) -> None:
    # Another model is another distribution, and the result says that it answered.
    first = NumberedModel(called="first", failing=frozenset({1}))
    chain = first.with_fallbacks([NumberedModel(called="second")]) | StrOutputParser()
    assert set(invoke(make_accepting_chain(chain), PROMPT).models) == {"first", "second"}
    assert invoke(make_accepting_chain(NumberedModel(called="first")), PROMPT).models == ("first",)


def test_usage_includes_models_of_the_verifier(invoke: Invoke) -> None:
    judge = NumberedModel()
    chain = CFCRunnable(
        generator=lambda _: "x",
        verifier=RunnableLambda(lambda given: str(given["prompt"])) | judge | (lambda _: [0.1] * N),
        artifact=make_artifact(),
    )
    # The generator is a function, which states none.
    assert token_counts(invoke(chain, PROMPT).usage)[:2] == (TOKENS_IN, TOKENS_OUT)
    assert len(judge.requests) == 1


def test_usage_is_counted_per_prompt(invoke: Invoke) -> None:
    chain = make_accepting_chain(NumberedModel())
    assert token_counts(invoke(chain, PROMPT).usage) == token_counts(invoke(chain, PROMPT).usage)


def make_result(*messages: AIMessage) -> LLMResult:
    return LLMResult(generations=[[ChatGeneration(message=one) for one in messages]])


def usage(tokens: int, cached: int = 0) -> UsageMetadata:
    return UsageMetadata(
        input_tokens=tokens,
        output_tokens=1,
        total_tokens=tokens + 1,
        input_token_details=InputTokenDetails(cache_read=cached),
    )


def make_message(tokens: int, model: str | None = None, cached: int = 0) -> AIMessage:
    metadata = {} if model is None else {"model_name": model}
    return AIMessage("x", usage_metadata=usage(tokens, cached), response_metadata=metadata)


def test_usage_recorder_adds_tokens_and_details() -> None:
    recorder = UsageRecorder()
    for message in (
        make_message(10, "a", cached=2),
        make_message(20, "b", cached=3),
        make_message(5, "a"),
        AIMessage("x"),
    ):
        recorder.on_llm_end(make_result(message), run_id=uuid4(), tags=[DRAW_TAG])
    assert token_counts(recorder.usage) == (35, 3, 38)
    assert recorder.usage is not None
    assert recorder.usage["input_token_details"] == {"cache_read": 5}
    assert list(recorder.versions) == ["a", "b"]


def test_usage_recorder_without_usage_is_none() -> None:
    recorder = UsageRecorder()
    text = LLMResult(generations=[[Generation(text="x")]])
    for result in (make_result(AIMessage("x")), text, LLMResult(generations=[]), LLMResult(generations=[[]])):
        recorder.on_llm_end(result, run_id=uuid4(), tags=[DRAW_TAG])
    assert recorder.usage is None
    assert recorder.versions == {}


def test_usage_recorder_counts_all_threads() -> None:
    recorder = UsageRecorder()

    def note(number: int) -> None:
        for message in (make_message(1, f"model {number % 3}"), make_message(2)):
            recorder.on_llm_end(make_result(message), run_id=uuid4(), tags=[DRAW_TAG])

    with ThreadPoolExecutor(16) as executor:
        list(executor.map(note, range(2000)))
    assert token_counts(recorder.usage) == (6000, 4000, 10000)
    assert set(recorder.versions) == {"model 0", "model 1", "model 2"}


def test_usage_recorder_counts_several_choices_once() -> None:
    recorder = UsageRecorder()
    recorder.on_llm_end(
        make_result(make_message(10, "a"), make_message(10, "a")), run_id=uuid4(), tags=[DRAW_TAG]
    )
    assert token_counts(recorder.usage) == token_counts(make_message(10, "a").usage_metadata)
