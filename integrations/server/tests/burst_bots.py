"""What servers in tests of bursts serve: a chain around a real client, which draws ten candidates."""

from __future__ import annotations

import warnings
from typing import Any

from langchain_core.runnables import Runnable

from integrations.server.tests.bots import EASY, chain
from langchain_cfc import CalibrationArtifact, Candidate, PromptRecord, calibrate
from langchain_cfc.errors import CFCWarning
from langchain_cfc.records import Provenance
from tests.serving.openai_bodies import Answer
from tests.serving.openai_server import Fault, Script

N = 10


def make_script() -> Script:
    """Ten different candidates, which the model takes 50 ms to draw."""
    answers = [Answer(f"answer {number}", -float(number + 1)) for number in range(N)]
    return Script({EASY: answers}, faults=(Fault("slow", seconds=0.05),))


def make_artifact() -> CalibrationArtifact:
    records = [
        PromptRecord(
            id=str(number),
            input=f"easy {number}",
            candidates=(
                Candidate(text="right", score=0.3 * (number % 10 + 1) / 10, correct=True),
                *(Candidate(text=f"wrong {other}", score=0.9, correct=False) for other in range(N - 1)),
            ),
        )
        for number in range(120)
    ]
    named = Provenance(n=N, generator={"id": "planted"}, verifier={"id": "judge"})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CFCWarning)
        return calibrate(records, alpha=0.2, features="1", provenance=named)


def models() -> dict[str, Runnable[Any, Any]]:
    """A chain around a real client, which spends CPU time on every candidate."""
    return {"bot": chain(metadata=None)}
