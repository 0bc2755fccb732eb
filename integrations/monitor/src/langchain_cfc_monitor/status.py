"""The state of a monitor's tests, as data and in words."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

import numpy as np

from langchain_cfc.artifact import CalibrationArtifact, ReferenceHistogram
from langchain_cfc.errors import InputError
from langchain_cfc.features import get_direction, name_group
from langchain_cfc.guarantee import format_share
from langchain_cfc.runnable.binding import list_other_models
from langchain_cfc.support.text import format_percent
from langchain_cfc.support.units import UNITS, UnitTraits
from langchain_cfc_monitor.evidence import Evidence
from langchain_cfc_monitor.observed import ANSWERED, DAY, EMPTY, FLAGGED, Data, format_time, is_number
from langchain_cfc_monitor.sequential_tests import CoverageTest, SequentialTest
from langchain_cfc_monitor.store import ResultCounts, compute_share

_LARGEST_LOG = 700.0  # its exponential is still a finite float
_OUTCOME_WORDS = {EMPTY: "left with an empty set", FLAGGED: "flagged as not certifiable"}
# What an alarm of a kind says, and what there is no sign of without one.
_KIND_NAMES = {
    "drift": ("Traffic has changed", "of change"),
    "rates": ("A certified rate is broken", "that a certified rate is broken"),
    "labelled": ("Labelled results differ from the others", "that labelled results differ from the others"),
}
# Evidence below this says nothing: it multiplies a stake of 1.
_SOME_EVIDENCE = 3.0
# Names in words for quantities that are not features.
_QUANTITY_NAMES = {
    "mean_score": "mean score",
    "min_score": "min score",
    "draws": "number of draws",
    "threshold": "threshold",
    "decision": "decision",
}


class _Evidence(Data):
    """The evidence of one or several tests.

    Attributes:
        evidence: The largest wealth that they ever had, from a stake of 1; of several tests the mean.
        needed: The evidence at which they alarm.
        alarm: Whether they do.
        since: When the change seems to have begun, in ISO 8601, UTC; None without an alarm.
    """

    evidence: float
    needed: float
    alarm: bool
    since: str | None

    @property
    def progress(self) -> float:
        """Progress from a stake of 1 to an alarm at `needed`, on a logarithmic scale, in [0, 1]."""
        return min(1.0, math.log(max(self.evidence, 1.0)) / math.log(self.needed))


class Test(_Evidence):
    """One test and its evidence so far.

    It alarms if the tests of its kind alarm together, see `CombinedTest`, and its own wealth has reached
    1 / level. `needed` is the evidence at which it alarms by itself, regardless of the others.

    Attributes:
        kind: `drift` (prompts look different than in calibration), `kept` or `right` (a certified rate does
            not hold), or `labelled` (labelled results look different from the others).
        what: The quantity or rate, in words; features keep the names from their text.
        what_name: The same in plain language, such as `share of hard questions`.
        group: The group of prompts that is tested, in words.
        group_name: The same in plain language, such as `very hard questions`.
        alpha: Error level of the sets, or the rate among all questions; None for quantities that do not
            depend on one, and for certified rates of a bot.
        option: The option that `alpha` is the value of.
        outcomes: Number of results or labels that it has seen.
        seen: The observed share, for rates; None for other kinds, and before the first label.
        certified: The certified share, for rates; None for other kinds.
        shift: For drift, which way results moved and how far: the observed share and the expected one,
            over all results so far. None for other kinds, and before the first result.
    """

    kind: Literal["drift", "kept", "right", "labelled"]
    what: str
    what_name: str
    group: str
    group_name: str
    alpha: str | None
    option: Literal["alpha", "max_wrong_of_all"]
    outcomes: int
    seen: float | None = None
    certified: float | None = None
    shift: str | None = None

    @property
    def what_in_group(self) -> str:
        """The quantity and its group in plain language."""
        return self.what_name if self.group_name == "all prompts" else f"{self.what_name}, {self.group_name}"

    @property
    def sentence(self) -> str:
        """The finding in one line."""
        level = "" if self.alpha is None else f" at {self.option} = {self.alpha}"
        since = "" if self.since is None else f", since about {self.since[:16].replace('T', ' ')} UTC"
        of_group = "" if self.group_name == "all prompts" and not level else f" for {self.group_name}"
        where = f"{of_group}{level}{since}"
        what = f"{self.what_name[0].upper()}{self.what_name[1:]}"
        if self.kind == "labelled":
            verdict = "differs" if self.alarm else "shows no difference"
            return f"{what} {verdict} between labelled results and the others{where}"
        if self.kind == "drift":
            if not self.alarm:
                return f"{what} shows no change{where}"
            return f"{self.shift or f'{what} has changed'}{where}"
        certified = format_percent(self.certified or 0.0, ".1f")
        observed = "" if self.seen is None else f", observed {format_percent(self.seen, '.1f')}"
        verdict = "is violated" if self.alarm else "shows no violation"
        return f"{what}, certified at least {certified}{observed}, {verdict}{where}"


class CombinedTest(_Evidence):
    """All tests of one kind, combined by the mean of their wealth; see `MixtureEProcess`.

    They alarm at 1 / level.

    Attributes:
        kind: `drift`; `rates`: certified rates, of kept promises and right answers; `labelled`.
        tests: Number of tests.
        leading: The test with the most evidence, in words; None if it has seen no outcome.
    """

    kind: Literal["drift", "rates", "labelled"]
    tests: int
    leading: str | None

    @property
    def sentence(self) -> str:
        """The evidence in one line."""
        found, sought = _KIND_NAMES[self.kind]
        evidence, most = self.evidence, "" if self.leading is None else f", most from: {self.leading}"
        sign = "No" if evidence < _SOME_EVIDENCE else "No clear"
        if evidence < _SOME_EVIDENCE:
            most = ""
        verdict = found if self.alarm else f"{sign} sign {sought}"
        return f"{verdict} ({format_evidence(evidence)} of {format_evidence(self.needed)} needed{most})"


def format_evidence(evidence: float) -> str:
    """Format evidence as a number short enough for a column."""
    if evidence >= 1_000_000:  # noqa: PLR2004 - where digits become too many
        return f"{evidence:.0e}"
    return f"{evidence:,.0f}" if evidence >= 10 else f"{evidence:.1f}"  # noqa: PLR2004 - two digits


@dataclass(frozen=True)
class Limits:
    """Fixed limits, checked besides the statistical tests; None for no limit.

    Attributes:
        age_days: Age of the artifact, in days.
        failing: Share of the latest prompts that cannot be served, in [0, 1].
        seconds: 99th percentile of the time that the latest results took, in seconds.

    Raises:
        InputError: If a limit is out of range.
    """

    age_days: float | None = None
    failing: float | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        """Validate the limits."""
        for name, most in (("age_days", math.inf), ("failing", 1.0), ("seconds", math.inf)):
            limit = getattr(self, name)
            if limit is not None and not (is_number(limit) and 0.0 <= limit <= most):
                expected = "a share in [0, 1]" if name == "failing" else "a number of at least 0"
                msg = f"limit {name} is {limit!r}; expected {expected}"
                raise InputError(msg)

    def list_breaches(self, age_days: float, counts: ResultCounts, models: Sequence[str]) -> Iterator[str]:
        """Yield a sentence for every limit that is exceeded, and for every model that was not calibrated."""
        for model in models:
            yield f"The model {model} is served but was not calibrated"
        if self.age_days is not None and age_days > self.age_days:
            yield f"The artifact is {int(age_days)} days old; at most {self.age_days:g} are allowed"
        failing, seconds = counts.failing, counts.seconds
        if self.failing is not None and failing is not None and failing > self.failing:
            yield (
                f"{format_percent(failing, '.1f')} of the latest prompts could not be served; at most "
                f"{format_percent(self.failing, 'g')} are allowed"
            )
        if self.seconds is not None and seconds is not None and seconds[1] > self.seconds:
            yield (
                f"The latest results took {seconds[1]:.3g} s at the 99th percentile; at most "
                f"{self.seconds:g} s are allowed"
            )


class AnsweredShare(Data):
    """How many results a bot answered at one certified wrong-answer rate.

    Attributes:
        max_wrong_rate: The rate as decimal text.
        results: Number of results served at this rate, above 0.
        answered: Share of them that were answered.
        expected: Share of the certification prompts that are answered at this rate.
        subject: `runs` for runs of an agent; None for answers.
    """

    max_wrong_rate: str
    results: int
    answered: float
    expected: float
    subject: Literal["runs"] | None = None

    @property
    def sentence(self) -> str:
        """The shares in one line."""
        traits = UNITS[self.subject or "answers"]
        return (
            f"With {_name_promise(self.max_wrong_rate)}, {format_percent(self.answered)} of {self.results:,} "
            f"{traits.prompt}s are {traits.shown} ({format_percent(self.expected)} of the certification "
            f"{traits.prompt}s)"
        )


class EvidenceCurve(Data):
    """The evidence of one test over time.

    Attributes:
        name: The quantity or rate and the group of prompts, in words.
        test: The test.
        points: Pairs of a number of outcomes and the natural logarithm of the wealth after them.
    """

    name: str
    test: Test
    points: tuple[tuple[int, float], ...]


class MonitorStatus(Data):
    """The state of a monitor: what all results and labels so far show.

    Attributes:
        artifact: Digest of the artifact.
        age_days: Days since it was made.
        results: Number of results.
        labels: Number of labels.
        failures: Number of prompts that could not be served.
        answered: Share of results that were answered; None without results.
        flagged: Share of results that are not certifiable; None without results.
        failing: Share of the latest prompts that could not be served; None without any.
        seconds: Median and 99th percentile of the seconds that the latest results took; None if not measured.
        models: Names of models that answer and were not calibrated.
        level: Probability of ever raising a false alarm, for each of drift and certified rates.
        together: The combined test of each kind that has tests; these decide on alarms.
        tests: All tests, those closest to an alarm first.
        rates: How many results were answered at each certified wrong-answer rate.
        breaches: Limits that are exceeded and models that were not calibrated, in sentences.
        notes: What the monitor cannot test, and why.
        subject: `runs` for runs of an agent; None for answers.
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
    together: tuple[CombinedTest, ...]
    tests: tuple[Test, ...]
    rates: tuple[AnsweredShare, ...]
    breaches: tuple[str, ...]
    notes: tuple[str, ...]
    subject: Literal["runs"] | None = None

    @property
    def traits(self) -> UnitTraits:
        """The words for what it watches."""
        return UNITS[self.subject or "answers"]

    @property
    def sound(self) -> bool:
        """Whether no test alarms and no limit is exceeded."""
        return not (self.alarms or self.breaches)

    @property
    def alarms(self) -> tuple[Test, ...]:
        """The alarming tests for drift and for certified rates."""
        return tuple(one for one in self.tests if one.alarm and one.kind != "labelled")

    @property
    def doubts(self) -> tuple[Test, ...]:
        """The alarming tests by which labelled results look different from the others."""
        return tuple(one for one in self.tests if one.alarm and one.kind == "labelled")


