"""A chain that serves claims, for tests: one answer of three sentences, the second of which is dropped."""

from __future__ import annotations

from typing import Any

import numpy as np

from langchain_cfc import CalibrationArtifact, CFCRunnable, calibrate
from langchain_cfc.claims import SentenceSplitter
from langchain_cfc.records import Provenance
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


def make_artifact(**options: Any) -> CalibrationArtifact:
    records = make_answers(np.random.default_rng(1), 300)
    return calibrate(
        records, **{"unit": "claims", "alpha": 0.2, "features": "1", "provenance": HEADER, **options}
    )


def make_chain(**fields: Any) -> CFCRunnable:
    parts = {"generator": ScriptedModel(texts=[ANSWER] * 4), "verifier": verify, "output": "claims", **IDS}
    return CFCRunnable(**{"artifact": make_artifact(), **parts, **fields})
