"""A chain on recorded answers of a real model, its results, and a monitor."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from langchain_cfc_monitor import CFCMonitor

from integrations.collect.tests.postgres import Server, postgres
from integrations.monitor.tests.watching import Served, list_held_out
from langchain_cfc import CalibrationArtifact, CFCResult, CFCRunnable, PromptRecord, calibrate
from langchain_cfc.certificates import certify
from langchain_cfc.demo import load_recording
from langchain_cfc.demo.replay import make_replay_parts
from langchain_cfc.errors import AttainabilityWarning
from tests.lengths import repetitions


@pytest.fixture(scope="session", autouse=True)
def _fix_time() -> Iterator[None]:
    """Randomised ranks take their numbers from an artifact's digest, which holds the time of making."""
    with mock.patch.dict(os.environ, SOURCE_DATE_EPOCH="1767225600"):
        yield


@pytest.fixture(scope="session")
def artifact() -> CalibrationArtifact:
    """Calibrated and certified on two thirds of the recording; the rest is what it serves."""
    with pytest.warns(AttainabilityWarning):
        made = calibrate(
            load_recording(),
            alpha="0.2",
            features="mean_score + group(topic)",
            set_rule="unique(all)",
            test_fraction=0.4,
        )
    return certify(made, load_recording())


@pytest.fixture(scope="session")
def served(artifact: CalibrationArtifact) -> list[PromptRecord]:
    held_out = list_held_out(artifact)
    order = np.random.default_rng(0).permutation(len(held_out))
    return [held_out[place] for place in order[: repetitions(len(order), share=0.3)]]


@pytest.fixture(scope="session")
def parts() -> dict[str, Any]:
    return make_replay_parts(load_recording())


@pytest.fixture(scope="session")
def chain(artifact: CalibrationArtifact, parts: dict[str, Any]) -> CFCRunnable:
    return CFCRunnable(artifact=artifact, **parts)


@pytest.fixture(scope="session")
def results(chain: CFCRunnable, served: Sequence[PromptRecord]) -> list[CFCResult]:
    """The results of the chain for the served prompts."""
    return [chain.invoke(one.input) for one in served]


@pytest.fixture(scope="session")
def seen(served: list[PromptRecord], results: list[CFCResult]) -> Served:
    return Served(served, results)


@pytest.fixture
def monitor(artifact: CalibrationArtifact, tmp_path: Path) -> Iterator[CFCMonitor]:
    with CFCMonitor(artifact, tmp_path / "monitor.db") as opened:
        yield opened


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    with postgres() as started:
        yield started
