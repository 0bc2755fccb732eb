"""`langchain-cfc collect --source langsmith:...`: from a dataset to an artifact that serves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from langchain_cfc_collect import Store

from integrations.langsmith.tests.endpoint import Fault, LangSmith
from langchain_cfc import PromptRecord, read_records
from tests.cli.running import Ran, run

PARTS = """
def answer(prompt):
    return "Lima"

def judge(prompt, candidates):
    return [0.1 for _ in candidates]
"""
TOML = """
store = "facts.db"
n = 2
[source]
path = "langsmith:facts"
input = "question"
reference = "answers"
metadata = ["topic", "split"]
[generator]
factory = "collect_parts:answer"
id = "capitals-bot"
[verifier]
factory = "collect_parts:judge"
id = "capitals-judge"
[labeler]
factory = "langchain_cfc.labelers:NormalisedMatch"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, langsmith: LangSmith) -> Path:
    """A folder with settings, and a dataset of forty questions in LangSmith."""
    (tmp_path / "collect_parts.py").write_text(PARTS)
    (tmp_path / "collect.toml").write_text(TOML)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    langsmith.dataset("facts", [make_row(number) for number in range(40)])
    langsmith.page_size = 15
    return tmp_path


def make_row(number: int) -> dict[str, Any]:
    return {
        "inputs": {"question": f"question {number}"},
        "outputs": {"answers": ["Lima" if number % 2 else "Quito"]},
        "metadata": {"topic": "capital"},
    }


def collect(folder: Path, *more: str) -> Ran:
    return run("collect", "--config", folder / "collect.toml", "--out", folder / "records.jsonl", *more)


def records(folder: Path) -> list[PromptRecord]:
    return list(read_records(folder / "records.jsonl"))


def test_collect_from_langsmith_stores_the_dataset_version(folder: Path, langsmith: LangSmith) -> None:
    ran = collect(folder)
    assert ran.code == 0, ran.err
    made = records(folder)
    assert {str(one.input) for one in made} == {f"question {number}" for number in range(40)}
    assert all(one.metadata == {"topic": "capital", "split": "base"} for one in made)
    assert sum(one.candidates[0].correct for one in made) == 20
    version = langsmith.datasets["facts"].versions[-1][0]
    with Store(folder / "facts.db") as store:
        assert store.configuration["source"] == f"langsmith:facts?as_of={version.isoformat()}"


def test_collect_from_langsmith_can_be_resumed(folder: Path) -> None:
    assert collect(folder, "--limit", "10").code == 0
    assert len(records(folder)) == 10
    assert collect(folder).code == 0
    assert len(records(folder)) == 40


def test_collect_notices_a_dataset_edited_between_runs(folder: Path, langsmith: LangSmith) -> None:
    assert collect(folder, "--limit", "10").code == 0
    with Store(folder / "facts.db") as store:
        noted = store.configuration["source"]
    langsmith.edit("facts", {langsmith.ids("facts")[3]: {"outputs": {"answers": ["edited"]}}})
    refused = collect(folder)
    assert refused.code == 2
    assert "source" in refused.err
    assert "2026-01-01T00:00:01" in " ".join(refused.err.split())
    # The version that the store was begun with is still there to be read.
    assert run("collect", "--config", folder / "collect.toml", "--source", noted).code == 0
    # The new version labels what was drawn.
    again = collect(folder, "--relabel")
    assert again.code == 0
    assert "labelled by a corrected reference: 1 prompt" in " ".join(again.err.split())
    [edited] = (one for one in records(folder) if one.input == "question 3")
    assert not any(candidate.correct for candidate in edited.candidates)
    assert run("collect", "--config", folder / "collect.toml", "--source", noted).code == 2


def test_collect_from_a_file_does_not_notice_an_edited_question(folder: Path, langsmith: LangSmith) -> None:
    # The same rows as a file, which says nothing of its version.
    def written() -> None:
        import json

        content = langsmith.datasets["facts"].versions[-1][1].values()
        lines = [json.dumps({**one["inputs"], **one["outputs"], **one["metadata"]}) for one in content]
        (folder / "facts.jsonl").write_text("\n".join(lines))

    options = ("--source", str(folder / "facts.jsonl"), "--set", 'source.metadata=["topic"]')
    written()
    assert collect(folder, "--limit", "10", *options).code == 0
    number = int(str(records(folder)[0].input).rpartition(" ")[2])
    langsmith.edit("facts", {langsmith.ids("facts")[number]: {"inputs": {"question": "edited?"}}})
    written()
    assert collect(folder, *options).code == 0
    assert len(records(folder)) == 41
    # Another reference of the same question is noticed.
    langsmith.edit("facts", {langsmith.ids("facts")[5]: {"outputs": {"answers": ["edited"]}}})
    written()
    ran = collect(folder, *options)
    assert ran.code == 2
    assert "(--relabel)" in ran.err


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("langsmith:gone", "LangSmithNotFoundError"),
        ("langsmth:facts", "no source langsmth: found langsmith"),
        ("langsmith:facts?v=1", "expected as_of=VERSION or split=SPLIT"),
    ],
)
def test_collect_refuses_invalid_sources_before_any_call(folder: Path, source: str, words: str) -> None:
    ran = collect(folder, "--source", source)
    assert ran.code == 2
    assert words.replace(" ", "") in "".join(ran.err.split())
    assert not (folder / "records.jsonl").exists()


def test_collect_fails_if_a_page_of_the_dataset_fails(folder: Path, langsmith: LangSmith) -> None:
    langsmith.faults.append(Fault("/examples", content=b"[", times=99))
    ran = collect(folder)
    assert ran.code == 2
    assert "reading" in ran.err
    langsmith.faults.clear()
    assert collect(folder).code == 0
    assert len(records(folder)) == 40
