"""What tests of the monitor share: the recording, split to calibrate and to serve, and who watches it."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from langchain_cfc_monitor import CFCMonitor, Label
from langchain_cfc_monitor.observed import ANSWERED, EMPTY, FLAGGED, ObservedResult

from langchain_cfc import CalibrationArtifact, CFCResult, CFCRunnable, PromptRecord, calibrate
from langchain_cfc.candidates import LabelledBatch
from langchain_cfc.certificates import certify
from langchain_cfc.decision import decide
from langchain_cfc.demo import load_recording
from langchain_cfc.demo.replay import RecordedMetadata, RecordedScores, ReplayChatModel
from langchain_cfc.errors import CFCWarning
from langchain_cfc.guarantee import WrongRateCertificate
from langchain_cfc.records import Records, read_records, tabulate, write_records
from tests.cli import running
from tests.cli.running import Ran
from tests.recordings import list_facts

WEAKER = Path(__file__).parents[3] / "examples" / "escalation" / "cheap.jsonl.gz"


class Served(NamedTuple):
    """The prompts that a chain was asked, and its results."""

    asked: list[PromptRecord]
    results: list[CFCResult]


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


def make_weaker_chain(artifact: CalibrationArtifact, records: Records) -> CFCRunnable:
    """A chain that replays the answers of a weaker model under the name of the calibrated one."""
    return CFCRunnable(
        artifact=artifact,
        generator=ReplayChatModel.from_records(records, records.provenance),
        verifier=RecordedScores(records.provenance),
        answer=lambda text: text.strip().lower().partition("\n")[0],
        answer_id="first-line-normalised",
        metadata=RecordedMetadata(records),
        sampling="single_request",
    )


ALPHA = "0.3"
FEATURES = "mean_score"


def swap_model(served: LabelledBatch) -> LabelledBatch:
    """Return real answers of a weaker model to the same prompts, where it has any."""
    weaker = tabulate(read_records(WEAKER))
    rows = {name: row for row, name in enumerate(weaker.ids)}
    return weaker.take(np.array([rows[name] for name in served.ids if name in rows]))


def calibrate_split(source: LabelledBatch, seed: int) -> CalibrationArtifact:
    """Calibrate and certify on a split of the recording, the same for the same seed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CFCWarning)
        made = calibrate(source, alpha=ALPHA, features=FEATURES, seed=seed, test_fraction=0.4)
        return certify(made, source)


def make_observations(
    artifact: CalibrationArtifact,
    part: LabelledBatch,
    first: int,
    certified: WrongRateCertificate | None = None,
) -> list[tuple[ObservedResult, list[bool]]]:
    """Return what a monitor would see of prompts, and the labels of their candidates.

    The prompts are served sets, or with `certified` the answers of a bot.
    """
    cut = None if certified is None else certified.cut
    alpha = artifact.alphas[0] if certified is None else certified.alpha
    decided = decide(artifact, part.draws, alpha, cut=cut)
    inside = np.asarray(decided.accepted.any(axis=1))
    codes, lengths = np.asarray(part.draws.answer_codes), np.asarray(part.draws.lengths)
    return [
        (
            ObservedResult(
                id=f"{first + row}-{name}",
                at=float(first + row),
                artifact=artifact.digest,
                alpha=alpha,
                outcome=FLAGGED if decided.not_certifiable[row] else (ANSWERED if inside[row] else EMPTY),
                withheld=bool(inside[row] and not decided.answered[row]),
                max_wrong_rate=None if certified is None else certified.max_wrong_rate,
                max_wrong_of_all=alpha if certified is None and artifact.is_bot_alone else None,
                threshold=float(decided.thresholds[row]) if len(decided.thresholds) else np.inf,
                scores=tuple(part.draws.scores[row].tolist()[:drawn]),
                accepted=tuple(decided.accepted[row].tolist()[:drawn]),
                features=tuple(decided.features[row].tolist()),
                codes=tuple(codes[row].tolist()[:drawn]),
                lengths=tuple(lengths[row].tolist()[:drawn]),
                metadata={},
            ),
            part.correct[row].tolist()[:drawn],
        )
        for row, (name, drawn) in enumerate(zip(part.ids, part.draws.counts.tolist(), strict=True))
    ]