def list_curves(evidence: Evidence, level: float, most: int) -> Iterator[EvidenceCurve]:
    """Yield the curves of the tests closest to an alarm: up to `most` for drift, and as many for rates."""
    of_drift = _list_tests_by_group("drift", evidence.drift, evidence, level)
    of_rates = _list_tests_of_rates(evidence.kept, level)
    for tests, curve in ((of_drift, evidence.drifted), (of_rates, evidence.broken)):
        for place, test in sorted(enumerate(tests), key=lambda pair: _rank_test(pair[1]))[:most]:
            at = "" if test.alpha is None else f", {test.option} = {test.alpha}"
            yield EvidenceCurve(
                name=f"{test.what_in_group}{at}",
                test=test,
                points=tuple((outcomes, logs[place]) for outcomes, _, logs in curve.points),
            )


def make_status(
    artifact: CalibrationArtifact,
    evidence: Evidence,
    counts: ResultCounts,
    *,
    level: float,
    limits: Limits,
    now: float,
) -> MonitorStatus:
    """Make the status from the evidence of the tests and the counts of the store."""
    tests = [
        *_list_tests_by_group("drift", evidence.drift, evidence, level),
        *_list_tests_by_group("labelled", evidence.sampled, evidence, level),
        *_list_tests_of_rates(evidence.kept, level),
    ]
    age = max(0.0, (now - datetime.fromisoformat(artifact.created_at).timestamp()) / DAY)
    models = list_other_models(artifact, counts.models)
    return MonitorStatus(
        artifact=artifact.digest,
        age_days=age,
        results=counts.results,
        labels=counts.labels,
        failures=counts.failures,
        answered=compute_share(counts.answered, counts.results),
        flagged=compute_share(counts.flagged, counts.results),
        failing=counts.failing,
        seconds=counts.seconds,
        models=models,
        level=level,
        together=tuple(_combine_tests(evidence, tests, level)),
        tests=tuple(sorted(tests, key=_rank_test)),
        rates=tuple(_list_answered_shares(artifact, counts)),
        breaches=tuple(limits.list_breaches(age, counts, models)),
        notes=tuple(_list_notes(artifact, evidence, counts)),
        subject=_find_subject(artifact),
    )


