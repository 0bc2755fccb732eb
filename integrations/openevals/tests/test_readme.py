"""README.md: its blocks are run as printed, in order, in one folder and one namespace."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from openevals.prompts import CORRECTNESS_PROMPT

from integrations.openevals.tests.parts import hosted, reply
from langchain_cfc import PromptRecord
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
            told = {"inputs": fact.input, "outputs": one.text}
            shown = {**told, "reference_outputs": _shown(reference)}
            answers[SCORING.format(**told)] = reply(reasoning="so", score=round(4 * (1 - one.score)) / 4)
            answers[CORRECTNESS_PROMPT.format(**shown)] = reply(reasoning="so", score=one.correct)
    return Script(answers, logprobs=False)


def _shown(reference: Any) -> str:
    """As openevals writes it."""
    return reference if isinstance(reference, str) else json.dumps(reference)


def test_it_does_as_it_says(
    facts: list[PromptRecord],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    blocks = re.findall(r"```(python|shell|toml)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    namespace: dict[str, Any] = {}
    with hosted(judging(facts[:40])):
        for kind, text in blocks:
            if kind == "toml":
                name, _, content = text.partition("\n")
                Path(name.removeprefix("# ")).write_text(content, encoding="utf-8")
            elif kind == "shell":
                subprocess.run(["bash", "-euo", "pipefail", "-c", text], check=True)
            else:
                exec(compile(text, str(PAGE), "exec"), namespace)  # noqa: S102 - the page's own words
    kappa, peru, served = capsys.readouterr().out.splitlines()[-3:]
    assert len(blocks) == 6
    assert kappa.startswith("kappa with the recorded labels 0.95, ")
    assert peru.startswith("('Lima',) For a new prompt exchangeable with the 1224 calibration prompts")
    assert served.endswith(" matched")
