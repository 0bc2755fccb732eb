"""Yes/no questions from `init` to the certificate, with a model that nearly always says yes."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from langchain_cfc import read_records
from tests.cli.running import run
from tests.serving.openai_bodies import Answer
from tests.serving.openai_server import Script, serving

MANY, DRAWS = 240, 4
YES, NO = "Yes, there is no doubt about it.", "No."


def prepare_questions(folder: Path, yes: Any, no: Any, *, share_yes: float) -> tuple[Script, dict[str, bool]]:
    """Write a dataset, and a server whose model says yes to this share of questions, and else the truth."""
    luck = random.Random(27)  # noqa: S311 - a test
    truth = {f"Is statement {number} true?": luck.random() < 0.5 for number in range(MANY)}
    rows = [{"question": question, "answer": yes if true else no} for question, true in truth.items()]
    (folder / "q.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    answers = {
        f"Give the answer alone: {question}": [
            Answer(YES if true or luck.random() < share_yes else NO, -0.05 - luck.random() / 20)
            for _ in range(DRAWS)
        ]
        for question, true in truth.items()
    }
    return Script(answers), truth


@pytest.mark.parametrize(
    ("yes", "no", "share_yes"), [("yes", "no", 0.9), (True, False, 0.9), ("yes", "no", 0.0)]
)
def test_certificates_of_yes_no_questions_are_true_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, yes: Any, no: Any, share_yes: float
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    script, truth = prepare_questions(tmp_path, yes, no, share_yes=share_yes)
    with serving(script) as url:
        model = ("--base-url", url, "--model", "m")
        made = run("init", "--source", "q.jsonl", *model, "-n", str(DRAWS), "--json")
        assert run("collect", "--config", "collect.toml", "--out", "r.jsonl").code == 0
    assert made.data["settings"]["labeler"] == {
        "factory": "ClosedSet",
        "arguments": {"members": [yes, no]},
    }
    # Both members are tried, so that a model that says yes to everything is seen.
    assert {one["reference"] for one in made.data["answers"]} == {yes, no}
    assert all(one["correct"] for one in made.data["answers"]) is (share_yes == 0.0)
    labels = [
        (one.correct, (str(one.text).startswith("Yes")) is truth[str(record.input)])
        for record in read_records("r.jsonl")
        for one in record.candidates
    ]
    assert all(label == true for label, true in labels)
    # The control: a model that says the truth gets its certificate.
    assert run("calibrate", "r.jsonl", "--max-wrong-rate", "0.05").code == (1 if share_yes else 0)
