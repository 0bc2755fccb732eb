"""README.md: its blocks are run as printed, in order, in one folder and one namespace."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from openevals.prompts import CORRECTNESS_PROMPT

from integrations.openevals.tests.parts import hosted, reply
from integrations.tests.pages import run_page
from langchain_cfc import CalibrationArtifact, Candidate, PromptRecord, demo, read_records, write_records
from langchain_cfc.records import Provenance
from tests.lengths import LONG
from tests.serving.openai_server import Script

PAGE = Path(__file__).parents[1] / "README.md"
SCORING = "How sure is it that this answers the question correctly? Question: {inputs} Answer: {outputs}"


def judging(facts: list[PromptRecord]) -> Script:
    """The recorded answers, and judges who know which of them are right."""
    script = Script.of(facts)
    answers = dict(script.answers)
    for fact in facts:
        reference = fact.reference
        for one in fact.candidates:
            texts = {"inputs": fact.input, "outputs": one.text}
            shown = {**texts, "reference_outputs": _shown(reference)}
            answers[SCORING.format(**texts)] = reply(reasoning="so", score=1 - round_score(one))
            answers[CORRECTNESS_PROMPT.format(**shown)] = reply(reasoning="so", score=one.correct)
    return Script(answers, logprobs=False)


def round_score(candidate: Candidate) -> float:
    """The recorded score on the scale of the scoring judge."""
    return 1 - round(4 * (1 - candidate.score)) / 4


def _shown(reference: Any) -> str:
    """Return a value as openevals formats it."""
    return reference if isinstance(reference, str) else json.dumps(reference)


def test_readme_prints_its_outputs(
    facts: list[PromptRecord],
    provenance: Provenance,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    if not LONG:
        facts = facts[:40]  # all that the page asks about
        write_records("recording.jsonl", facts, provenance)
        monkeypatch.setattr(demo, "load_recording", partial(read_records, "recording.jsonl"))
    with hosted(judging(facts[:40])):
        assert run_page(PAGE) == 5
    labels, *_, served = capsys.readouterr().out.splitlines()
    assert labels == "[True, False]"
    assert served.endswith(" matched")
    # What the judges said of each candidate is what was collected.
    said = {one.text: (round_score(one), one.correct) for fact in facts[:40] for one in fact.candidates}
    collected = [one for record in read_records("judged.jsonl") for one in record.candidates]
    assert len(collected) == 40 * 5
    assert [(one.score, one.correct) for one in collected] == [said[one.text] for one in collected]
    assert CalibrationArtifact.load("judged.json").n == 5
