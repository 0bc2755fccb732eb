"""E-processes (test martingales) for anytime-valid monitoring, and the three kinds of tests made of them.

Bets against a true hypothesis, at fair odds and placed before each outcome is seen, turn a stake of 1 into
1/level or more at any time at all with probability at most level (Ville 1939). So the tests may be looked at
after every outcome. Wealth is spread over a few experts, each with a bet of its own. After every outcome a
little of it is spread evenly again (fixed share: Herbster and Warmuth 1998), so that a change is found even
after a long time without one. Spreading moves wealth between experts and creates none, so the bets stay fair.

The tests: `DriftTest` asks whether prompts look as they did in calibration, `CoverageTest` whether certified
rates hold, and `LabelSamplingTest` whether labelled results look like the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

from langchain_cfc._internal.arrays import BoolArray, FloatArray, IntArray
from langchain_cfc.artifact import CalibrationArtifact, ReferenceHistogram, compute_monitored_values
from langchain_cfc.monitor.observed import Label, ObservedResult

# Share of the wealth that is spread evenly after each outcome.
_FIXED_SHARE = 1e-3
# How strongly experts bet on ranks; at 1 a single rank could take everything.
_STRENGTHS = (0.25, 0.75)
# The first expert bets nothing and keeps its wealth, so that no loss is lasting.
RANK_EXPERTS = 1 + 4 * len(_STRENGTHS)
# How far below the certified rate experts believe the true rate to be, as shares of it.
_DISTANCES = (0.03, 0.1, 0.25, 0.6)
RATE_EXPERTS = 1 + len(_DISTANCES)
# Results in a row whose labelled ones are compared with the others, so that drift is no difference.
BLOCK = 200


@dataclass(frozen=True)
class EProcess:
    """The wealth of several tests, each spread over its experts. Logarithms are natural.

    Attributes:
        shares: (..., k) share of each expert; they add up to 1.
        log: (...) logarithm of the wealth, 0 in the beginning.
        lowest: (...) its smallest value so far.
        lowest_at: (...) time of that.
        peak: (...) its largest value so far. Evidence is not taken back.
        since: (...) time of the lowest value before the peak, where what the peak shows seems to begin.
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
    def start(cls, tests: Sequence[int], experts: int, now: float = 0.0) -> EProcess:
        """Stake 1 on each test of an array of this shape, spread evenly over its experts."""
        shape = tuple(tests)
        log, begun = np.zeros(shape), np.full(shape, now)
        return cls(np.full((*shape, experts), 1.0 / experts), log, log, begun, log, begun, log)

    def update(self, payoffs: FloatArray, now: float, seen: BoolArray | None = None) -> EProcess:
        """Return the wealth after one outcome.

        `payoffs` (..., k) is what each expert's bet pays for a stake of 1: above 0, of mean at most 1 under
        the hypothesis, whatever came before. Tests that are not `seen` (...) had no outcome and stay.
        """
        paid = self.shares * payoffs
        total = paid.sum(axis=-1)
        shares = (1.0 - _FIXED_SHARE) * paid / total[..., np.newaxis] + _FIXED_SHARE / payoffs.shape[-1]
        log = self.log + np.log(total)
        outcomes = self.outcomes + 1.0
        if seen is not None:
            shares = np.where(seen[..., np.newaxis], shares, self.shares)
            log = np.where(seen, log, self.log)
            outcomes = np.where(seen, outcomes, self.outcomes)
        return EProcess(shares=shares, outcomes=outcomes, **_update_path(self, log, now))

    def to_data(self) -> dict[str, Any]:
        """Return all numbers as lists, exact to the bit."""
        return _to_lists(self)

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> EProcess:
        """Restore what `to_data` returned."""
        return cls(**_from_lists(cls, data))


