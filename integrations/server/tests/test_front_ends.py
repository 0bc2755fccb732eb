"""Bodies of chat front ends and clients: answered, or refused once with the setting that accepts them.

They have fields that these programs send, with short values. What changes nothing is accepted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from langchain_cfc_server import Settings, create_app
from langchain_core.runnables import RunnableLambda
from langchain_core.stores import InMemoryByteStore
from starlette.applications import Starlette
from starlette.testclient import TestClient

from integrations.server.tests.bots import EASY, GOOD, N, chain, judge, make_artifact, topic
from integrations.server.tests.parts import HEADERS, OTHER_TOKEN, TOKEN, make_request
from langchain_cfc import CFCRunnable
from langchain_cfc.errors import InputError
from tests.factories import with_prompt_kind

COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/responses"
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
# Open WebUI, LibreChat, LiteLLM, the AI SDK and OpenAI's own clients send these, alone or together.
NEUTRAL: list[dict[str, Any]] = [
    {"n": 1, "temperature": 1, "top_p": 1.0, "frequency_penalty": 0, "presence_penalty": 0.0},
    {"tools": [], "tool_choice": "none", "parallel_tool_calls": True, "functions": None},
    {"logprobs": False, "top_logprobs": None, "logit_bias": {}, "stop": [], "seed": None},
    {"response_format": {"type": "text"}, "modalities": ["text"], "verbosity": None},
    {"chat_id": "c", "session_id": "s", "id": "m", "user": "u", "metadata": {"a": 1}, "store": False},
    {"options": {}, "keep_alive": None, "features": {}, "variables": {"a": None}, "files": []},
    {"reasoning": {"effort": None, "summary": None}, "reasoning_effort": None, "max_tokens": None},
    {"prompt_cache_key": "k", "cache_control": {"type": "ephemeral"}, "stream_options": None},
]
CHANGING: list[tuple[str, Any]] = [
    ("temperature", 0.3),
    ("temperature", 0),
    ("temperature", True),
    ("max_tokens", 100),
    ("seed", 0),
    ("tools", [{"type": "function", "function": {"name": "f"}}]),
    ("parallel_tool_calls", "often"),
    ("reasoning_effort", "low"),
    ("logprobs", True),
    ("options", {"num_ctx": 4096}),
    ("think", True),
    ("think", 0),
    ("top_k", 0),
    ("web_search_options", {}),  # switches the search on
    ("logprobs", 0),
]


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
    models = {"bot": bot, "lenient": bot, "helped": bot.or_else(lambda _: "Ask a person.")}
    return create_app(models, settings)


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    ignore = ("lenient=temperature, max_tokens,max_output_tokens,options,think", "lenient=system,n")
    with TestClient(make_app(*ignore), headers=HEADERS) as made:
        yield made


def make_body(path: str, messages: list[Any], **fields: Any) -> dict[str, Any]:
    return {"model": "bot", ("messages" if path == COMPLETIONS else "input"): messages, **fields}


def ask(body: dict[str, Any], *ignore: str) -> Any:
    with TestClient(make_app(*ignore), headers=HEADERS) as client:
        return client.post(COMPLETIONS, json={"model": "bot", "messages": [USER], **body})


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
    assert ask({**body, "model": "lenient"}, f"bot={setting[1]}").status_code == 400


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


@pytest.mark.parametrize("path", [COMPLETIONS, RESPONSES])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fields", NEUTRAL)
def test_fields_that_change_nothing_are_accepted(
    client: TestClient, fields: dict[str, Any], stream: bool, path: str
) -> None:
    for model in ("bot", "helped"):
        fields = {name: value for name, value in fields.items() if path == COMPLETIONS or name != "n"}
        found = client.post(path, json=make_body(path, [USER], **fields) | {"model": model, "stream": stream})
        assert found.status_code == 200, found.text
        assert GOOD in found.text
        assert "x-cfc-ignored" not in found.headers


@pytest.mark.parametrize("path", [COMPLETIONS, RESPONSES])
@pytest.mark.parametrize(("name", "value"), CHANGING)
def test_fields_that_change_the_model_are_refused_with_the_setting(
    client: TestClient, name: str, value: Any, path: str
) -> None:
    found = client.post(path, json=make_body(path, [USER], **{name: value}))
    assert found.status_code == 400, found.text
    error = found.json()["error"]
    assert error["param"] == name
    assert f"(--ignore {name})" in error["message"]


@pytest.mark.parametrize("path", [COMPLETIONS, RESPONSES])
@pytest.mark.parametrize("stream", [False, True])
def test_operator_lets_fields_of_one_model_be_ignored(client: TestClient, stream: bool, path: str) -> None:
    sent = {"n": 2, "temperature": 0.3, "options": {"num_ctx": 1}, "think": False, "stream": stream}
    for role in ("system", "developer"):
        body = make_body(path, [{**SYSTEM, "role": role}, USER], **sent)
        found = client.post(path, json={**body, "model": "lenient"})
        assert found.status_code == 200, found.text
        assert GOOD in found.text
        assert set(found.headers["x-cfc-ignored"].split(", ")) == {
            "n",
            "temperature",
            "options",
            "think",
            "system",
        }
        assert client.post(path, json=body).status_code == 400  # the other model ignores nothing
    assert client.post(path, json={**make_body(path, [USER]), "model": "lenient", "top_p": 0.5}).is_error


def test_list_of_models_names_what_is_ignored(client: TestClient) -> None:
    found = {one["id"]: one["cfc"]["ignored"] for one in client.get("/v1/models").json()["data"]}
    assert (found["bot"], found["helped"]) == ([], [])
    assert found["lenient"] == sorted(
        ["max_output_tokens", "max_tokens", "n", "options", "system", "temperature", "think"]
    )
    described = client.get("/openapi.json").json()["components"]["schemas"]["ChatRequest"]["properties"]
    assert described["think"] == {"description": "Ignored by lenient."}
    assert described["top_p"]["enum"] == [None, "", [], {}, 1]
    assert described["web_search_options"]["enum"] == [None]


def test_system_message_of_a_model_of_texts_is_refused_with_the_setting(client: TestClient) -> None:
    for path, body in (
        (COMPLETIONS, make_body(COMPLETIONS, [SYSTEM, USER])),
        (COMPLETIONS, make_body(COMPLETIONS, [{**SYSTEM, "role": "developer"}, USER])),
        (RESPONSES, make_body(RESPONSES, [USER], instructions="Be brief.")),
    ):
        error = client.post(path, json=body).json()["error"]
        assert (error["code"], error["param"]) == ("unsupported_parameter", "messages")
        assert "(--ignore system)" in error["message"]
    # One that says nothing changes nothing.
    for content in ("", " \n", [{"type": "text", "text": "", "cache_control": {"type": "ephemeral"}}]):
        body = make_body(COMPLETIONS, [{"role": "system", "content": content}, USER])
        assert client.post(COMPLETIONS, json=body).status_code == 200
    only = client.post(COMPLETIONS, json={**make_body(COMPLETIONS, [SYSTEM]), "model": "lenient"})
    assert (only.status_code, only.json()["error"]["code"]) == (400, "invalid_request")


def test_null_fields_and_cache_marks_of_messages_are_accepted(client: TestClient) -> None:
    marked = {"type": "text", "text": EASY, "cache_control": {"type": "ephemeral"}}
    message = {**USER, "content": [marked], "name": None, "tool_calls": None, "annotations": []}
    found = client.post(COMPLETIONS, json=make_body(COMPLETIONS, [message]))
    assert found.json()["choices"][0]["message"]["content"] == GOOD
    # Control: other fields of messages are checked as before.
    assert client.post(COMPLETIONS, json=make_body(COMPLETIONS, [{**USER, "weight": 1}])).status_code == 400


@pytest.mark.usefixtures("bots_here")
def test_client_that_asks_again_gets_its_first_decision() -> None:
    drawn: list[str] = []

    def draw(_: Any) -> str:
        drawn.append("" if len(drawn) < N else GOOD)
        return drawn[-1]

    for store in (InMemoryByteStore(), None):
        drawn.clear()
        settings = Settings(tokens=(TOKEN, OTHER_TOKEN), decisions=store)
        app = create_app({"bot": chain(generator=RunnableLambda(draw)).or_else(lambda _: "?")}, settings)
        with TestClient(app) as client:

            def ask(token: str, **more: Any) -> Any:
                given = {"Authorization": f"Bearer {token}"}
                return client.post(COMPLETIONS, json=make_request(EASY, **more), headers=given)

            first, again = (ask(TOKEN).json()["choices"][0]["message"]["content"] for _ in range(2))
            # Control: without a store, the second request draws what is answered.
            assert (first, again) == ("?", "?" if store else GOOD)
            assert ask(OTHER_TOKEN).json()["cfc"]["best"] == GOOD
            assert ask(TOKEN, cfc={"alpha": "0.1"}).status_code == (400 if store else 200)
    with pytest.raises(InputError, match="expected a BaseStore"):
        Settings(tokens=(TOKEN,), decisions={})  # type: ignore[arg-type]


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
