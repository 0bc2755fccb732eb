"""How soon a monitor finds that something has changed, beside a test that is made once.

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
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:  # run as a file, Python looks beside it only
    sys.path.insert(0, str(ROOT))

if TYPE_CHECKING:
    from langchain_cfc import CalibrationArtifact
    from langchain_cfc._internal.arrays import FloatArray
    from langchain_cfc.candidates import LabelledBatch
    from langchain_cfc.monitor.observed import Observed

    Shift = Callable[[LabelledBatch, np.random.Generator], LabelledBatch]

WEAKER = ROOT / "examples" / "escalation" / "cheap.jsonl.gz"
ALPHA = "0.3"
FEATURES = "mean_score"
LEVEL = 0.01
HALF = 0.5
QUIET = 100  # results before the change
HARD = ("multiplication", "currency", "calling code", "internet domain")


@dataclass(frozen=True)
class Found:
    """What was found of a change.

    Attributes:
        name: The change.
        found: Share of streams in which the monitor alarmed after it.
        early: Share in which it alarmed before.
        delay: Median number of results from the change to the alarm, those not found counted as longest; None
            where fewer than half were found.
        labelled: The same for labels of every result and the certified rate.
        once: How many results a test that is made once needs, to find it in half of the streams.
        results: Results after the change that a stream had, at least.
    """

    name: str
    found: float
    early: float
    delay: float | None
    labelled: float | None
    once: int | None
    results: int


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(description="How soon drift is found.")
    parser.add_argument("--streams", type=int, default=100, help="streams of each change")
    parser.add_argument("--page", type=Path, metavar="FILE", help="write the page")
    options = parser.parse_args(arguments)
    text = page(measured(options.streams), options.streams)
    if options.page is None:
        print(text)
    else:
        options.page.write_text(text, encoding="utf-8")


def measured(streams: int) -> list[Found]:
    """All changes."""
    return [_found(name, shift, streams) for name, shift in shifts().items()]


def shifts() -> dict[str, Shift]:
    """The changes by name, each of what is served from then on."""
    from langchain_cfc.records import read_records, tabulate, with_scores

    weaker = tabulate(read_records(WEAKER))
    rows = {name: row for row, name in enumerate(weaker.ids)}

    def nothing(served: LabelledBatch, _: np.random.Generator) -> LabelledBatch:
        return served

    def swapped(served: LabelledBatch, _: np.random.Generator) -> LabelledBatch:
        return weaker.take(np.array([rows[name] for name in served.ids if name in rows]))

    def harder(times: int) -> Shift:
        def shift(served: LabelledBatch, luck: np.random.Generator) -> LabelledBatch:
            hard = np.array([one["topic"] in HARD for one in served.draws.metadata])
            return served.take(np.flatnonzero(hard | (luck.random(len(served)) < 1 / times)))

        return shift

    def stricter(power: float) -> Shift:
        def shift(served: LabelledBatch, _: np.random.Generator) -> LabelledBatch:
            return with_scores(served, served.draws.scores**power)

        return shift

    return {
        "nothing (control)": nothing,
        "a weaker model under the same name": swapped,
        "hard topics three times as frequent": harder(3),
        "hard topics five times as frequent": harder(5),
        "a verifier that raises its scores to the power 0.8": stricter(0.8),
        "a verifier that gives the square root of its scores": stricter(0.5),
    }


def _found(name: str, shift: Shift, streams: int) -> Found:
    from langchain_cfc.demo import load_recording
    from langchain_cfc.records import tabulate

    source = tabulate(load_recording())
    delays, labelled, samples, early, shortest = [], [], [], 0, len(source)
    for seed in range(streams):
        luck = np.random.default_rng(seed)
        artifact = _artifact(source, seed)
        part = artifact.calibration.split.rows(source)
        rows = luck.permutation(part["test"])
        before, after = source.take(rows[:QUIET]), shift(source.take(rows[QUIET:]), luck)
        after = after.take(luck.permutation(len(after)))
        shortest = min(shortest, len(after))
        drift, kept = _alarms(artifact, before, after)
        early += drift <= QUIET
        delays.append(drift - QUIET if drift > QUIET else np.inf)
        labelled.append(kept - QUIET if kept > QUIET else np.inf)
        samples.append((_means(source.take(part["calibration"])), _means(after)))
    return Found(
        name=name,
        found=float(np.mean(np.isfinite(delays))),
        early=early / streams,
        delay=_median(delays),
        labelled=_median(labelled),
        once=_once(samples, shortest),
        results=shortest,
    )


def _artifact(source: LabelledBatch, seed: int) -> CalibrationArtifact:
    from langchain_cfc import calibrate
    from langchain_cfc.certificates import certify
    from langchain_cfc.errors import CFCWarning

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


def _alarms(artifact: CalibrationArtifact, *parts: LabelledBatch) -> tuple[float, float]:
    """After how many results drift is found, and after how many labels a broken rate; `inf` if never."""
    from langchain_cfc.monitor.sequential_tests import CoverageTest, Drift, Label

    drift, kept = Drift.begun(artifact, 0.0), CoverageTest.begun(artifact, 0.0)
    needed = -np.log(LEVEL)
    alarms = [np.inf, np.inf]
    number = 0
    for part in parts:
        for one, correct in _observed(artifact, part, number):
            number += 1
            drift = drift.after(one)
            kept = kept.after(one, Label(one.id, correct), one.at, 1.0)
            for place, mean in enumerate((drift.mean, kept.mean)):
                if alarms[place] == np.inf and mean.peak >= needed:
                    alarms[place] = number
    return alarms[0], alarms[1]


def _observed(
    artifact: CalibrationArtifact, part: LabelledBatch, first: int
) -> list[tuple[Observed, list[bool]]]:
    """What a monitor would be told of prompts, with the labels of their candidates."""
    from langchain_cfc.decision import decide
    from langchain_cfc.monitor.observed import ANSWERED, EMPTY, FLAGGED, Observed

    decided = decide(artifact, part.draws)
    codes, lengths = np.asarray(part.draws.answer_codes), np.asarray(part.draws.lengths)
    return [
        (
            Observed(
                id=f"{first + row}-{name}",
                at=float(first + row),
                artifact=artifact.digest,
                alpha=ALPHA,
                outcome=FLAGGED
                if decided.not_certifiable[row]
                else (ANSWERED if decided.accepted[row].any() else EMPTY),
                withheld=False,
                bot=False,
                threshold=float(decided.thresholds[row]),
                scores=tuple(part.draws.scores[row].tolist()),
                accepted=tuple(decided.accepted[row].tolist()),
                features=tuple(decided.features[row].tolist()),
                codes=tuple(codes[row].tolist()),
                lengths=tuple(lengths[row].tolist()),
                metadata={},
                outputs={},
            ),
            part.correct[row].tolist(),
        )
        for row, name in enumerate(part.ids)
    ]


def _means(part: LabelledBatch) -> FloatArray:
    from langchain_cfc.features import parse_statistic

    return parse_statistic("mean_score").values(part.draws)


def _median(delays: Sequence[float]) -> float | None:
    middle = float(np.median(delays))
    return middle if np.isfinite(middle) else None


def _once(samples: Sequence[tuple[FloatArray, FloatArray]], longest: int) -> int | None:
    """The smallest number of results with which the Kolmogorov-Smirnov test finds half of the changes."""
    from scipy.stats import ks_2samp

    for size in range(10, longest + 1, 5):
        found = [ks_2samp(one, other[:size]).pvalue < LEVEL for one, other in samples]
        if np.mean(found) >= HALF:
            return size
    return None


def page(found: Sequence[Found], streams: int) -> str:
    """What was found, as Markdown."""
    rows = [
        f"| {one.name} | {one.found:.0%} | {one.early:.0%} | {_cell(one.delay)} | {_cell(one.labelled)} | "
        f"{_cell(one.once)} | {one.results} |"
        for one in found
    ]
    return (
        f"""# How soon drift is found

Written by `benchmarks/drift.py`; do not edit. {streams} streams for each change: the recording that ships,
split by another seed each time, `{FEATURES}` at alpha = {ALPHA}; prompts that took no part in calibration are
served in random order, {QUIET} of them before the change.

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


def _cell(number: float | None) -> str:
    return "not found" if number is None else f"{number:.0f}"


if __name__ == "__main__":
    main()
