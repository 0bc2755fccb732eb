"""The server, used by OpenAI's own client."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from integrations.server.tests.bots import EASY, FORMAT, GOOD, TOOL, UNSURE, WEATHER, N

pytestmark = pytest.mark.usefixtures("no_proxy")


def create_completion(client: openai.OpenAI, question: str = EASY, model: str = "bot", **more: Any) -> Any:
    return client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": question}], **more
    )


def test_openai_client_reads_answers_with_their_decision(client: openai.OpenAI) -> None:
    completion = create_completion(client)
    assert completion.choices[0].message.content == GOOD
    assert completion.usage.total_tokens == 39
    assert completion.model_extra["cfc"]["reason"] == "answered"
    raw = client.chat.completions.with_raw_response.create(
        model="bot", messages=[{"role": "user", "content": UNSURE}]
    )
    assert raw.headers["x-cfc-abstained"] == "true"
    assert raw.request_id == raw.headers["x-request-id"]
    assert raw.parse().choices[0].message.content == "I do not know."


def test_openai_client_streams_the_decision(client: openai.OpenAI) -> None:
    chunks = list(create_completion(client, stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == GOOD
    assert [chunk.model_extra["cfc"]["best"] for chunk in chunks if "cfc" in chunk.model_extra] == [GOOD]
    assert chunks[-1].usage.total_tokens == 39
    with client.chat.completions.stream(model="bot", messages=[{"role": "user", "content": EASY}]) as stream:
        assert stream.get_final_completion().choices[0].message.content == GOOD


TOOL_CHOICE = {"type": "function", "function": {"name": "weather"}}


@pytest.mark.parametrize(
    ("model", "given"),
    [
        ("calling", {}),
        ("calling", {"tools": [WEATHER]}),
        ("calling", {"tools": [WEATHER], "tool_choice": TOOL_CHOICE}),
        ("calling", {"response_format": {"type": "text"}}),
        ("offering", {"tools": [WEATHER], "tool_choice": "auto"}),
        ("formatted", {"response_format": FORMAT}),
        ("bot", {"response_format": {"type": "text"}}),
        ("bot", {"tools": [], "tool_choice": "none", "parallel_tool_calls": False}),
        ("bot", {"tool_choice": "auto", "functions": [], "function_call": "none"}),
        ("offering", {"tool_choice": "auto", "parallel_tool_calls": True}),
    ],
)
def test_request_may_repeat_calibrated_tools_and_format(
    client: openai.OpenAI, upstream: Any, model: str, given: dict[str, Any]
) -> None:
    upstream[1].requests.clear()
    finish = (
        "tool_calls" if model in {"calling", "offering"} else "stop"
    )  # without tools, no call is an answer
    assert create_completion(client, TOOL, model=model, **given).choices[0].finish_reason == finish
    *_, last = [
        chunk for chunk in create_completion(client, TOOL, model=model, stream=True, **given) if chunk.choices
    ]
    assert last.choices[0].finish_reason == finish
    # What the model gets does not depend on what the request repeats.
    bound = {
        "calling": {"tools": [WEATHER], "tool_choice": TOOL_CHOICE},
        "offering": {"tools": [WEATHER]},
        "formatted": {"response_format": FORMAT},
    }
    names = ("tools", "tool_choice", "response_format")
    assert len(upstream[1].requests) == 2 * N
    for one in upstream[1].requests:
        assert {name: one[name] for name in names if name in one} == bound.get(model, {})


@pytest.mark.parametrize(
    ("model", "given", "field"),
    [
        ("bot", {"tools": [WEATHER]}, "tools"),
        ("bot", {"response_format": FORMAT}, "response_format"),
        ("calling", {"tools": [WEATHER, WEATHER]}, "tools"),
        ("calling", {"tools": []}, "tools"),
        ("calling", {"tools": [WEATHER], "tool_choice": "auto"}, "tool_choice"),
        ("calling", {"tools": [WEATHER], "tool_choice": "required"}, "tool_choice"),
        ("offering", {"tools": [WEATHER], "tool_choice": TOOL_CHOICE}, "tool_choice"),
        ("bot", {"tool_choice": "required"}, "tool_choice"),
        ("offering", {"tool_choice": "none"}, "tool_choice"),
        ("offering", {"parallel_tool_calls": False}, "parallel_tool_calls"),
        ("calling", {"tools": [WEATHER], "response_format": FORMAT}, "response_format"),
        ("formatted", {"response_format": {"type": "text"}}, "response_format"),
        ("formatted", {"response_format": {"type": "json_object"}}, "response_format"),
        ("broken", {"tools": [WEATHER]}, "tools"),
    ],
)
def test_other_tools_and_formats_are_refused_before_drawing(
    client: openai.OpenAI, upstream: Any, model: str, given: dict[str, Any], field: str
) -> None:
    drawn = len(upstream[1].requests)
    with pytest.raises(openai.BadRequestError) as caught:
        create_completion(client, TOOL, model=model, **given)
    assert (caught.value.code, caught.value.param) == ("unsupported_parameter", field)
    assert len(upstream[1].requests) == drawn


@pytest.mark.parametrize(
    ("kind", "code", "more"),
    [
        (openai.NotFoundError, "model_not_found", {"model": "none"}),
        (openai.BadRequestError, "unsupported_parameter", {"temperature": 0.5}),
        (openai.BadRequestError, "unsupported_parameter", {"tools": [WEATHER]}),
        (openai.BadRequestError, "unsupported_parameter", {"n": 2}),
        (openai.BadRequestError, "level_not_calibrated", {"extra_body": {"cfc": {"alpha": "0.3"}}}),
        (openai.BadRequestError, "prompt_not_servable", {"model": "new"}),
        (openai.InternalServerError, "internal_error", {"model": "broken"}),
        (openai.InternalServerError, "verifier_failed", {"model": "unscored"}),
        (openai.InternalServerError, "timeout", {"model": "timed"}),
    ],
)
def test_openai_client_raises_errors_by_their_kind(
    client: openai.OpenAI, kind: type[openai.APIStatusError], code: str, more: dict[str, Any]
) -> None:
    with pytest.raises(kind) as caught:
        create_completion(client, **more)
    assert caught.value.code == code
    assert caught.value.request_id
