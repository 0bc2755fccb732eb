"""Labelled prompts whose verifier and whose agreement tell something, and how to serve them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from langchain_cfc import CalibrationArtifact, Candidate, CFCRunnable, PromptRecord
from langchain_cfc.candidates import LabelledBatch
from langchain_cfc.demo.replay import RecordedMetadata, RecordedScores, ReplayChatModel
from langchain_cfc.records import tabulate

TOPICS = ("art", "law", "sea")


def prompts(
    seed: int, size: int, *, n: int = 4, clusters: Sequence[str | None] | None = None, decimals: int = 2
) -> list[PromptRecord]:
    """Prompts from easy to hard; right answers mostly score lower, and are more often given twice.

    Scores are rounded, so that many tie.
    """
    rng = np.random.default_rng(seed)
    hardness = rng.random(size) ** 2
    right = rng.random((size, n)) > 0.9 * hardness[:, np.newaxis]
    scores = np.clip(rng.random((size, n)) * 0.6 + np.where(right, 0.0, 0.4), 0.0, 1.0).round(decimals)
    wrong_answers = rng.integers(0, 3, (size, n))
    return [
        PromptRecord(
            id=f"{seed}-{row}",
            input=f"question {seed}-{row}",
            metadata={"topic": TOPICS[row % len(TOPICS)]},
            cluster=None if clusters is None else clusters[row],
            candidates=tuple(
                Candidate(
                    text="right" if right[row, slot] else f"wrong {wrong_answers[row, slot]}",
                    score=float(scores[row, slot]),
                    correct=bool(right[row, slot]),
                )
                for slot in range(n)
            ),
        )
        for row in range(size)
    ]


def take_part(artifact: CalibrationArtifact, records: Sequence[PromptRecord], part: str) -> LabelledBatch:
    """The records that a split puts into a part, one by one."""
    split = artifact.calibration.split
    return tabulate([one for one in records if split.find_part(one.id, one.cluster) == part])


def make_replay_chain(
    artifact: CalibrationArtifact, records: Sequence[PromptRecord], **fields: Any
) -> CFCRunnable:
    """A chain that is served the recorded candidates."""
    return CFCRunnable(
        generator=ReplayChatModel.from_records(records),
        verifier=RecordedScores(),
        artifact=artifact,
        **{"metadata": RecordedMetadata(records), "sampling": "single_request", **fields},
    )
