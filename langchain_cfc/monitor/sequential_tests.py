"""Tests that may be looked at as often as one likes: capital that grows only where a promise is broken.

Whoever bets against a true hypothesis, at fair odds and before seeing each outcome, turns a stake of 1 into
1/level or more at any time at all with probability at most level (Ville 1939). Capital here is spread over a
few experts, each with a bet of its own; after every outcome a little of it is spread anew (fixed share:
Herbster and Warmuth 1998), so that a change after a long quiet time is found as well. Spreading moves capital
and makes none, so that it stays fair.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, StrictBool

from langchain_cfc._internal.arrays import BoolArray, FloatArray, IntArray
from langchain_cfc.artifact import CalibrationArtifact, ReferenceHistogram, compute_monitored_values
from langchain_cfc.errors import InputError
from langchain_cfc.features import shorten_words
from langchain_cfc.monitor.observed import ANSWERED, FLAGGED, Observed

# Of the capital, how much is spread anew after each outcome.
SHARED = 1e-3
# How strongly experts bet on ranks; at 1 a single rank could take everything.
_STRENGTHS = (0.25, 0.75)
# The first expert keeps its capital, so that no loss is lasting.
RANK_EXPERTS = 1 + 4 * len(_STRENGTHS)
# How far below the promised rate experts believe that it lies, as shares of it.
_DISTANCES = (0.03, 0.1, 0.25, 0.6)
RATE_EXPERTS = 1 + len(_DISTANCES)


@dataclass(frozen=True)
class EProcess:
    """The capital of some tests, and how each is spread over its experts. Logarithms are natural.

    Attributes:
        shares: (..., k) share of each expert; they add up to 1.
        log: (...) logarithm of the capital, 0 in the beginning.
        lowest: (...) its smallest value so far.
        lowest_at: (...) when that was.
        peak: (...) its largest value so far. Evidence that was there once is not taken back.
        since: (...) when it was lowest before that peak: where what the peak shows seems to begin.
        outcomes: (...) number of outcomes that were bet on.
    """

    shares: FloatArray
    log: FloatArray
    lowest: FloatArray
    lowest_at: FloatArray
    peak: FloatArray
    since: FloatArray
    outcomes: FloatArray

    @classmethod
    def stakes(cls, tests: Sequence[int], experts: int, now: float = 0.0) -> EProcess:
        """A stake of 1 for each test, spread evenly.

        Args:
            tests: Shape of the array of tests.
            experts: Number k of experts.
            now: The time, in any unit.
        """
        shape = tuple(tests)
        log, begun = np.zeros(shape), np.full(shape, now)
        return cls(np.full((*shape, experts), 1.0 / experts), log, log, begun, log, begun, log)

    def after(self, factors: FloatArray, now: float, seen: BoolArray | None = None) -> EProcess:
        """The capital after one outcome.

        Args:
            factors: (..., k) what each expert's bet pays for a stake of 1; above 0, of mean at most 1 under
                the hypothesis, whatever came before.
            now: The time.
            seen: (...) for which tests there was an outcome; the others stay as they are. All by default.
        """
        paid = self.shares * factors
        total = paid.sum(axis=-1)
        shares = (1.0 - SHARED) * paid / total[..., np.newaxis] + SHARED / factors.shape[-1]
        log = self.log + np.log(total)
        outcomes = self.outcomes + 1.0
        if seen is not None:
            shares = np.where(seen[..., np.newaxis], shares, self.shares)
            log = np.where(seen, log, self.log)
            outcomes = np.where(seen, outcomes, self.outcomes)
        lower, higher = log < self.lowest, log > self.peak
        lowest_at = np.where(lower, now, self.lowest_at)
        return EProcess(
            shares=shares,
            log=log,
            lowest=np.minimum(self.lowest, log),
            lowest_at=lowest_at,
            peak=np.maximum(self.peak, log),
            since=np.where(higher, lowest_at, self.since),
            outcomes=outcomes,
        )

    def to_data(self) -> dict[str, list[float]]:
        """All numbers as lists, to be stored; to the bit."""
        return {one.name: getattr(self, one.name).tolist() for one in fields(self)}

    @classmethod
    def from_data(cls, data: Mapping[str, list[float]]) -> EProcess:
        """What `to_data` was made of."""
        return cls(**{one.name: np.array(data[one.name], dtype=np.float64) for one in fields(cls)})


@dataclass(frozen=True)
class MixtureEProcess:
    """The mean of the capital of some tests over time: one test of all their hypotheses together.

    A mean of e-values is an e-value under any dependence between them, and essentially the only symmetric way
    to merge them (Vovk and Wang 2021, "E-values: Calibration, combination and applications"). It is at least
    max / m, so that an alarm at a mean of 1 / level never comes later than one by Bonferroni, where one of m
    tests reaches m / level, and comes earlier where several tests move. Logarithms are natural.

    Attributes:
        log: Logarithm of the mean, 0 in the beginning.
        lowest: Its smallest value so far.
        lowest_at: When that was.
        peak: Its largest value so far. Evidence that was there once is not taken back.
        since: When it was lowest before that peak: where what the peak shows seems to begin.
    """

    log: FloatArray
    lowest: FloatArray
    lowest_at: FloatArray
    peak: FloatArray
    since: FloatArray

    @classmethod
    def stakes(cls, shape: Sequence[int] = (), now: float = 0.0) -> MixtureEProcess:
        """Begin with a mean of 1.

        Args:
            shape: Shape of independent streams; one stream if left out.
            now: The time, in any unit.
        """
        log, begun = np.zeros(tuple(shape)), np.full(tuple(shape), now)
        return cls(log, log, begun, log, begun)

    def after(self, capital: EProcess, now: float) -> MixtureEProcess:
        """Return the mean after one more outcome.

        Args:
            capital: Of (..., m) tests, after that outcome; the mean stays as it is where m is 0.
            now: The time.
        """
        tests = capital.log.shape[-1]
        if tests == 0:
            return self
        log = np.logaddexp.reduce(capital.log, axis=-1) - np.log(tests)
        lower, higher = log < self.lowest, log > self.peak
        lowest_at = np.where(lower, now, self.lowest_at)
        return MixtureEProcess(
            log=log,
            lowest=np.minimum(self.lowest, log),
            lowest_at=lowest_at,
            peak=np.maximum(self.peak, log),
            since=np.where(higher, lowest_at, self.since),
        )

    def to_data(self) -> dict[str, Any]:
        """All numbers, to be stored; to the bit."""
        return {one.name: getattr(self, one.name).tolist() for one in fields(self)}

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> MixtureEProcess:
        """What `to_data` was made of."""
        return cls(**{one.name: np.array(data[one.name], dtype=np.float64) for one in fields(cls)})


def rank_factors(ranks: FloatArray) -> FloatArray:
    """What bets on ranks pay that are uniform as long as nothing changes.

    Experts bet that ranks become larger or smaller (the first Legendre polynomial), and more extreme or more
    central (the second), weakly and strongly; the first bets nothing.

    Args:
        ranks: (...) numbers in [0, 1].

    Returns:
        (..., `RANK_EXPERTS`) factors above 0, each of mean 1 over uniform ranks.
    """
    place = 2.0 * ranks - 1.0
    spread = 1.5 * place * place - 0.5
    bets = [
        1.0 + sign * strength * shape
        for shape in (place, spread)
        for sign in (1.0, -1.0)
        for strength in _STRENGTHS
    ]
    return np.stack([np.ones_like(place), *bets], axis=-1)


def rate_factors(kept: BoolArray, promised: FloatArray) -> FloatArray:
    """What bets pay that a promise is kept more rarely than stated.

    Each expert believes in another rate, and is paid the likelihood ratio: of mean 1 where the promise is
    kept at the stated rate, and less where it is kept more often.

    Args:
        kept: (...) whether it was kept this time.
        promised: (...) the stated rate, in (0, 1).

    Returns:
        (..., `RATE_EXPERTS`) factors above 0; the first expert bets nothing.
    """
    stated = np.asarray(promised, dtype=np.float64)[..., np.newaxis]
    believed = stated * (1.0 - np.array((0.0, *_DISTANCES)))
    odds: FloatArray = np.where(
        np.asarray(kept)[..., np.newaxis], believed / stated, (1.0 - believed) / (1.0 - stated)
    )
    return odds


def ranks(counts: IntArray, bins: IntArray, uniforms: FloatArray) -> FloatArray:
    """The randomised rank of one more value among all that were counted.

    The share of smaller ones, and a random part of those that are equal, itself included. As long as
    calibration prompts and stream are exchangeable, and bins were fixed on other prompts, the ranks of one
    value after the other are independent and uniform (Vovk, Nouretdinov and Gammerman 2003).

    Args:
        counts: (..., b) how often each bin was met, by calibration prompts and by what came since.
        bins: (...) the value's bin.
        uniforms: (...) independent uniform random numbers in (0, 1).

    Returns:
        (...) numbers in (0, 1).
    """
    below = (counts * (np.arange(counts.shape[-1]) < bins[..., np.newaxis])).sum(axis=-1)
    equal = np.take_along_axis(counts, bins[..., np.newaxis], axis=-1)[..., 0]
    found: FloatArray = (below + uniforms * (equal + 1)) / (counts.sum(axis=-1) + 1)
    return found


def counted(counts: IntArray, bins: IntArray, seen: BoolArray | None = None) -> IntArray:
    """The counts with one more value of each, or of those that were seen."""
    met = np.arange(counts.shape[-1]) == bins[..., np.newaxis]
    if seen is not None:
        met &= seen[..., np.newaxis]
    more: IntArray = counts + met
    return more


_FEW, _MANY = 10, 1_000_000
_KINDS = {
    "drift": "Drift",
    "rates": "Certified rates",
    "labelled": "Labelled results beside the others",
}


class Data(BaseModel):
    """Base of what a monitor says: plain data that does not change."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Test(Data):
    """One test, and what it has found.

    Attributes:
        kind: `drift` of what prompts look like; `kept` and `right`: a certified rate that is not kept;
            `labelled`: results with a label that do not look like the others.
        what: The quantity, or the rate, for people.
        group: The prompts in which it is watched, for people.
        alpha: The level it is of; None for what does not depend on one.
        outcomes: Number of results or labels that it has seen.
        evidence: The largest value that its capital ever had, from a stake of 1.
        needed: The value from which on it alarms by itself, whatever the other tests of its kind show;
            together with others it alarms earlier, see `Together`.
        alarm: Whether the tests of its kind alarm together and this is one of those that make them do so.
        since: When what it found seems to have begun, in ISO 8601, UTC; None without an alarm.
        seen: The observed share, for rates; None for drift.
        certified: The certified one; None for drift.
        shift: For drift, which way results moved and how far: the observed share beside the expected one,
            over all results so far. None for other kinds, and before the first result.
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
    shift: str | None = None

    @property
    def progress(self) -> float:
        """How far it is on the way from a stake of 1 to an alarm, by orders of magnitude: in [0, 1]."""
        return min(1.0, math.log(max(self.evidence, 1.0)) / math.log(self.needed))

    def sentence(self) -> str:
        """What it found, in a line."""
        level = "" if self.alpha is None else f" at alpha = {self.alpha}"
        since = "" if self.since is None else f", since about {self.since[:16].replace('T', ' ')} UTC"
        group = shorten_words(self.group)
        where = f"{f'over {group}' if group == self.group else f'where {group}'}{level}{since}"
        # Features keep the names that their text gives them.
        what = self.what if "(" in self.what else f"{self.what[0].upper()}{self.what[1:]}"
        if self.kind == "labelled":
            verdict = "differs" if self.alarm else "shows no difference"
            return f"{what} {verdict} between labelled results and the others {where}"
        if self.kind == "drift":
            if not self.alarm:
                return f"{what} shows no change {where}"
            return f"{what} has changed {where}" + (f"; {self.shift}" if self.shift else "")
        certified = f"{100 * (self.certified or 0.0):.1f} %"
        observed = "" if self.seen is None else f", observed {100 * self.seen:.1f} %"
        verdict = "is broken" if self.alarm else "stands"
        return f"{what}, certified at least {certified}{observed}, {verdict} {where}"


class Together(Data):
    """What all tests of one kind show together, by the mean of their capital; see `MixtureEProcess`.

    Attributes:
        kind: `drift`; `rates`: certified rates, of kept promises and right answers; `labelled`.
        tests: Number of tests.
        evidence: The largest value that the mean ever had, from 1.
        needed: The value from which on it alarms, 1 / level.
        alarm: Whether it does.
        since: When what it found seems to have begun, in ISO 8601, UTC; None without an alarm.
        leading: The test with the largest share of the evidence, for people; None without any outcome.
    """

    kind: Literal["drift", "rates", "labelled"]
    tests: int
    evidence: float
    needed: float
    alarm: bool
    since: str | None
    leading: str | None

    @property
    def progress(self) -> float:
        """How far it is on the way to an alarm, by orders of magnitude: in [0, 1]."""
        return min(1.0, math.log(max(self.evidence, 1.0)) / math.log(self.needed))

    def sentence(self) -> str:
        """What they show, in a line."""
        led = f", most of it from {self.leading}" if self.leading and self.evidence > 1.0 else ""
        tests = f"{self.tests} test{'' if self.tests == 1 else 's'} together"
        evidence = f"evidence {amount(self.evidence)}, alarm at {amount(self.needed)}"
        return f"{_KINDS[self.kind]}: {tests} show {evidence}{led}"


def amount(evidence: float) -> str:
    """Evidence, short enough for a column."""
    if evidence >= _MANY:
        return f"{evidence:.0e}"
    return f"{evidence:,.0f}" if evidence >= _FEW else f"{evidence:.1f}"


@dataclass(frozen=True)
class Drift:
    """Tests of whether results are exchangeable with calibration prompts, one for each quantity and group.

    Each ranks what comes among calibration prompts and what came before, and bets on the ranks. Under no
    drift, ranks of one test are independent of each other, so that its capital alone ever turns 1 into
    1/level with probability at most level (Ville).

    The mean of the capital of all m tests alarms at 1/level. At any number of results that is fixed
    beforehand it is an e-value, whatever the dependence between the tests (Vovk and Wang 2021). Over all
    numbers of results at once that is a theorem only if ranks of each test cannot be told from those of the
    others before them. They almost cannot: the ranks of several tests together say a little about where the
    calibration sample departs from the population, the less the larger it is. What that does is measured, not
    proven: see `tests/monitor/test_false_alarms.py`, where such streams alarm more rarely than the level.

    Attributes:
        artifact: The artifact.
        counts: (m, b) how often each bin of each quantity was met, calibration prompts included.
        capital: Of the m tests.
        mean: Of the capital of all m tests, which is what alarms.
    """

    artifact: CalibrationArtifact
    counts: Any
    capital: EProcess
    mean: MixtureEProcess

    @classmethod
    def begun(cls, artifact: CalibrationArtifact, now: float) -> Drift:
        """Nothing seen yet."""
        rows = [watched.counts[group] for watched, group in _tests(artifact)]
        width = max(map(len, rows), default=1)
        counts = np.array([[*row, *[0] * (width - len(row))] for row in rows], dtype=np.int64)
        capital = EProcess.stakes([len(rows)], RANK_EXPERTS, now)
        return cls(artifact, counts.reshape(-1, width), capital, MixtureEProcess.stakes(now=now))

    def without_calibration(self) -> Drift:
        """The same tests among results alone: have they changed since the first of them?"""
        return replace(self, counts=np.zeros_like(self.counts))

    def observed(self, place: int) -> list[int]:
        """Return how many results fell into each bin of a test, calibration prompts not included."""
        watched, group = self.tests[place]
        expected = watched.counts[group]
        return [int(all_) - own for all_, own in zip(self.counts[place], expected, strict=False)]

    @property
    def tests(self) -> list[tuple[ReferenceHistogram, str]]:
        """The m tests: a quantity, and the name of the weighting in which it is watched."""
        return self._layout.tests

    @cached_property
    def _layout(self) -> Layout:
        return Layout.of(self.artifact)

    def after(self, one: Observed) -> Drift:
        """With one more result."""
        layout = self._layout
        if not layout.tests:
            return self
        bins, seen = layout.placed(one)
        luck = one.uniforms("rank", len(bins))
        factors = rank_factors(ranks(self.counts, bins, luck))
        capital = self.capital.after(factors, one.at, seen)
        mean = self.mean.after(capital, one.at)
        after = Drift(self.artifact, counted(self.counts, bins, seen), capital, mean)
        after.__dict__["_layout"] = layout
        return after

    def to_data(self) -> dict[str, Any]:
        """What has been seen, to be stored; the artifact is not in it."""
        return {
            "counts": self.counts.tolist(),
            "capital": self.capital.to_data(),
            "mean": self.mean.to_data(),
        }

    @classmethod
    def from_data(cls, artifact: CalibrationArtifact, data: Mapping[str, Any]) -> Drift:
        """What `to_data` was made of."""
        counts = np.array(data["counts"], dtype=np.int64)
        capital, mean = EProcess.from_data(data["capital"]), MixtureEProcess.from_data(data["mean"])
        return cls(artifact, counts, capital, mean)


@dataclass(frozen=True)
class Layout:
    """Where each of m tests finds its quantity, its group and its level; the same for all results.

    Attributes:
        artifact: The artifact.
        tests: A quantity, and the name of the weighting in which it is watched.
        coefficients: (g, d) the weightings in the columns of the features.
        quantity: (m,) place of each test's quantity in the artifact's reference.
        group: (m,) place of its weighting among the g.
    """

    artifact: CalibrationArtifact
    tests: list[tuple[ReferenceHistogram, str]]
    coefficients: FloatArray
    quantity: Any
    group: Any

    @classmethod
    def of(cls, artifact: CalibrationArtifact) -> Layout:
        """The layout of an artifact's tests."""
        tests = list(_tests(artifact))
        weights = artifact.feature_map.guaranteed_weights()
        groups = tuple(one.name for one in weights)
        place = {id(watched): number for number, watched in enumerate(artifact.reference)}
        return cls(
            artifact=artifact,
            tests=tests,
            coefficients=np.array([one.coefficients for one in weights]),
            quantity=np.array([place[id(watched)] for watched, _ in tests], dtype=np.int64),
            group=np.array([groups.index(name) for _, name in tests], dtype=np.int64),
        )

    def placed(self, one: Observed) -> tuple[Any, Any]:
        """(m,) bins of a result, and whether each test sees it."""
        features = np.array(one.features)[np.newaxis]
        told = compute_monitored_values(self.artifact.feature_map, features, np.array(one.scores)[np.newaxis])
        decided = {"threshold": one.threshold, "decision": float(one.outcome)}
        reference = self.artifact.reference
        values = [
            decided[watched.name] if watched.alpha is not None else float(told[watched.name][0])
            for watched in reference
        ]
        bins = [
            int(watched.bins(np.array([value]))[0]) for watched, value in zip(reference, values, strict=True)
        ]
        of_level = [watched.alpha in {None, one.alpha} for watched in reference]
        within = one.uniforms("group", 1) < self.coefficients @ features[0]
        return (
            np.array(bins, dtype=np.int64)[self.quantity],
            np.array(of_level)[self.quantity] & within[self.group],
        )


