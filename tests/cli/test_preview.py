"""`langchain-cfc preview`, on a chain in a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.running import run

CHAIN = """
from langchain_cfc.demo import load_recording
from langchain_cfc.demo.replay import ReplayChatModel

chain = ReplayChatModel.from_records(load_recording())
"""


@pytest.fixture
def chain(tmp_path: Path) -> str:
    (tmp_path / "previewed_chain.py").write_text(CHAIN, encoding="utf-8")
    return f"{tmp_path / 'previewed_chain.py'}:chain"


def test_it_shows_where_answers_agree_and_promises_nothing(chain: str, tmp_path: Path) -> None:
    questions = tmp_path / "questions.txt"
    questions.write_text("24 * 437\n\nWhat is the currency of Norway?\n", encoding="utf-8")
    ran = run("preview", chain, questions)
    assert ran.code == 0
    assert "2 questions, 5 answers each. On 50 % of them all 5 agree" in ran.out
    first, second = ran.out.index("24 * 437"), ran.out.index("What is the currency of Norway?")
    assert first < second
    assert "5x Norwegian krone" in ran.out
    assert "No guarantee" in ran.out
    data = run("preview", chain, questions, "--json", "-n", "10", "--limit", "1").data
    assert [one["question"] for one in data["questions"]] == ["24 * 437"]
    assert sum(one["count"] for one in data["questions"][0]["clusters"]) == data["n"] == 10


def test_a_question_that_fails_is_listed(chain: str, tmp_path: Path) -> None:
    questions = tmp_path / "questions.txt"
    questions.write_text("24 * 437\nWhat is love?\n", encoding="utf-8")
    ran = run("preview", chain, questions)
    assert ran.code == 1
    assert "1 failed" in ran.out
    assert "What is love?" in ran.out


def test_files_that_hold_no_questions_are_refused(chain: str, tmp_path: Path) -> None:
    empty, binary = tmp_path / "empty.txt", tmp_path / "binary.txt"
    empty.write_text("\n \n", encoding="utf-8")
    binary.write_bytes(b"\xff\xfe\x00")
    for path in (empty, binary, tmp_path / "absent.txt"):
        ran = run("preview", chain, path)
        assert ran.code == 2
        assert str(path.name) in ran.err
