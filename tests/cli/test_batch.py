"""`ask --batch`: a file of questions in, a file of answers out."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from langchain_cfc import calibrate
from tests.recordings import list_facts

from .running import run


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    path = tmp_path / "artifact.json"
    calibrate(list_facts()[:600], max_wrong_of_all="0.05").save(path)
    return path


def write_questions(path: Path, questions: list[str]) -> Path:
    with path.open("w", newline="", encoding="utf-8-sig") as file:
        csv.writer(file).writerows(
            [["id", "Question"], *([str(row), one] for row, one in enumerate(questions))]
        )
    return path


def test_answers_are_written_once_and_again_from_the_journal(artifact: Path, tmp_path: Path) -> None:
    records = list_facts()[600:640]
    asked = [*(str(one.input) for one in records), str(records[0].input), "What is \n recorded nowhere?"]
    questions, out = write_questions(tmp_path / "questions.csv", asked), tmp_path / "answers.csv"
    command = ("ask", artifact, "--batch", questions, "--out", out, "--replay", "demo")
    ran = run(*command, "--max-wrong-share", "0.1", "--json")
    assert ran.code == 0
    assert ran.data["guarantee"]["batch"]["questions"] == 41
    with out.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [one["question"] for one in rows] == asked
    assert [one["answer"] for one in rows] == [one["best"] or "" for one in ran.data["results"]]
    assert 20 < sum(one["reason"] == "answered" for one in rows) < 42
    assert rows[-1]["reason"] == "failed"
    written = out.read_bytes()
    again = run(*command, "--max-wrong-share", "0.1")
    assert "1 of 42 rows failed, the first in line 43: " in again.out
    assert out.read_bytes() == written
    run(*command).assert_refused("--max-wrong-share", "0.1")


def test_nothing_answered_is_exit_code_1(artifact: Path, tmp_path: Path) -> None:
    questions = write_questions(tmp_path / "q.csv", ["recorded nowhere", "nor this"])
    ran = run("ask", artifact, "--batch", questions, "--out", tmp_path / "a.csv", "--replay", "demo")
    assert ran.code == 1


WRONG_FILES = {
    "two question columns": (b"question,input\na,b\n", "line 1"),
    "no question column": (b"id,text\n1,a\n", "line 1"),
    "empty": (b"", "at least two"),
    "ragged": (b"id,question\n1,a\n2,b,c\n", "line 3"),
    "empty cell": (b"id,question\n1,a\n2, \n", "line 3"),
    "not UTF-8": (b"question\nfine\nGr\xfc\xdfe\n", "line 3"),
    "ragged after a question of two lines": (b'id,question\n1,"a\nb"\n2,b,c\n', "line 4"),
    "open quotation mark": (b'question\nfine\n"open\n', "line 3"),
    "one question": (b"question\nfine\nfine\n", "at least two"),
    "no question": (b"question\n", "at least two"),
}


@pytest.mark.parametrize(("content", "words"), WRONG_FILES.values(), ids=WRONG_FILES)
def test_files_that_are_no_batch_are_refused(
    artifact: Path, tmp_path: Path, content: bytes, words: str
) -> None:
    questions, out = tmp_path / "q.csv", tmp_path / "a.csv"
    questions.write_bytes(content)
    run("ask", artifact, "--batch", questions, "--out", out, "--replay", "demo").assert_refused(words)
    assert not out.exists()


def test_options_that_do_not_fit_are_refused(artifact: Path, tmp_path: Path) -> None:
    questions = write_questions(tmp_path / "q.csv", ["a", "b"])
    out = ("--out", tmp_path / "a.csv", "--replay", "demo")
    run("ask", artifact, "--batch", questions, "--replay", "demo").assert_refused("--out")
    run("ask", artifact, "a", "--batch", questions, *out).assert_refused("or no question")
    run("ask", artifact, "--batch", questions, *out, "--alpha", "0.1").assert_refused("--max-wrong-share")
    run("ask", artifact, "a", "--max-wrong-share", "0.1", "--replay", "demo").assert_refused("batch")
    run("ask", artifact, "--replay", "demo").assert_refused("one question")
    run("ask", artifact, "--batch", tmp_path / "none.csv", *out).assert_refused("no such file")
    run("ask", artifact, "--batch", questions, "--out", questions, "--replay", "demo").assert_refused(
        "not be overwritten"
    )
    assert questions.read_text(encoding="utf-8-sig").startswith("id,Question")
