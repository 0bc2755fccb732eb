"""Requests to `/v1/chat/completions` and `/v1/responses`, which return the same decisions in two forms."""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast

import httpx
import jsonschema
import openai
import pytest
from langchain_cfc_server.answers import Answer
from langchain_cfc_server.errors import RefusedError
from langchain_cfc_server.models import make_served_models
from langchain_cfc_server.parameters import PARAMETERS
from langchain_cfc_server.schema import DecidedResponse
from langchain_core.messages import HumanMessage

from integrations.server.tests.bots import EASY, EMOJI, GOOD, HARD, MARK, TOOL, UNSURE
from integrations.server.tests.parts import TOKEN, Server, make_request
from integrations.tests.planted import make_model
from langchain_cfc import CalibrationArtifact, calibrate
from tests.certificates.prompts import make_replay_chain
from tests.claims.chains import LEFT
from tests.claims.chains import make_chain as make_claims_chain
from tests.recordings import list_facts
from tests.serving.openai_server import Fault


def test_completion_contains_answer_decision_and_guarantee(server: Server, artifact_path: Any) -> None:
    response = server.ask(make_request(EASY))
    body = json.loads(response.content, parse_constant=pytest.fail)
    assert response.status_code == 200
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": GOOD, "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    decision = body["cfc"]
    assert (decision["abstained"], decision["reason"], decision["best"]) == (False, "answered", GOOD)
    artifact = CalibrationArtifact.load(artifact_path)
    assert decision["guarantee"]["artifact_digest"] == artifact.digest == response.headers["x-cfc-artifact"]
    assert decision["guarantee"]["alpha"] == "0.2"
    assert response.headers["x-cfc-abstained"] == "false"
    assert response.headers["x-cfc-reason"] == "answered"
    assert float(response.headers["x-cfc-stated-coverage"]) == decision["guarantee"]["stated_coverage"]
    # Three draws of 11 and 2 tokens.
    assert body["usage"] == {"prompt_tokens": 33, "completion_tokens": 6, "total_tokens": 39}
    assert body["id"] == f"chatcmpl-{response.headers['x-request-id']}"
    assert "candidates" not in decision
    DecidedResponse.model_validate(body)


def test_failed_draw_of_later_wave_gives_draw_failed_error(server: Server, upstream: Any) -> None:
    upstream[1].faults = [Fault("status 500", on=set(range(len(upstream[1].requests) + 1, 100_000)))]
    response = server.ask(make_request(UNSURE, "stopping"))
    assert (response.status_code, response.json()["error"]["code"]) == (502, "draw_failed")
    assert MARK not in response.text


@pytest.mark.parametrize(
    ("option", "rates", "kind"),
    [
        ("max_wrong_rate", ["0.1", "0.2"], "right_answers"),
        ("max_wrong_of_all", ["0.1", "0.05"], "all_questions"),
    ],
)
def test_request_names_one_of_the_promised_rates(option: str, rates: list[str], kind: str) -> None:
    records, promised = list_facts(), cast("dict[str, Any]", {option: rates})
    bot = calibrate(records, **promised)
    chain = make_replay_chain(bot, records, **{option: rates[0]})
    model = make_served_models({"bot": chain}, "I do not know.")["bot"]
    held = model.describe(0)["cfc"]
    assert held["max_wrong_rates" if option == "max_wrong_rate" else option] == sorted(rates)
    assert model.choose_promise() is model.choose_promise(**{option: rates[0]}) is None
    for rate in rates:
        promise = model.choose_promise(**{option: rate})
        message = asyncio.run(model.ask([HumanMessage(str(records[0].input))], promise))
        answer = Answer("chatcmpl-1", 0, "bot", message)
        assert answer.headers[f"x-cfc-{option.replace('_', '-')}"] == rate
        assert answer.promise == (kind, rate, 1.0 - float(rate))
        assert "x-cfc-stated-coverage" not in answer.headers
    refusals: list[Any] = [{option: 0.3}, {"alpha": 0.1}, {"alpha": 0.1, option: 0.1}]
    for named in refusals:
        with pytest.raises(RefusedError) as refused:
            model.choose_promise(**named)
        assert (refused.value.status, refused.value.code) == (400, "level_not_calibrated")


@pytest.mark.parametrize("question", [EASY, UNSURE, HARD])
def test_raised_abstention_is_answered_as_returned_one(server: Server, question: str) -> None:
    said, same = (server.ask(make_request(question, name)) for name in ("raising", "bot"))
    assert said.status_code == same.status_code == 200
    for key in ("choices", "cfc", "usage"):
        assert said.json()[key] == same.json()[key]
    for header in ("x-cfc-abstained", "x-cfc-reason", "x-cfc-artifact"):
        assert said.headers[header] == same.headers[header]
    chosen = server.ask(make_request(UNSURE, "raising", cfc={"alpha": "0.1"}))
    assert (chosen.status_code, chosen.json()["cfc"]["guarantee"]["alpha"]) == (200, "0.1")


def test_infinite_threshold_is_encoded_as_text(server: Server) -> None:
    assert server.ask(make_request(HARD)).json()["cfc"]["threshold"] == "inf"


def test_model_of_several_levels_requires_a_level(server: Server) -> None:
    refused = server.ask(make_request(EASY, "careful/bot"))
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "cfc.alpha")
    body = server.ask(make_request(EASY, "careful/bot", cfc={"alpha": "0.1"})).json()
    assert body["cfc"]["guarantee"]["alpha"] == "0.1"


