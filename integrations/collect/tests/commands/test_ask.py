"""`langchain-cfc ask --config`: the parts of a collection answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.claims import chains as claims
from tests.cli.running import run

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
