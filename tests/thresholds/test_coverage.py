"""The promise itself, on random splits: exact laws, exact tests, and controls that must fail.

Each test rejects a true law with probability at most 1e-6: that is what a fresh seed would risk, the seeds
here are fixed. Beside each law stands a method that breaks it, and is rejected by the same test.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from langchain_cfc._internal.arrays import FloatArray
from langchain_cfc.thresholds import ConditionalThreshold, LearnedThreshold, MarginalThreshold
from tests.lengths import mostly_long, repetitions

FALSE_ALARM = 1e-6
CAP = 2.0

# Disjoint groups: given N calibration scores the share covered follows Beta(k, N + 1 - k), k the rank.

SIZES = (9, 24, 49)  # (N + 1) tau = 9, 22.5 and 45: whole, not whole, whole
CODES = np.repeat([0, 1, 2], SIZES)
ENDS = np.cumsum(SIZES)[:-1]
GroupMethod = Callable[[FloatArray], list[float]]


def by_groups(scores: FloatArray) -> list[float]:
    rule = ConditionalThreshold("0.1", cap=CAP).fit(np.eye(3)[CODES], scores)
    return [float(value) for value in rule.thresholds(np.eye(3))]


def by_splitting(scores: FloatArray) -> list[float]:
    rule = MarginalThreshold("0.1", cap=CAP)
    return [rule.fit(np.ones((len(own), 1)), own).threshold([1.0]) for own in np.split(scores, ENDS)]


def with_shifted_rank(shift: int) -> GroupMethod:
    def method(scores: FloatArray) -> list[float]:
        ranks = [math.ceil((size + 1) * Fraction(9, 10)) + shift for size in SIZES]
        ordered = [[*np.sort(own).tolist(), math.inf] for own in np.split(scores, ENDS)]
        return [own[rank - 1] for own, rank in zip(ordered, ranks, strict=True)]

    return method


def contradicts_the_beta_binomial_law(method: GroupMethod) -> bool:
    """Exact test of how many of 20 fresh prompts per group are covered, over many independent calibrations.

    That number follows BetaBinomial(20, k, N + 1 - k) for continuous scores of any distribution. So the event
    that at most c are covered happens Binomial(repeats, p) times with p known. Two-sided binomial tests,
    Bonferroni over all.
    """
    rng = np.random.default_rng(11)
    fresh, repeats = 20, repetitions(1_000, share=0.5)
    covered = np.empty((repeats, 3), dtype=np.int64)
    for repeat in range(repeats):
        values = np.array(method(rng.random(len(CODES)) ** (CODES + 1)))
        new = rng.random((fresh, 3)) ** np.arange(1, 4)
        covered[repeat] = np.sum(new <= values, axis=0)
    p_values = []
    for group, size in enumerate(SIZES):
        rank = math.ceil((size + 1) * Fraction(9, 10))
        law = stats.betabinom(fresh, rank, size + 1 - rank)
        for c in (15, 17, 18, 19):
            seen = int(np.sum(covered[:, group] <= c))
            p_values.append(stats.binomtest(seen, repeats, float(law.cdf(c))).pvalue)
    return min(p_values) * len(p_values) < FALSE_ALARM


@mostly_long("method", [by_groups, by_splitting, with_shifted_rank(0)], quick=2)
def test_coverage_within_groups_follows_the_beta_binomial_law(method: GroupMethod) -> None:
    assert not contradicts_the_beta_binomial_law(method)


@pytest.mark.parametrize("shift", [-1, 1])
def test_a_rank_one_off_is_caught(shift: int) -> None:
    # One too high is what the largest minimiser gives where (N + 1) tau is whole.
    assert contradicts_the_beta_binomial_law(with_shifted_rank(shift))


# Linear classes: P_f(S <= threshold) >= tau for every f >= 0 in the span, over random splits of any pool.


@dataclass(frozen=True)
class Pool:
    """Prompts to split at random: features (M, d), scores (M,), k functions 0 <= f <= 1 in span (M, k)."""

    features: FloatArray
    scores: FloatArray
    weights: FloatArray
    calibration: int


Method = Callable[[FloatArray, FloatArray, FloatArray], float]


def hat_pool(size: int, calibration: int) -> Pool:
    """Continuous scores that grow and spread with t, weighted by each hat function and by their sum, 1."""
    rng = np.random.default_rng(21)
    t = rng.random(size)
    hats = np.stack([np.interp(t, np.linspace(0.0, 1.0, 4), row) for row in np.eye(4)], axis=1)
    scores = (0.2 + 0.6 * t) * rng.random(size)
    return Pool(hats, scores, np.hstack([np.ones((size, 1)), hats]), calibration)


def quadratic_pool(size: int, calibration: int) -> Pool:
    """Continuous scores on [1, t, t^2], weighted by 1, t^2, (1 - t)^2 and t (1 - t)."""
    rng = np.random.default_rng(22)
    t = rng.random(size)
    scores = np.clip(0.3 + 0.4 * t**2 + 0.2 * (0.3 + t) * rng.normal(size=size) / 3, 0.0, 1.0)
    weights = np.stack([np.ones(size), t**2, (1.0 - t) ** 2, t * (1.0 - t)], axis=1)
    return Pool(np.vander(t, 3, increasing=True), scores, weights, calibration)


def hopeless_pool(size: int, calibration: int) -> Pool:
    """Overlapping partitions, scores with ties, and 5 to 25 % of prompts without a correct candidate."""
    rng = np.random.default_rng(23)
    a, b = rng.integers(0, 2, size), rng.integers(0, 3, size)
    hopeless = rng.random(size) < np.array([0.05, 0.15, 0.25])[b]
    scores = np.where(hopeless, CAP, np.ceil(10 * rng.random(size) ** (1 + a)) / 10)
    features = np.hstack([np.eye(2)[a], np.eye(3)[b]])
    return Pool(features, scores, np.hstack([np.ones((size, 1)), features]), calibration)


def smallest_score_pool(size: int, calibration: int) -> Pool:
    """The feature is the smallest score, for most prompts the success score: the fit runs along them."""
    rng = np.random.default_rng(24)
    m = rng.random(size)
    scores = np.where(rng.random(size) < 0.93, m, m + (1.0 - m) * rng.random(size))
    weights = np.stack([np.ones(size), m, 1.0 - m], axis=1)
    return Pool(np.stack([np.ones(size), m], axis=1), scores, weights, calibration)


def conditional(features: FloatArray, scores: FloatArray, phi: FloatArray) -> float:
    found = ConditionalThreshold("0.1", cap=CAP).fit(features, scores).solve(phi[None])
    return float(found.values[0] + found.errors[0])


def counts(pool: Pool, method: Method, repeats: int) -> tuple[list[int], list[int]]:
    """Per weighting: how many test prompts were drawn from it, and how many of them were covered or flagged.

    One test prompt a split, accepted for weighting f with probability f: accepted prompts are prompts drawn
    under f, so that given their number, the covered or flagged ones are Binomial(accepted, P_f(S <=
    threshold)).
    """
    rng = np.random.default_rng(31)
    accepted = np.zeros(pool.weights.shape[1], dtype=np.int64)
    kept = np.zeros_like(accepted)
    for _ in range(repeats):
        *rows, test = rng.permutation(len(pool.scores))[: pool.calibration + 1]
        taken = rng.random() < pool.weights[test]
        accepted += taken
        if pool.scores[test] <= method(pool.features[rows], pool.scores[rows], pool.features[test]):
            kept += taken
    return accepted.tolist(), kept.tolist()


def breaks_the_promise(pool: Pool, method: Method) -> bool:
    """Exact one-sided binomial tests of P_f(S <= threshold) >= 0.9, Bonferroni over the weightings f."""
    accepted, kept = counts(pool, method, repeats=repetitions(1_200, share=0.4))
    p_values = [
        stats.binomtest(k, n, 0.9, alternative="less").pvalue for n, k in zip(accepted, kept, strict=True)
    ]
    return min(p_values) * len(p_values) < FALSE_ALARM


POOLS = {
    "hat functions": hat_pool(60, 30),
    "quadratic": quadratic_pool(40, 20),
    "hopeless prompts": hopeless_pool(120, 80),
    "smallest score among the features": smallest_score_pool(100, 50),
}


@pytest.mark.parametrize(
    "pool",
    [
        pytest.param(pool, id=name, marks=() if name == "hopeless prompts" else pytest.mark.long)
        for name, pool in POOLS.items()
    ],
)
def test_the_conditional_threshold_keeps_its_promise_under_every_weighting(pool: Pool) -> None:
    assert not breaks_the_promise(pool, conditional)


@pytest.mark.parametrize("name", [pytest.param("hat functions", marks=pytest.mark.long), "quadratic"])
def test_plain_quantile_regression_is_caught(name: str) -> None:
    def learned(features: FloatArray, scores: FloatArray, phi: FloatArray) -> float:
        return LearnedThreshold("0.1", cap=CAP).fit(features, scores).threshold(phi)

    assert breaks_the_promise(POOLS[name], learned)


@pytest.mark.parametrize("name", ["hat functions", "quadratic"])
def test_one_threshold_for_all_is_caught_by_a_weighting(name: str) -> None:
    def marginal(features: FloatArray, scores: FloatArray, phi: FloatArray) -> float:
        return MarginalThreshold("0.1", cap=CAP).fit(features, scores).threshold(phi)

    assert breaks_the_promise(POOLS[name], marginal)


def test_score_one_for_prompts_without_a_correct_candidate_is_caught() -> None:
    # It makes "S <= 1" true without a correct answer; what is kept is counted with the real scores.
    def hopeful(features: FloatArray, scores: FloatArray, phi: FloatArray) -> float:
        return conditional(features, np.minimum(scores, 1.0), phi)

    assert breaks_the_promise(POOLS["hopeless prompts"], hopeful)


@pytest.mark.long
def test_comparing_floats_without_their_error_bound_is_caught() -> None:
    # The scores lie on the fit; round-off decides half of the plain comparisons. It does in a basis in which
    # the fit has other coefficients than 0 and 1.
    basis = np.array([[0.3, 0.7], [0.1, -0.9]])

    def plain(features: FloatArray, scores: FloatArray, phi: FloatArray) -> float:
        return ConditionalThreshold("0.1", cap=CAP).fit(features @ basis, scores).threshold(phi @ basis)

    assert breaks_the_promise(POOLS["smallest score among the features"], plain)


def exceeds_the_upper_slack(pool: Pool, method: Method) -> bool:
    """Exact one-sided binomial test of P(S <= threshold) <= tau + d / (N + 1), for continuous scores.

    At most d of the N + 1 points lie on the augmented fit, and at most tau (N + 1) below it.
    """
    accepted, kept = counts(pool, method, repeats=repetitions(1_200, share=0.4))
    highest = 0.9 + pool.features.shape[1] / (pool.calibration + 1)
    return bool(stats.binomtest(kept[0], accepted[0], highest, alternative="greater").pvalue < FALSE_ALARM)


@pytest.mark.long
@pytest.mark.parametrize("pool", [quadratic_pool(150, 120), hat_pool(150, 120)])
def test_coverage_exceeds_the_target_by_no_more_than_its_slack(pool: Pool) -> None:
    assert not exceeds_the_upper_slack(pool, conditional)


@pytest.mark.long
def test_a_threshold_for_a_higher_level_exceeds_the_slack() -> None:
    def cautious(features: FloatArray, scores: FloatArray, phi: FloatArray) -> float:
        return ConditionalThreshold("0.02", cap=CAP).fit(features, scores).threshold(phi)

    assert exceeds_the_upper_slack(quadratic_pool(150, 120), cautious)