@dataclass(frozen=True)
class MixtureEProcess:
    """The mean of the wealth of several tests over time: one test of all their hypotheses together.

    A mean of e-values is an e-value under any dependence between them, and essentially the only symmetric way
    to merge them (Vovk and Wang 2021, "E-values: Calibration, combination and applications"). It is at least
    max / m, so that an alarm at a mean of 1 / level never comes later than one by Bonferroni, where one of m
    tests reaches m / level, and comes earlier where several tests move. Logarithms are natural.

    Attributes:
        log: Logarithm of the mean, 0 in the beginning.
        lowest: Its smallest value so far.
        lowest_at: Time of that.
        peak: Its largest value so far. Evidence is not taken back.
        since: Time of the lowest value before the peak, where what the peak shows seems to begin.
    """

    log: FloatArray
    lowest: FloatArray
    lowest_at: FloatArray
    peak: FloatArray
    since: FloatArray

    @classmethod
    def start(cls, shape: Sequence[int] = (), now: float = 0.0) -> MixtureEProcess:
        """Begin with a mean of 1 for each stream of an array of this shape."""
        log, begun = np.zeros(tuple(shape)), np.full(tuple(shape), now)
        return cls(log, log, begun, log, begun)

    def update(self, wealth: EProcess, now: float) -> MixtureEProcess:
        """Return the mean of the wealth of (..., m) tests after an outcome; unchanged where m is 0."""
        tests = wealth.log.shape[-1]
        if tests == 0:
            return self
        log = np.logaddexp.reduce(wealth.log, axis=-1) - np.log(tests)
        return MixtureEProcess(**_update_path(self, log, now))

    def to_data(self) -> dict[str, Any]:
        """Return all numbers as lists, exact to the bit."""
        return _to_lists(self)

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> MixtureEProcess:
        """Restore what `to_data` returned."""
        return cls(**_from_lists(cls, data))


def _update_path(before: EProcess | MixtureEProcess, log: FloatArray, now: float) -> dict[str, FloatArray]:
    lowest_at = np.where(log < before.lowest, now, before.lowest_at)
    return {
        "log": log,
        "lowest": np.minimum(before.lowest, log),
        "lowest_at": lowest_at,
        "peak": np.maximum(before.peak, log),
        "since": np.where(log > before.peak, lowest_at, before.since),
    }


def _to_lists(process: EProcess | MixtureEProcess) -> dict[str, Any]:
    return {one.name: getattr(process, one.name).tolist() for one in fields(process)}


def _from_lists(kind: type[EProcess | MixtureEProcess], data: Mapping[str, Any]) -> dict[str, FloatArray]:
    return {one.name: np.array(data[one.name], dtype=np.float64) for one in fields(kind)}


