"""Artifacts of bots whose right answers and wrong ones cannot be mistaken."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from langchain_openai import ChatOpenAI

from langchain_cfc import CalibrationArtifact, Candidate, PromptRecord, calibrate
from langchain_cfc.errors import AttainabilityWarning
from langchain_cfc.records import Provenance

N = 3


def make_model(url: str | None, **settings: Any) -> ChatOpenAI:
    """A client of a server on this machine, which does not repeat requests."""
    given: dict[str, Any] = {"model": "planted", "api_key": "none", "max_retries": 0, **settings}
    return ChatOpenAI(base_url=url, **given)


def make_planted_artifact(
    generator: Mapping[str, Any],
    verifier: str,
    kinds: Sequence[str] = ("easy", "hard"),
    n: int = N,
    **options: Any,
) -> CalibrationArtifact:
    """Easy prompts whose right answers score up to 0.3, at any place, and hard ones without any.

    Every second prompt is text, the others are messages, as a chain may be asked either way.
    """
    records = [
        PromptRecord(
            id=f"{kind}{number}",
            input=[{"role": "user", "content": f"{kind} {number}"}] if number % 2 else f"{kind} {number}",
            metadata={"topic": kind},
            candidates=tuple(
                Candidate(text="right", score=0.03 * (number % 10 + 1), correct=kind == "easy")
                if slot == number % n
                else Candidate(text=f"wrong {slot}", score=0.9, correct=False)
                for slot in range(n)
            ),
        )
        for kind in kinds
        for number in range(120)
    ]
    named = Provenance(n=n, generator=dict(generator), verifier={"id": verifier}, separate_scores=True)
    settings = {"alpha": [0.1, 0.2], "features": "group(topic)", "allow_unattainable": True, **options}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AttainabilityWarning)  # hard prompts are there to be flagged
        return calibrate(records, provenance=named, **settings)
