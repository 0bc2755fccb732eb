"""Helpers that tests of the monitor share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from langchain_cfc_monitor import CFCMonitor, Label

from langchain_cfc import CalibrationArtifact, CFCResult, CFCRunnable, PromptRecord
from langchain_cfc.demo import load_recording
from langchain_cfc.demo.replay import RecordedMetadata, RecordedScores, ReplayChatModel
from langchain_cfc.records import Records, read_records, write_records
from tests.cli import running
from tests.cli.running import Ran
from tests.recordings import list_facts

ROOT = Path(__file__).parents[3]
WEAKER = ROOT / "examples" / "escalation" / "cheap.jsonl.gz"


def list_held_out(artifact: CalibrationArtifact) -> list[PromptRecord]:
    """The recorded prompts that an artifact holds out."""
    split = artifact.calibration.split
    return [one for one in list_facts() if split.find_part(one.id, one.cluster) == "test"]


def truths(record: PromptRecord) -> list[bool | None]:
    return [one.correct for one in record.candidates]


def watch_results(
    artifact: CalibrationArtifact,
    store: Path | str,
    asked: Sequence[PromptRecord],
    results: Sequence[CFCResult],
    wrong: float = 0.0,
    **settings: Any,
) -> CFCMonitor:
    """A monitor that has seen results and knows all labels; of some, all candidates are said to be wrong."""
    monitor, rng = CFCMonitor(artifact, store, **settings), np.random.default_rng(3)
    for one, result in zip(asked, results, strict=True):
        monitor.record(result, one.id)
    labels = [Label(one.id, [False] * artifact.n if rng.random() < wrong else truths(one)) for one in asked]
    assert monitor.label(*labels) == len(labels)
    return monitor


def run(*arguments: str | Path) -> Ran:
    return running.run("monitor", *arguments)


def write_swapped_records(folder: Path) -> Records:
    """What a weaker model answered, under the name of the one that was calibrated."""
    write_records(folder / "swapped.jsonl", read_records(WEAKER), load_recording().provenance)
    return read_records(folder / "swapped.jsonl")


def read_first_line(text: str) -> str:
    return text.strip().lower().partition("\n")[0]


def make_weaker_chain(artifact: CalibrationArtifact, records: Records) -> CFCRunnable:
    """A chain that replays the answers of a weaker model under the name of the calibrated one."""
    return CFCRunnable(
        artifact=artifact,
        generator=ReplayChatModel.from_records(records, records.provenance),
        verifier=RecordedScores(records.provenance),
        answer=read_first_line,
        answer_id="first-line-normalised",
        metadata=RecordedMetadata(records),
        sampling="single_request",
    )
