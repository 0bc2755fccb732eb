"""`POST /v1/responses`, which returns the same decisions in the form of another API."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest
from langchain_cfc_server.parameters import PARAMETERS
from langchain_cfc_server.schema import DecidedResponse

from integrations.server.tests.bots import EASY, EMOJI, GOOD, HARD, MARK, TOOL, UNSURE
from integrations.server.tests.parts import TOKEN, Server, make_request
from integrations.tests.planted import make_model

RESPONSES = "/v1/responses"


pytestmark = pytest.mark.usefixtures("no_proxy")


def post_response(server: Server, question: Any = EASY, model: str = "bot", **more: Any) -> httpx.Response:
    return server.ask({"model": model, "input": question, **more}, path=RESPONSES)


@pytest.mark.parametrize("question", [EASY, UNSURE, HARD, EMOJI, TOOL])
def test_responses_decision_equals_that_of_chat_completions(server: Server, question: str) -> None:
    model = "offering" if question == TOOL else "bot"
    response, completion = post_response(server, question, model), server.ask(make_request(question, model))
    assert response.status_code == 200
    body, same = response.json(), completion.json()
    DecidedResponse.model_validate(body)
    assert body["cfc"] == same["cfc"]
    assert body["usage"]["total_tokens"] == same["usage"]["total_tokens"]
    for name in ("x-cfc-abstained", "x-cfc-reason", "x-cfc-artifact"):
        assert response.headers[name] == completion.headers[name]
    assert body["id"] == f"resp_{response.headers['x-request-id']}"
    said = same["choices"][0]["message"]
    assert MARK not in response.text
    if question == TOOL:
        [call], [other] = body["output"], said["tool_calls"]
        assert (call["type"], call["name"]) == ("function_call", "weather")
        assert call["arguments"] == other["function"]["arguments"]
    else:
        assert body["output"][0]["content"][0]["text"] == said["content"]
    assert server.logged(response.headers["x-request-id"])["route"] == RESPONSES


@pytest.mark.parametrize("question", [EASY, UNSURE, EMOJI, TOOL])
def test_openai_client_streams_responses(client: openai.OpenAI, question: str) -> None:
    whole = client.responses.create(model="bot", input=question)
    with client.responses.stream(model="bot", input=question) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert (kinds[0], kinds[-1]) == ("response.created", "response.completed")
    assert final.output_text == whole.output_text
    assert [item.type for item in final.output] == [item.type for item in whole.output]


def test_response_events_are_numbered_and_contain_only_the_decision(server: Server) -> None:
    response = post_response(server, stream=True)
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["x-cfc-reason"] == "answered"
    assert MARK not in response.text
    events = [event.partition("\ndata: ") for event in response.text.split("\n\n")[:-1]]
    data = [json.loads(text) for _, _, text in events]
    assert [one["sequence_number"] for one in data] == list(range(len(data)))
    assert [name for name, _, _ in events] == [f"event: {one['type']}" for one in data]
    assert "".join(one["delta"] for one in data if one["type"].endswith("text.delta")) == GOOD
    DecidedResponse.model_validate(data[-1]["response"])


def test_chat_openai_reads_responses(server: Server) -> None:
    model = make_model(f"{server.url}/v1", model="bot", api_key=TOKEN, use_responses_api=True)
    assert model.invoke(EASY).text == GOOD
    assert "".join(chunk.text for chunk in model.stream(EASY)) == GOOD


def test_responses_send_whole_conversation_to_model(client: openai.OpenAI, upstream: Any) -> None:
    first = client.responses.create(model="bot", input=EASY, instructions="Be brief.")
    second = client.responses.create(
        model="bot",
        instructions="Be brief.",
        input=[
            {"role": "user", "content": EASY},
            *[one.model_dump() for one in first.output],  # type: ignore[list-item]  # as clients do
            {"role": "developer", "content": [{"type": "input_text", "text": "Be right."}]},
            {"role": "user", "content": [{"type": "input_text", "text": EASY}]},
        ],
    )
    assert second.output_text == GOOD
    sent = upstream[1].requests[-1]["messages"]
    assert [one["role"] for one in sent] == ["system", "user", "assistant", "developer", "user"]
    assert sent[0]["content"] == "Be brief."


@pytest.mark.parametrize(
    ("more", "code", "field"),
    [
        *[({name: 0.5}, "unsupported_parameter", name) for name in sorted(PARAMETERS)],
        ({"previous_response_id": "resp_1"}, "invalid_request", "previous_response_id"),
        ({"conversation": "conv_1"}, "invalid_request", "conversation"),
        ({"background": True}, "unsupported_parameter", "background"),
        ({"made_up": 1}, "unsupported_parameter", "made_up"),
        ({"input": []}, "invalid_request", "input"),
        ({"input": [{"role": "tool", "content": "x"}]}, "invalid_request", "input"),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "invalid_request", "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "invalid_request", None),
        ({"messages": [{}]}, "invalid_request", "messages"),
        ({"cfc": {"alpha": "0.3"}}, "level_not_calibrated", "cfc.alpha"),
    ],
)
def test_responses_refuse_unsupported_fields_by_name(
    server: Server, upstream: Any, more: dict[str, Any], code: str, field: str | None
) -> None:
    drawn = len(upstream[1].requests)
    response = server.ask({"model": "bot", "input": EASY, **more}, path=RESPONSES)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["code"] == code
    assert field is None or error["param"] == field
    assert len(upstream[1].requests) == drawn


def test_errors_of_responses_keep_their_status(server: Server) -> None:
    for stream in (False, True):
        assert (
            post_response(server, model="broken", stream=stream).json()["error"]["code"] == "internal_error"
        )
        assert post_response(server, model="none", stream=stream).status_code == 404
        assert post_response(server, model="unscored", stream=stream).status_code == 502
