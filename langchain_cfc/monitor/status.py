"""What a monitor's tests say, as data and in words."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from langchain_cfc.artifact import CalibrationArtifact, Watched
from langchain_cfc.features import in_short
from langchain_cfc.monitor.betting import Capital
from langchain_cfc.monitor.store import Evidence, Standing

_DAY = 86_400.0
_LARGEST = 700.0  # whose exponential is a number
_FEW, _MANY = 10, 1_000_000
_RATES = {"kept": "the rate of kept promises", "right": "the rate of right answers"}
# What no feature text names.
_OWN = {"mean_score", "min_score", "threshold", "decision"}


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Test(_Data):
    """One test, and what it has found.

    Attributes:
        kind: `drift` of what prompts look like; `kept` and `right`: a certified rate that is not kept;
            `labelled`: results with a label that do not look like the others.
        what: The quantity, or the rate, for people.
        group: The prompts in which it is watched, for people.
        alpha: The level it is of; None for what does not depend on one.
        outcomes: Number of results or labels that it has seen.
        evidence: The largest value that its capital ever had, from a stake of 1.
        needed: The value from which on it alarms.
        alarm: Whether it does.
        since: When what it found seems to have begun, in ISO 8601, UTC; None without an alarm.
        seen: The observed share, for rates; None for drift.
        certified: The certified one; None for drift.
    """

    kind: Literal["drift", "kept", "right", "labelled"]
    what: str
    group: str
    alpha: str | None
    outcomes: int
    evidence: float
    needed: float
    alarm: bool
    since: str | None
    seen: float | None = None
    certified: float | None = None

    @property
    def progress(self) -> float:
        """How far it is on the way from a stake of 1 to an alarm, by orders of magnitude: in [0, 1]."""
        return min(1.0, math.log(max(self.evidence, 1.0)) / math.log(self.needed))

    def sentence(self) -> str:
        """What it found, in a line."""
        level = "" if self.alpha is None else f" at alpha = {self.alpha}"
        since = "" if self.since is None else f", since about {self.since[:16].replace('T', ' ')} UTC"
        group = in_short(self.group)
        where = f"{f'over {group}' if group == self.group else f'where {group}'}{level}{since}"
        # Features keep the names that their text gives them.
        what = self.what if "(" in self.what else f"{self.what[0].upper()}{self.what[1:]}"
        if self.kind == "labelled":
            verdict = "differs" if self.alarm else "shows no difference"
            return f"{what} {verdict} between labelled results and the others {where}"
        if self.kind == "drift":
            return f"{what} {'has changed' if self.alarm else 'shows no change'} {where}"
        certified = f"{100 * (self.certified or 0.0):.1f} %"
        return f"{what}, certified at least {certified}, {'is broken' if self.alarm else 'stands'} {where}"


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

    def breaches(self, age_days: float, standing: Standing, models: Sequence[str]) -> Iterator[str]:
        """What is exceeded, in sentences; models that were not calibrated always are one too many."""
        for model in models:
            yield f"The model {model} answers, and was not calibrated"
        if self.age_days is not None and age_days > self.age_days:
            yield f"The artifact is {age_days:.0f} days old; at most {self.age_days:g} are allowed"
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


class EvidenceCurve(_Data):
    """How the evidence of one test went.

    Attributes:
        name: What it tests and where, for people.
        test: The test.
        points: Numbers of outcomes, and the natural logarithm of the evidence after so many.
    """

    name: str
    test: Test
    points: tuple[tuple[int, float], ...]


class MonitorStatus(_Data):
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
                    name=f"{test.what}, {in_short(test.group)}{level}",
                    test=test,
                    points=tuple((outcomes, logs[place]) for outcomes, _, logs in curve.points),
                )
            )
    return told


def status_of(
    artifact: CalibrationArtifact,
    evidence: Evidence,
    standing: Standing,
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
    kinds: tuple[tuple[Literal["drift", "labelled"], Capital], ...]
    kinds = (("drift", drift.capital), ("labelled", evidence.sampled.capital))
    for kind, capital in kinds:
        for place, (watched, group) in enumerate(drift.tests):
            found = _found(capital, place, level)
            tests.append(
                Test(kind=kind, what=called(watched), group=words[group], alpha=watched.alpha, **found)
            )
    for place, one in enumerate(kept.stated):
        found = _found(kept.capital, place, level)
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
        tests=tuple(sorted(tests, key=lambda one: (-one.progress, -one.evidence))),
        breaches=tuple(limits.breaches(age, standing, models)),
        notes=tuple(_notes(artifact, evidence, standing)),
    )


def called(watched: Watched) -> str:
    """A quantity, for people; features keep the names that their text gives them."""
    return watched.name.replace("_", " ") if watched.name in _OWN else watched.name


def amount(evidence: float) -> str:
    """Evidence, short enough for a column."""
    if evidence >= _MANY:
        return f"{evidence:.0e}"
    return f"{evidence:,.0f}" if evidence >= _FEW else f"{evidence:.1f}"


def _found(capital: Capital, place: int, level: float) -> dict[str, Any]:
    """What one of some tests has found, all of which share the level."""
    needed = capital.log.size / level
    peak = float(capital.peak[place])
    # Compared in logarithms, for evidence may leave the range of numbers.
    alarm = peak >= math.log(needed)
    since = datetime.fromtimestamp(float(capital.since[place]), tz=timezone.utc)
    return {
        "outcomes": int(capital.outcomes[place]),
        "evidence": math.exp(min(peak, _LARGEST)),
        "needed": needed,
        "alarm": alarm,
        "since": since.isoformat(timespec="seconds") if alarm else None,
    }


def _other_models(artifact: CalibrationArtifact, served: tuple[str, ...]) -> tuple[str, ...]:
    calibrated = (artifact.provenance.generator or {}) if artifact.provenance is not None else {}
    said = calibrated.get("model_version")
    if said is None:
        return ()
    known = set(said) if isinstance(said, (list, tuple)) else {said}
    return tuple(one for one in served if one not in known)


def _notes(artifact: CalibrationArtifact, evidence: Evidence, standing: Standing) -> list[str]:
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
