"""One request for n choices: the request, its cost, and the handling of missing choices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.rate_limiters import BaseRateLimiter
from langchain_core.runnables import RunnableLambda, RunnableParallel
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from openai import BadRequestError
from pydantic import BaseModel

from langchain_cfc.errors import DrawError, InputError
from langchain_cfc.sampling import Sampler
from langchain_cfc.sampling.requests import get_choices_parameter
from tests.fakes import NumberedModel, RunRecorder
from tests.sampling.drawing import PROMPT, Draw, numbered_answers, sorted_texts
from tests.serving.openai_bodies import Answer
from tests.serving.openai_server import Fault, Script

MakeModel = Callable[..., ChatOpenAI]
TOWNS = ["bogota", "la paz", "lima", "quito"]


def list_requests(model: NumberedModel) -> list[dict[str, Any]]:
    """Return the model's requests without the prompt, which is always the same."""
    assert {request["prompt"] for request in model.requests} == {PROMPT}
    return [{key: value for key, value in one.items() if key != "prompt"} for one in model.requests]


def test_single_request_draws_all_candidates_in_order(draw: Draw) -> None:
    model = NumberedModel()
    assert [one.text for one in draw(model, 4, "single_request")] == numbered_answers(4)
    assert list_requests(model) == [{"n": 4}]


def test_separate_requests_ask_for_one_choice_each(draw: Draw) -> None:
    # The negative control of the test above.
    model = NumberedModel()
    assert sorted_texts(draw(model, 4)) == numbered_answers(4)
    assert list_requests(model) == [{}] * 4


@pytest.mark.parametrize(
    ("fault", "requests"),
    [
        (None, [4]),
        (Fault("one choice"), [4, None, None, None]),
        (Fault("fewer choices", on={0}), [4, None]),
        (Fault("more choices", on={0}), [4]),
        (Fault("no choices", on={0}), [4, None, None, None, None]),
    ],
)
def test_single_request_draws_missing_choices_separately(
    chat_model: MakeModel, script: Script, draw: Draw, fault: Fault | None, requests: list[Any]
) -> None:
    script.faults = [] if fault is None else [fault]
    found = draw(chat_model(), 4, "single_request")
    # The server gives its four answers one after the other, over and over; a fifth choice is dropped.
    assert sorted_texts(found) == TOWNS
    assert [request.get("n") for request in script.requests] == requests


def test_bound_arguments_reach_every_request(
    chat_model: MakeModel, script: Script, draw: Draw, sampling: Any
) -> None:
    generator = chat_model().bind(temperature=0.7, stop=["\n"], n=3)
    assert sorted_texts(draw(generator, 4, sampling)) == TOWNS
    expected: list[Any] = [None] * 4 if sampling == "requests" else [4]
    assert [request.get("n") for request in script.requests] == expected
    assert all(request["temperature"] == 0.7 and request["stop"] == ["\n"] for request in script.requests)


def test_generate_of_a_bound_model_drops_bound_arguments(chat_model: MakeModel, script: Script) -> None:
    # The negative control: `generate` is the model's own, and knows nothing of what was bound.
    generator: Any = chat_model().bind(temperature=0.7)
    generator.generate([[HumanMessage(PROMPT)]], n=4)
    assert script.requests[0]["n"] == 4
    assert "temperature" not in script.requests[0]


def test_single_request_parses_each_choice(draw: Draw) -> None:
    model = NumberedModel()
    chain = ChatPromptTemplate.from_template("{q}") | model | StrOutputParser() | str.upper
    found = draw(chain, 3, "single_request", prompt={"q": PROMPT})
    assert [one.text for one in found] == ["ANSWER 0", "ANSWER 1", "ANSWER 2"]
    assert list_requests(model) == [{"n": 3}]


def test_single_request_does_not_redraw_choices_that_a_parser_refuses(draw: Draw) -> None:
    def checked(text: str) -> str:
        if text == "answer 1":
            msg = "no answer"
            raise ValueError(msg)
        return text

    model = NumberedModel()
    found = draw(model | StrOutputParser() | checked, 3, "single_request")
    assert [(one.text, one.no_answer) for one in found] == [
        ("answer 0", None),
        ("", "unparsable"),
        ("answer 2", None),
    ]
    assert list_requests(model) == [{"n": 3}]


def test_single_request_with_retry_repeats_the_request(draw: Draw) -> None:
    model = NumberedModel(failing=frozenset({0}))
    found = draw(model.with_retry(wait_exponential_jitter=False), 3, "single_request")
    assert [one.text for one in found] == numbered_answers(3)
    assert list_requests(model) == [{"n": 3}] * 2


def test_failed_single_request_raises_draw_error(draw: Draw) -> None:
    model = NumberedModel(failing=frozenset({0}))
    with pytest.raises(DrawError, match="3 of 3 candidates could not be drawn") as failure:
        draw(model, 3, "single_request")
    assert isinstance(failure.value.__cause__, ConnectionError)
    assert list_requests(model) == [{"n": 3}]


@tool
def find(town: str) -> str:
    """Find a town."""
    return town


def test_sampler_draws_tool_calls(chat_model: MakeModel, script: Script, draw: Draw, sampling: Any) -> None:
    script.answers = {PROMPT: [Answer(tools=(("find", {"town": town}),)) for town in ("lima", "quito")]}
    found = draw(chat_model().bind_tools([find]), 4, sampling)
    # Each call has an id of its own; answers are two.
    assert len(set(sorted_texts(found))) == 2
    calls = [one.data["tool_calls"] for one in found if one.data is not None]
    assert sorted(call["args"]["town"] for (call,) in calls) == ["lima", "lima", "quito", "quito"]
    assert all(request["tools"][0]["function"]["name"] == "find" for request in script.requests)
    assert len(script.requests) == (1 if sampling == "single_request" else 4)


