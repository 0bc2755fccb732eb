"""What the load benchmark serves: a chain whose model and verifier answer at once."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import Any

from langchain_core.runnables import Runnable, RunnableLambda

from benchmarks.lib.in_memory import FEATURES, InMemoryModel, calibrate_artifact
from langchain_cfc import CalibrationArtifact, CFCRunnable
from langchain_cfc.demo import load_recording

ARTIFACT = "LOAD_ARTIFACT"
DELAY = 0.02


def make_artifact() -> CalibrationArtifact:
    """Calibrate on the recording that ships, n = 10."""
    return calibrate_artifact(list(load_recording()), FEATURES)


def verify(_: Any, candidates: Sequence[Any]) -> list[float]:
    """Compute scores from the numbers that candidates end with."""
    return [17 * int(candidate.text.split()[-1]) % 101 / 100 for candidate in candidates]


def make_chain() -> CFCRunnable:
    """Make the chain, on the saved artifact that the environment names; all candidates differ."""
    held = CalibrationArtifact.load(os.environ[ARTIFACT])
    return CFCRunnable(generator=InMemoryModel(distinct=held.n), verifier=verify, artifact=held)


def make_delayed_chain() -> Runnable[Any, Any]:
    """Make the same chain behind a step that takes 20 ms."""

    async def wait(prompt: Any) -> Any:
        await asyncio.sleep(DELAY)
        return prompt

    return RunnableLambda(wait) | make_chain()
