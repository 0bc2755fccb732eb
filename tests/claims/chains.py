"""A chain that serves claims, for tests: one answer of three sentences, the second of which is dropped."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from langchain_cfc import CalibrationArtifact, CFCRunnable, calibrate
from langchain_cfc.claims import SentenceSplitter
from langchain_cfc.records import ClaimsRecord, Provenance
from langchain_cfc.sampling import DrawnCandidate
from tests.claims.worlds import make_answers
from tests.fakes import ScriptedModel

ANSWER = "Lima is the capital. [1] It has 9 moons.\n\nIt lies by the sea."
LEFT = "Lima is the capital. [1]\n\nIt lies by the sea."
SCORES = {"Lima is the capital. [1]": 0.05, "It has 9 moons.": 0.99, "It lies by the sea.": 0.1}
HEADER = Provenance(
    n=1,
    unit="claims",
    generator={"id": "model"},
    verifier={"id": "scripted"},
    splitter=dict(SentenceSplitter().fingerprint),
)
IDS = {"generator_id": "model", "verifier_id": "scripted"}


def verify(prompt: Any, candidates: list[DrawnCandidate]) -> list[float]:
    del prompt
    return [SCORES.get(candidate.text, 0.5) for candidate in candidates]


@cache
def make_calibration_answers() -> tuple[ClaimsRecord, ...]:
    return tuple(make_answers(np.random.default_rng(1), 300))


def make_artifact(**options: Any) -> CalibrationArtifact:
    given = {"unit": "claims", "alpha": 0.2, "features": "1", "provenance": HEADER, **options}
    return calibrate(make_calibration_answers(), **given)


@cache
def plain_artifact() -> CalibrationArtifact:
    """The artifact that tests serve with unless they say otherwise."""
    return make_artifact()


def make_chain(artifact: CalibrationArtifact | None = None, **fields: Any) -> CFCRunnable:
    parts = {"generator": ScriptedModel(texts=[ANSWER] * 4), "verifier": verify, "output": "claims", **IDS}
    return CFCRunnable(**{**parts, "artifact": artifact or plain_artifact(), **fields})