def compute_rank_payoffs(ranks: FloatArray) -> FloatArray:
    """Return what bets pay against ranks being uniform, as they are unless something changes.

    Experts bet that ranks become larger or smaller (the first Legendre polynomial), and more extreme or more
    central (the second), weakly and strongly; the first expert bets nothing. Of ranks (...) in [0, 1] this
    makes (..., `RANK_EXPERTS`) payoffs above 0, each of mean 1 over uniform ranks.
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


def compute_rate_payoffs(kept: BoolArray, certified: FloatArray) -> FloatArray:
    """Return what bets pay against an event happening as often as certified.

    Each expert believes in a lower rate and is paid the likelihood ratio, which has mean 1 at the certified
    rate (...) in (0, 1), and less at a higher one. Of outcomes (...) this makes (..., `RATE_EXPERTS`) payoffs
    above 0; the first expert bets nothing.
    """
    stated = np.asarray(certified, dtype=np.float64)[..., np.newaxis]
    believed = stated * (1.0 - np.array((0.0, *_DISTANCES)))
    odds: FloatArray = np.where(
        np.asarray(kept)[..., np.newaxis], believed / stated, (1.0 - believed) / (1.0 - stated)
    )
    return odds


def compute_ranks(counts: IntArray, bins: IntArray, uniforms: FloatArray) -> FloatArray:
    """Return the randomised rank of one more value among all that were counted.

    It is the share of smaller values, and a random part of the equal ones, the value itself included. As long
    as calibration prompts and stream are exchangeable, and bins were fixed on other prompts, the ranks of one
    value after the other are independent and uniform (Vovk, Nouretdinov and Gammerman 2003).

    Of `counts` (..., b) of the bins so far, the value's `bins` (...) and independent `uniforms` (...) in
    (0, 1) this makes (...) ranks in (0, 1).
    """
    below = (counts * (np.arange(counts.shape[-1]) < bins[..., np.newaxis])).sum(axis=-1)
    equal = np.take_along_axis(counts, bins[..., np.newaxis], axis=-1)[..., 0]
    found: FloatArray = (below + uniforms * (equal + 1)) / (counts.sum(axis=-1) + 1)
    return found


def add_to_counts(counts: IntArray, bins: IntArray, seen: BoolArray | None = None) -> IntArray:
    """Return the counts with one more value of each test, or of each that has `seen` one."""
    met = np.arange(counts.shape[-1]) == bins[..., np.newaxis]
    if seen is not None:
        met &= seen[..., np.newaxis]
    more: IntArray = counts + met
    return more


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
    def from_artifact(cls, artifact: CalibrationArtifact) -> Layout:
        """Lay out the tests of an artifact."""
        tests = list(_list_tests(artifact))
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

    def assign_bins(self, one: ObservedResult) -> tuple[Any, Any]:
        """Return the (m,) bins of a result, and which tests see it."""
        features = np.array(one.features)[np.newaxis]
        computed = compute_monitored_values(
            self.artifact.feature_map, features, np.array(one.scores)[np.newaxis]
        )
        decided = {"threshold": one.threshold, "decision": float(one.outcome)}
        reference = self.artifact.reference
        values = [
            decided[watched.name] if watched.alpha is not None else float(computed[watched.name][0])
            for watched in reference
        ]
        bins = [
            int(watched.bins(np.array([value]))[0]) for watched, value in zip(reference, values, strict=True)
        ]
        of_level = [watched.alpha in {None, one.alpha} for watched in reference]
        within = one.draw_uniforms("group", 1) < self.coefficients @ features[0]
        return (
            np.array(bins, dtype=np.int64)[self.quantity],
            np.array(of_level)[self.quantity] & within[self.group],
        )


def _list_tests(artifact: CalibrationArtifact) -> Iterator[tuple[ReferenceHistogram, str]]:
    for watched in artifact.reference:
        for group in watched.counts:
            yield watched, group


def _read_wealth(data: Mapping[str, Any]) -> tuple[EProcess, MixtureEProcess]:
    return EProcess.from_data(data["capital"]), MixtureEProcess.from_data(data["mean"])


@dataclass(frozen=True)
class DriftTest:
    """Tests of whether results are exchangeable with calibration prompts, one for each quantity and group.

    Each ranks what comes among calibration prompts and what came before, and bets on the ranks. Under no
    drift, ranks of one test are independent of each other, so that its wealth alone ever turns 1 into
    1/level with probability at most level (Ville).

    The mean of the wealth of all m tests alarms at 1/level. At any number of results that is fixed
    beforehand it is an e-value, whatever the dependence between the tests (Vovk and Wang 2021). Over all
    numbers of results at once that is a theorem only if ranks of each test cannot be told from those of the
    others before them. They almost cannot: the ranks of several tests together say a little about where the
    calibration sample departs from the population, the less the larger it is. What that does is measured, not
    proven: see `tests/monitor/test_false_alarms.py`, where such streams alarm more rarely than the level.

    Attributes:
        artifact: The artifact.
        counts: (m, b) how often each bin of each quantity was met, calibration prompts included.
        wealth: Of the m tests.
        mixture: Mean of the wealth of all m tests, which is what alarms.
    """

    artifact: CalibrationArtifact
    counts: Any
    wealth: EProcess
    mixture: MixtureEProcess

    @classmethod
    def start(cls, artifact: CalibrationArtifact, now: float) -> DriftTest:
        """Begin before any result."""
        rows = [watched.counts[group] for watched, group in _list_tests(artifact)]
        width = max(map(len, rows), default=1)
        counts = np.array([[*row, *[0] * (width - len(row))] for row in rows], dtype=np.int64)
        wealth = EProcess.start([len(rows)], RANK_EXPERTS, now)
        return cls(artifact, counts.reshape(-1, width), wealth, MixtureEProcess.start(now=now))

    def without_calibration(self) -> DriftTest:
        """Return the same tests among results alone: have they changed since the first of them?"""
        return replace(self, counts=np.zeros_like(self.counts))

    def count_results(self, place: int) -> list[int]:
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
        return Layout.from_artifact(self.artifact)

    def update(self, one: ObservedResult) -> DriftTest:
        """Return the tests after one more result."""
        layout = self._layout
        if not layout.tests:
            return self
        bins, seen = layout.assign_bins(one)
        uniforms = one.draw_uniforms("rank", len(bins))
        payoffs = compute_rank_payoffs(compute_ranks(self.counts, bins, uniforms))
        wealth = self.wealth.update(payoffs, one.at, seen)
        mixture = self.mixture.update(wealth, one.at)
        after = DriftTest(self.artifact, add_to_counts(self.counts, bins, seen), wealth, mixture)
        after.__dict__["_layout"] = layout
        return after

    def to_data(self) -> dict[str, Any]:
        """Return what has been seen as plain data, without the artifact."""
        return {
            "counts": self.counts.tolist(),
            "capital": self.wealth.to_data(),
            "mean": self.mixture.to_data(),
        }

    @classmethod
    def from_data(cls, artifact: CalibrationArtifact, data: Mapping[str, Any]) -> DriftTest:
        """Restore what `to_data` returned."""
        return cls(artifact, np.array(data["counts"], dtype=np.int64), *_read_wealth(data))


@dataclass(frozen=True)
class CertifiedRate:
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


def list_certified_rates(artifact: CalibrationArtifact) -> list[CertifiedRate]:
    """List what is certified of an artifact or guaranteed with confidence, if a rate can fall below it."""
    found = []
    policy, confidence = artifact.policy, artifact.confidence
    for certificate in [*artifact.certificates, *(policy.coverage if policy is not None else [])]:
        found += [
            CertifiedRate(
                "kept", one.name, one.words, certificate.alpha, one.kept_at_least, certificate.delta
            )
            for one in certificate.shares
            if 0.0 < one.kept_at_least < 1.0
        ]
    if policy is not None:
        wrong = policy.certificate
        rate = 1.0 - float(wrong.max_wrong_rate)
        found += [
            CertifiedRate("right", one.name, one.words, wrong.alpha, rate, wrong.delta)
            for one in wrong.groups
            if one.certified or one is wrong.groups[0]
        ]
    if confidence is not None:
        found += [
            CertifiedRate("kept", one.name, one.words, alpha, target, confidence.delta)
            for alpha in artifact.alphas
            for target in [artifact.guarantee(alpha).target_coverage]
            for one in artifact.feature_map.guaranteed_weights()
            if one.name in confidence.names
        ]
    # Two of them may speak of the same rate; the first is what held-out prompts say.
    return list({(one.what, one.group, one.alpha): one for one in reversed(found)}.values())[::-1]


@dataclass(frozen=True)
class CoverageTest:
    """Tests of the certified rates, one for each.

    Where a certificate is right, a bet that its rate is lower, at odds that are fair for the certified one,
    has wealth of mean at most 1 given everything that came before, the outcomes of other tests included, for
    prompts are independent of each other. So the mean of the wealth of all m tests is an e-process as well,
    and ever turns 1 into 1/level with probability at most level (Ville). A certificate is wrong with
    probability at most its delta: in all, a false alarm has probability at most level + delta. This assumes
    that whether a result is labelled, and when, does not depend on whether it was correct, given what its
    probability to be labelled was chosen by.

    Attributes:
        artifact: The artifact.
        wealth: Of the m tests.
        mixture: Mean of the wealth of all m tests, which is what alarms.
        kept: (m,) number of outcomes that kept what is certified.
    """

    artifact: CalibrationArtifact
    wealth: EProcess
    mixture: MixtureEProcess
    kept: FloatArray

    @classmethod
    def start(cls, artifact: CalibrationArtifact, now: float) -> CoverageTest:
        """Begin before any label."""
        count = len(list_certified_rates(artifact))
        wealth = EProcess.start([count], RATE_EXPERTS, now)
        return cls(artifact, wealth, MixtureEProcess.start(now=now), np.zeros(count))

    @cached_property
    def rates(self) -> list[CertifiedRate]:
        """The m rates."""
        return list_certified_rates(self.artifact)

    @cached_property
    def _coefficients(self) -> dict[str, FloatArray]:
        weights = self.artifact.feature_map.guaranteed_weights()
        return {one.name: np.array(one.coefficients) for one in weights}

    def update(self, one: ObservedResult, label: Label, now: float, least: float) -> CoverageTest:
        """Return the tests after one more label; `least` as `Label.is_sampled` takes it."""
        if not self.rates:
            return self
        kept_promise, right = label.judge(one)
        # A certified wrong-answer rate speaks of bot mode alone.
        outcomes = {"kept": kept_promise, "right": right if one.bot else None}
        features = np.array(one.features)
        uniform, sampled = one.draw_uniforms("kept", 1)[0], label.is_sampled(one, least)
        seen = np.array(
            [
                sampled
                and outcomes[it.what] is not None
                and it.alpha == one.alpha
                and uniform < self._coefficients[it.group] @ features
                for it in self.rates
            ]
        )
        kept: BoolArray = np.array([bool(outcomes[it.what]) for it in self.rates])
        certified = np.array([it.rate for it in self.rates])
        wealth = self.wealth.update(compute_rate_payoffs(kept, certified), now, seen)
        return CoverageTest(
            self.artifact, wealth, self.mixture.update(wealth, now), self.kept + (kept & seen)
        )

    def to_data(self) -> dict[str, Any]:
        """Return what has been seen as plain data, without the artifact."""
        return {
            "kept": self.kept.tolist(),
            "capital": self.wealth.to_data(),
            "mean": self.mixture.to_data(),
        }

    @classmethod
    def from_data(cls, artifact: CalibrationArtifact, data: Mapping[str, Any]) -> CoverageTest:
        """Restore what `to_data` returned."""
        return cls(artifact, *_read_wealth(data), np.array(data["kept"], dtype=np.float64))


@dataclass(frozen=True)
class LabelSamplingTest:
    """Tests of whether labelled results look like the others, one for each quantity and group.

    Results are taken in blocks, each once, when all labels that it will get have come. If a label does not
    depend on what a result looks like, the labelled ones of a block are drawn from it without replacement,
    and their ranks among the others and those before them are independent and uniform.

    Attributes:
        artifact: The artifact.
        wealth: Of the m tests, those of `DriftTest`.
        mixture: Mean of the wealth of all m tests, which is what alarms.
        last: Number of the last result of the last block.
    """

    artifact: CalibrationArtifact
    wealth: EProcess
    mixture: MixtureEProcess
    last: int

    @classmethod
    def start(cls, artifact: CalibrationArtifact, now: float) -> LabelSamplingTest:
        """Begin before any block."""
        wealth = EProcess.start([len(Layout.from_artifact(artifact).tests)], RANK_EXPERTS, now)
        return cls(artifact, wealth, MixtureEProcess.start(now=now), 0)

    def update(self, block: Sequence[tuple[ObservedResult, bool]], last: int) -> LabelSamplingTest:
        """Return the tests after a block of results and whether each is labelled; `last` is its number."""
        layout = Layout.from_artifact(self.artifact)
        placed = [(one, labelled, *layout.assign_bins(one)) for one, labelled in block]
        counts = np.zeros_like(DriftTest.start(self.artifact, 0.0).counts)
        for _, labelled, bins, seen in placed:
            counts = counts if labelled else add_to_counts(counts, bins, seen)
        wealth, mixture = self.wealth, self.mixture
        for one, labelled, bins, seen in placed:
            if labelled:
                uniforms = one.draw_uniforms("labelled", len(bins))
                payoffs = compute_rank_payoffs(compute_ranks(counts, bins, uniforms))
                wealth = wealth.update(payoffs, one.at, seen)
                mixture = mixture.update(wealth, one.at)
                counts = add_to_counts(counts, bins, seen)
        return replace(self, wealth=wealth, mixture=mixture, last=last)

    def to_data(self) -> dict[str, Any]:
        """Return what has been seen as plain data, without the artifact."""
        return {"last": self.last, "capital": self.wealth.to_data(), "mean": self.mixture.to_data()}

    @classmethod
    def from_data(cls, artifact: CalibrationArtifact, data: Mapping[str, Any]) -> LabelSamplingTest:
        """Restore what `to_data` returned."""
        return cls(artifact, *_read_wealth(data), int(data["last"]))