def _tests(artifact: CalibrationArtifact) -> Iterator[tuple[ReferenceHistogram, str]]:
    for watched in artifact.reference:
        for group in watched.counts:
            yield watched, group


@dataclass(frozen=True)
class Label:
    """What people, or time, said of a result.

    Attributes:
        id: Of the result.
        correct: Of each of the n candidates, whether it is correct, None where nobody knows; one truth value
            for the best answer, which says nothing of the set; or None for a set that is empty or flagged,
            where nothing need be known.
        probability: With what probability this result was chosen to be labelled, in (0, 1]: 1 where all are,
            or where the choice looked at nothing.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    id: str
    correct: StrictBool | Sequence[StrictBool | None] | None
    probability: float = 1.0

    def __post_init__(self) -> None:
        if not 0.0 < self.probability <= 1.0:
            msg = f"label of {self.id!r}: a probability lies in (0, 1], got {self.probability}"
            raise InputError(msg)
        if not self.id.isprintable():
            msg = f"label of {self.id!r}: that is no name of a result"
            raise InputError(msg)
        # Arrays of NumPy hold truth values of their own.
        object.__setattr__(self, "correct", _plain(self.correct, self.id))

    @property
    def complete(self) -> bool:
        """Whether it says of every candidate whether it is correct."""
        return not (self.correct is None or isinstance(self.correct, bool) or None in self.correct)

    def weight(self, least: float) -> float:
        """For how much of a result it speaks: least / p, where it was chosen with probability p.

        Args:
            least: The smallest probability with which any result is chosen.

        Returns:
            The weight in (0, 1].

        Raises:
            InputError: If it was chosen more rarely than `least`.
        """
        if self.probability < least:
            msg = (
                f"label of {self.id!r}: its result was chosen with probability {self.probability}, which is "
                f"below least_probability = {least}: state the smallest there is (--least-probability)"
            )
            raise InputError(msg)
        return least / self.probability

    def fair(self, one: Observed, least: float) -> bool:
        """Whether it counts, where one counts with its weight as probability.

        So those that count are a fair sample of all results (rejection sampling).

        Raises:
            InputError: If it was chosen more rarely than `least`.
        """
        return bool(one.uniforms("label", 1)[0] < self.weight(least))

    def of(self, one: Observed) -> tuple[bool | None, bool | None]:
        """What it says of a result.

        It says that the promise was kept only where it would have said as well that it was not: otherwise the
        results that count would be chosen by what they show.

        Returns:
            Whether the promise was kept, and whether the answer was right; None where it does not tell, or
            there was no answer.

        Raises:
            InputError: If it does not fit the result.
        """
        truths, best = self._truths(one), one.best
        inside = [truth for truth, accepted in zip(truths, one.accepted, strict=True) if accepted]
        covered = None if None in inside else any(inside)
        kept = None if isinstance(self.correct, bool) else one.outcome == FLAGGED or covered
        return kept, None if best is None or one.withheld else truths[best]

    def _truths(self, one: Observed) -> list[bool | None]:
        """Of each candidate."""
        n, best, correct = len(one.scores), one.best, self.correct
        if correct is None and one.outcome == ANSWERED:
            msg = f"label of {self.id!r}: the set is not empty; say which candidates are correct"
            raise InputError(msg)
        if isinstance(correct, bool) and best is None:
            msg = f"label of {self.id!r}: no answer was given that could be correct; label the candidates"
            raise InputError(msg)
        if correct is None or isinstance(correct, bool):
            return [correct if slot == best else None for slot in range(n)]
        if len(correct) != n:
            msg = f"label of {self.id!r}: it speaks of {len(correct)} candidates, and there are {n}"
            raise InputError(msg)
        return list(correct)


def _plain(correct: Any, name: str) -> bool | tuple[bool | None, ...] | None:
    if correct is None or isinstance(correct, (bool, np.bool_)):
        return None if correct is None else bool(correct)
    known = list(correct) if isinstance(correct, (Sequence, np.ndarray)) else [correct]
    if isinstance(correct, str) or any(
        one is not None and not isinstance(one, (bool, np.bool_)) for one in known
    ):
        msg = f"label of {name!r}: expected true or false, a list of them, or nothing; got {correct!r:.80}"
        raise InputError(msg)
    return tuple(None if one is None else bool(one) for one in known)


@dataclass(frozen=True)
class Stated:
    """A certified rate that is watched.

    Attributes:
        what: `kept`: sets hold a correct answer or are flagged; `right`: answers are not wrong.
        group: Name of the weighting; `1` is all prompts.
        words: The same for people.
        alpha: Level of the sets.
        rate: What is certified: at least so often, in (0, 1).
        delta: Probability that the certificate is wrong, as decimal text.
    """

    what: Literal["kept", "right"]
    group: str
    words: str
    alpha: str
    rate: float
    delta: str


def stated(artifact: CalibrationArtifact) -> list[Stated]:
    """What is certified of an artifact or promised with confidence, as far as a rate can fall below it."""
    found = []
    policy, confidence = artifact.policy, artifact.confidence
    for certificate in [*artifact.certificates, *(policy.coverage if policy is not None else [])]:
        found += [
            Stated("kept", one.name, one.words, certificate.alpha, one.kept_at_least, certificate.delta)
            for one in certificate.shares
            if 0.0 < one.kept_at_least < 1.0
        ]
    if policy is not None:
        wrong = policy.certificate
        rate = 1.0 - float(wrong.max_wrong_rate)
        found += [
            Stated("right", one.name, one.words, wrong.alpha, rate, wrong.delta)
            for one in wrong.groups
            if one.certified or one is wrong.groups[0]
        ]
    if confidence is not None:
        found += [
            Stated(
                "kept",
                one.name,
                one.words,
                alpha,
                artifact.guarantee(alpha).target_coverage,
                confidence.delta,
            )
            for alpha in artifact.alphas
            for one in artifact.feature_map.guaranteed_weights()
            if one.name in confidence.names
        ]
    # Two of them may speak of the same rate; the first is what held-out prompts say.
    return list({(one.what, one.group, one.alpha): one for one in reversed(found)}.values())[::-1]


@dataclass(frozen=True)
class CoverageTest:
    """Tests of the certified rates, one for each.

    Where a certificate is right, a bet that its rate is lower, at odds that are fair for the certified one,
    has capital of mean at most 1 given everything that came before, the outcomes of other tests included, for
    prompts are independent of each other. So the mean of the capital of all m tests is an e-process as well,
    and ever turns 1 into 1/level with probability at most level (Ville). A certificate is wrong with
    probability at most its delta: in all, a false alarm has probability at most level + delta. This assumes
    that whether a result is labelled, and when, does not depend on whether it was correct, given what its
    probability to be labelled was chosen by.

    Attributes:
        artifact: The artifact.
        capital: Of the m tests.
        mean: Of the capital of all m tests, which is what alarms.
        kept: (m,) number of outcomes that kept what is stated.
    """

    artifact: CalibrationArtifact
    capital: EProcess
    mean: MixtureEProcess
    kept: FloatArray

    @classmethod
    def begun(cls, artifact: CalibrationArtifact, now: float) -> CoverageTest:
        """Nothing seen yet."""
        count = len(stated(artifact))
        capital = EProcess.stakes([count], RATE_EXPERTS, now)
        return cls(artifact, capital, MixtureEProcess.stakes(now=now), np.zeros(count))

    @cached_property
    def stated(self) -> list[Stated]:
        """The m rates."""
        return stated(self.artifact)

    @cached_property
    def _coefficients(self) -> dict[str, FloatArray]:
        weights = self.artifact.feature_map.guaranteed_weights()
        return {one.name: np.array(one.coefficients) for one in weights}

    def after(self, one: Observed, label: Label, now: float, least: float) -> CoverageTest:
        """With one more label.

        Args:
            one: The result.
            label: What is said of it.
            now: The time.
            least: The smallest probability with which any result is labelled; see `Label.fair`.
        """
        if not self.stated:
            return self
        kept_promise, right = label.of(one)
        # A certified wrong-answer rate speaks of bot mode alone.
        outcomes = {"kept": kept_promise, "right": right if one.bot else None}
        features = np.array(one.features)
        luck, fair = one.uniforms("kept", 1)[0], label.fair(one, least)
        seen = np.array(
            [
                fair
                and outcomes[it.what] is not None
                and it.alpha == one.alpha
                and luck < self._coefficients[it.group] @ features
                for it in self.stated
            ]
        )
        kept: BoolArray = np.array([bool(outcomes[it.what]) for it in self.stated])
        rates = np.array([it.rate for it in self.stated])
        capital = self.capital.after(rate_factors(kept, rates), now, seen)
        return CoverageTest(self.artifact, capital, self.mean.after(capital, now), self.kept + (kept & seen))

    def to_data(self) -> dict[str, Any]:
        """What has been seen, to be stored."""
        return {
            "kept": self.kept.tolist(),
            "capital": self.capital.to_data(),
            "mean": self.mean.to_data(),
        }

    @classmethod
    def from_data(cls, artifact: CalibrationArtifact, data: Mapping[str, Any]) -> CoverageTest:
        """What `to_data` was made of."""
        capital, mean = EProcess.from_data(data["capital"]), MixtureEProcess.from_data(data["mean"])
        return cls(artifact, capital, mean, np.array(data["kept"], dtype=np.float64))


# Results in a row that are compared with each other, so that drift is no difference between them.
BLOCK = 200


@dataclass(frozen=True)
class LabelSamplingTest:
    """Tests of whether labelled results look like the others, one for each quantity and group.

    Results are taken in blocks, each once, when all labels that it will get have come. If a label does not
    depend on what a result looks like, the labelled ones of a block are drawn from it without replacement,
    and their ranks among the others and those before them are independent and uniform.

    Attributes:
        artifact: The artifact.
        capital: Of the m tests, those of `Drift`.
        mean: Of the capital of all m tests, which is what alarms.
        last: Number of the last result of the last block.
    """

    artifact: CalibrationArtifact
    capital: EProcess
    mean: MixtureEProcess
    last: int

    @classmethod
    def begun(cls, artifact: CalibrationArtifact, now: float) -> LabelSamplingTest:
        """Nothing seen yet."""
        capital = EProcess.stakes([len(Layout.of(artifact).tests)], RANK_EXPERTS, now)
        return cls(artifact, capital, MixtureEProcess.stakes(now=now), 0)

    def after(self, block: Sequence[tuple[Observed, bool]], last: int) -> LabelSamplingTest:
        """With one more block.

        Args:
            block: Results in their order, with whether each is labelled.
            last: Number of the last of them.
        """
        layout = Layout.of(self.artifact)
        placed = [(one, *layout.placed(one)) for one, _ in block]
        chosen = [labelled for _, labelled in block]
        counts = np.zeros_like(Drift.begun(self.artifact, 0.0).counts)
        for (_, bins, seen), labelled in zip(placed, chosen, strict=True):
            counts = counts if labelled else counted(counts, bins, seen)
        capital, mean = self.capital, self.mean
        for (one, bins, seen), labelled in zip(placed, chosen, strict=True):
            if labelled:
                luck = one.uniforms("labelled", len(bins))
                capital = capital.after(rank_factors(ranks(counts, bins, luck)), one.at, seen)
                mean = mean.after(capital, one.at)
                counts = counted(counts, bins, seen)
        return replace(self, capital=capital, mean=mean, last=last)

    def to_data(self) -> dict[str, Any]:
        """What has been seen, to be stored."""
        return {"last": self.last, "capital": self.capital.to_data(), "mean": self.mean.to_data()}

    @classmethod
    def from_data(cls, artifact: CalibrationArtifact, data: Mapping[str, Any]) -> LabelSamplingTest:
        """What `to_data` was made of."""
        capital, mean = EProcess.from_data(data["capital"]), MixtureEProcess.from_data(data["mean"])
        return cls(artifact, capital, mean, int(data["last"]))
