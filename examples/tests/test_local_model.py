"""The example with a local model, run as a user would."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from examples.tests.running import needs_model
from langchain_cfc import CalibrationArtifact, CFCRunnable, read_records
from tests.scripts import load_module
from tests.serving.openai_bodies import Answer
from tests.serving.openai_server import Script, serving

EXAMPLE = Path(__file__).parents[2] / "examples" / "local_model"


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder that the example wrote, and what it printed."""
    folder = tmp_path_factory.mktemp("live")
    options = ("--questions", "48", "--n", "5", "--folder", folder)
    ran = subprocess.run(
        [sys.executable, EXAMPLE / "run.py", *options],
        capture_output=True,
        text=True,
        check=False,
        timeout=540,
    )
    assert ran.returncode == 0, ran.stderr
    return folder, ran.stdout


@pytest.mark.live
@needs_model
def test_local_model_is_collected_calibrated_and_asked(collected: tuple[Path, str]) -> None:
    folder, printed = collected
    assert "questions calibrated; of" in printed
    assert len(re.findall(r"^(?:What|On which) .*\?$", printed, re.MULTILINE)) == 5
    records = read_records(folder / "records.jsonl")
    assert records.provenance is not None
    assert (records.provenance.generator or {})["model"] == "smollm2-135m-instruct-q4_1"
    rows = list(records)
    assert len(rows) == 48
    # A real model at temperature 0.7 neither repeats itself everywhere nor is it always right or always
    # wrong.
    assert any(len({c.text for c in row.candidates}) > 1 for row in rows)
    assert 0 < sum(c.correct for row in rows for c in row.candidates) < 5 * 48
    artifact = CalibrationArtifact.load(folder / "artifact.json")
    assert artifact.n == 5
    assert artifact.provenance == read_records(folder / "records.jsonl").provenance


@pytest.mark.long
def test_local_model_example_works_with_another_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with `--base-url`: a server on this machine draws from fixed answers."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    run: Any = importlib.import_module("run")
    try:
        asked = run.questions()[:32]
        # A quarter is always right, a quarter always wrong, and half is right every other time.
        drawn = {
            one.text: [
                Answer(
                    one.answers[0] if (place + number) % 2 * (place % 4 < 2) or place % 4 == 2 else "no",
                    -0.1 * (1 + place % 4),
                )
                for number in range(3)
            ]
            for place, one in enumerate(asked)
        }
        with serving(Script(drawn, model="small")) as url:
            chain = run.make_chain(url, "small")
            records = run.collect_records(chain, asked, 3, tmp_path)
            artifact = run.calibrate_records(records, tmp_path / "artifact.json")
            run.ask(chain, artifact, asked[:2])
            bot = CFCRunnable(
                generator=chain,
                verifier=run.VERIFIER,
                artifact=artifact,
                answer=run.extract,
                answer_id="extract",
            )
            assert bot.invoke(asked[0].text).guarantee.binding == "matched"
    finally:
        for name in ("local_model", "questions", "run"):
            sys.modules.pop(name, None)
    assert [record.input for record in read_records(records)] == [one.text for one in asked]


def test_local_model_questions_are_distinct_and_accept_their_answers() -> None:
    module = load_module(EXAMPLE / "questions.py", "local_model_questions")
    asked = module.questions()
    assert (
        len({question.id for question in asked}) == len({question.text for question in asked}) == len(asked)
    )
    for question in asked:
        assert all(module.extract(answer) in question.answers for answer in question.answers)
    assert module.extract(" Paris.\nNext") == "paris"
