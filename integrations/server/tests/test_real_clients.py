"""Clients of other languages and packages, as npm and pip install them, against a running server."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from integrations.server.tests.bots import EASY, GOOD, HARD
from integrations.server.tests.parts import TOKEN, run_server

pytestmark = pytest.mark.long
ABSTENTION = "I do not know."
NODE = ("openai", "ai", "@ai-sdk/openai-compatible", "@langchain/openai", "@langchain/core", "zod")
PYTHON = ("litellm", "pydantic-ai-slim[openai]", "instructor")
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
    "litellm.py": """
import litellm
given = dict(model="openai/bot", api_base=base, api_key=key, messages=[{"role": "user", "content": question}])
whole = litellm.completion(**given).choices[0].message.content
text = "".join(one.choices[0].delta.content or "" for one in litellm.completion(**given, stream=True))
print(json.dumps([whole, text]))
""",
    "pydantic_ai.py": """
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
agent = Agent(OpenAIChatModel("bot", provider=OpenAIProvider(base_url=base, api_key=key)))
print(json.dumps([agent.run_sync(question).output]))
""",
    "instructor.py": """
import instructor, openai
client = instructor.from_openai(openai.OpenAI(base_url=base, api_key=key))
found = client.chat.completions.create(
    model="bot", response_model=None, messages=[{"role": "user", "content": question}]
)
print(json.dumps([found.choices[0].message.content]))
""",
}
HEADS = {
    ".mjs": "const [baseURL, apiKey, question] = process.argv.slice(2);\n",
    ".py": "import json, sys\nbase, key, question = sys.argv[1:]\n",
}


def install(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        pytest.skip(f"{command[0]} cannot install the clients: {done.stderr[-300:]}")


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Install the clients, and return the program that runs a script, by its suffix."""
    folder = tmp_path_factory.mktemp("clients")
    if (npm := shutil.which("npm")) is None or (node := shutil.which("node")) is None:
        pytest.skip("npm is not installed")
    (folder / "package.json").write_text('{"private": true}', encoding="utf-8")
    install([npm, "install", "--no-audit", "--no-fund", "--silent", *NODE], folder)
    install([sys.executable, "-m", "venv", "python"], folder)
    python = str(folder / "python" / "bin" / "python")
    install([python, "-m", "pip", "install", "--quiet", *PYTHON], folder)
    for name, text in SCRIPTS.items():
        # Not by the name of the package that it imports.
        (folder / f"run-{name}").write_text(HEADS[Path(name).suffix] + text, encoding="utf-8")
    return {".mjs": [node, str(folder)], ".py": [python, str(folder)]}


@pytest.mark.parametrize("name", SCRIPTS)
def test_real_client_gets_answer_and_abstention(
    name: str, programs: dict[str, list[str]], bots: dict[str, str]
) -> None:
    program, folder = programs[Path(name).suffix]
    with run_server(bots) as server:
        for question, expected in ((EASY, GOOD), (HARD, ABSTENTION)):
            command = [program, str(Path(folder) / f"run-{name}"), f"{server.url}/v1", TOKEN, question]
            done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
            assert done.returncode == 0, done.stderr[-2000:]
            found = json.loads(done.stdout.splitlines()[-1])
            assert set(found) == {expected}
