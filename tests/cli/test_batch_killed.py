"""`ask --batch` killed at random moments: it goes on, and ends as if it had not been disturbed."""

from __future__ import annotations

import csv
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from langchain_cfc import Candidate, PromptRecord, calibrate
from langchain_cfc.records.splits import digest_inputs

KILLS = 12
ROWS = 600
# Answers at once or a little later, writes each draw into a file, and judges by the length of a digest.
BOT = """
import hashlib, os, time
from langchain_core.runnables import RunnableLambda

def rate(text):
    return int(hashlib.sha256(text.encode()).hexdigest()[:8], 16) / 2**32

def draw(prompt):
    time.sleep(rate(prompt) / 30)
    with open("drawn.txt", "a") as file:
        file.write(prompt + "\\n")
    return "answer to " + prompt

model = RunnableLambda(draw)

def judge(prompt, candidates):
    return [rate(str(one)) for one in candidates]
"""
OPTIONS = (
    "--batch questions.csv --out answers.csv --max-wrong-share 0.1 --generator bot:model --verifier bot:judge"
)
COMMAND = [
    *(sys.executable, "-c", "from langchain_cfc.cli import main; main()", "ask", "artifact.json"),
    *OPTIONS.split(),
]


def make_workplace(folder: Path) -> Path:
    """A folder with a model, an artifact, and questions of which each fifth stands there twice."""
    folder.mkdir()
    (folder / "bot.py").write_text(BOT)
    labelled = [
        PromptRecord(
            id=f"labelled {row}",
            input=f"labelled {row}",
            candidates=(Candidate(text="a", score=row / 300, correct=row < 100 or row % 3 > 0),) * 2,
        )
        for row in range(300)
    ]
    calibrate(labelled, max_wrong_of_all="0.2").save(folder / "artifact.json")
    with (folder / "questions.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["question"], *([f"question {row * 4 // 5}"] for row in range(ROWS))])
    return folder


def list_lines(path: Path) -> list[str]:
    """The lines of a file that were written to their ends."""
    return path.read_text().split("\n")[:-1] if path.exists() else []


def list_kept(folder: Path) -> set[int]:
    return {json.loads(one)["question"] for one in list_lines(folder / "answers.csv.journal.jsonl")[1:]}


def kill_later(folder: Path, chance: random.Random) -> bool:
    """Start the command, and kill it within thirty questions; whether it was still running."""
    journal = folder / "answers.csv.journal.jsonl"
    enough = len(list_lines(journal)) + chance.randint(0, 30)
    process = subprocess.Popen(COMMAND, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None and len(list_lines(journal)) < enough:
        time.sleep(0.01)
    time.sleep(chance.random() / 20)
    process.send_signal(signal.SIGKILL)
    return process.wait() == -signal.SIGKILL


@pytest.mark.long
@pytest.mark.skipif(os.name == "nt", reason="SIGKILL is a signal of POSIX")
def test_killed_runs_end_in_the_answers_of_an_undisturbed_one(tmp_path: Path) -> None:
    undisturbed, killed = make_workplace(tmp_path / "undisturbed"), make_workplace(tmp_path / "killed")
    subprocess.run(COMMAND, cwd=undisturbed, check=True, capture_output=True, timeout=300)
    chance, stages = random.Random(0), []  # noqa: S311 - moments of a test
    for _ in range(KILLS):
        assert kill_later(killed, chance)
        assert not (killed / "answers.csv").exists()
        stages.append((list_kept(killed), len(list_lines(killed / "drawn.txt"))))
    subprocess.run(COMMAND, cwd=killed, check=True, capture_output=True, timeout=300)
    answers = (undisturbed / "answers.csv").read_bytes()
    assert (killed / "answers.csv").read_bytes() == answers
    assert ROWS // 10 < answers.count(b"answered") < ROWS
    # What was kept at some kill was not drawn after it.
    drawn = list_lines(killed / "drawn.txt")
    assert stages[-1][0] <= set(digest_inputs(drawn).tolist())
    for kept, count in stages:
        later = set(drawn[count:])
        assert not kept & set(digest_inputs(sorted(later)).tolist())
    names = ["__pycache__", *(one.name for one in undisturbed.iterdir())]
    assert {one.name for one in killed.iterdir()} <= set(names)
