"""Records, artifacts, chains, and inputs of verifiers and labelers, for tests."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from decimal import Decimal
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest

from langchain_cfc import CalibrationArtifact, Candidate, CFCRunnable, FeatureMap, PromptRecord, calibrate
from langchain_cfc.artifact import AttemptLedger, PlannedAttempt
from langchain_cfc.candidates import CandidateBatch, LabelledBatch, PromptKind
from langchain_cfc.decision import AnswerSets
from langchain_cfc.labelers import LabelerInput
from langchain_cfc.records import Claim, ClaimsRecord
from langchain_cfc.sampling import DrawnCandidate
from langchain_cfc.thresholds import ConditionalThreshold, format_alpha
from langchain_cfc.verifiers import VerifierInput
from tests.fakes import TEXTS, N, ScriptedModel, verify


def drawn_candidates(*texts: str) -> list[DrawnCandidate]:
    """Return candidates that consist of a text each."""
    return [DrawnCandidate(text) for text in texts]


def verifier_input(prompt: Any, *texts: str) -> VerifierInput:
    """Return what a verifier is given for a prompt with these candidates."""
    return VerifierInput(prompt=prompt, candidates=drawn_candidates(*texts))


def labeler_input(reference: Any, *texts: str, prompt: Any = "Where do llamas live?") -> LabelerInput:
    """Return what a labeler is given for a prompt with this reference and these candidates."""
    return LabelerInput(prompt=prompt, reference=reference, candidates=drawn_candidates(*texts))


def make_records(
    topic: str = "easy", size: int = 39, *, n: int = N, extracted: bool = False
) -> list[PromptRecord]:
    """Prompts whose success scores split [0, 1] evenly: at alpha = 0.25 the 30th of 39 is 0.75.

    One candidate of each prompt is correct, in turn the first, the second, and so on.
    """
    return [
        PromptRecord(
            id=f"{topic}-{rank}",
            input=f"prompt {rank} {topic}",
            metadata={"topic": topic},
            candidates=tuple(
                Candidate(
                    text=f"a{slot}",
                    score=rank / (size + 1) if slot == rank % n else 1.0,
                    correct=slot == rank % n,
                    answer=f"a{slot}" if extracted else None,
                )
                for slot in range(n)
            ),
        )
        for rank in range(1, size + 1)
    ]


def update_claims(record: ClaimsRecord, change: Callable[[Claim], dict[str, Any]]) -> ClaimsRecord:
    """The record with changed fields of its claims."""
    changed = tuple(one.model_copy(update=change(one)) for one in record.claims)
    return record.model_copy(update={"claims": changed})


def make_answer(
    name: str, *claims: tuple[str, float, bool], separator: str = "\n", **fields: Any
) -> ClaimsRecord:
    """An answer that consists of claims (text, score, supported)."""
    made, start = [], 0
    for text, score, supported in claims:
        end = start + len(text)
        made.append(Claim(text=text, start=start, end=end, score=score, supported=supported))
        start = end + len(separator)
    answer = separator.join(text for text, *_ in claims)
    return ClaimsRecord(**{"id": name, "input": name, "answer": answer, "claims": tuple(made), **fields})


def make_hopeless_records(topic: str = "hopeless", size: int = 39) -> list[PromptRecord]:
    """Prompts none of which has a correct candidate."""
    return [change_candidates(record, correct=False) for record in make_records(topic, size)]


def change_candidates(
    record: PromptRecord, change: Callable[[Candidate], dict[str, Any]] | None = None, **changes: Any
) -> PromptRecord:
    """Return the record with every candidate changed: all alike, or by what a function returns for each."""
    candidates = tuple(
        one.model_copy(update={**changes, **(change(one) if change else {})}) for one in record.candidates
    )
    return record.model_copy(update={"candidates": candidates})


def fit_topics(*topics: str) -> FeatureMap:
    """`group(topic)`, fitted on prompts of these topics."""
    draws = CandidateBatch.from_arrays(
        [[0.5] * N] * len(topics), metadata=[{"topic": topic} for topic in topics]
    )
    return FeatureMap.parse("group(topic)").fit(draws)


def make_artifact(*, n: int = N, extracted: bool = False, **settings: Any) -> CalibrationArtifact:
    """One threshold for all prompts; at alpha = 0.25 it is 0.75."""
    return calibrate(
        make_records(n=n, extracted=extracted),
        **{"alpha": 0.25, "features": "1", **settings},
    )


def with_prompt_kind(artifact: CalibrationArtifact, kind: PromptKind) -> CalibrationArtifact:
    """The artifact as if its calibration prompts had been of this kind."""
    facts = artifact.calibration.model_copy(update={"prompt_kinds": [kind]})
    return artifact.model_copy(update={"calibration": facts})


@cache
def plain_artifact() -> CalibrationArtifact:
    """The artifact that tests serve with unless they say otherwise."""
    return make_artifact()


def make_chain(artifact: CalibrationArtifact | None = None, **fields: Any) -> CFCRunnable:
    """A chain of scripted parts under the plain artifact; anything else may be given instead."""
    parts = {"generator": ScriptedModel(texts=TEXTS), "verifier": verify}
    return CFCRunnable(**{**parts, "artifact": artifact or plain_artifact(), **fields})


def reload_artifact(artifact: CalibrationArtifact) -> CalibrationArtifact:
    """Return the artifact that serving sees: saved to a file and loaded."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "artifact.json")
        artifact.save(path)
        return CalibrationArtifact.load(path)


def plan_first_test(labelled: LabelledBatch) -> PlannedAttempt:
    """The first test on these labels, which has 80 % of delta."""
    return AttemptLedger().plan_attempt(labelled, "settings", "records")


def find_delta(level: str) -> str:
    """The delta of which a first test has this level."""
    return format_alpha(Decimal(level) / Decimal("0.8"), "delta")


def leave_sets_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let sets follow their thresholds alone: one that no candidate reaches stays empty."""
    monkeypatch.setattr(AnswerSets, "fill_empty", lambda self, _: self)


def set_window(monkeypatch: pytest.MonkeyPatch, window: int | None) -> None:
    """Let `calibrate` keep at least `window` calibration prompts for each level; None for all of them."""
    rule = partial(ConditionalThreshold, window=window)
    monkeypatch.setattr("langchain_cfc.artifact.facts.ConditionalThreshold", rule)
