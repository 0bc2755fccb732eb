"""What servers under load serve: a chain that draws ten candidates, and bots whose upstream fails."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import sys
import threading
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from langchain_core.runnables import Runnable

from integrations.server.tests import bots
from integrations.server.tests.bots import EASY, chain
from integrations.tests.planted import make_model
from langchain_cfc import CalibrationArtifact, Candidate, PromptRecord, calibrate
from langchain_cfc.errors import CFCWarning
from langchain_cfc.records import Provenance
from langchain_cfc.verifiers import SequenceProbability
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


def burst_models() -> dict[str, Runnable[Any, Any]]:
    """A chain around a real client, which spends CPU time on every candidate."""
    return {"bot": chain(metadata=None)}


def soak_models() -> dict[str, Runnable[Any, Any]]:
    """Bots by name; at SIGUSR1 the process writes down what it holds."""
    signal.signal(signal.SIGUSR1, _weigh)
    without_logprobs = make_model(os.environ["SOAK_WITHOUT_LOGPROBS"], logprobs=True)
    chosen = bots.models()
    return {
        **{name: chosen[name] for name in ("bot", "careful/bot", "helped", "broken")},
        "together": bots.chain(sampling="single_request"),
        "unsure": bots.chain(generator=without_logprobs, verifier=_confidence),
    }


def _confidence(prompt: Any, candidates: Sequence[Any]) -> list[float]:
    """By the log-probabilities of the draws, under the name that the artifact knows."""
    return SequenceProbability().invoke({"prompt": prompt, "candidates": list(candidates)})


def _weigh(*_: Any) -> None:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])
    held = {
        "resident": pages * os.sysconf("SC_PAGE_SIZE"),
        "blocks": sys.getallocatedblocks(),
        "tasks": len(asyncio.all_tasks()),
        "threads": threading.active_count(),
        "files": len(os.listdir("/proc/self/fd")),  # noqa: PTH208 - a count, not paths
    }
    with Path(os.environ["SOAK_WEIGHTS"]).open("a", encoding="utf-8") as file:
        file.write(json.dumps(held) + "\n")
