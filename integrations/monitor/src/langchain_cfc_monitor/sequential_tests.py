"""Anytime-valid tests for monitoring: the bets, and three kinds of tests made of their e-processes.

`DriftTest` tests whether prompts look as they did in calibration, `CoverageTest` whether certified rates
hold, and `LabelSamplingTest` whether labelled results look like the others.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from langchain_cfc.artifact import CalibrationArtifact, ReferenceHistogram
from langchain_cfc.candidates import CandidateBatch
from langchain_cfc.certificates.bounds import upper_bound
from langchain_cfc.support.arrays import BoolArray, FloatArray, IntArray
from langchain_cfc_monitor.e_processes import EProcess, MixtureEProcess
from langchain_cfc_monitor.observed import Label, ObservedResult

if TYPE_CHECKING:
    from typing_extensions import Self

# How strongly experts bet on ranks; at 1 a single rank could cost an expert its whole wealth.
_BET_STRENGTHS = (0.25, 0.75)
# The first expert bets nothing and loses nothing, so that a test can recover from the losses of the others.
RANK_EXPERT_COUNT = 1 + 4 * len(_BET_STRENGTHS)
# How far experts believe the true rate to lie below the certified one, as shares of the certified rate.
_RATE_DISTANCES = (0.03, 0.1, 0.25, 0.6)
RATE_EXPERT_COUNT = 1 + len(_RATE_DISTANCES)
# Probability that any bound on an artifact's own rate among all questions fails.
_BOUND_FAILURE = 0.05
# Results per block of `LabelSamplingTest`: few, so that drift within a block is not taken for a difference.
BLOCK_SIZE = 200


def compute_rank_payoffs(ranks: FloatArray) -> FloatArray:
    """Return the payoffs of bets against uniform ranks; ranks are uniform unless something changes.

    Experts bet that ranks become larger or smaller (the first Legendre polynomial), and more extreme or more
    central (the second), weakly and strongly; the first expert bets nothing. For `ranks` (...) in [0, 1], the
    payoffs are (..., `RANK_EXPERT_COUNT`) numbers above 0, each with mean 1 over uniform ranks.
    """
    place = 2.0 * ranks - 1.0
    spread = 1.5 * place * place - 0.5
    bets = [
        1.0 + sign * strength * shape
        for shape in (place, spread)
        for sign in (1.0, -1.0)
        for strength in _BET_STRENGTHS
    ]
    return np.stack([np.ones_like(place), *bets], axis=-1)


def compute_rate_payoffs(kept: BoolArray, certified: FloatArray) -> FloatArray:
    """Return the payoffs of bets against an event being as frequent as certified.

    Each expert believes in a lower rate and is paid the likelihood ratio, which has mean 1 if the true rate
    is the `certified` one (...) in (0, 1), and a lower mean if it is higher. For outcomes `kept` (...), the
    payoffs are (..., `RATE_EXPERT_COUNT`) numbers above 0; the first expert bets nothing.
    """
    stated = np.asarray(certified, dtype=np.float64)[..., np.newaxis]
    believed = stated * (1.0 - np.array((0.0, *_RATE_DISTANCES)))
    odds: FloatArray = np.where(
        np.asarray(kept)[..., np.newaxis], believed / stated, (1.0 - believed) / (1.0 - stated)
    )
    return odds


def compute_ranks(counts: IntArray, bins: IntArray, uniforms: FloatArray) -> FloatArray:
    """Return the randomised rank of one more value among all that were counted.

    The rank is the share of smaller values plus a random part of the share of equal ones, the value itself
    included. If calibration prompts and stream are exchangeable, and the bins were fixed on other prompts,
    successive ranks are independent and uniform (Vovk, Nouretdinov and Gammerman 2003).

    Takes the `counts` (..., b) of the bins so far, the value's `bins` (...) and independent `uniforms` (...)
    in (0, 1); returns (...) ranks in (0, 1).
    """
    below = (counts * (np.arange(counts.shape[-1]) < bins[..., np.newaxis])).sum(axis=-1)
    equal = np.take_along_axis(counts, bins[..., np.newaxis], axis=-1)[..., 0]
    found: FloatArray = (below + uniforms * (equal + 1)) / (counts.sum(axis=-1) + 1)
    return found


def add_to_counts(counts: IntArray, bins: IntArray, seen: BoolArray | None = None) -> IntArray:
    """Return the counts with one more value for each test, or only for tests that have `seen` one."""
    met = np.arange(counts.shape[-1]) == bins[..., np.newaxis]
    if seen is not None:
        met &= seen[..., np.newaxis]
    more: IntArray = counts + met
    return more


@dataclass(frozen=True)
class Layout:
    """The quantity and the weighting of each of m tests, as arrays; the same for all results."""

    artifact: CalibrationArtifact
    reference: list[ReferenceHistogram]  # the quantities
    tests: list[tuple[ReferenceHistogram, str]]  # a quantity, and the weighting that it is tested under
    counts: IntArray  # (m, b) number of calibration prompts in each bin of each test
    quantity: IntArray  # (m,) index of each test's quantity in the reference
    group: IntArray  # (m,) index of each test's weighting among the g

    @classmethod
    def from_artifact(cls, artifact: CalibrationArtifact) -> Layout:
        """Return the layout of the tests of an artifact."""
        reference = _list_comparable(artifact)
        varying = [watched for watched in reference if watched.name != "1"]  # never changes
        tests = [(watched, group) for watched in varying for group in watched.counts]
        rows = [watched.counts[group] for watched, group in tests]
        width = max(map(len, rows), default=1)
        counts = np.array([[*row, *[0] * (width - len(row))] for row in rows], dtype=np.int64)
        groups = tuple(one.name for one in artifact.feature_map.list_guaranteed_weights())
        place = {id(watched): number for number, watched in enumerate(reference)}
        return cls(
            artifact=artifact,
            reference=reference,
            tests=tests,
            counts=counts.reshape(-1, width),
            quantity=np.array([place[id(watched)] for watched, _ in tests], dtype=np.int64),
            group=np.array([groups.index(name) for _, name in tests], dtype=np.int64),
        )

    def assign_bins(self, one: ObservedResult) -> tuple[Any, Any]:
        """Return the (m,) bins of a result, and (m,) whether each test sees it."""
        features = np.array(one.features)[np.newaxis]
        draws = CandidateBatch.from_arrays([one.scores])
        computed = self.artifact.compute_monitored_values(features, draws)
        decided = {"threshold": one.threshold, "decision": float(one.decision)}
        values = [
            decided[watched.name] if watched.alpha is not None else float(computed[watched.name][0])
            for watched in self.reference
        ]
        bins = [
            int(watched.find_bins(np.array([value]))[0])
            for watched, value in zip(self.reference, values, strict=True)
        ]
        # Thresholds and decisions are compared only with those under the same promise.
        promise = one.alpha, one.max_wrong_rate
        of_promise = [
            watched.alpha is None or (watched.alpha, watched.max_wrong_rate) == promise
            for watched in self.reference
        ]
        within = one.draw_uniforms("group", 1) < self.artifact.feature_map.compute_weights(features)[0]
        return (
            np.array(bins, dtype=np.int64)[self.quantity],
            np.array(of_promise)[self.quantity] & within[self.group],
        )


def _list_comparable(artifact: CalibrationArtifact) -> list[ReferenceHistogram]:
    """Return the quantities that do not change unless prompts do.

    A run has the largest score of its turns, and ends earlier, or goes on differently, once one is above the
    cut. Recorded runs went on. So scores above the smallest cut are one bin, and without a cut that is the
    same for all runs, scores are not compared.
    """
    if artifact.subject != "runs":
        return artifact.reference
    if any(term.statistics for term in artifact.feature_map.terms):  # groups depend on scores, too
        return []
    cut = min((one.cut for one in artifact.bot.certificates), default=-np.inf) if artifact.bot else -np.inf
    comparable = []
    for watched in artifact.reference:
        top = int(watched.find_bins(np.array([cut]))[0])
        if watched.name not in {"mean_score", "min_score"}:
            comparable.append(watched)
        elif top:
            counts = {group: [*row[:top], sum(row[top:])] for group, row in watched.counts.items()}
            merged = {"edges": watched.edges[:top], "counts": counts}
            comparable.append(watched.model_copy(update=merged))
    return comparable


@dataclass(frozen=True)
class SequentialTest:
    """Base class of the tests of one kind, with the evidence of each test."""

    artifact: CalibrationArtifact
    wealth: EProcess  # of each of the m tests
    mixture: MixtureEProcess  # mean of the wealth of all m tests, which decides on an alarm
    # Names of the fields with counts, which are stored beside the wealth.
    _counted: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def start(cls, artifact: CalibrationArtifact, now: float) -> Self:
        """Return the tests of an artifact before any outcome."""
        raise NotImplementedError

    def bet(self, payoffs: FloatArray, now: float, seen: BoolArray) -> Self:
        """Return the tests after betting on one more outcome; only tests that have `seen` (m,) one bet."""
        wealth = self.wealth.update(payoffs, now, seen)
        return replace(self, wealth=wealth, mixture=self.mixture.update(wealth, now))

    def is_alarming(self, level: float) -> bool:
        """Return whether the mean of the wealth has ever reached 1 / level."""
        # Compared in logarithms, because evidence may exceed the range of floats.
        return bool(self.mixture.peak >= -np.log(level))

    def find_alarms(self, level: float) -> BoolArray:
        """Return (m,) whether each test alarms: the mean has reached 1 / level, and so has its own wealth."""
        # If the mean has reached 1 / level, at least one test has as well, so that an alarm names a test.
        alarms: BoolArray = (self.wealth.peak >= -np.log(level)) & self.is_alarming(level)
        return alarms

    def to_data(self) -> dict[str, Any]:
        """Return the state as plain data, without the artifact."""
        counted = {name: getattr(self, name).tolist() for name in self._counted}
        return {"wealth": self.wealth.to_data(), "mixture": self.mixture.to_data(), **counted}

    @classmethod
    def from_data(cls, artifact: CalibrationArtifact, data: Mapping[str, Any]) -> Self:
        """Restore what `to_data` returned."""
        counted: dict[str, Any] = {name: np.array(data[name], dtype=np.int64) for name in cls._counted}
        return replace(
            cls.start(artifact, 0.0),
            wealth=EProcess.from_data(data["wealth"]),
            mixture=MixtureEProcess.from_data(data["mixture"]),
            **counted,
        )


@dataclass(frozen=True)
class DriftTest(SequentialTest):
    """Tests of whether results are exchangeable with calibration prompts, one for each quantity and group.

    Each test ranks a new value among those of calibration prompts and earlier results, and bets on the ranks.
    Without drift, the ranks of one test are independent, so that its wealth ever turns 1 into 1/level with
    probability at most level (Ville).

    The tests alarm when the mean of the wealth of all m reaches 1/level. At any number of results fixed
    beforehand, the mean is an e-value under any dependence between the tests (Vovk and Wang 2021). For all
    numbers of results at once, this is a theorem only if the ranks of each test cannot be predicted from
    earlier ranks of the others. They almost cannot: ranks of several tests together reveal a little about
    where the calibration sample departs from the population, the less the larger it is. The effect is
    measured, not proven: in `tests/test_false_alarms.py`, such streams alarm less often than allowed.
    """

    layout: Layout
    counts: IntArray  # (m, b) number of values in each bin of each test, calibration prompts included
    _counted = ("counts",)

    @classmethod
    def start(cls, artifact: CalibrationArtifact, now: float) -> DriftTest:
        """Return the tests before any result."""
        layout = Layout.from_artifact(artifact)
        wealth = EProcess.start([len(layout.tests)], RANK_EXPERT_COUNT, now)
        return cls(artifact, wealth, MixtureEProcess.start(now=now), layout, layout.counts)

    def without_calibration(self) -> DriftTest:
        """Return the same tests without the calibration counts, for changes among the results alone."""
        return replace(self, counts=np.zeros_like(self.counts))

    def count_results(self, place: int) -> list[int]:
        """Return the number of results in each bin of the test at index `place`."""
        watched, group = self.layout.tests[place]
        counts: list[int] = (self.counts - self.layout.counts)[place].tolist()
        return counts[: len(watched.counts[group])]

    def update(self, one: ObservedResult) -> DriftTest:
        """Return the tests after one more result."""
        if not self.layout.tests:
            return self
        bins, seen = self.layout.assign_bins(one)
        uniforms = one.draw_uniforms("rank", len(bins))
        payoffs = compute_rank_payoffs(compute_ranks(self.counts, bins, uniforms))
        return replace(self.bet(payoffs, one.at, seen), counts=add_to_counts(self.counts, bins, seen))


@dataclass(frozen=True)
class CertifiedRate:
    """A certified rate that a monitor tests."""

    what: Literal["kept", "right"]  # sets hold a correct answer or are flagged; answers are right
    group: str  # name of the weighting; `1` is all prompts
    words: str  # the same in words
    alpha: str  # error level of the sets
    rate: float  # certified lower bound on the rate, in (0, 1)
    max_wrong_rate: str | None = None  # for `right`, the certified wrong-answer rate


def list_certified_rates(artifact: CalibrationArtifact) -> list[CertifiedRate]:
    """List the rates that are certified, if not 0 or 1, and those that hold with confidence.

    A rate among all questions holds on average over calibration sets, and this artifact's own is above it
    about half the time. So its own rate is bounded, from the calibration labels, where groups are disjoint:
    the threshold is the k-th of a group's m success scores, k = ceil((1 - alpha) (m + 1)), and the rate above
    it exceeds u with probability at most Pr(Binomial(m, u) <= m - k), with equality for continuous scores.
    """
    found = []
    bot, confidence = artifact.bot, artifact.confidence
    for certificate in artifact.certificates:
        found += [
            CertifiedRate("kept", one.name, one.words, certificate.alpha, one.kept_at_least)
            for one in certificate.shares
            if 0.0 < one.kept_at_least < 1.0
        ]
    if bot is not None:
        found += [
            CertifiedRate("right", one.name, one.words, wrong.alpha, 1.0 - float(rate), rate)
            for wrong in bot.certificates
            for rate in [wrong.max_wrong_rate]
            for one in wrong.groups
            if one.certified or one is wrong.groups[0]
        ]
    if confidence is not None:
        found += [
            CertifiedRate("kept", one.name, one.words, alpha, target)
            for alpha in artifact.alphas
            for target in [artifact.make_guarantee(alpha).target_coverage]
            for one in artifact.feature_map.list_guaranteed_weights()
        ]
    if artifact.parsed_set_rule.option == "max_wrong_of_all" and artifact.feature_map.has_disjoint_groups:
        found += _bound_rates_of_all(artifact)
    # Two bounds may be about the same rate; the first one, from held-out prompts, is kept.
    watched = {(one.what, one.group, one.alpha, one.max_wrong_rate): one for one in reversed(found)}
    return list(watched.values())[::-1]


def _bound_rates_of_all(artifact: CalibrationArtifact) -> Iterator[CertifiedRate]:
    """Yield upper bounds on the rates of wrong answers, as lower bounds on the rates of all others."""
    # All questions together have no threshold of their own if there are groups.
    groups = artifact.calibration.groups[1:] or artifact.calibration.groups
    failing = _BOUND_FAILURE / (len(groups) * len(artifact.alphas))
    for alpha in artifact.alphas:
        for group in groups:
            size = int(group.size)
            above = size - math.ceil((1 - Fraction(alpha)) * (size + 1))
            if above >= 0:  # otherwise no threshold is finite and nothing is answered
                bound = upper_bound(above, size, failing)
                yield CertifiedRate("kept", group.name, group.words, alpha, 1.0 - bound)


@dataclass(frozen=True)
class CoverageTest(SequentialTest):
    """Tests of the certified rates of an artifact, one for each rate.

    If a certificate is right, a bet on a lower rate, at odds that are fair for the certified one, pays at
    most 1 on average given everything before it. This includes the outcomes of the other tests, because
    prompts are independent of each other. So the mean of the wealth of all m tests is an e-process as well,
    and ever turns 1 into 1/level with probability at most level (Ville). A certificate is wrong with
    probability at most its delta (0.05 for `max_wrong_of_all` without one), so a false alarm has probability
    at most level + delta. This assumes that
    whether and when a result is labelled does not depend on whether it was correct, given what its
    probability of being labelled was chosen by.
    """

    kept: IntArray  # (m,) number of outcomes in which the certified event occurred
    _counted = ("kept",)

    @classmethod
    def start(cls, artifact: CalibrationArtifact, now: float) -> CoverageTest:
        """Return the tests before any label."""
        count = len(list_certified_rates(artifact))
        wealth = EProcess.start([count], RATE_EXPERT_COUNT, now)
        return cls(artifact, wealth, MixtureEProcess.start(now=now), np.zeros(count, dtype=np.int64))

    @cached_property
    def rates(self) -> list[CertifiedRate]:
        """The m certified rates."""
        return list_certified_rates(self.artifact)

    @cached_property
    def _groups(self) -> list[str]:
        return [one.name for one in self.artifact.feature_map.list_guaranteed_weights()]

    def update(self, one: ObservedResult, label: Label, now: float, least: float) -> CoverageTest:
        """Return the tests after one more label; for `least` see `Label.is_sampled`."""
        if not self.rates:
            return self
        kept_promise, right = label.judge(one)
        outcomes = {"kept": kept_promise, "right": right}
        values = self.artifact.feature_map.compute_weights(np.array(one.features)[np.newaxis])[0]
        weights = dict(zip(self._groups, values, strict=True))
        uniform, sampled = one.draw_uniforms("kept", 1)[0], label.is_sampled(one, least)
        seen = np.array(
            [
                sampled
                and outcomes[it.what] is not None
                and it.alpha == one.alpha
                # A certified wrong-answer rate is about the answers of its own cut.
                and it.max_wrong_rate in {None, one.max_wrong_rate}
                and uniform < weights[it.group]
                for it in self.rates
            ]
        )
        kept: BoolArray = np.array([bool(outcomes[it.what]) for it in self.rates])
        certified = np.array([it.rate for it in self.rates])
        after = self.bet(compute_rate_payoffs(kept, certified), now, seen)
        return replace(after, kept=self.kept + (kept & seen))


@dataclass(frozen=True)
class LabelSamplingTest(SequentialTest):
    """Tests of whether labelled results look like the others, one for each quantity and group.

    Results are tested in blocks, each once, when all its labels should have arrived. If labelling does not
    depend on what a result looks like, the labelled results of a block are drawn from it without replacement,
    and their ranks among the unlabelled ones and the labelled ones before are independent and uniform.
    """

    layout: Layout  # its tests are those of `DriftTest`

    @classmethod
    def start(cls, artifact: CalibrationArtifact, now: float) -> LabelSamplingTest:
        """Return the tests before any block."""
        layout = Layout.from_artifact(artifact)
        wealth = EProcess.start([len(layout.tests)], RANK_EXPERT_COUNT, now)
        return cls(artifact, wealth, MixtureEProcess.start(now=now), layout)

    def update(self, block: Sequence[tuple[ObservedResult, bool]]) -> LabelSamplingTest:
        """Return the tests after a block of (result, whether labelled)."""
        placed = [(one, labelled, *self.layout.assign_bins(one)) for one, labelled in block]
        counts = np.zeros_like(self.layout.counts)
        for _, labelled, bins, seen in placed:
            counts = counts if labelled else add_to_counts(counts, bins, seen)
        after = self
        for one, labelled, bins, seen in placed:
            if labelled:
                uniforms = one.draw_uniforms("labelled", len(bins))
                after = after.bet(compute_rank_payoffs(compute_ranks(counts, bins, uniforms)), one.at, seen)
                counts = add_to_counts(counts, bins, seen)
        return after