def _find_subject(artifact: CalibrationArtifact) -> Literal["runs"] | None:
    return "runs" if artifact.subject == "runs" else None


def _list_answered_shares(artifact: CalibrationArtifact, counts: ResultCounts) -> Iterator[AnsweredShare]:
    for one in () if artifact.bot is None else artifact.bot.certificates:
        results, answered = counts.by_rate.get(one.max_wrong_rate, (0, 0))
        if results:
            yield AnsweredShare(
                max_wrong_rate=one.max_wrong_rate,
                results=results,
                answered=answered / results,
                expected=one.groups[0].answered / one.prompts,
                subject=_find_subject(artifact),
            )


def _rank_test(test: Test) -> tuple[float, float]:
    """Return a sort key that puts the tests closest to an alarm first."""
    return -test.progress, -test.evidence


def _list_tests_by_group(
    kind: Literal["drift", "labelled"], tests: SequentialTest, evidence: Evidence, level: float
) -> Iterator[Test]:
    """Yield a test for each quantity and group, in the order of `Layout.tests`."""
    drift, traits = evidence.drift, evidence.drift.artifact.traits
    words = {one.name: one.words for one in drift.artifact.feature_map.list_guaranteed_weights()}
    for place, (watched, group) in enumerate(drift.layout.tests):
        name, shift = _name_quantity_plainly(watched, words, traits), None
        if kind == "drift":
            expected, observed = watched.counts[group], drift.count_results(place)
            shift = _describe_shift(watched, name, expected, observed, traits)
        yield Test(
            kind=kind,
            what=name_quantity(watched, traits),
            what_name=name,
            group=words[group],
            group_name=name_group(words[group], group),
            alpha=watched.alpha if watched.max_wrong_rate is None else None,
            option=drift.artifact.parsed_set_rule.option,
            shift=shift,
            **_summarize_evidence(tests, place, level),
        )


