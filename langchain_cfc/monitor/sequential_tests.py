"""Anytime-valid monitoring: the bets, and the three kinds of tests made of e-processes of them.

The tests: `DriftTest` asks whether prompts look as they did in calibration, `CoverageTest` whether certified
rates hold, and `LabelSamplingTest` whether labelled results look like the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from langchain_cfc._internal.arrays import BoolArray, FloatArray, IntArray
from langchain_cfc.artifact import CalibrationArtifact, ReferenceHistogram, compute_monitored_values
from langchain_cfc.candidates import CandidateBatch
from langchain_cfc.certificates.e_processes import EProcess, MixtureEProcess
from langchain_cfc.features.weights import WeightMatrix
from langchain_cfc.monitor.observed import Label, ObservedResult

if TYPE_CHECKING:
    from typing_extensions import Self

# How strongly experts bet on ranks; at 1 a single rank could take everything.
_STRENGTHS = (0.25, 0.75)
# The first expert bets nothing and keeps its wealth, so that no loss is lasting.
RANK_EXPERTS = 1 + 4 * len(_STRENGTHS)
# How far below the certified rate experts believe the true rate to be, as shares of it.
_DISTANCES = (0.03, 0.1, 0.25, 0.6)
RATE_EXPERTS = 1 + len(_DISTANCES)
# Results in a row whose labelled ones are compared with the others, so that drift is no difference.
BLOCK = 200


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
    """Where each of m tests finds its quantity, its group and its level; the same for all results."""

    artifact: CalibrationArtifact
    tests: list[tuple[ReferenceHistogram, str]]  # a quantity, and the weighting in which it is watched
    counts: IntArray  # (m, b) how often calibration prompts met each bin of each quantity
    weights: WeightMatrix  # the g weightings
    quantity: IntArray  # (m,) place of each test's quantity in the artifact's reference
    group: IntArray  # (m,) place of its weighting among the g

    @classmethod
    def from_artifact(cls, artifact: CalibrationArtifact) -> Layout:
        """Lay out the tests of an artifact."""
        tests = [(watched, group) for watched in artifact.reference for group in watched.counts]
        rows = [watched.counts[group] for watched, group in tests]
        width = max(map(len, rows), default=1)
        counts = np.array([[*row, *[0] * (width - len(row))] for row in rows], dtype=np.int64)
        weights = artifact.feature_map.guaranteed_weights()
        groups = tuple(one.name for one in weights)
        place = {id(watched): number for number, watched in enumerate(artifact.reference)}
        return cls(
            artifact=artifact,
            tests=tests,
            counts=counts.reshape(-1, width),
            weights=WeightMatrix.from_weights(weights),
            quantity=np.array([place[id(watched)] for watched, _ in tests], dtype=np.int64),
            group=np.array([groups.index(name) for _, name in tests], dtype=np.int64),
        )

    def assign_bins(self, one: ObservedResult) -> tuple[Any, Any]:
        """Return the (m,) bins of a result, and which tests see it."""
        features = np.array(one.features)[np.newaxis]
        computed = compute_monitored_values(
            self.artifact.feature_map,
            features,
            CandidateBatch.of([one.scores]),
            stops=self.artifact.draws is not None,
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
        within = one.draw_uniforms("group", 1) < self.weights.values(features)[0]
        return (
            np.array(bins, dtype=np.int64)[self.quantity],
            np.array(of_level)[self.quantity] & within[self.group],
        )


@dataclass(frozen=True)
class SequentialTest:
    """Tests of one kind, and their evidence."""

    artifact: CalibrationArtifact
    wealth: EProcess  # of each of the m tests
    mixture: MixtureEProcess  # mean of the wealth of all m tests, which is what alarms

    def bet(self, payoffs: FloatArray, now: float, seen: BoolArray) -> Self:
        """Return the tests after bets on one more outcome of those that have `seen` one."""
        wealth = self.wealth.update(payoffs, now, seen)
        return replace(self, wealth=wealth, mixture=self.mixture.update(wealth, now))

    def is_alarming(self, level: float) -> bool:
        """Return whether the mean of the wealth has reached 1 / level."""
        # Compared in logarithms, because evidence may exceed the range of floats.
        return bool(self.mixture.peak >= -np.log(level))

    def find_alarms(self, level: float) -> BoolArray:
        """Return (m,) whether each test is one of those that make all alarm together."""
        # Where the mean has reached 1 / level, the largest of the tests has as well.
        alarms: BoolArray = (self.wealth.peak >= -np.log(level)) & self.is_alarming(level)
        return alarms

    def to_data(self) -> dict[str, Any]:
        """Return what has been seen as plain data, without the artifact."""
        return {"capital": self.wealth.to_data(), "mean": self.mixture.to_data()}


def _read_wealth(data: Mapping[str, Any]) -> tuple[EProcess, MixtureEProcess]:
    return EProcess.from_data(data["capital"]), MixtureEProcess.from_data(data["mean"])


@dataclass(frozen=True)
class DriftTest(SequentialTest):
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
    """

    layout: Layout
    counts: IntArray  # (m, b) how often each bin of each quantity was met, calibration prompts included

    @classmethod
    def start(cls, artifact: CalibrationArtifact, now: float) -> DriftTest:
        """Begin before any result."""
        layout = Layout.from_artifact(artifact)
        wealth = EProcess.start([len(layout.tests)], RANK_EXPERTS, now)
        return cls(artifact, wealth, MixtureEProcess.start(now=now), layout, layout.counts)

    def without_calibration(self) -> DriftTest:
        """Return the same tests among results alone: have they changed since the first of them?"""
        return replace(self, counts=np.zeros_like(self.counts))

    def count_results(self, place: int) -> list[int]:
        """Return how many results fell into each bin of a test, calibration prompts not included."""
        watched, group = self.tests[place]
        counts: list[int] = (self.counts - self.layout.counts)[place].tolist()
        return counts[: len(watched.counts[group])]

    @property
    def tests(self) -> list[tuple[ReferenceHistogram, str]]:
        """The m tests: a quantity, and the name of the weighting in which it is watched."""
        return self.layout.tests

    def update(self, one: ObservedResult) -> DriftTest:
        """Return the tests after one more result."""
        if not self.tests:
            return self
        bins, seen = self.layout.assign_bins(one)
        uniforms = one.draw_uniforms("rank", len(bins))
        payoffs = compute_rank_payoffs(compute_ranks(self.counts, bins, uniforms))
        return replace(self.bet(payoffs, one.at, seen), counts=add_to_counts(self.counts, bins, seen))

    def to_data(self) -> dict[str, Any]:
        """Return what has been seen as plain data, without the artifact."""
        return {"counts": self.counts.tolist(), **super().to_data()}

    @classmethod
    def from_data(cls, artifact: CalibrationArtifact, data: Mapping[str, Any]) -> DriftTest:
        """Restore what `to_data` returned."""
        counts = np.array(data["counts"], dtype=np.int64)
        return cls(artifact, *_read_wealth(data), Layout.from_artifact(artifact), counts)


