"""Certificates on a real recording, split again and again: their bounds against the prompts held out.

A certificate speaks of independent prompts from a population. A recording is no population; but given its
fit and calibration prompts, an artifact is fixed, and a part of the prompts held out, which certifies, is a
sample without replacement. So the prompts held out stand for the population: R prompts, of which c are drawn,
all choices equally likely, and the truth is a share of the R, which is counted and not estimated.

Without replacement samples scatter less, and the exact binomial bounds fail no more often than they say; this
is not taken from a theorem but summed up from hypergeometric probabilities. A failure then has probability at
most delta in every split, splits are independent given the recording, and failures are counted against delta
by the exact binomial test. A refusal is no failure: nothing is promised.

The R - c others scatter by themselves: their share may lie below a bound that holds. How often is known
exactly, too, and counted, but no certificate bounds it by delta.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import pytest
from scipy import stats

from langchain_cfc import CFCRunnable, calibrate
from langchain_cfc.artifact import CalibrationArtifact
from langchain_cfc.candidates import LabelledBatch
from langchain_cfc.certificates import certify, compute_outcomes
from langchain_cfc.certificates.bounds import binomial_p_value, lower_bound
from langchain_cfc.certificates.coverage import Outcomes, sample_groups
from langchain_cfc.decision import decide
from langchain_cfc.demo.replay import RecordedAnswers, RecordedMetadata, RecordedScores, ReplayChatModel
from langchain_cfc.guarantee import CoverageCertificate
from langchain_cfc.records.splits import make_split_plan
from langchain_cfc.support.arrays import IntArray
from tests.factories import reload_artifact
from tests.lengths import repetitions

from .laws import agrees_with_chances, is_same_as_served, is_too_often, record_figures
from .recordings import NAMES, PATHS, SHIPPED, Recording, load_recording, take_parts

SET_RULE = "unique(all)"

pytestmark = pytest.mark.filterwarnings("ignore::langchain_cfc.errors.AttainabilityWarning")


@pytest.fixture(scope="module", params=PATHS, ids=NAMES)
def recording(request: pytest.FixtureRequest) -> Recording:
    return load_recording(request.param)


# Samples without replacement ------------------------------------------------------------------------------
# A test of "the event is rare" accepts so few events x that P(Bin(a, r) <= x) <= delta. Of A prompts, M with
# M / A > r have the event, and a are drawn. The probability of a wrong verdict, P(Hyp(A, M, a) <= x), falls
# with M, so that the smallest M is the worst: floor(r A) + 1. It falls with a as well, so that the worst are
# those a at which x has just stepped up. All A up to 1,000 (in the quick tier 400) are gone through, for the
# rates and shares of delta below; so it does not matter how many prompts are answered, or which.


LARGEST = repetitions(1000, share=0.4)


def compute_wrong_verdicts(rate: Fraction, delta: float, more: int = 0) -> float:
    """The largest probability of a wrong verdict, with so many events more than the test accepts."""
    drawn = np.arange(1, LARGEST + 1)
    accepted = count_accepted(drawn, float(rate), delta)
    steps = np.flatnonzero(np.diff(accepted, prepend=-1) > 0)
    worst = 0.0
    for size in range(int(drawn[steps[0]]), LARGEST + 1):
        inside = steps[drawn[steps] <= size]
        few = int(rate * size) + 1
        chances = stats.hypergeom.cdf(accepted[inside] + more, size, few, drawn[inside])
        worst = max(worst, float(np.max(chances)))
    return worst


def count_accepted(drawn: IntArray, rate: float, delta: float) -> IntArray:
    """The largest number of events that the binomial test accepts as rare; -1 where there is none."""
    # `ppf` is the smallest x with P(Bin <= x) >= delta: the one before it has a smaller probability.
    return np.asarray(stats.binom.ppf(delta, drawn, rate) - 1, dtype=np.int64)


@pytest.mark.parametrize(
    ("rate", "delta"),
    [
        ("0.4", 0.1),
        *(
            pytest.param(*one, marks=pytest.mark.long)
            for one in (("0.1", 0.05), ("0.2", 0.025), ("0.2", 0.05 / 18))
        ),
    ],
)
def test_binomial_tests_hold_for_samples_without_replacement(rate: str, delta: float) -> None:
    # The test that is meant is the library's.
    for size in (60, 100, 345):
        count = int(count_accepted(np.array([size]), float(rate), delta)[0])
        found = [binomial_p_value(one, size, Fraction(rate)) for one in (count, count + 1)]
        assert found[0] <= delta < found[1]
    assert 0.5 * delta < compute_wrong_verdicts(Fraction(rate), delta) <= delta
    # A test that accepts one event more is wrong too often.
    assert compute_wrong_verdicts(Fraction(rate), delta, more=1) > delta


# Bounds of a certificate ----------------------------------------------------------------------------------
# Per split 2 bounds over all prompts and 2 for every weighting; a soft one becomes a sample by tickets that
# hang on the ids, which makes it a sub-population of the R, and its certification prompts a sample of that.
# A bound from c of R prompts, of which B have the event, fails where it is above B / R: where at least x of
# the c have it, x the least number with P(Bin(c, B / R) >= x) <= its share of delta. The probability of that
# is a hypergeometric tail. So the number of failures of the bound over all prompts has a known law, and of
# all bounds of a split some one fails with probability delta at most.
CERTIFIED = "0.3"


class Bound(NamedTuple):
    """A lower bound, and what it speaks of.

    Attributes:
        name: Weighting and event.
        value: The bound.
        share: Its share of delta.
        drawn: Number c of certification prompts that it is from.
        seen: How many of them have the event.
        size: Number R of prompts held out.
        events: How many of them have it, B.
    """

    name: str
    value: float
    share: float
    drawn: int
    seen: int
    size: int
    events: int

    @property
    def fails(self) -> bool:
        """Whether the bound is above B / R."""
        return self.size > 0 and Fraction(self.value) > Fraction(self.events, self.size)

    @property
    def chance(self) -> float:
        """The probability of that over the choices of c among R."""
        if not 0 < self.events < self.size:
            return 0.0
        counts = np.arange(self.drawn + 1)
        above = stats.binom.sf(counts - 1, self.drawn, self.events / self.size) <= self.share
        return float(stats.hypergeom.pmf(counts[above], self.size, self.events, self.drawn).sum())

    @property
    def misleads(self) -> bool:
        """Whether the bound is above the share among the R - c others."""
        return Fraction(self.value) > Fraction(self.events - self.seen, self.size - self.drawn)

    @property
    def chance_to_mislead(self) -> float:
        """The probability of that over the choices of c among R."""
        counts = np.arange(1, self.drawn + 1)
        bounds = stats.beta.ppf(self.share, counts, self.drawn - counts + 1)
        above = bounds > (self.events - counts) / (self.size - self.drawn)
        return float(stats.hypergeom.pmf(counts[above], self.size, self.events, self.drawn).sum())


def list_bounds(
    artifact: CalibrationArtifact,
    certificate: CoverageCertificate,
    population: LabelledBatch,
    seen: Outcomes,
) -> list[Bound]:
    """Both bounds of every weighting, all prompts first."""
    delta = Fraction(certificate.delta)
    found = []
    for claim, share in zip(
        sample_groups(artifact, population, seen.decisions.features), certificate.shares, strict=True
    ):
        assert claim.name == share.name
        # Half of delta is for three bounds over all prompts, half for two of every other weighting.
        each = float(delta / 6 if claim.name == "1" else delta / (4 * (len(certificate.shares) - 1)))
        for name, value, count, event in (
            ("kept", share.kept_at_least, share.kept, seen.kept),
            ("covered", share.coverage_at_least, share.covered, seen.covered),
        ):
            found.append(
                Bound(
                    f"{name}, {claim.name}",
                    value,
                    each,
                    share.prompts,
                    count,
                    int(claim.members.sum()),
                    int(event[claim.members].sum()),
                )
            )
    return found


@pytest.mark.long
def test_all_bounds_of_a_certificate_hold_together_over_splits(recording: Recording) -> None:
    features = recording.feature_map(f"mean_score + hard(mean_score, 0.8) + {recording.groups}")
    delta = float(CERTIFIED)
    tried = repetitions(40)
    overall: list[Bound] = []
    failing = undivided = in_sample = 0
    for seed in range(tried):
        artifact = calibrate(
            recording.pool,
            alpha=recording.alpha,
            features=features,
            set_rule=SET_RULE,
            seed=seed,
            test_fraction=0.8,
            allow_unattainable=True,
        )
        population = take_parts(artifact, recording.pool, "test")
        drawn = make_split_plan(f"certifies {seed}", fit=0.0, test=0.375).list_rows(population)["test"]
        artifact = certify(artifact, population.take(drawn), delta=CERTIFIED)
        seen = compute_outcomes(artifact, population, recording.alpha)
        bounds = list_bounds(artifact, artifact.certificates[0], population, seen)
        assert all(one.chance <= one.share for one in bounds)
        failing += any(one.fails for one in bounds)
        overall.append(bounds[0])
        # Controls: every bound with all of delta; and from the calibration prompts.
        undivided += any(one._replace(value=lower_bound(one.seen, one.drawn, delta)).fails for one in bounds)
        own = compute_outcomes(
            artifact, take_parts(artifact, recording.pool, "calibration"), recording.alpha
        ).kept
        looked_up = lower_bound(int(own.sum()), len(own), bounds[0].share)
        in_sample += bounds[0]._replace(value=looked_up).fails
    chances = [one.chance for one in overall]
    misled = sum(one.misleads for one in overall)
    chances_to_mislead = [one.chance_to_mislead for one in overall]
    record_figures("any bound fails", splits=failing, tried=tried)
    record_figures(
        "the one over all prompts fails", splits=sum(one.fails for one in overall), expected=sum(chances)
    )
    record_figures("it is above the share of the others", splits=misled, expected=sum(chances_to_mislead))
    margins = [one.events / one.size - one.value for one in overall]
    record_figures("it lies below the truth", by=float(np.mean(margins)))
    record_figures("controls", undivided=undivided, from_calibration_prompts=in_sample)
    assert not is_too_often(failing, tried, delta)
    assert agrees_with_chances(sum(one.fails for one in overall), chances)
    assert agrees_with_chances(misled, chances_to_mislead)
    if recording.shipped:
        assert is_too_often(undivided, tried, delta)
        assert is_too_often(in_sample, tried, overall[0].share)


# The whole path -------------------------------------------------------------------------------------------
WAYS: dict[str, dict[str, Any]] = {
    "ranks by law": {"features": "{groups}", "delta": "0.05"},
    "certified": {"features": "mean_score + {groups}", "test_fraction": 0.4},
    "bot": {"features": "1", "max_wrong_rate": 0.15},
}


@pytest.mark.parametrize("recording", [SHIPPED], indirect=True, ids=NAMES[:1])
@pytest.mark.parametrize(
    "way",
    [pytest.param(way, marks=() if way == "bot" else pytest.mark.long) for way in WAYS],
)
def test_served_results_equal_the_counted_decisions(recording: Recording, way: str) -> None:
    options = {**WAYS[way], "features": WAYS[way]["features"].format(groups=recording.groups)}
    if way != "bot":
        options.update(alpha=recording.alpha, set_rule=SET_RULE)
    bot = way == "bot"
    artifact = calibrate(
        recording.records, provenance=recording.provenance, **{"test_fraction": 0.1, **options}
    )
    if way == "certified":
        artifact = certify(artifact, recording.records, provenance=recording.provenance)
    artifact = reload_artifact(artifact)
    population = take_parts(artifact, recording.table, "test")
    table = population.take(np.arange(repetitions(len(population), share=0.25)))
    alpha, cut = recording.alpha, None
    if bot:
        certificate = artifact.certified_bot.certificates[0]
        alpha, cut = certificate.alpha, certificate.cut
    seen = compute_outcomes(artifact, table, alpha, cut=cut)
    records = {one.id: one for one in recording.records}
    asked = [records[record_id] for record_id in table.ids]
    chain = CFCRunnable(
        generator=ReplayChatModel.from_records(asked, recording.provenance),
        verifier=RecordedScores(recording.provenance),
        artifact=artifact,
        answer=RecordedAnswers(asked, recording.provenance),
        metadata=RecordedMetadata(asked),
        max_wrong_rate=0.15 if bot else None,
        sampling="single_request",
    )
    results = [chain.invoke(record.input) for record in asked]
    assert is_same_as_served(seen.decisions, results)
    # The control: other decisions on the same prompts.
    control = {"marginal": True} if cut is None else {"cut": cut / 2}
    other = decide(artifact, table.draws, alpha, **control)
    assert not is_same_as_served(other, results)
    for row, (record, result) in enumerate(zip(asked, results, strict=True)):
        labels = [one.correct for one in record.candidates]
        right = {one.answer_key for one in record.candidates if one.correct}
        covered = any(one.accepted and labels[one.slot] for one in result.candidates)
        assert (covered, covered or result.reason == "not_certifiable") == (seen.covered[row], seen.kept[row])
        assert result.abstained == (not seen.decisions.answered[row])
        assert result.abstained or (result.best not in right) == seen.wrong[row]
        assert result.guarantee == chain.guarantee
    promise = chain.guarantee
    parts = (promise.failure_probability, promise.certificate, promise.wrong_answers)
    assert [one is not None for one in parts] == {
        "ranks by law": [True, False, False],
        "certified": [False, True, False],
        "bot": [True, False, True],
    }[way]
    # Some prompts are answered and some are not, so that the comparison can fail.
    assert 0 < seen.decisions.answered.sum() < len(table)
    assert 0 < seen.wrong.sum() < len(table)
