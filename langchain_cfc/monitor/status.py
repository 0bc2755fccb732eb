"""What a monitor's tests say, as data and in words."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Literal

import numpy as np

from langchain_cfc.artifact import CalibrationArtifact, ReferenceHistogram
from langchain_cfc.features import shorten_words
from langchain_cfc.monitor.observed import ANSWERED, EMPTY, FLAGGED
from langchain_cfc.monitor.sequential_tests import (
    CoverageTest,
    Data,
    Drift,
    LabelSamplingTest,
    Test,
    Together,
)
from langchain_cfc.monitor.store import Evidence, ResultCounts

_OUTCOMES = {ANSWERED: "answered", EMPTY: "left with an empty set", FLAGGED: "flagged as not certifiable"}


def describe_shift(
    watched: ReferenceHistogram, expected: Sequence[int], observed: Sequence[int]
) -> str | None:
    """Say where results differ most from calibration prompts.

    Args:
        watched: The quantity.
        expected: How many calibration prompts fell into each of its bins.
        observed: How many results did, all since the monitor began.

    Returns:
        One sentence part with both shares; None where there is nothing to compare.
    """
    calibration, results = np.array(expected, dtype=np.float64), np.array(observed, dtype=np.float64)
    if not calibration.sum() or not results.sum():
        return None
    calibration, results = calibration / calibration.sum(), results / results.sum()
    if watched.name == "decision":
        outcome = int(np.argmax(np.abs(results - calibration)))
        shares = _shares(results[outcome], f"are {_OUTCOMES[outcome]}", calibration[outcome])
        return f"{'more' if results[outcome] > calibration[outcome] else 'fewer'}: {shares}"
    # The edge at which the cumulative shares are farthest apart, as Kolmogorov and Smirnov compare them.
    below, expected_below = results.cumsum()[:-1], calibration.cumsum()[:-1]
    place = int(np.argmax(np.abs(below - expected_below)))
    edge = f"{watched.edges[place]:.3g}"
    if below[place] > expected_below[place]:
        return f"lower: {_shares(below[place], f'are below {edge}', expected_below[place])}"
    return f"higher: {_shares(1.0 - below[place], f'are {edge} or more', 1.0 - expected_below[place])}"


def _shares(observed: float, words: str, expected: float) -> str:
    return f"{100 * observed:.0f} % of results {words}, expected {100 * expected:.0f} %"


_DAY = 86_400.0
_LARGEST = 700.0  # whose exponential is a number
_RATES = {"kept": "the rate of kept promises", "right": "the rate of right answers"}
# What no feature text names.
_OWN = {"mean_score", "min_score", "threshold", "decision"}


@dataclass(frozen=True)
class Limits:
    """What must not be exceeded; None where anything may be.

    Attributes:
        age_days: Age of the artifact, in days.
        failing: Share of the latest prompts that cannot be served, in [0, 1].
        seconds: 99th percentile of how long the latest results took.
    """

    age_days: float | None = None
    failing: float | None = None
    seconds: float | None = None

    def breaches(self, age_days: float, standing: ResultCounts, models: Sequence[str]) -> Iterator[str]:
        """What is exceeded, in sentences; models that were not calibrated always are one too many."""
        for model in models:
            yield f"The model {model} answers, and was not calibrated"
        if self.age_days is not None and age_days > self.age_days:
            yield f"The artifact is {int(age_days)} days old; at most {self.age_days:g} are allowed"
        failing, seconds = standing.failing, standing.seconds
        if self.failing is not None and failing is not None and failing > self.failing:
            yield (
                f"{100 * failing:.1f} % of the latest prompts could not be served; at most "
                f"{100 * self.failing:g} % are allowed"
            )
        if self.seconds is not None and seconds is not None and seconds[1] > self.seconds:
            yield (
                f"The latest results took {seconds[1]:.3g} s at the 99th percentile; at most "
                f"{self.seconds:g} s are allowed"
            )


class EvidenceCurve(Data):
    """How the evidence of one test went.

    Attributes:
        name: What it tests and where, for people.
        test: The test.
        points: Numbers of outcomes, and the natural logarithm of the evidence after so many.
    """

    name: str
    test: Test
    points: tuple[tuple[int, float], ...]


class MonitorStatus(Data):
    """What all results and labels so far show.

    Attributes:
        artifact: Digest of the artifact.
        age_days: Days since it was made.
        results: Number of results there are.
        labels: Number of labels.
        failures: Number of prompts that could not be served.
        answered: Share of results with an answer set that is not empty; None without results.
        flagged: Share that is not certifiable.
        failing: Share of the latest prompts that could not be served; None without any.
        seconds: Median and 99th percentile of how long the latest results took; None where nobody measured.
        models: What models call themselves that were not calibrated.
        level: Probability of any false alarm of either kind.
        together: What the tests of each kind show together, which is what alarms; kinds without tests left
            out.
        tests: All tests, those with most evidence first.
        breaches: What is not as it was calibrated or beyond its limit, in sentences: no statistics.
        notes: What cannot be told, and why.
    """

    artifact: str
    age_days: float
    results: int
    labels: int
    failures: int
    answered: float | None
    flagged: float | None
    failing: float | None
    seconds: tuple[float, float] | None
    models: tuple[str, ...]
    level: float
    together: tuple[Together, ...]
    tests: tuple[Test, ...]
    breaches: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def sound(self) -> bool:
        """Whether no test alarms and nothing is beyond its limit."""
        return not (self.alarms or self.breaches)

    @property
    def alarms(self) -> tuple[Test, ...]:
        """The tests that alarm: what is served is not what was calibrated, or a certified rate is broken."""
        return tuple(one for one in self.tests if one.alarm and one.kind != "labelled")

    @property
    def doubts(self) -> tuple[Test, ...]:
        """The tests that say that labels do not speak of all results."""
        return tuple(one for one in self.tests if one.alarm and one.kind == "labelled")


def curves_of(evidence: Evidence, tests: Sequence[Test], most: int) -> list[EvidenceCurve]:
    """The curves of the tests that have come furthest: at most so many of drift, and of certified rates."""
    named = [
        (("drift", called(watched), group, watched.alpha), place, evidence.drifted)
        for place, (watched, group) in enumerate(evidence.drift.tests)
    ]
    named += [
        ((one.what, _RATES[one.what], one.group, one.alpha), place, evidence.broken)
        for place, one in enumerate(evidence.kept.stated)
    ]
    words = {one.name: one.words for one in evidence.drift.artifact.feature_map.guaranteed_weights()}
    known = {
        (kind, what, words[group], alpha): (place, curve)
        for (kind, what, group, alpha), place, curve in named
    }
    told = []
    for kinds in (("drift",), ("kept", "right")):
        for test in [one for one in tests if one.kind in kinds][:most]:
            place, curve = known[test.kind, test.what, test.group, test.alpha]
            level = "" if test.alpha is None else f", alpha = {test.alpha}"
            told.append(
                EvidenceCurve(
                    name=f"{test.what}, {shorten_words(test.group)}{level}",
                    test=test,
                    points=tuple((outcomes, logs[place]) for outcomes, _, logs in curve.points),
                )
            )
    return told


def status_of(
    artifact: CalibrationArtifact,
    evidence: Evidence,
    standing: ResultCounts,
    *,
    level: float,
    limits: Limits,
    now: float,
) -> MonitorStatus:
    """Put together what is known.

    Args:
        artifact: The artifact.
        evidence: What its tests have seen.
        standing: What the store holds.
        level: Probability of any false alarm of either kind.
        limits: What must not be exceeded.
        now: The time, in seconds since 1970.

    Returns:
        The status.
    """
    words = {one.name: one.words for one in artifact.feature_map.guaranteed_weights()}
    drift, kept = evidence.drift, evidence.kept
    tests = []
    kinds: tuple[tuple[Literal["drift", "labelled"], Drift | LabelSamplingTest], ...]
    kinds = (("drift", drift), ("labelled", evidence.sampled))
    for kind, part in kinds:
        for place, (watched, group) in enumerate(drift.tests):
            found = _found(part, place, level)
            shift = (
                describe_shift(watched, watched.counts[group], drift.observed(place))
                if kind == "drift"
                else None
            )
            tests.append(
                Test(
                    kind=kind,
                    what=called(watched),
                    group=words[group],
                    alpha=watched.alpha,
                    shift=shift,
                    **found,
                )
            )
    for place, one in enumerate(kept.stated):
        found = _found(kept, place, level)
        seen = float(kept.kept[place] / found["outcomes"]) if found["outcomes"] else None
        tests.append(
            Test(
                kind=one.what,
                what=_RATES[one.what],
                group=one.words,
                alpha=one.alpha,
                seen=seen,
                certified=one.rate,
                **found,
            )
        )
    age = max(0.0, (now - datetime.fromisoformat(artifact.created_at).timestamp()) / _DAY)
    models = _other_models(artifact, standing.models)
    return MonitorStatus(
        artifact=artifact.digest,
        age_days=age,
        results=standing.results,
        labels=standing.labels,
        failures=standing.failures,
        answered=standing.share(standing.answered),
        flagged=standing.share(standing.flagged),
        failing=standing.failing,
        seconds=standing.seconds,
        models=models,
        level=level,
        together=tuple(_together(drift, kept, evidence.sampled, tests, level)),
        tests=tuple(sorted(tests, key=lambda one: (-one.progress, -one.evidence))),
        breaches=tuple(limits.breaches(age, standing, models)),
        notes=tuple(_notes(artifact, evidence, standing)),
    )


def called(watched: ReferenceHistogram) -> str:
    """A quantity, for people; features keep the names that their text gives them."""
    return watched.name.replace("_", " ") if watched.name in _OWN else watched.name


def _found(part: Drift | CoverageTest | LabelSamplingTest, place: int, level: float) -> dict[str, Any]:
    """Return what one of some tests has found, all of which share the level."""
    capital = part.capital
    peak = float(capital.peak[place])
    # Compared in logarithms, for evidence may leave the range of numbers. Where the mean has reached
    # 1 / level, the largest of the tests has as well.
    alarm = float(part.mean.peak) >= -math.log(level) and peak >= -math.log(level)
    return {
        "outcomes": int(capital.outcomes[place]),
        "evidence": math.exp(min(peak, _LARGEST)),
        "needed": capital.log.size / level,
        "alarm": alarm,
        "since": _time(float(capital.since[place])) if alarm else None,
    }


def _together(
    drift: Drift, kept: CoverageTest, sampled: LabelSamplingTest, tests: Sequence[Test], level: float
) -> Iterator[Together]:
    """Return what the tests of each kind show together."""
    kinds: tuple[
        tuple[Literal["drift", "rates", "labelled"], Drift | CoverageTest | LabelSamplingTest, set[str]], ...
    ]
    kinds = (
        ("drift", drift, {"drift"}),
        ("rates", kept, {"kept", "right"}),
        ("labelled", sampled, {"labelled"}),
    )
    for kind, part, of in kinds:
        members = [one for one in tests if one.kind in of]
        if not members:
            continue
        leading = max(members, key=lambda one: one.evidence)
        peak = float(part.mean.peak)
        alarm = peak >= -math.log(level)
        yield Together(
            kind=kind,
            tests=len(members),
            evidence=math.exp(min(peak, _LARGEST)),
            needed=1.0 / level,
            alarm=alarm,
            since=_time(float(part.mean.since)) if alarm else None,
            leading=f"{leading.what}, {shorten_words(leading.group)}" if leading.outcomes else None,
        )


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, tz=timezone.utc).isoformat(timespec="seconds")


def _other_models(artifact: CalibrationArtifact, served: tuple[str, ...]) -> tuple[str, ...]:
    calibrated = (artifact.provenance.generator or {}) if artifact.provenance is not None else {}
    said = calibrated.get("model_version")
    if said is None:
        return ()
    known = set(said) if isinstance(said, (list, tuple)) else {said}
    return tuple(one for one in served if one not in known)


def _notes(artifact: CalibrationArtifact, evidence: Evidence, standing: ResultCounts) -> list[str]:
    notes = []
    if standing.unverified:
        notes.append(
            f"{100 * standing.unverified:.0f} % of the latest results come from a generator, verifier or "
            "extractor that does not say what it is: nothing shows whether it is the one that was calibrated"
        )
    if not artifact.reference:
        notes.append(
            "drift cannot be told: the artifact holds no counts of its own prompts, since an earlier release "
            "made it, or for a shift; calibrate again"
        )
    if artifact.reference and not any(one.alpha is not None for one in artifact.reference):
        notes.append(
            "thresholds and decisions are not watched, only what they are made of: the artifact held out no "
            "prompts to count them on (test_fraction)"
        )
    if not evidence.kept.stated:
        notes.append(
            "labels can show nothing: no rate is certified or promised with confidence. Certify the artifact "
            "on held-out prompts (langchain-cfc certify); what is promised on average over calibration sets "
            "cannot be held against one of them"
        )
    return notes
