"""The server, used by `ChatOpenAI`."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest
from langchain_openai import ChatOpenAI

from integrations.server.tests.bots import EASY, GOOD, TOOL, UNSURE
from integrations.server.tests.parts import TOKEN, Server

pytestmark = pytest.mark.usefixtures("no_proxy")


def make_client(server: Server, **settings: Any) -> ChatOpenAI:
    fixed = {"model": "bot", "base_url": f"{server.url}/v1", "api_key": TOKEN, "max_retries": 0}
    return ChatOpenAI(**{**fixed, **settings})


def test_chat_openai_invoke_gets_answer_and_headers(server: Server) -> None:
    message = make_client(server, include_response_headers=True).invoke(UNSURE)
    assert message.text == "I do not know."
    headers = message.response_metadata["headers"]
    assert (headers["x-cfc-abstained"], headers["x-cfc-reason"]) == ("true", "only_blank_answers")
    assert message.usage_metadata is not None
    assert message.usage_metadata["total_tokens"] == 39


def test_chat_openai_streams_the_answer(server: Server) -> None:
    chunks = list(make_client(server, stream_usage=True).stream(EASY))
    assert "".join(chunk.text for chunk in chunks) == GOOD
    counted = [chunk.usage_metadata for chunk in chunks if chunk.usage_metadata]
    assert [one["total_tokens"] for one in counted] == [39]


def test_chat_openai_batch_and_ainvoke_get_answers(server: Server) -> None:
    model = make_client(server)
    assert [one.text for one in model.batch([EASY, UNSURE, EASY])] == [GOOD, "I do not know.", GOOD]
    assert asyncio.run(model.ainvoke(EASY)).text == GOOD


def test_chat_openai_chooses_level_by_extra_body(server: Server) -> None:
    model = make_client(server, extra_body={"cfc": {"alpha": "0.1"}})
    assert model.invoke(EASY).text == GOOD
    with pytest.raises(openai.BadRequestError, match=r"it holds 0\.1, 0\.2"):
        make_client(server, extra_body={"cfc": {"alpha": "0.3"}}).invoke(EASY)


def test_chat_openai_gets_tool_calls(server: Server) -> None:
    [call] = make_client(server, model="offering").invoke(TOOL).tool_calls
    assert (call["name"], call["args"]) == ("weather", {"city": "Lima"})


def test_temperature_of_chat_openai_is_refused_by_name(server: Server) -> None:
    with pytest.raises(openai.BadRequestError, match="temperature"):
        make_client(server, temperature=0.5).invoke(EASY)
