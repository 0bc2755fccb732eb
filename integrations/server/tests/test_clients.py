"""The server, used by OpenAI's own client, and by clients of another language as npm installs them."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import openai
import pytest

from integrations.server.tests.bots import EASY, FORMAT, GOOD, HARD, TOOL, UNSURE, WEATHER, N
from integrations.server.tests.parts import TOKEN, run_server


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
        (openai.BadRequestError, "level_not_calibrated", {"extra_body": {"cfc": {"alpha": "0.3"}}}),
        (openai.InternalServerError, "internal_error", {"model": "broken"}),
    ],
)
def test_openai_client_raises_errors_by_their_kind(
    client: openai.OpenAI, kind: type[openai.APIStatusError], code: str, more: dict[str, Any]
) -> None:
    with pytest.raises(kind) as caught:
        create_completion(client, **more)
    assert caught.value.code == code
    assert caught.value.request_id


ABSTENTION = "I do not know."
NODE = ("openai", "ai", "@ai-sdk/openai-compatible", "@langchain/openai", "@langchain/core", "zod")
# Each prints the answer to its question, whole and as a stream, as a JSON list.
SCRIPTS = {
    "openai.mjs": """
import OpenAI from "openai";
const client = new OpenAI({ baseURL, apiKey, maxRetries: 0 });
const messages = [{ role: "user", content: question }];
const whole = await client.chat.completions.create({ model: "bot", messages });
let text = "";
for await (const chunk of await client.chat.completions.create({ model: "bot", messages, stream: true }))
  text += chunk.choices[0]?.delta?.content ?? "";
const response = await client.responses.create({ model: "bot", input: question });
console.log(JSON.stringify([whole.choices[0].message.content, text, response.output_text]));
""",
    "ai-sdk.mjs": """
import { generateText, streamText } from "ai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
const model = createOpenAICompatible({ name: "cfc", baseURL, apiKey }).chatModel("bot");
const whole = await generateText({ model, prompt: question, maxRetries: 0 });
let text = "";
for await (const part of streamText({ model, prompt: question, maxRetries: 0 }).textStream) text += part;
console.log(JSON.stringify([whole.text, text]));
""",
    "langchain.mjs": """
import { ChatOpenAI } from "@langchain/openai";
const model = new ChatOpenAI({ model: "bot", apiKey, configuration: { baseURL }, maxRetries: 0 });
let text = "";
for await (const chunk of await model.stream(question)) text += chunk.content;
console.log(JSON.stringify([(await model.invoke(question)).content, text]));
""",
}
HEAD = "const [baseURL, apiKey, question] = process.argv.slice(2);\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the clients and the scripts."""
    made = tmp_path_factory.mktemp("clients")
    if (npm := shutil.which("npm")) is None or shutil.which("node") is None:
        pytest.skip("npm is not installed")
    (made / "package.json").write_text('{"private": true}', encoding="utf-8")
    command = [npm, "install", "--no-audit", "--no-fund", "--silent", *NODE]
    done = subprocess.run(command, cwd=made, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        pytest.skip(f"npm cannot install the clients: {done.stderr[-300:]}")
    for name, text in SCRIPTS.items():
        (made / name).write_text(HEAD + text, encoding="utf-8")
    return made


@pytest.mark.long
@pytest.mark.parametrize("name", SCRIPTS)
def test_real_client_gets_answer_and_abstention(name: str, folder: Path, bots: dict[str, str]) -> None:
    with run_server(bots) as server:
        for question, expected in ((EASY, GOOD), (HARD, ABSTENTION)):
            command = ["node", str(folder / name), f"{server.url}/v1", TOKEN, question]
            done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
            assert done.returncode == 0, done.stderr[-2000:]
            found = json.loads(done.stdout.splitlines()[-1])
            assert set(found) == {expected}
