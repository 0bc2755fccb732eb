"""Sequential tests: payoffs are fair bets, and how often the tests ever alarm over many simulated streams.

Each stream has calibration prompts of its own. Under no drift the number of streams that ever alarm is at
most binomial with the level as its probability (Ville's inequality); the bound below is exceeded by chance
with probability 1e-6. `CFC_LONG=1` takes 10,000 streams of 10,000 results.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from langchain_cfc_monitor.e_processes import EProcess, MixtureEProcess
from langchain_cfc_monitor.sequential_tests import (
    RANK_EXPERT_COUNT,
    RATE_EXPERT_COUNT,
    DriftTest,
    add_to_counts,
    compute_rank_payoffs,
    compute_ranks,
    compute_rate_payoffs,
)
from scipy import stats

from integrations.monitor.tests.watching import calibrate_split, make_observations, swap_model
from langchain_cfc import Candidate, PromptRecord, calibrate
from langchain_cfc.demo import load_recording
from langchain_cfc.records import Provenance, tabulate
from langchain_cfc.support.arrays import BoolArray, FloatArray, IntArray
from tests.lengths import mostly_long, repetitions


def test_rank_payoffs_have_mean_one_under_uniform_ranks() -> None:
    # Polynomials of degree two: Gauss's rule of three points integrates them exactly.
    points, weights = np.polynomial.legendre.leggauss(3)
    factors = compute_rank_payoffs((points + 1.0) / 2.0)
    assert factors.shape == (3, RANK_EXPERT_COUNT)
    assert factors.T @ weights / 2.0 == pytest.approx(np.ones(RANK_EXPERT_COUNT), abs=1e-15)
    assert (compute_rank_payoffs(np.linspace(0.0, 1.0, 101)) > 0.0).all()


@pytest.mark.parametrize("stated", [0.05, 0.5, 0.8, 0.999])
def test_rate_payoffs_have_mean_at_most_one_at_or_above_the_rate(stated: float) -> None:
    kept, broken = (compute_rate_payoffs(np.array(one), np.array(stated)) for one in (True, False))
    assert kept.shape == (RATE_EXPERT_COUNT,)
    assert stated * kept + (1.0 - stated) * broken == pytest.approx(np.ones(RATE_EXPERT_COUNT))
    for rate in np.linspace(stated, 1.0, 5):
        assert (rate * kept + (1.0 - rate) * broken <= 1.0 + 1e-12).all()
    # The negative control: where the rate is lower, some bet wins.
    lower = 0.9 * stated
    assert (lower * kept + (1.0 - lower) * broken).max() > 1.0


def test_e_process_capital_has_mean_one_over_all_outcomes() -> None:
    """Over all outcomes of fair coins, the mean of the capital is 1, to round-off."""
    means = []
    for outcomes in np.ndindex(*[2] * 8):
        capital = EProcess.start([], RATE_EXPERT_COUNT)
        for time, kept in enumerate(outcomes):
            capital = capital.update(compute_rate_payoffs(np.array(bool(kept)), np.array(0.5)), float(time))
        assert capital.shares.sum() == pytest.approx(1.0)
        means.append(np.exp(capital.log))
    assert np.mean(means) == pytest.approx(1.0)


def test_e_process_records_its_peak_and_since_when() -> None:
    capital = EProcess.start([2], RATE_EXPERT_COUNT, now=100.0)
    stated, seen = np.array([0.9, 0.9]), np.array([True, False])
    for time, kept in enumerate([*[True] * 50, *[False] * 20, *[True] * 500], start=101):
        capital = capital.update(compute_rate_payoffs(np.array([kept, kept]), stated), float(time), seen)
    # Lowest after the 50 that were kept, highest after the 20 that were not.
    assert capital.since[0] == 150.0
    assert capital.peak[0] > capital.log[0]
    assert capital.outcomes.tolist() == [570.0, 0.0]
    # Where nothing was seen, nothing has changed.
    assert (capital.log[1], capital.peak[1], capital.since[1]) == (0.0, 0.0, 100.0)


def test_e_process_finds_a_change_soon_after_a_long_quiet_time() -> None:
    """Without redistribution, experts that lost for long would have no capital left."""

    def delay(quiet: int) -> int:
        rng = np.random.default_rng(0)
        capital = EProcess.start([], RANK_EXPERT_COUNT)
        for time in range(quiet + 2000):
            rank = rng.random() if time < quiet else 1.0 - 0.5 * rng.random()
            capital = capital.update(compute_rank_payoffs(np.array(rank)), float(time))
            if capital.log >= np.log(1000.0):
                return time - quiet
        return 2000

    assert 0 < delay(0) < 60
    assert 0 < delay(5000) < 120


def test_e_process_survives_a_json_round_trip_exactly() -> None:
    rng = np.random.default_rng(1)
    capital = EProcess.start([3], RANK_EXPERT_COUNT)
    for time in range(20):
        capital = capital.update(compute_rank_payoffs(rng.random(3)), float(time), rng.random(3) < 0.5)
    again = EProcess.from_data(json.loads(json.dumps(capital.to_data())))
    for name in ("shares", "log", "lowest", "lowest_at", "peak", "since", "outcomes"):
        assert np.array_equal(getattr(again, name), getattr(capital, name))


def test_compute_ranks_equals_ranks_in_a_sorted_list() -> None:
    rng = np.random.default_rng(2)
    counts = np.zeros((1, 5), dtype=np.int64)
    known: list[int] = []
    for _ in range(200):
        one, luck = int(rng.integers(5)), rng.random()
        below = sum(other < one for other in known)
        equal = sum(other == one for other in known)
        expected = (below + luck * (equal + 1)) / (len(known) + 1)
        assert compute_ranks(counts, np.array([one]), np.array([luck]))[0] == pytest.approx(expected)
        counts = add_to_counts(counts, np.array([one]))
        known.append(one)
    assert counts.sum() == 200
    assert np.array_equal(add_to_counts(counts, np.array([3]), np.array([False])), counts)


STREAMS = repetitions(10_000, share=0.1)
RESULTS = repetitions(10_000, share=0.04)
LEVEL = 0.05
CALIBRATION = 200
BINS = 17


def limit_alarms(level: float) -> int:
    """The number of alarming streams that is exceeded with probability 1e-6 at most."""
    return int(stats.binom.isf(1e-6, STREAMS, level))


def draw_shares(rng: np.random.Generator) -> FloatArray:
    """(streams, bins) what share of prompts each bin holds: unequal, for bins come from few prompts."""
    found: FloatArray = rng.dirichlet(np.full(BINS, 5.0), size=STREAMS)
    return found


def draw_bins(of: FloatArray, luck: FloatArray) -> IntArray:
    return np.asarray((np.cumsum(of, axis=1) < luck[:, np.newaxis]).sum(axis=1).clip(0, BINS - 1))


def watch_streams(
    change: float, *, refresh: bool = True, results: int = RESULTS
) -> tuple[FloatArray, BoolArray]:
    """Watch streams in which prompts move to higher bins from the middle on.

    Args:
        change: Share of prompts that move to the highest bins; 0 for no drift.
        refresh: Whether results join what the next are ranked among, as they should.
        results: Number of results of each stream.

    Returns:
        (streams,) peaks of the logarithm of capital, and whether a test that is repeated after every tenth
        result, at 5 % each time, ever alarmed.
    """
    rng = np.random.default_rng(7)
    before = draw_shares(rng)
    after = (1.0 - change) * before
    after[:, -3:] += change / 3.0
    calibration = rng.multinomial(CALIBRATION, before)
    counts = calibration.astype(np.int64)
    capital = EProcess.start([STREAMS], RANK_EXPERT_COUNT)
    naive = np.zeros(STREAMS, dtype=np.bool_)
    stream = np.zeros_like(counts)
    for time in range(results):
        bins = draw_bins(before if time < results // 2 else after, rng.random(STREAMS))
        capital = capital.update(
            compute_rank_payoffs(compute_ranks(counts, bins, rng.random(STREAMS))), float(time)
        )
        counts = add_to_counts(counts, bins) if refresh else counts
        stream = add_to_counts(stream, bins)
        if time % 10 == 9:
            naive |= differ(calibration, stream)
    return capital.peak, naive


def differ(calibration: IntArray, stream: IntArray) -> BoolArray:
    """Whether the mean bins of two samples differ, by the usual test at 5 %."""
    places = np.arange(BINS)

    def moments(counts: IntArray) -> tuple[FloatArray, FloatArray]:
        size = counts.sum(axis=1)
        mean = counts @ places / size
        return mean, (counts @ places**2 / size - mean**2) / size

    (one, its), (other, others) = moments(calibration), moments(stream)
    return np.asarray(np.abs(one - other) > 1.96 * np.sqrt(its + others), dtype=np.bool_)


def test_rank_test_keeps_its_level_and_repeated_z_tests_do_not() -> None:
    peaks, naive = watch_streams(0.0)
    assert (peaks >= np.log(1.0 / LEVEL)).sum() <= limit_alarms(LEVEL)
    # Control: the test is not idle, since smaller evidence occurs about as often as it may.
    assert (peaks >= np.log(2.0)).sum() > 0.1 * STREAMS
    assert naive.sum() > 3 * limit_alarms(LEVEL)


def test_control_ranks_among_calibration_prompts_alone_alarm_too_often() -> None:
    """The negative control: what a calibration set lacks by chance would seem to be drift for ever."""
    peaks, _ = watch_streams(0.0, refresh=False)
    assert (peaks >= np.log(1.0 / LEVEL)).sum() > limit_alarms(LEVEL)


def watch_mixture(
    prompts: Callable[[], tuple[IntArray, BoolArray | None]],
    rng: np.random.Generator,
    shape: tuple[int, int, int],
    calibration: int,
    results: int,
) -> tuple[FloatArray, FloatArray]:
    """Watch streams with several tests each.

    Args:
        prompts: Draws a prompt of each stream: its bin for each test, and which tests see it.
        rng: The luck of ranks.
        shape: Numbers of streams, tests and bins.
        calibration: Number of calibration prompts.
        results: Number of results of each stream.

    Returns:
        (streams, tests) peaks of the tests, and (streams,) peaks of the mean of their capital.
    """
    counts = np.zeros(shape, dtype=np.int64)
    for _ in range(calibration):
        counts = add_to_counts(counts, *prompts())
    capital, mean = EProcess.start([*shape[:2]], RANK_EXPERT_COUNT), MixtureEProcess.start([shape[0]])
    for time in range(results):
        bins, seen = prompts()
        factors = compute_rank_payoffs(compute_ranks(counts, bins, rng.random(bins.shape)))
        capital = capital.update(factors, float(time), seen)
        mean = mean.update(capital, float(time))
        counts = add_to_counts(counts, bins, seen)
    return capital.peak, mean.peak


def watch_six_tests(results: int = RESULTS) -> tuple[FloatArray, FloatArray]:
    """Watch one artifact with six tests: two quantities, each overall, in a group, and weighted.

    The second quantity is the first one, for half of the prompts, so that the tests depend on each other. A
    prompt is in the group if its first quantity is low, for the most part; the soft weighting grows with it.
    """
    rng = np.random.default_rng(19)
    of = draw_shares(rng)

    def prompts() -> tuple[IntArray, BoolArray]:
        """(streams, 6) bins of one prompt of each stream, and which tests see it."""
        one, fresh = draw_bins(of, rng.random(STREAMS)), draw_bins(of, rng.random(STREAMS))
        other = np.where(rng.random(STREAMS) < 0.5, one, fresh)
        group = np.where(one < BINS // 3, 0.9, 0.1) > rng.random(STREAMS)
        weighted = one / (BINS - 1) > rng.random(STREAMS)
        within = np.stack([np.ones(STREAMS, dtype=np.bool_), group, weighted], axis=-1)
        bins = np.stack([one, one, one, other, other, other], axis=-1)
        return bins, np.concatenate([within, within], axis=-1)

    return watch_mixture(prompts, rng, (STREAMS, 6, BINS), CALIBRATION, results)


def test_mixture_of_all_tests_keeps_the_level() -> None:
    peaks, mean = watch_six_tests()
    tests = peaks.shape[1]
    assert (mean >= np.log(1.0 / LEVEL)).sum() <= limit_alarms(LEVEL)
    # Never later than by Bonferroni, for the mean is at least the largest divided by the number of tests.
    assert (mean >= peaks.max(axis=1) - np.log(tests) - 1e-9).all()
    # Control: the mean is not idle.
    assert (mean >= np.log(2.0)).sum() > 0.1 * STREAMS
    # The negative control: each at the level by itself, they are too many.
    assert (peaks >= np.log(1.0 / LEVEL)).any(axis=1).sum() > limit_alarms(LEVEL)
    # And each by itself keeps it, in groups and weightings as over all prompts.
    assert ((peaks >= np.log(1.0 / LEVEL)).sum(axis=0) <= limit_alarms(LEVEL)).all()


def test_mixture_of_dependent_tests_keeps_the_level_as_measured() -> None:
    """Eight tests of one quantity, each with its own luck, over a calibration sample of 30 prompts.

    Here the ranks of all tests together say most about the calibration sample, and no theorem bounds the mean
    over all times at once: what it does is measured.
    """
    rng = np.random.default_rng(23)
    streams, tests, bins_of = 1000, 8, 5
    of = np.cumsum(rng.dirichlet(np.full(bins_of, 5.0), size=streams), axis=1)

    def prompts() -> tuple[IntArray, None]:
        one = (of < rng.random(streams)[:, np.newaxis]).sum(axis=1).clip(0, bins_of - 1)
        return np.repeat(one[:, np.newaxis], tests, axis=1), None

    _, mean = watch_mixture(prompts, rng, (streams, tests, bins_of), 30, 200)
    assert (mean >= np.log(1.0 / LEVEL)).sum() <= stats.binom.isf(1e-6, streams, LEVEL)


@mostly_long(("change", "found"), [(0.3, 0.9), (0.6, 0.999)], quick=1)
def test_rank_test_finds_drift(change: float, found: float) -> None:
    # With 1e-6: half of the streams' results come after the change.
    peaks, _ = watch_streams(change, results=1000)
    assert (peaks >= np.log(1.0 / LEVEL)).mean() > found


@pytest.mark.parametrize("choice", ["any", "high"])
def test_ranks_of_labelled_results_are_uniform_only_if_chosen_at_random(choice: str) -> None:
    """Blocks of 40 with about 12 labels each, whatever their bins: drawn without replacement."""
    rng = np.random.default_rng(17)
    size, blocks = 40, repetitions(25, share=0.4)
    capital = EProcess.start([STREAMS], RANK_EXPERT_COUNT)
    of = draw_shares(rng)
    for _ in range(blocks):
        bins = np.stack([draw_bins(of, rng.random(STREAMS)) for _ in range(size)], axis=1)
        chance = np.full(bins.shape, 0.3) if choice == "any" else np.where(bins > BINS // 2, 0.5, 0.15)
        chosen = rng.random(bins.shape) < chance
        places = np.arange(BINS)
        counts = ((bins[..., np.newaxis] == places) & ~chosen[..., np.newaxis]).sum(axis=1)
        for slot in range(size):
            seen, one = chosen[:, slot], bins[:, slot]
            luck = rng.random(STREAMS)
            capital = capital.update(
                compute_rank_payoffs(compute_ranks(counts, one, luck)), float(slot), seen
            )
            counts = add_to_counts(counts, one, seen)
    alarms = (capital.peak >= np.log(1.0 / LEVEL)).sum()
    if choice == "any":
        assert alarms <= limit_alarms(LEVEL)
        assert (capital.peak >= np.log(2.0)).sum() > 0.1 * STREAMS
    else:
        assert alarms > 0.99 * STREAMS


def watch_rates(kept: FloatArray, stated: FloatArray, results: int = RESULTS) -> FloatArray:
    """(streams,) peaks of the logarithm of capital that bets against stated rates."""
    rng = np.random.default_rng(11)
    capital = EProcess.start([STREAMS], RATE_EXPERT_COUNT)
    for time in range(results):
        capital = capital.update(compute_rate_payoffs(rng.random(STREAMS) < kept, stated), float(time))
    return capital.peak


def test_rate_test_alarms_only_below_the_stated_rate() -> None:
    stated = np.full(STREAMS, 0.87)
    peaks = watch_rates(stated, stated)
    assert (peaks >= np.log(1.0 / LEVEL)).sum() <= limit_alarms(LEVEL)
    assert (peaks >= np.log(2.0)).sum() > 0.1 * STREAMS
    broken = watch_rates(stated - 0.1, stated, results=1000)
    assert (broken >= np.log(1.0 / LEVEL)).mean() > 0.99


def test_control_testing_the_target_instead_of_the_bound_alarms_too_often() -> None:
    """The negative control: one calibration set keeps a little more or less than all of them on average.

    The coverage of one artifact follows a beta law around the target (Vovk 2012). A test of "at least the
    target" alarms for about half of the sound ones; a test of the certified bound does not, but where the
    certificate is wrong, which its delta bounds.
    """
    rng = np.random.default_rng(13)
    target, size, delta = 0.8, 300, 0.05
    rank = int(np.ceil(target * (size + 1)))
    coverage = rng.beta(rank, size + 1 - rank, size=STREAMS)
    held_out = rng.binomial(size, coverage)
    certified = np.asarray(stats.beta.ppf(delta, held_out, size - held_out + 1))
    against_target = watch_rates(coverage, np.full(STREAMS, target), results=max(RESULTS, 2000))
    against_certified = watch_rates(coverage, certified)
    assert (against_target >= np.log(1.0 / LEVEL)).sum() > limit_alarms(LEVEL + delta)
    assert (against_certified >= np.log(1.0 / LEVEL)).sum() <= limit_alarms(LEVEL + delta)


@pytest.mark.long
def test_drift_test_of_whole_artifacts_keeps_its_false_alarm_rate() -> None:
    """All tests of an artifact together, thresholds and soft weightings included, on real scores.

    Prompts of one pool in random order are exchangeable, whatever they are. Of streams with calibration
    prompts of their own at most a share `level` ever alarms; the bound is exceeded by chance with 1e-6.
    """
    source, level, streams = tabulate(load_recording()), 0.2, 40
    alarms = {"same": 0, "other": 0}
    for seed in range(streams):
        artifact = calibrate_split(source, 1000 + seed)
        luck = np.random.default_rng(seed)
        rows = luck.permutation(artifact.calibration.split.list_rows(source)["test"])[:150]
        for name, served in (("same", source.take(rows)), ("other", swap_model(source.take(rows)))):
            drift = DriftTest.start(artifact, 0.0)
            for one, _ in make_observations(artifact, served, 0):
                drift = drift.update(one)
            alarms[name] += bool((drift.wealth.peak >= np.log(len(drift.layout.tests) / level)).any())
    assert alarms["same"] <= stats.binom.isf(1e-6, streams, level)
    # The negative control: answers of another model.
    assert alarms["other"] == streams


def watch_runs(subject: Any, streams: int) -> int:
    """How many drift tests of unchanged runs alarm; a run ends with its first score above the cut."""
    named = Provenance(n=1, generator={"id": "agent"}, verifier={"id": "scores"}, subject=subject)
    alarms = 0
    for stream in range(streams):
        turns = np.random.default_rng(stream).random((800, 4))
        drawn = [(Candidate(text="act", score=one, correct=one < 0.6),) for one in turns.max(axis=1).tolist()]
        runs = [PromptRecord(id=f"{row}", input=f"{row}", candidates=one) for row, one in enumerate(drawn)]
        artifact = calibrate(runs[:400], provenance=named, max_wrong_rate=0.2)
        certificate = artifact.certified_bot.certificates[0]
        drift = DriftTest.start(artifact, 0.0)
        for one, _ in make_observations(artifact, tabulate(runs[400:]), 0, certificate):
            above = [score for score in turns[400 + int(one.at)].tolist() if score > certificate.cut]
            drift = drift.update(replace(one, scores=(*above, *one.scores)[:1]))
        alarms += drift.is_alarming(LEVEL)
    return alarms


def test_runs_that_end_above_the_cut_are_no_drift() -> None:
    streams = repetitions(240, share=0.05)
    assert watch_runs("runs", streams) <= stats.binom.isf(1e-6, streams, LEVEL)
    # The negative control: scores above the cut compared as well, as for answers.
    assert watch_runs(None, streams) > stats.binom.isf(1e-6, streams, LEVEL)
