"""Bodies of chat front ends and clients: answered, or refused once with the setting that accepts them.

They have fields that these programs send, with short values.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
from langchain_cfc_server import Settings, create_app
from langchain_core.runnables import RunnableLambda
from starlette.applications import Starlette
from starlette.testclient import TestClient

from integrations.server.tests.bots import EASY, GOOD, judge, make_artifact, topic
from integrations.server.tests.parts import HEADERS, TOKEN
from langchain_cfc import CFCRunnable
from tests.factories import with_prompt_kind

SYSTEM = {"role": "system", "content": "You are a helpful assistant."}
USER = {"role": "user", "content": EASY}
PARTS = {"role": "user", "content": [{"type": "text", "text": EASY}]}
CACHED = {"role": "user", "content": EASY, "cache_control": {"type": "ephemeral"}}
TURNS = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
COUNTED = {"stream": True, "stream_options": {"include_usage": True}}
PENALTIES = {"frequency_penalty": 0, "presence_penalty": 0}
# What is sent beside the model and one message of the user, unless other messages are stated.
ANSWERED: dict[str, dict[str, Any]] = {
    "openai on Python and Node": {},
    "curl": {"stream": False},
    "AI SDK": {"messages": [PARTS], **COUNTED},
    "LangChain": {**COUNTED},
    "LangChain.js before 0.3": {"temperature": 1, "top_p": 1, "n": 1, "stream": False, **PENALTIES},
    "LiteLLM": {"extra_body": {}, "metadata": {"trace": "t"}},
    "pydantic-ai": {"stream": False, "tools": [], "tool_choice": "auto"},
    "OpenAI Agents SDK": {
        "store": False,
        "metadata": {},
        "tools": [],
        "parallel_tool_calls": None,
        **COUNTED,
    },
    "Haystack": {"n": 1, "stream": False},
    "Semantic Kernel": {"n": 1, "temperature": 1, "top_p": 1, "logprobs": False, "stop": [], **PENALTIES},
    "Open WebUI": {
        "chat_id": "c",
        "session_id": "s",
        "id": "m",
        "features": {"web_search": False},
        **COUNTED,
    },
    "Open WebUI, tools": {"tool_ids": [], "files": None, "params": {}, "stream": True},
    "LibreChat": {"user": "u", "stream": True, **PENALTIES},
    "LibreChat, web search off": {"user": "u", "stream": True, "web_search": False},
    "LiteLLM, prompt cache": {"messages": [CACHED], "prompt_cache_key": "k"},
    "Codex": {"client_metadata": {"turn": "1"}, "prompt_cache_key": "k", "store": False, "stream": True},
    "Qwen": {"enable_thinking": False, "stream": True},
    "OpenRouter": {"transforms": [], "include_reasoning": False, "usage": {"include": False}},
}
REFUSED: dict[str, tuple[dict[str, Any], str | None]] = {
    "Open WebUI, title": ({"max_completion_tokens": 1000, "stream": False}, "max_completion_tokens"),
    "Open WebUI, Ollama": ({"options": {"num_ctx": 4096}, "keep_alive": "5m"}, "options,keep_alive"),
    "LobeChat": ({"temperature": 0.5, "top_p": 1, **PENALTIES, **COUNTED}, "temperature"),
    "NextChat": ({"messages": [SYSTEM, USER], "temperature": 0.5, **PENALTIES}, "temperature,system"),
    "Big-AGI": ({"messages": [SYSTEM, USER], "max_tokens": 2048, "n": 1}, "max_tokens,system"),
    "Jan": ({"messages": [{**USER, "id": "m"}], "top_k": 40, "min_p": 0.05}, "top_k,min_p,messages.id"),
    "llama.cpp": ({"cache_prompt": True, "samplers": "k", "timings_per_token": True}, None),
    "SillyTavern": ({"messages": [{**USER, "name": "Ana"}], "max_tokens": 300}, "max_tokens,messages.name"),
    "AnythingLLM": ({"messages": [SYSTEM, *TURNS, USER], "temperature": 0.7}, "temperature,system,history"),
    "Chatbox": ({"messages": [SYSTEM, *TURNS, USER], "stream": True}, "system,history"),
    "Hugging Face chat": ({"messages": [*TURNS, USER], "stop": ["</s>"]}, "stop,history"),
    "Cursor": ({"temperature": 0, "tools": [TOOL], "tool_choice": "auto", "user": "u"}, None),
    "Continue": ({"max_tokens": 4096, "temperature": 0.1, "stream": True}, "max_tokens,temperature"),
    "Cline": ({"messages": [SYSTEM, PARTS], "temperature": 0, **COUNTED}, "temperature,system"),
    "Zed": ({"tools": [TOOL], "parallel_tool_calls": False, "prompt_cache_key": "k"}, None),
    "Copilot": ({"temperature": 0.1, "top_p": 1, "n": 1, "max_tokens": 4096, **COUNTED}, None),
    "Aider": ({"messages": [SYSTEM, *TURNS, USER], "temperature": 0, "stream": True}, None),
    "smolagents": ({"messages": [PARTS], "stop": ["Observation:"], "temperature": 0.2}, "stop,temperature"),
    "CrewAI": ({"stop": ["\nObservation:"]}, "stop"),
    "AutoGen": ({"messages": [{**USER, "name": "user"}], "stream": False}, "messages.name"),
    "LlamaIndex": ({"temperature": 0.1, "stream": False}, "temperature"),
    "DSPy": ({"messages": [SYSTEM, USER], "temperature": 0.0, "max_tokens": 4000}, None),
    "Spring AI": ({"temperature": 0.7, "stream": False}, "temperature"),
    "instructor, JSON": ({"messages": [SYSTEM, USER], "response_format": {"type": "json_object"}}, None),
    "OpenRouter, provider": ({"provider": {"order": ["x"]}, "thinking": {"type": "disabled"}}, None),
    "vLLM": ({"chat_template_kwargs": {"enable_thinking": False, "a": 1}, "top_k": 0}, None),
    "several": ({"n": 2, "logprobs": True, "seed": 1}, "n,logprobs,seed"),
    "reasoning sent back": (
        {"messages": [TURNS[0], {**TURNS[1], "reasoning_content": "r"}, USER]},
        "messages.reasoning_content,history",
    ),
}


def make_app(*ignore: str) -> Starlette:
    """Serve a model that was calibrated on texts, which takes the least."""
    bot = CFCRunnable(
        generator=RunnableLambda(lambda prompt: GOOD if prompt == EASY else "not the question"),
        generator_id="planted",
        artifact=with_prompt_kind(make_artifact(), "text"),
        verifier=judge,
        verifier_id="judge",
        metadata=topic,
        alpha="0.2",
    )
    settings = Settings(tokens=(TOKEN,), ignore=ignore, origins=("https://chat.example",))
    return create_app({"bot": bot, "strict": bot}, settings)


def ask(body: dict[str, Any], *ignore: str) -> Any:
    with TestClient(make_app(*ignore), headers=HEADERS) as client:
        return client.post("/v1/chat/completions", json={"model": "bot", "messages": [USER], **body})


@pytest.mark.parametrize("name", ANSWERED)
def test_front_end_is_answered(name: str) -> None:
    found = ask(ANSWERED[name])
    assert found.status_code == 200, found.text
    assert GOOD in found.text
    assert "x-cfc-ignored" not in found.headers


@pytest.mark.parametrize("name", REFUSED)
def test_front_end_is_refused_once_with_the_setting_that_accepts_it(name: str) -> None:
    body, expected = REFUSED[name]
    refused = ask(body)
    error = refused.json()["error"]
    assert (refused.status_code, error["code"]) == (400, "unsupported_parameter")
    setting = re.search(r"\(--ignore (.*)\)", error["message"])
    assert setting is not None
    assert expected in {None, setting[1]}
    accepted = ask(body, f"bot={setting[1]}")
    assert accepted.status_code == 200, accepted.text
    assert GOOD in accepted.text
    assert set(accepted.headers["x-cfc-ignored"].split(", ")) == set(setting[1].split(","))
    # Control: the setting is of one model.
    assert ask({**body, "model": "strict"}, f"bot={setting[1]}").status_code == 400


def test_at_least_thirty_front_ends_are_covered() -> None:
    assert len(ANSWERED | REFUSED) >= 30


def test_refusal_of_many_fields_is_short() -> None:
    found = ask({f"field_{number}": 1 for number in range(5000)})
    assert found.status_code == 400
    assert len(found.text) < 1000
    assert "4980 more" in found.text


@pytest.mark.parametrize("field", ["messages.role", "messages.content", "messages"])
def test_fields_that_are_always_read_cannot_be_ignored(field: str) -> None:
    with pytest.raises(Exception, match="cannot be ignored"):
        make_app(field)


def test_pages_of_stated_origins_may_send_requests() -> None:
    asked = {
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type,x-stainless-lang",
    }
    with TestClient(make_app()) as client:
        path = "/v1/chat/completions"
        good = client.options(path, headers={**asked, "Origin": "https://chat.example"})
        assert good.status_code == 200
        assert good.headers["access-control-allow-origin"] == "https://chat.example"
        assert "x-stainless-lang" in good.headers["access-control-allow-headers"]
        bad = client.options(path, headers={**asked, "Origin": "https://other.example"})
        assert "access-control-allow-origin" not in bad.headers
        body = {"model": "bot", "messages": [USER]}
        for headers, status in ((HEADERS, 200), ({}, 401)):
            found = client.post(path, json=body, headers={**headers, "Origin": "https://chat.example"})
            assert (found.status_code, found.headers["access-control-allow-origin"]) == (
                status,
                "https://chat.example",
            )
            assert "x-cfc-reason" in found.headers["access-control-expose-headers"]


@pytest.mark.parametrize("origin", ["chat.example", "https://chat.example/", "https://a b", "", "null"])
def test_invalid_origins_are_refused(origin: str) -> None:
    with pytest.raises(Exception, match="is no origin"):
        Settings(tokens=(TOKEN,), origins=(origin,))