@dataclass(frozen=True)
class CertifiedRate:
    """A certified rate that is watched."""

    what: Literal["kept", "right"]  # sets hold a correct answer or are flagged; answers are not wrong
    group: str  # name of the weighting; `1` is all prompts
    words: str  # the same for people
    alpha: str  # level of the sets
    rate: float  # what is certified: at least so often, in (0, 1)
    max_wrong_rate: str | None = None  # of right answers, the certified rate of wrong ones


def list_certified_rates(artifact: CalibrationArtifact) -> list[CertifiedRate]:
    """List what is certified of an artifact or guaranteed with confidence, if a rate can fall below it."""
    found = []
    policy, confidence = artifact.policy, artifact.confidence
    for certificate in [*artifact.certificates, *(policy.coverage if policy is not None else [])]:
        found += [
            CertifiedRate("kept", one.name, one.words, certificate.alpha, one.kept_at_least)
            for one in certificate.shares
            if 0.0 < one.kept_at_least < 1.0
        ]
    if policy is not None:
        found += [
            CertifiedRate("right", one.name, one.words, wrong.alpha, 1.0 - float(rate), rate)
            for wrong in policy.certificates
            for rate in [wrong.max_wrong_rate]
            for one in wrong.groups
            if one.certified or one is wrong.groups[0]
        ]
    if confidence is not None:
        found += [
            CertifiedRate("kept", one.name, one.words, alpha, target)
            for alpha in artifact.alphas
            for target in [artifact.guarantee(alpha).target_coverage]
            for one in artifact.feature_map.guaranteed_weights()
            if one.name in confidence.names
        ]
    # Two of them may speak of the same rate; the first is what held-out prompts say.
    watched = {(one.what, one.group, one.alpha, one.max_wrong_rate): one for one in reversed(found)}
    return list(watched.values())[::-1]