def test_best_candidate_with_tool_call_is_returned_as_tool_call(server: Server) -> None:
    body = server.ask(make_request(TOOL, "offering")).json()
    choice = body["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    [call] = choice["message"]["tool_calls"]
    assert (call["type"], call["function"]["name"]) == ("function", "weather")
    assert json.loads(call["function"]["arguments"]) == {"city": "Lima"}
    DecidedResponse.model_validate(body)
    followed = [
        *make_request(TOOL, "offering")["messages"],
        choice["message"],
        {"role": "tool", "tool_call_id": call["id"], "content": "sunny"},
        {"role": "user", "content": EASY},
    ]
    assert server.ask({"model": "bot", "messages": followed}).json()["cfc"]["best"] == GOOD


def test_completion_sends_whole_conversation_to_model(server: Server, upstream: Any) -> None:
    messages: list[dict[str, Any]] = [
        {"role": "developer", "content": "Be brief."},
        {"role": "system", "content": [{"type": "text", "text": "Be right."}], "name": "boss"},
        {"role": "user", "content": "Hello 🦙"},
        {"role": "assistant", "content": "Hello.", "refusal": None, "tool_calls": None},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": EASY},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": "low"}},
            ],
        },
    ]
    assert server.ask({"model": "bot", "messages": messages}).status_code == 200
    sent = upstream[1].requests[-1]["messages"]
    assert [one["role"] for one in sent] == ["developer", "system", "user", "assistant", "user"]
    assert sent[1] == messages[1]
    assert [one["content"] for one in sent] == [one["content"] for one in messages]


def test_stream_contains_only_the_decision(server: Server) -> None:
    response = server.ask(make_request(EASY, stream=True, stream_options={"include_usage": True}))
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["x-cfc-reason"] == "answered"
    events = response.text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    chunks = [json.loads(event.removeprefix("data: ")) for event in events[:-2]]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks[:3]]
    assert deltas == [{"role": "assistant", "content": ""}, {"content": GOOD, "refusal": None}, {}]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks[:3]] == [None, None, "stop"]
    assert [("cfc" in chunk) for chunk in chunks] == [False, False, True, False]
    assert chunks[3]["choices"] == []
    assert chunks[3]["usage"]["total_tokens"] == 39
    assert {chunk["id"] for chunk in chunks} == {f"chatcmpl-{response.headers['x-request-id']}"}
    unasked = server.ask(make_request(EASY, stream=True))
    assert "usage" not in json.loads(unasked.text.split("\n\n")[2].removeprefix("data: "))
    assert unasked.text.count("data: ") == 4


def test_answers_with_stream_terminators_do_not_end_the_stream(server: Server) -> None:
    whole = server.ask(make_request(EMOJI)).json()["cfc"]["best"]
    assert "data: [DONE]" in whole
    events = server.ask(make_request(EMOJI, stream=True)).content.split(b"\n\n")
    chunks = [json.loads(event[6:]) for event in events[:3]]
    assert chunks[1]["choices"][0]["delta"]["content"] == whole
    assert len(events) == 5


def test_models_are_listed_with_their_calibration(server: Server, artifact_path: Any) -> None:
    listed = server.get("/v1/models").json()
    entries = {one["id"]: one for one in listed["data"]}
    digest = CalibrationArtifact.load(artifact_path).digest
    calibration = {"artifact": digest, "n": 3, "levels": ["0.1", "0.2"]}
    calibration |= {"max_wrong_rates": [], "max_wrong_of_all": [], "ignored": []}
    assert entries["bot"]["cfc"] == entries["helped"]["cfc"] == calibration
    assert entries["broken"]["cfc"] is None
    assert entries["stopping"]["cfc"] == {
        **calibration,
        "artifact": entries["stopping"]["cfc"]["artifact"],
        "draws": "below(0.1, at_most=3)",
    }
    assert server.get("/v1/models/careful/bot").json() == entries["careful/bot"]
    missing = server.get("/v1/models/none")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
def test_answers_match_the_openapi_document(server: Server, path: str) -> None:
    document = server.get("/openapi.json").json()
    assert document["paths"][path]["post"]["security"] == [{"token": []}]
    schema = {"$ref": "#/components/schemas/DecidedResponse", "components": document["components"]}
    check = jsonschema.Draft202012Validator(schema)
    for question, model in ((EASY, "bot"), (UNSURE, "bot"), (HARD, "bot"), (TOOL, "bot"), (UNSURE, "helped")):
        asked = {"model": model, "input": question} if "responses" in path else make_request(question, model)
        check.validate(server.ask(asked, path=path).json())
    broken = server.ask(make_request(EASY)).json()
    broken["cfc"]["candidates"] = []
    assert not check.is_valid(broken)


@pytest.mark.parametrize("show_rejected", [False, True])
def test_claims_are_listed_on_request(show_rejected: bool) -> None:
    chain = make_claims_chain(show_rejected=show_rejected)
    model = make_served_models({"bot": chain}, "I do not know.")["bot"]
    plain, listed = (
        asyncio.run(model.ask([HumanMessage("?")], None, with_claims=asked)) for asked in (False, True)
    )
    assert plain.text == listed.text == LEFT
    assert "moons" not in str(plain.response_metadata)
    decision = listed.response_metadata["cfc"]
    assert [(one["kept"], one["text"] is None) for one in decision["claims"]] == [
        (True, False),
        (False, not show_rejected),
        (True, False),
    ]
    for message in (plain, listed):
        body = json.loads(Answer("chatcmpl-1", 0, "bot", message).to_completion())
        DecidedResponse.model_validate(body)


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
