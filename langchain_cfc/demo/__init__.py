"""The demo: calibrate on a recording that ships with the package, and serve held-out prompts of it."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from langchain_cfc.artifact import CalibrationArtifact
from langchain_cfc.calibration import calibrate
from langchain_cfc.demo.replay import make_replay_parts
from langchain_cfc.errors import AttainabilityWarning, CFCError
from langchain_cfc.evaluation import EvaluationReport, evaluate
from langchain_cfc.records import PromptRecord, Records, read_records
from langchain_cfc.runnable import CFCResult, CFCRunnable

__all__ = [
    "ALPHA",
    "FEATURES",
    "SET_RULE",
    "TEST_FRACTION",
    "DemoResult",
    "demo_chain",
    "is_promise_kept",
    "load_recording",
    "run_demo",
]

ALPHA = "0.2"
# How hard a prompt looks (mean score), whether it is among the hardest fifth, and what it is about.
FEATURES = "mean_score + hard(mean_score, 0.8) + group(topic)"
SET_RULE = "unique(all)"
TEST_FRACTION = 0.3


@dataclass(frozen=True)
class DemoResult:
    """The artifact of a demo, its evaluation, and what was served."""

    artifact: CalibrationArtifact
    report: EvaluationReport  # on the held-out prompts
    served: tuple[tuple[PromptRecord, CFCResult], ...]  # these prompts with what `CFCRunnable` returned
    notes: tuple[str, ...]  # warnings of calibration


def load_recording() -> Records:
    """Return the recording that ships with the package; `DATA.md` next to it states its source."""
    return read_records(str(files("langchain_cfc.demo").joinpath("facts.jsonl.gz")))


def demo_chain(artifact: CalibrationArtifact | str | os.PathLike[str]) -> CFCRunnable:
    """Return a chain that serves the recording under an artifact, without a key and without a network.

    Args:
        artifact: The artifact that `langchain-cfc demo` writes, or another one calibrated on the recording;
            the object or its file.

    Returns:
        A chain that answers the recorded questions, given as text or as one human message.

    Raises:
        ArtifactError: If the file is no artifact, or not one of the recording.
    """
    loaded = artifact if isinstance(artifact, CalibrationArtifact) else CalibrationArtifact.load(artifact)
    outputs = () if loaded.combination is None else loaded.combination.names
    return CFCRunnable(artifact=loaded, **make_replay_parts(load_recording(), outputs))


def run_demo(
    seed: str | int,
    out: Path,
    progress: Callable[[Iterable[PromptRecord], int], Iterable[PromptRecord]] = lambda prompts, _: prompts,
) -> DemoResult:
    """Calibrate on one part of the recording and serve the rest through `CFCRunnable`.

    Args:
        seed: Another seed gives another split.
        out: Where to write the artifact; it is read back from there before it serves.
        progress: Wraps the prompts while they are served; its second argument is their number.

    Returns:
        The artifact, its evaluation and what was served.

    Raises:
        InputError: If the artifact cannot be written.
        CFCError: If what was served differs from what `evaluate` computes.
    """
    source = load_recording()
    records = list(source)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", AttainabilityWarning)
        artifact = calibrate(
            records,
            alpha=ALPHA,
            features=FEATURES,
            set_rule=SET_RULE,
            seed=seed,
            test_fraction=TEST_FRACTION,
            provenance=source.provenance,
        )
    artifact.save(out)
    artifact = CalibrationArtifact.load(out)
    chain = CFCRunnable(artifact=artifact, show_rejected=True, **make_replay_parts(source))
    split = artifact.calibration.split
    held_out = [record for record in records if split.part(record.id, record.cluster) == "test"]
    served = tuple((record, chain.invoke(record.input)) for record in progress(held_out, len(held_out)))
    report = evaluate(artifact, records, provenance=source.provenance)
    _check_served(report, served)
    return DemoResult(artifact, report, served, tuple(str(warning.message) for warning in caught))


def is_promise_kept(record: PromptRecord, result: CFCResult) -> bool:
    """Return whether the set holds a correct answer, or the prompt was flagged as not certifiable."""
    correct = {candidate.answer_key for candidate in record.candidates if candidate.correct}
    return result.reason == "not_certifiable" or bool(correct & set(result.answers))


def _check_served(report: EvaluationReport, served: tuple[tuple[PromptRecord, CFCResult], ...]) -> None:
    """Require that the runnable and `evaluate`, which decide by the same function, agree."""
    share = sum(is_promise_kept(record, result) for record, result in served) / len(served)
    expected = report.methods["conditional"].kept_promise
    if report.n_test != len(served) or not math.isclose(share, expected):
        msg = f"served prompts kept the promise at {share}, evaluation says {expected}: please report this"
        raise CFCError(msg)