def _list_tests_of_rates(kept: CoverageTest, level: float) -> Iterator[Test]:
    option, traits = kept.artifact.parsed_set_rule.option, kept.artifact.traits
    names = {"kept": "the rate of kept promises", "right": f"share of right {traits.single}s"}
    if option == "max_wrong_of_all":
        names["kept"] = f"the rate of {traits.prompt}s {traits.shown} rightly or not at all"
    for place, one in enumerate(kept.rates):
        named = names[one.what]
        if one.max_wrong_rate is not None:
            named += f" at the {format_share(float(one.max_wrong_rate))} rate"
        found = _summarize_evidence(kept, place, level)
        yield Test(
            kind=one.what,
            what=named,
            what_name=named,
            group=one.words,
            group_name=name_group(one.words, one.group),
            alpha=one.alpha if one.max_wrong_rate is None else None,
            option=option,
            seen=float(kept.kept[place] / found["outcomes"]) if found["outcomes"] else None,
            certified=one.rate,
            **found,
        )


def _name_promise(max_wrong_rate: str) -> str:
    return f"at most {format_share(float(max_wrong_rate))} wrong"


def name_quantity(watched: ReferenceHistogram, traits: UnitTraits) -> str:
    """Name a quantity in words; features keep the names from their text."""
    if watched.max_wrong_rate is not None:
        rate = format_share(float(watched.max_wrong_rate))
        return f"share of {traits.prompt}s {traits.shown} at the {rate} rate"
    return _QUANTITY_NAMES.get(watched.name, watched.name)


def _name_quantity_plainly(watched: ReferenceHistogram, words: Mapping[str, str], traits: UnitTraits) -> str:
    """Name a quantity in plain language; a feature that is itself a group becomes a share of the group."""
    known = words.get(watched.name)
    return name_quantity(watched, traits) if known is None else f"share of {name_group(known, watched.name)}"


def _summarize_evidence(tests: SequentialTest, place: int, level: float) -> dict[str, Any]:
    """Return the evidence of one of several tests that share the level."""
    wealth, alarm = tests.wealth, bool(tests.find_alarms(level)[place])
    of_test = _describe_evidence(wealth.peak[place], wealth.since[place], wealth.log.size / level, alarm)
    return {"outcomes": int(wealth.outcomes[place]), **of_test}


