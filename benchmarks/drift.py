"""How soon a monitor finds a change, compared with a test that is made once.

    python benchmarks/drift.py --page benchmarks/DRIFT.md

The recording that the package ships is split again and again: one part calibrates, the other is served in
random order, and from some result on something is different. Real answers of a weaker model take the place of
the calibrated one's, hard topics become more frequent, or the verifier becomes stricter.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

# A script finds only modules of its own folder.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
from langchain_cfc_monitor.observed import ANSWERED, EMPTY, FLAGGED, Label, ObservedResult
from langchain_cfc_monitor.sequential_tests import CoverageTest, DriftTest
from scipy.stats import ks_2samp

from langchain_cfc import CalibrationArtifact, calibrate
from langchain_cfc._internal.arrays import FloatArray
from langchain_cfc.candidates import LabelledBatch
from langchain_cfc.certificates import certify
from langchain_cfc.decision import EVERY_SET, decide
from langchain_cfc.demo import load_recording
from langchain_cfc.errors import CFCWarning
from langchain_cfc.features import parse_statistic
from langchain_cfc.guarantee import WrongRateCertificate
from langchain_cfc.records import read_records, tabulate

Shift = Callable[[LabelledBatch, np.random.Generator], LabelledBatch]

WEAKER_RECORDS = Path(__file__).parents[1] / "examples" / "escalation" / "cheap.jsonl.gz"
ALPHA = "0.3"
FEATURES = "mean_score"
LEVEL = 0.01
HALF = 0.5
RESULTS_BEFORE = 100  # results before the change
HARD_TOPICS = ("multiplication", "currency", "calling code", "internet domain")


@dataclass(frozen=True)
class Detection:
    """How and when a monitor detected a change.

    Attributes:
        name: The change.
        found: Share of streams in which the monitor alarmed after it.
        early: Share in which it alarmed before.
        delay: Median number of results from the change to the alarm, with those not found as the longest;
            None if fewer than half were found.
        labelled: The same for labels of every result and the certified rate.
        once: Number of results with which a test that is made once finds it in half of the streams.
        results: Least number of results after the change in a stream.
    """

    name: str
    found: float
    early: float
    delay: float | None
    labelled: float | None
    once: int | None
    results: int


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and write the page of results."""
    parser = argparse.ArgumentParser(description="How soon drift is found.")
    parser.add_argument("--streams", type=int, default=100, help="streams of each change")
    parser.add_argument("--page", type=Path, metavar="FILE", help="write the page")
    options = parser.parse_args(arguments)
    found = [_measure_shift(name, shift, options.streams) for name, shift in make_shifts().items()]
    text = make_page(found, options.streams)
    if options.page is None:
        print(text)
    else:
        options.page.write_text(text, encoding="utf-8")


def make_shifts() -> dict[str, Shift]:
    """Make the changes of what is served, by name."""
    weaker = tabulate(read_records(WEAKER_RECORDS))
    rows = {name: row for row, name in enumerate(weaker.ids)}

    def change_nothing(served: LabelledBatch, _: np.random.Generator) -> LabelledBatch:
        return served

    def swap_model(served: LabelledBatch, _: np.random.Generator) -> LabelledBatch:
        return weaker.take(np.array([rows[name] for name in served.ids if name in rows]))

    def make_harder(times: int) -> Shift:
        def shift(served: LabelledBatch, rng: np.random.Generator) -> LabelledBatch:
            hard = np.array([one["topic"] in HARD_TOPICS for one in served.draws.metadata])
            return served.take(np.flatnonzero(hard | (rng.random(len(served)) < 1 / times)))

        return shift

    def make_stricter(power: float) -> Shift:
        def shift(served: LabelledBatch, _: np.random.Generator) -> LabelledBatch:
            draws = replace(served.draws, scores=served.draws.scores**power)
            return replace(served, draws=draws)

        return shift

    return {
        "nothing (control)": change_nothing,
        "a weaker model under the same name": swap_model,
        "hard topics three times as frequent": make_harder(3),
        "hard topics five times as frequent": make_harder(5),
        "a verifier that raises its scores to the power 0.8": make_stricter(0.8),
        "a verifier that gives the square root of its scores": make_stricter(0.5),
    }


