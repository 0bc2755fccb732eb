"""What drawing cost, and which models answered: counted once, whoever counts."""

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


def chain_of(generator: Any, sampling: Any = "requests") -> CFCRunnable:
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
def test_usage_over_the_wire_is_counted_once_by_all(
    chat_model: MakeModel, script: Script, invoke: Invoke, sampling: Any, parsed: bool
) -> None:
    generator = chat_model() | StrOutputParser() if parsed else chat_model()
    with get_usage_metadata_callback() as callback:
        result = invoke(chain_of(generator, sampling), PROMPT)
    requests = 1 if sampling == "single_request" else N
    assert len(script.requests) == requests
    given = requests * bodies.TOKENS_IN
    expected = given, N * bodies.TOKENS_OUT, given + N * bodies.TOKENS_OUT
    assert token_counts(result.usage) == expected
    assert {name: token_counts(usage) for name, usage in callback.usage_metadata.items()} == {
        "recorded": expected
    }
    assert result.models == ("recorded",)


def test_a_client_asked_for_n_choices_gives_the_usage_of_all_to_each(chat_model: MakeModel) -> None:
    # The negative control: added up it is n-fold, and LangChain's own callback sees nothing.
    with get_usage_metadata_callback() as callback:
        (generations,) = chat_model().generate([[HumanMessage(PROMPT)]], n=N).generations
    messages: list[Any] = [one.message for one in generations if isinstance(one, ChatGeneration)]
    assert [one.usage_metadata["input_tokens"] for one in messages] == [bodies.TOKENS_IN] * N
    assert callback.usage_metadata == {}


def test_an_answer_that_was_paid_for_and_cannot_be_used_is_counted(invoke: Invoke) -> None:
    def checked(text: str) -> str:
        if text == "answer 0":
            msg = "no answer"
            raise ValueError(msg)
        return text

    model = NumberedModel()
    result = invoke(chain_of(model | StrOutputParser() | checked), PROMPT)
    assert len(model.requests) == N + 1
    assert token_counts(result.usage)[:2] == ((N + 1) * TOKENS_IN, (N + 1) * TOKENS_OUT)
    assert result.models == ("numbered-1",)


def test_what_was_asked_for_the_context_is_counted(invoke: Invoke) -> None:
    parts = Parts(SHAPES["history"])
    asking: Runnable[Any, Any] = RunnableLambda(lambda _: QUESTION) | parts.chain
    result = invoke(chain_of(asking), PROMPT)
    assert len(parts.helper.requests) == 1
    assert token_counts(result.usage)[:2] == ((N + 1) * TOKENS_IN, (N + 1) * TOKENS_OUT)


def test_models_called_in_functions_are_seen(invoke: Invoke) -> None:
    model = NumberedModel(cache=False, disable_streaming=True)

    def answer(prompt: str, config: RunnableConfig) -> str:
        return str(model.invoke(prompt, config).text)

    result = invoke(chain_of(RunnableLambda(answer)), PROMPT)
    assert token_counts(result.usage)[:2] == (N * TOKENS_IN, N * TOKENS_OUT)


def test_a_fallback_that_answers_is_named(invoke: Invoke) -> None:
    # Another model is another distribution, and the result says that it answered.
    first = NumberedModel(called="first", failing=frozenset({1}))
    chain = first.with_fallbacks([NumberedModel(called="second")]) | StrOutputParser()
    assert set(invoke(chain_of(chain), PROMPT).models) == {"first", "second"}
    assert invoke(chain_of(NumberedModel(called="first")), PROMPT).models == ("first",)


def test_what_the_verifier_asks_is_counted(invoke: Invoke) -> None:
    judge = NumberedModel()
    chain = CFCRunnable(
        generator=lambda _: "x",
        verifier=RunnableLambda(lambda given: str(given["prompt"])) | judge | (lambda _: [0.1] * N),
        artifact=make_artifact(),
    )
    # The generator is a function, which states none.
    assert token_counts(invoke(chain, PROMPT).usage)[:2] == (TOKENS_IN, TOKENS_OUT)
    assert len(judge.requests) == 1


def test_each_prompt_has_a_count_of_its_own(invoke: Invoke) -> None:
    chain = chain_of(NumberedModel())
    assert token_counts(invoke(chain, PROMPT).usage) == token_counts(invoke(chain, PROMPT).usage)


def result_of(*messages: AIMessage) -> LLMResult:
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


def test_tokens_add_up_with_their_details() -> None:
    witness = UsageRecorder()
    for message in (
        make_message(10, "a", cached=2),
        make_message(20, "b", cached=3),
        make_message(5, "a"),
        AIMessage("x"),
    ):
        witness.on_llm_end(result_of(message), run_id=uuid4(), tags=[DRAW_TAG])
    assert token_counts(witness.usage) == (35, 3, 38)
    assert witness.usage is not None
    assert witness.usage["input_token_details"] == {"cache_read": 5}
    assert list(witness.versions) == ["a", "b"]


def test_no_message_that_says_is_no_usage() -> None:
    witness = UsageRecorder()
    text = LLMResult(generations=[[Generation(text="x")]])
    for result in (result_of(AIMessage("x")), text, LLMResult(generations=[]), LLMResult(generations=[[]])):
        witness.on_llm_end(result, run_id=uuid4(), tags=[DRAW_TAG])
    assert witness.usage is None
    assert witness.versions == {}


def test_many_threads_are_counted_whole() -> None:
    witness = UsageRecorder()

    def note(number: int) -> None:
        for message in (make_message(1, f"model {number % 3}"), make_message(2)):
            witness.on_llm_end(result_of(message), run_id=uuid4(), tags=[DRAW_TAG])

    with ThreadPoolExecutor(16) as executor:
        list(executor.map(note, range(2000)))
    assert token_counts(witness.usage) == (6000, 4000, 10000)
    assert set(witness.versions) == {"model 0", "model 1", "model 2"}


def test_of_several_choices_the_usage_counts_once() -> None:
    witness = UsageRecorder()
    witness.on_llm_end(
        result_of(make_message(10, "a"), make_message(10, "a")), run_id=uuid4(), tags=[DRAW_TAG]
    )
    assert token_counts(witness.usage) == token_counts(make_message(10, "a").usage_metadata)
