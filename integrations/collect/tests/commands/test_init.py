"""`langchain-cfc init`, against a server on this machine."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

import pytest
from langchain_cfc_collect import read_config

from langchain_cfc import PromptRecord
from tests.claims import chains as claims
from tests.cli.running import Ran, run
from tests.pages import hosted_model
from tests.recordings import list_facts
from tests.sampling.no_answer_server import make_choice, serve_odd_reply
from tests.serving.openai_server import serving

MANY = 40


@pytest.fixture(scope="module")
def facts() -> list[PromptRecord]:
    return list_facts()[:MANY]


@pytest.fixture
def url(facts: list[PromptRecord], monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A server that answers the facts, with README.md's instruction or without."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with serving(hosted_model(facts)) as address:
        yield address


@pytest.fixture
def folder(facts: list[PromptRecord], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a file of questions, in which commands are run."""
    with (tmp_path / "facts.csv").open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["question", "answer"])
        rows.writerows([one.input, one.reference[0]] for one in facts)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def init(url: str, *options: str) -> Ran:
    model = ("--base-url", url, "--model", "gpt-4o-mini-2024-07-18")
    return run("init", "--source", "facts.csv", *model, *options)


@pytest.mark.usefixtures("folder")
def test_init_leads_from_questions_to_an_answer(url: str, facts: list[PromptRecord]) -> None:
    ran = init(url, "-n", "3")
    assert (ran.code, ran.err) == (0, "")
    assert max(len(line) for line in ran.out.splitlines()) <= 80
    assert f"{MANY} questions in facts.csv, answers in answer" in ran.out
    next_line = ran.out.splitlines()[-1].strip()
    assert next_line == "langchain-cfc collect --config collect.toml --out records.jsonl"
    assert run(*next_line.split()[1:]).code == 0
    made = run("calibrate", "records.jsonl", "--alpha", "0.3", "--features", "1")
    assert made.code == 0
    question = str(facts[0].input)
    asked = run("ask", "artifact.json", question, "--config", "collect.toml", "--json")
    assert asked.code == 0
    # The template of the collection is applied, and generator and verifier are those calibrated.
    assert asked.data["guarantee"]["binding"] == "matched"
    assert set(asked.data["answers"]) <= {one.text for one in facts[0].candidates}


def test_init_overwrites_a_file_only_with_force(url: str, folder: Path) -> None:
    (folder / "collect.toml").write_text("mine", encoding="utf-8")
    init(url).assert_refused("collect.toml exists: give --out another path, or --force")
    assert (folder / "collect.toml").read_text() == "mine"
    assert init(url, "--force").code == 0
    assert read_config(folder / "collect.toml").n == 10


def test_init_reports_an_unreachable_server_and_writes_nothing(folder: Path) -> None:
    init("http://127.0.0.1:1", "--prompt", "{question}").assert_refused(
        "openai:gpt-4o-mini-2024-07-18 does not answer at http://127.0.0.1:1/v1"
    )
    assert not (folder / "collect.toml").exists()


@pytest.mark.usefixtures("folder")
def test_ask_refuses_config_together_with_other_sources_of_parts(url: str) -> None:
    assert init(url).code == 0
    for more in (("--generator", "a:b"), ("--replay", "demo")):
        ran = run("ask", "artifact.json", "x", "--config", "collect.toml", *more)
        assert ran.code == 2


def test_init_shows_what_is_wrong_with_answers_and_proposes_more_tokens(folder: Path) -> None:
    with serve_odd_reply(make_choice("The capital of", finish="length")) as model:
        ran = init(str(getattr(model, "openai_api_base", "")))
    assert ran.code == 1
    assert "note: no answer is labelled correct" in ran.out
    assert "(cut off)" in ran.out
    assert "1 answer did not end within 256 tokens" in " ".join(ran.out.split())
    assert "candidates were cut off: raise max_tokens" in " ".join(ran.out.split())
    settings = read_config(folder / "collect.toml", {}, ())
    assert settings.generator.arguments["max_tokens"] == 1024


SETTINGS = """
n = 1
unit = "claims"
store = "claims.db"
source = {path = "questions.jsonl", input = "question", reference = "answer"}
generator = {factory = "claiming_bot:model", id = "model"}
verifier = {factory = "claiming_bot:judge", id = "scripted"}
labeler = {factory = "langchain_cfc.labelers:NormalisedMatch"}
splitter = {factory = "langchain_cfc.claims:SentenceSplitter"}
"""


def test_ask_answers_with_the_parts_of_a_collection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    claims.make_artifact().save(Path("claims.json"))
    (tmp_path / "claiming_bot.py").write_text(
        "from tests.claims.chains import ANSWER, verify\n"
        "from tests.fakes import ScriptedModel\n"
        "def model():\n    return ScriptedModel(texts=[ANSWER] * 4)\n"
        "def judge():\n    return verify\n"
    )
    Path("collect.toml").write_text(SETTINGS)
    ran = run("ask", "claims.json", "What is Lima?", "--config", "collect.toml")
    assert ran.code == 0, ran.err
    assert ran.out.startswith(claims.LEFT)
    assert "moons" not in ran.out