def _describe_evidence(peak: Any, since: Any, needed: float, alarm: bool) -> dict[str, Any]:
    evidence = math.exp(min(float(peak), _LARGEST_LOG))
    began = format_time(float(since)) if alarm else None
    return {"evidence": evidence, "needed": needed, "alarm": alarm, "since": began}


def _combine_tests(evidence: Evidence, tests: Sequence[Test], level: float) -> Iterator[CombinedTest]:
    """Yield the combined test of each kind that has any tests."""
    kinds: tuple[tuple[Literal["drift", "rates", "labelled"], SequentialTest, set[str]], ...]
    kinds = (
        ("drift", evidence.drift, {"drift"}),
        ("rates", evidence.kept, {"kept", "right"}),
        ("labelled", evidence.sampled, {"labelled"}),
    )
    for kind, combined, of in kinds:
        members = [one for one in tests if one.kind in of]
        if not members:
            continue
        leading = max(members, key=lambda one: one.evidence)
        mean, alarm = combined.mixture, combined.is_alarming(level)
        yield CombinedTest(
            kind=kind,
            tests=len(members),
            **_describe_evidence(mean.peak, mean.since, 1.0 / level, alarm),
            leading=leading.what_in_group if leading.outcomes else None,
        )


def _list_notes(artifact: CalibrationArtifact, evidence: Evidence, counts: ResultCounts) -> Iterator[str]:
    if not counts.results:
        yield (
            "no results yet: the store holds no result of this artifact. If it serves, is its monitor among "
            "the callbacks, with this store?"
        )
    if counts.unverified:
        yield (
            f"{format_percent(counts.unverified)} of the latest results come from a generator, verifier or "
            "extractor that does not identify itself, so it is unknown whether it is the calibrated one"
        )
    if artifact.reference and not any(one.alpha is not None for one in artifact.reference):
        yield (
            "the decisions of the artifact are not watched, only their inputs, such as scores: calibration "
            "held out no prompts to count decisions on (test_fraction)"
        )
    if not evidence.kept.rates:
        yield (
            "labels cannot be tested: no rate is certified or promised with confidence. Certify the "
            "artifact on held-out prompts (langchain-cfc certify); a promise on average over calibration "
            "sets cannot be tested on one of them"
        )


def _describe_shift(
    watched: ReferenceHistogram,
    name: str,
    expected: Sequence[int],
    observed: Sequence[int],
    traits: UnitTraits,
) -> str | None:
    """Describe where the bins of results differ most from those of calibration prompts; None if empty."""
    calibration, results = np.array(expected, dtype=np.float64), np.array(observed, dtype=np.float64)
    if not calibration.sum() or not results.sum():
        return None
    calibration, results = calibration / calibration.sum(), results / results.sum()
    if watched.name == "decision":
        # A bot's user asks how many prompts it answers; of sets, the outcome that has changed most is named.
        is_bot = watched.max_wrong_rate is not None
        outcome = ANSWERED if is_bot else int(np.argmax(np.abs(results - calibration)))
        move = "More" if results[outcome] > calibration[outcome] else "Fewer"
        shares = f"{format_percent(results[outcome])} (expected {format_percent(calibration[outcome])})"
        return f"{move} {traits.prompt}s {_OUTCOME_WORDS.get(outcome, traits.shown)}: {shares}"
    # The edge at which the cumulative shares are farthest apart, as in the Kolmogorov-Smirnov statistic.
    below, expected_below = results.cumsum()[:-1], calibration.cumsum()[:-1]
    place = int(np.argmax(np.abs(below - expected_below)))
    edge = f"{watched.edges[place]:.3g}"
    is_higher = bool(below[place] <= expected_below[place])
    counts_draws = watched.name == "draws"
    above = f"took {edge} draws or more" if counts_draws else f"are {edge} or more"
    under = f"took fewer than {edge} draws" if counts_draws else f"are below {edge}"
    shares = (
        _format_shares(1.0 - below[place], above, 1.0 - expected_below[place])
        if is_higher
        else _format_shares(below[place], under, expected_below[place])
    )
    is_harder = get_direction(watched.name)
    move = f"{name[0].upper()}{name[1:]} {'higher' if is_higher else 'lower'}"
    if is_harder is not None:
        move = (
            f"{traits.prompt.capitalize()}s look {'harder' if is_higher == is_harder else 'easier'} by {name}"
        )
    return f"{move}: {shares}"


def _format_shares(observed: float, words: str, expected: float) -> str:
    return f"{format_percent(observed)} of results {words} (expected {format_percent(expected)})"