def _measure_shift(name: str, shift: Shift, streams: int) -> Detection:
    source = tabulate(load_recording())
    delays, labelled, samples, early, shortest = [], [], [], 0, len(source)
    for seed in range(streams):
        rng = np.random.default_rng(seed)
        artifact = calibrate_split(source, seed)
        part = artifact.calibration.split.list_rows(source)
        rows = rng.permutation(part["test"])
        before, after = source.take(rows[:RESULTS_BEFORE]), shift(source.take(rows[RESULTS_BEFORE:]), rng)
        after = after.take(rng.permutation(len(after)))
        shortest = min(shortest, len(after))
        drift, kept = _find_alarms(artifact, before, after)
        early += drift <= RESULTS_BEFORE
        delays.append(drift - RESULTS_BEFORE if drift > RESULTS_BEFORE else np.inf)
        labelled.append(kept - RESULTS_BEFORE if kept > RESULTS_BEFORE else np.inf)
        samples.append((_compute_means(source.take(part["calibration"])), _compute_means(after)))
    return Detection(
        name=name,
        found=float(np.mean(np.isfinite(delays))),
        early=early / streams,
        delay=_compute_median(delays),
        labelled=_compute_median(labelled),
        once=_find_sample_size(samples, shortest),
        results=shortest,
    )


def calibrate_split(source: LabelledBatch, seed: int) -> CalibrationArtifact:
    """Calibrate and certify on a split of the recording, the same for the same seed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CFCWarning)
        made = calibrate(
            source,
            alpha=ALPHA,
            features=FEATURES,
            seed=seed,
            test_fraction=0.4,
            certification_fraction=0.4,
        )
        # Randomised ranks take their numbers from its digest, which another time of making would change.
        return certify(made.model_copy(update={"created_at": "2026-01-01T00:00:00+00:00"}), source)


def _find_alarms(artifact: CalibrationArtifact, *parts: LabelledBatch) -> tuple[float, float]:
    """Return after how many results drift alarms, and after how many labels a rate does; `inf` if never."""
    drift, kept = DriftTest.start(artifact, 0.0), CoverageTest.start(artifact, 0.0)
    needed = -np.log(LEVEL)
    alarms = [np.inf, np.inf]
    number = 0
    for part in parts:
        for one, correct in make_observations(artifact, part, number):
            number += 1
            drift = drift.update(one)
            kept = kept.update(one, Label(one.id, correct), one.at, 1.0)
            for place, mixture in enumerate((drift.mixture, kept.mixture)):
                if alarms[place] == np.inf and mixture.peak >= needed:
                    alarms[place] = number
    return alarms[0], alarms[1]


def make_observations(
    artifact: CalibrationArtifact,
    part: LabelledBatch,
    first: int,
    certified: WrongRateCertificate | None = None,
) -> list[tuple[ObservedResult, list[bool]]]:
    """Return what a monitor would see of prompts, and the labels of their candidates.

    The prompts are served sets, or with `certified` the answers of a bot.
    """
    policy = EVERY_SET if certified is None else certified.policy
    alpha = ALPHA if certified is None else certified.alpha
    decided = decide(artifact, part.draws, alpha, policy=policy)
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
                threshold=float(decided.thresholds[row]),
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


def _compute_means(part: LabelledBatch) -> FloatArray:
    return parse_statistic("mean_score").compute_values(part.draws)


def _compute_median(delays: Sequence[float]) -> float | None:
    middle = float(np.median(delays))
    return middle if np.isfinite(middle) else None


def _find_sample_size(samples: Sequence[tuple[FloatArray, FloatArray]], longest: int) -> int | None:
    """Find the fewest results with which the Kolmogorov-Smirnov test finds half of the changes."""
    for size in range(10, longest + 1, 5):
        found = [ks_2samp(one, other[:size]).pvalue < LEVEL for one, other in samples]
        if np.mean(found) >= HALF:
            return size
    return None


def make_page(found: Sequence[Detection], streams: int) -> str:
    """Make the page of a run as Markdown."""
    rows = [
        f"| {one.name} | {one.found:.0%} | {one.early:.0%} | {_format_count(one.delay)} | "
        f"{_format_count(one.labelled)} | {_format_count(one.once)} | {one.results} |"
        for one in found
    ]
    return (
        f"""# How soon drift is found

Written by `benchmarks/drift.py`; do not edit. {streams} streams for each change: the recording that ships,
split by another seed each time, `{FEATURES}` at alpha = {ALPHA}; prompts that took no part in calibration are
served in random order, {RESULTS_BEFORE} of them before the change.

*Found* and *delay* are of tests without labels, all together at level {LEVEL}: median number of results from
the change to the first alarm. *With labels*: the same where every result is labelled, and the certified rate
is tested. *Once*: how many results a Kolmogorov-Smirnov test of the mean score needs at the same level to
find it in half of the streams, where it knows when the change was and is made once. It may not be made again.

| change | found | alarm before it | delay | with labels | once | results there were |
| --- | --- | --- | --- | --- | --- | --- |
"""
        + "\n".join(rows)
        + """

The weaker model's answers were drawn by Qwen2.5-Coder-0.5B-Instruct to the same questions
(`examples/escalation/DATA.md`). Not found means not within the results there were.
The stronger of two shifts of a kind was added when a few streams had shown that the weaker is not found.
"""
    )


def _format_count(number: float | None) -> str:
    return "not found" if number is None else f"{number:.0f}"


if __name__ == "__main__":
    main()
