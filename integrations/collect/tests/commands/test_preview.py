"""`langchain-cfc preview`: a first look at a chain, without labels and without a guarantee."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from langchain_cfc_collect.preview import NO_GUARANTEE

from tests.cli.running import run

# Answers by question, all alike, or different for each draw; no answer fails.
CHAIN = """
from itertools import count

from langchain_core.runnables import RunnableLambda

numbers = count()


def answer(question):
    if "fail" in question:
        raise RuntimeError("no answer today")
    return f"answer {next(numbers)}" if "hard" in question else f"It is {question}."


chain = RunnableLambda(answer)


def last_word(text):
    return text.rpartition(" ")[2]


def judge(prompt, candidates):
    return [0.25] * len(candidates)


def extract(text):
    return "the same"
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "looked_at.py").write_text(CHAIN)
    (tmp_path / "questions.txt").write_text("an easy one\n\n  a hard one\t\nanother easy one\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "looked_at", raising=False)
    return tmp_path


def test_preview_prints_clusters_and_shares_in_80_columns() -> None:
    ran = run("preview", "looked_at.py:chain", "questions.txt", "-n", "4")
    assert (ran.code, ran.err) == (0, "")
    assert max(map(len, ran.out.splitlines())) <= 80
    lines = [line for line in ran.out.splitlines() if " one " in line]
    assert [line.partition("  ")[0] for line in lines] == ["a hard one", "an easy one", "another easy one"]
    assert "1 x answer 0" in lines[0]
    assert lines[0].split()[-3:] == ["25", "%", "0.75"]
    assert "and 1 more" in ran.out
    assert "all agree     on 67 % of the questions" in ran.out
    assert "answers       2.0 distinct ones per question" in ran.out
    assert NO_GUARANTEE in " ".join(ran.out.split())


def test_preview_exits_with_1_and_shows_a_failed_question(folder: Path) -> None:
    (folder / "questions.txt").write_text("an easy one\nfail here\n")
    ran = run("preview", "looked_at.py:chain", "questions.txt")
    assert ran.code == 1
    assert "failed fail here: " in ran.out
    assert "no answer today" in ran.out
    assert "failed        1" in ran.out
    assert "an easy one" in ran.out


def test_preview_uses_limit_verifier_and_answer_options() -> None:
    options = ["--limit", "2", "--verifier", "looked_at:judge", "--answer", "looked_at:last_word", "--json"]
    ran = run("preview", "looked_at:chain", "questions.txt", "-n", "3", *options)
    assert [one["mean_score"] for one in ran.data["questions"]] == [0.25, 0.25]
    # By the last word, the draws of the hard question still differ.
    assert sorted(len(one["clusters"]) for one in ran.data["questions"]) == [1, 3]


@pytest.mark.parametrize("name", ["questions.csv", "questions.jsonl"])
def test_preview_reads_questions_from_a_column(folder: Path, name: str) -> None:
    rows = [{"id": "1", "q": "an easy one"}, {"id": "2", "q": "a hard one"}]
    text = (
        "id,q\n" + "".join(f"{row['id']},{row['q']}\n" for row in rows)
        if name.endswith("csv")
        else "".join(json.dumps(row) + "\n" for row in rows)
    )
    (folder / name).write_text(text)
    ran = run("preview", "looked_at:chain", name, "--question", "q", "--json")
    assert [one["question"] for one in ran.data["questions"]] == ["a hard one", "an easy one"]
    assert "name the column of the questions with --question" in run("preview", "looked_at:chain", name).err
    assert "the columns are id, q" in run("preview", "looked_at:chain", name, "--question", "text").err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["looked_at:chain", "nothing.txt"], "No such file or directory: nothing.txt"),
        (["looked_at:chain", "empty.txt"], "there are no questions"),
        (["looked_at:chain", "binary.txt"], "is not UTF-8 text"),
        (["looked_at.py:absent", "questions.txt"], "has no attribute 'absent'"),
        (["absent.py:chain", "questions.txt"], "No module named 'absent'"),
        (["looked_at:chain", "questions.txt", "-n", "0"], "Invalid value"),
    ],
)
def test_preview_refuses_invalid_arguments(folder: Path, arguments: list[str], message: str) -> None:
    (folder / "empty.txt").write_text("\n \n")
    (folder / "binary.txt").write_bytes(b"\xff\xfe\x00")
    run("preview", *arguments).assert_refused(message)


def test_preview_loads_chains_from_files_but_not_over_loaded_modules(folder: Path) -> None:
    (folder / "deep").mkdir()
    (folder / "deep" / "looked_elsewhere.py").write_text(CHAIN)
    assert run("preview", "deep/looked_elsewhere.py:chain", "questions.txt").code == 0
    (folder / "json.py").write_text(CHAIN)
    run("preview", "json.py:chain", "questions.txt").assert_refused("a module named 'json' is loaded already")
