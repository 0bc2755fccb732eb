"""Bodies of chat front ends: what changes nothing is accepted, the rest is refused, or ignored by setting."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from langchain_cfc_server import Settings, create_app
from langchain_core.runnables import RunnableLambda
from langchain_core.stores import InMemoryByteStore
from starlette.testclient import TestClient

from integrations.server.tests.bots import EASY, GOOD, N, chain, judge, make_artifact, topic
from integrations.server.tests.parts import HEADERS, OTHER_TOKEN, TOKEN, make_request
from langchain_cfc import CFCRunnable
from langchain_cfc.errors import InputError
from tests.factories import with_prompt_kind

COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/responses"
SYSTEM = {"role": "system", "content": "You are a helpful assistant."}
USER = {"role": "user", "content": EASY}
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


def make_body(path: str, messages: list[Any], **fields: Any) -> dict[str, Any]:
    return {"model": "bot", ("messages" if path == COMPLETIONS else "input"): messages, **fields}


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    artifact = with_prompt_kind(make_artifact(), "text")
    parts: Any = {"verifier": judge, "metadata": topic, "alpha": "0.2", "verifier_id": "judge"}
    bot = CFCRunnable(
        generator=RunnableLambda(lambda prompt: GOOD if isinstance(prompt, str) else "not a text"),
        generator_id="planted",
        artifact=artifact,
        **parts,
    )
    models = {"bot": bot, "lenient": bot, "helped": bot.or_else(lambda _: "Ask a person.")}
    ignore = ("lenient=temperature, max_tokens,max_output_tokens,options,think", "lenient=system,n")
    app = create_app(models, Settings(tokens=(TOKEN,), ignore=ignore))
    with TestClient(app, headers=HEADERS) as made:
        yield made


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


def test_client_that_asks_again_gets_its_first_decision(
    bots: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in bots.items():
        monkeypatch.setenv(name, value)
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