class Town(BaseModel):
    """A town."""

    name: str


def test_sampler_draws_structured_output_in_json_mode(
    chat_model: MakeModel, script: Script, draw: Draw, sampling: Any
) -> None:
    script.answers = {PROMPT: [Answer('{"name": "lima"}'), Answer('{"name":"quito"}')]}
    generator = chat_model().with_structured_output(Town, method="json_mode")
    assert sorted_texts(draw(generator, 2, sampling)) == ['{"name":"lima"}', '{"name":"quito"}']
    assert len(script.requests) == (1 if sampling == "single_request" else 2)


def test_sampler_draws_structured_output_by_tool_calls(
    chat_model: MakeModel, script: Script, draw: Draw, sampling: Any
) -> None:
    script.answers = {PROMPT: [Answer(tools=(("Town", {"name": name}),)) for name in ("lima", "quito")]}
    generator = chat_model().with_structured_output(Town, method="function_calling")
    found = draw(generator, 2, sampling)
    assert sorted_texts(found) == ['{"name":"lima"}', '{"name":"quito"}']
    assert all(one.data is not None and one.message is None for one in found)


class CountingLimiter(BaseRateLimiter):
    """Lets everyone through, and counts them."""

    def __init__(self) -> None:
        self.passed = 0

    def acquire(self, *, blocking: bool = True) -> bool:
        self.passed += blocking
        return True

    async def aacquire(self, *, blocking: bool = True) -> bool:
        self.passed += blocking
        return True


@pytest.mark.parametrize(("sampling", "requests"), [("requests", 4), ("single_request", 1)])
def test_rate_limiter_is_asked_once_per_request(draw: Draw, sampling: Any, requests: int) -> None:
    turnstile = CountingLimiter()
    draw(NumberedModel(rate_limiter=turnstile), 4, sampling)
    assert turnstile.passed == requests


class GoogleModel(NumberedModel):
    """A model whose requests call the number of choices as Google does."""

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        *,
        candidate_count: int = 1,
        **kwargs: Any,
    ) -> ChatResult:
        assert "n" not in kwargs
        return super()._generate(messages, stop, run_manager, n=candidate_count, **kwargs)


def test_choices_parameter_of_google_is_candidate_count(draw: Draw, monkeypatch: pytest.MonkeyPatch) -> None:
    assert get_choices_parameter(GoogleModel()) == "n"
    monkeypatch.setattr(GoogleModel, "__module__", "langchain_google_genai.chat_models")
    assert get_choices_parameter(GoogleModel()) == "candidate_count"
    model = GoogleModel()
    assert sorted_texts(draw(model, 3, "single_request")) == numbered_answers(3)
    assert list_requests(model) == [{"n": 3}]


def test_single_request_of_a_model_without_choices_names_the_remedy(
    chat_model: MakeModel, script: Script, draw: Draw
) -> None:
    # OpenAI's Responses API knows no number of choices, and its client refuses the argument.
    model = chat_model(use_responses_api=True)
    with pytest.raises(DrawError, match=r"TypeError.*'n'.*use sampling='requests'") as failure:
        draw(model, 3, "single_request")
    assert isinstance(failure.value.__cause__, TypeError)
    # Nor would retries mend that.
    assert "with_retry" not in str(failure.value)
    assert script.requests == []


def test_single_request_refused_by_the_server_names_the_remedy(
    chat_model: MakeModel, script: Script, draw: Draw
) -> None:
    script.faults = [Fault("status 400")]
    with pytest.raises(DrawError, match="use sampling='requests'") as failure:
        draw(chat_model(), 3, "single_request")
    assert isinstance(failure.value.__cause__, BadRequestError)
    with pytest.raises(DrawError) as failure:
        draw(chat_model(), 3)
    assert "sampling=" not in str(failure.value)


@pytest.mark.parametrize(
    "generator",
    [
        RunnableLambda(str),
        RunnableParallel(out=NumberedModel()),
        NumberedModel().with_fallbacks([NumberedModel()]),
    ],
)
def test_single_request_requires_one_chat_model(generator: Any) -> None:
    with pytest.raises(InputError, match=r"asks a chat model for n choices.*Use sampling='requests'"):
        Sampler(generator, "single_request")
    Sampler(generator)


def test_single_request_is_one_run_of_the_model(draw: Draw) -> None:
    mine, seen = RunRecorder(), RunRecorder()
    model = NumberedModel(callbacks=[mine], tags=["mine"], metadata={"kind": "mine"})
    draw(model, 3, "single_request", config={"callbacks": [seen], "tags": ["given"]})
    assert [tags for _, tags in seen.of("model")] == [frozenset({"mine", "given", "cfc:candidate"})]
    assert mine.of("model") == seen.of("model")


class SilentModel(NumberedModel):
    """Says neither who it is nor what it cost."""

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        del messages, args, kwargs
        return ChatResult(generations=[ChatGeneration(message=AIMessage("x"))] * 2)


def test_first_choice_holds_the_usage_and_all_the_model_name(draw: Draw) -> None:
    found: Any = [one.message for one in draw(NumberedModel(), 3, "single_request")]
    assert [one.response_metadata["model_name"] for one in found] == ["numbered-1"] * 3
    assert [one.usage_metadata is not None for one in found] == [True, False, False]
    assert found[0].usage_metadata["output_tokens"] == 6
    silent: Any = [one.message for one in draw(SilentModel(), 2, "single_request")]
    assert [one.usage_metadata for one in silent] == [None, None]