@dataclass(frozen=True)
class CoverageTest(SequentialTest):
    """Tests of the certified rates, one for each.

    Where a certificate is right, a bet that its rate is lower, at odds that are fair for the certified one,
    has wealth of mean at most 1 given everything that came before, the outcomes of other tests included, for
    prompts are independent of each other. So the mean of the wealth of all m tests is an e-process as well,
    and ever turns 1 into 1/level with probability at most level (Ville). A certificate is wrong with
    probability at most its delta: in all, a false alarm has probability at most level + delta. This assumes
    that whether a result is labelled, and when, does not depend on whether it was correct, given what its
    probability to be labelled was chosen by.
    """

    kept: FloatArray  # (m,) number of outcomes that kept what is certified

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
    def _weights(self) -> tuple[list[str], WeightMatrix]:
        weights = self.artifact.feature_map.guaranteed_weights()
        return [one.name for one in weights], WeightMatrix.from_weights(weights)

    def update(self, one: ObservedResult, label: Label, now: float, least: float) -> CoverageTest:
        """Return the tests after one more label; `least` as `Label.is_sampled` takes it."""
        if not self.rates:
            return self
        kept_promise, right = label.judge(one)
        if self.artifact.calibration.drawn_among is not None and not label.shows_drawn:
            kept_promise = None  # the promise speaks of prompts for which a correct candidate was drawn
        outcomes = {"kept": kept_promise, "right": right}
        names, matrix = self._weights
        weights = dict(zip(names, matrix.values(np.array(one.features)[np.newaxis])[0], strict=True))
        uniform, sampled = one.draw_uniforms("kept", 1)[0], label.is_sampled(one, least)
        seen = np.array(
            [
                sampled
                and outcomes[it.what] is not None
                and it.alpha == one.alpha
                # A certified wrong-answer rate speaks of the policy that was chosen by it.
                and it.max_wrong_rate in {None, one.max_wrong_rate}
                and uniform < weights[it.group]
                for it in self.rates
            ]
        )
        kept: BoolArray = np.array([bool(outcomes[it.what]) for it in self.rates])
        certified = np.array([it.rate for it in self.rates])
        after = self.bet(compute_rate_payoffs(kept, certified), now, seen)
        return replace(after, kept=self.kept + (kept & seen))

    def to_data(self) -> dict[str, Any]:
        """Return what has been seen as plain data, without the artifact."""
        return {"kept": self.kept.tolist(), **super().to_data()}

    @classmethod
    def from_data(cls, artifact: CalibrationArtifact, data: Mapping[str, Any]) -> CoverageTest:
        """Restore what `to_data` returned."""
        return cls(artifact, *_read_wealth(data), np.array(data["kept"], dtype=np.float64))


@dataclass(frozen=True)
class LabelSamplingTest(SequentialTest):
    """Tests of whether labelled results look like the others, one for each quantity and group.

    Results are taken in blocks, each once, when all labels that it will get have come. If a label does not
    depend on what a result looks like, the labelled ones of a block are drawn from it without replacement,
    and their ranks among the others and those before them are independent and uniform.
    """

    layout: Layout  # its tests are those of `DriftTest`
    last: int  # number of the last result of the last block

    @classmethod
    def start(cls, artifact: CalibrationArtifact, now: float) -> LabelSamplingTest:
        """Begin before any block."""
        layout = Layout.from_artifact(artifact)
        wealth = EProcess.start([len(layout.tests)], RANK_EXPERTS, now)
        return cls(artifact, wealth, MixtureEProcess.start(now=now), layout, 0)

    def update(self, block: Sequence[tuple[ObservedResult, bool]], last: int) -> LabelSamplingTest:
        """Return the tests after a block of results and whether each is labelled; `last` is its number."""
        placed = [(one, labelled, *self.layout.assign_bins(one)) for one, labelled in block]
        counts = np.zeros_like(self.layout.counts)
        for _, labelled, bins, seen in placed:
            counts = counts if labelled else add_to_counts(counts, bins, seen)
        after = replace(self, last=last)
        for one, labelled, bins, seen in placed:
            if labelled:
                uniforms = one.draw_uniforms("labelled", len(bins))
                after = after.bet(compute_rank_payoffs(compute_ranks(counts, bins, uniforms)), one.at, seen)
                counts = add_to_counts(counts, bins, seen)
        return after

    def to_data(self) -> dict[str, Any]:
        """Return what has been seen as plain data, without the artifact."""
        return {"last": self.last, **super().to_data()}

    @classmethod
    def from_data(cls, artifact: CalibrationArtifact, data: Mapping[str, Any]) -> LabelSamplingTest:
        """Restore what `to_data` returned."""
        return cls(artifact, *_read_wealth(data), Layout.from_artifact(artifact), int(data["last"]))
