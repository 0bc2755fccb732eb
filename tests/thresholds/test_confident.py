"""Ranks, and rules made of them, that keep the promise given the calibration set with confidence 1 - delta.

Success scores of the random tests have a known law, so that the coverage of a threshold is known and not
estimated, and every repetition draws a fresh calibration set. Each test has a false alarm with probability at
most 1e-6, and seeds are fixed. A negative control is put to the same checks and must fail them.
"""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from functools import cache

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from langchain_cfc.errors import InputError, NotFittedError
from langchain_cfc.support.arrays import FloatArray
from langchain_cfc.thresholds import (
    ConditionalThreshold,
    GroupedThreshold,
    Level,
    compute_confident_rank,
    compute_conformal_rank,
    compute_tau,
    format_alpha,
)
from tests.lengths import mostly_long, repetitions

FALSE_ALARM = 1e-6
# Tails this near to delta, relative to it, may count as above it.
NEAR = Fraction(1, 10**8)

levels = st.integers(1, 999).map(lambda permille: str(Decimal(permille) / 1000))


def compute_exact_rank(size: int, tau: Fraction, delta: Fraction) -> int:
    """The smallest k with P(Bin(N, tau) >= k) <= delta, or the ordinary rank if that is larger; no floats."""
    tail, rank = Fraction(0), size + 1
    while rank > 0:
        tail += math.comb(size, rank - 1) * tau ** (rank - 1) * (1 - tau) ** (size - rank + 1)
        if tail > delta:
            break
        rank -= 1
    return max(rank, compute_conformal_rank(size, tau))


@cache
def compute_beta_rank(size: int, tau: float, delta: float) -> int:
    """The smallest k with P(Beta(k, N + 1 - k) < tau) <= delta, by SciPy."""
    ranks = np.arange(1, size + 1)
    return 1 + int(np.count_nonzero(stats.beta.cdf(tau, ranks, size + 1 - ranks) > delta))


# Ranks ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "rank"), [(200, 186), (1000, 913), (9000, 8137)])
def test_confident_rank_at_one_tenth_equals_published_numbers(size: int, rank: int) -> None:
    assert compute_confident_rank(size, compute_tau(0.1), 0.1) == rank == compute_beta_rank(size, 0.9, 0.1)


@pytest.mark.parametrize("alpha", ["0.01", "0.05", "0.1", "0.3", "0.5", "0.876543210987", "0.99"])
@mostly_long("delta", ["0.000000000001", "0.01", "0.05", "0.1", "0.37", "0.5", "0.9"], quick=3)
def test_confident_rank_equals_exact_arithmetic(alpha: str, delta: str) -> None:
    tau, share = compute_tau(alpha), Fraction(delta)
    for size in range(36):
        least, most = (compute_exact_rank(size, tau, allowed) for allowed in (share, share * (1 - NEAR)))
        assert least <= compute_confident_rank(size, tau, delta) <= most


@settings(derandomize=True)
@given(size=st.integers(0, 90), alpha=levels, delta=levels, groups=st.integers(1, 7))
def test_confident_rank_of_a_divided_delta_equals_exact_arithmetic(
    size: int, alpha: str, delta: str, groups: int
) -> None:
    tau, share = compute_tau(alpha), Fraction(delta) / groups
    least, most = (compute_exact_rank(size, tau, allowed) for allowed in (share, share * (1 - NEAR)))
    assert least <= compute_confident_rank(size, tau, share) <= most


@settings(derandomize=True, max_examples=repetitions(300, share=0.3))
@given(
    size=st.integers(0, 10**6) | st.integers(0, 2000),
    alpha=levels | st.sampled_from(["0.000001", "0.999999", "0.000000000001"]),
    delta=levels | st.sampled_from(["0.000000000001", "0.00001", "0.999999999999"]),
)
def test_confident_rank_of_any_size_agrees_with_scipy(size: int, alpha: str, delta: str) -> None:
    tau, share = compute_tau(alpha), float(delta)
    rank = compute_confident_rank(size, tau, delta)
    ordinary = compute_conformal_rank(size, tau)
    assert ordinary <= rank <= size + 1
    if rank <= size:
        assert stats.beta.cdf(float(tau), rank, size + 1 - rank) <= share * (1.0 + 1e-9)
    if rank > max(1, ordinary):
        # One rank less is not enough.
        assert stats.beta.cdf(float(tau), rank - 1, size + 2 - rank) > share * (1.0 - float(NEAR))


@settings(derandomize=True)
@given(size=st.integers(1, 10**5), alpha=levels, delta=levels)
def test_confident_rank_is_within_the_hoeffding_bound(size: int, alpha: str, delta: str) -> None:
    # P(Bin(N, tau) >= N tau + x) <= exp(-2 x^2 / N) (Hoeffding), so that the smallest rank is not above it.
    tau = compute_tau(alpha)
    excess = math.sqrt(size / 2 * math.log(1 / float(delta)))
    assert compute_confident_rank(size, tau, delta) <= size * tau + max(excess, float(tau)) + 1.0 + 1e-6


@settings(derandomize=True)
@given(size=st.integers(0, 3000), alpha=levels, deltas=st.tuples(levels, levels))
def test_confident_rank_grows_with_confidence_and_size(
    size: int, alpha: str, deltas: tuple[str, str]
) -> None:
    tau = compute_tau(alpha)
    small, large = sorted(deltas, key=float)
    assert compute_confident_rank(size, tau, small) >= compute_confident_rank(size, tau, large)
    assert compute_confident_rank(size + 1, tau, small) >= compute_confident_rank(size, tau, small)


def test_confident_rank_counts_a_tail_equal_to_delta_as_above_it() -> None:
    # P(Bin(3, 1/2) = 3) is 1/8 to the bit, and round-off errs towards the larger rank.
    assert compute_exact_rank(3, Fraction(1, 2), Fraction(1, 8)) == 3
    assert compute_confident_rank(3, Fraction(1, 2), "0.125") == 4
    assert compute_confident_rank(3, Fraction(1, 2), "0.12500001") == 3


def test_confident_rank_is_never_below_the_conformal_rank() -> None:
    # 0.91^9 = 0.428: Beta(9, 1) lies above its own mean of 0.9, and above 0.91, more often than not.
    tau = compute_tau("0.09")
    assert compute_beta_rank(9, 0.91, 0.43) == 9
    assert compute_confident_rank(9, tau, "0.43") == compute_conformal_rank(9, tau) == 10


def test_confident_rank_exceeds_the_mean_for_delta_below_one_over_e() -> None:
    # A rank k below (N + 1) tau has P(Beta < tau) >= P(Beta <= k / (N + 1)), its mean: at least 1 / e.
    least = 1.0
    for size in range(1, 300):
        ranks = np.arange(1, size + 1)
        least = min(least, float(np.min(stats.beta.cdf(ranks / (size + 1), ranks, size + 1 - ranks))))
    assert 1 / math.e < least < 1 / math.e + 1e-3


def test_delta_must_be_a_decimal_strictly_between_zero_and_one() -> None:
    wrong: list[Level] = [0, 1, 0.0, -0.1, 1.5, "nan", "inf", "a tenth", True]
    for delta in wrong:
        for refuse in (
            lambda level: compute_confident_rank(9, compute_tau(0.1), level),
            lambda level: GroupedThreshold(0.1, delta=level),
        ):
            with pytest.raises(InputError, match="delta must be a decimal number"):
                refuse(delta)
    with pytest.raises(InputError, match="delta must have at most 12 decimals"):
        format_alpha("0.1234567890123", "delta")
    for share in (Fraction(0), Fraction(1), Fraction(-1, 3)):
        with pytest.raises(InputError, match="delta must lie strictly between 0 and 1"):
            compute_confident_rank(9, compute_tau(0.1), share)


# Coverage given the calibration set -----------------------------------------------------------------------
# Its Beta law, for all prompts and in groups, is tested in `tests/guarantees/test_confidence.py`.


def is_rarely_below(failed: npt.NDArray[np.bool_], delta: float, rate: float) -> bool:
    """Whether so many failures have a probability above `rate` when each has probability delta at most."""
    return bool(stats.binom.sf(int(failed.sum()) - 1, len(failed), delta) > rate)


def test_confident_coverage_with_ties_is_at_least_that_of_the_beta_law() -> None:
    # Seven success scores, and a cap for one prompt in ten. An infinite threshold flags every prompt, which
    # keeps the promise.
    rng = np.random.default_rng(2)
    tried, size, delta, tau, rate = repetitions(2000, share=0.5), 60, 0.1, 0.8, FALSE_ALARM / 2
    values = np.array([0.0, 0.1, 0.2, 0.3, 0.5, 0.8, 1.0, 2.0])
    shares = np.array([0.2, 0.2, 0.15, 0.1, 0.1, 0.1, 0.05, 0.1])
    rule, ones = GroupedThreshold("0.2", delta="0.1"), np.ones((size, 1))
    thresholds = np.array(
        [rule.fit(ones, rng.choice(values, size, p=shares)).threshold([1.0]) for _ in range(tried)]
    )
    kept = (shares * (values <= thresholds[:, np.newaxis])).sum(axis=1) + 1e-12
    assert 0 < np.isinf(thresholds).sum() < tried
    assert is_rarely_below(kept < tau, delta, rate)
    # At least Beta in law: nowhere is its distribution function exceeded (one side of the same inequality).
    rank = compute_beta_rank(size, tau, delta)
    bound = math.sqrt(math.log(1.0 / rate) / (2 * tried))
    law = stats.beta(rank, size + 1 - rank)
    assert stats.ks_1samp(kept, law.cdf, alternative="greater").statistic <= bound
    # Without the prompts exactly at the threshold nothing is kept.
    strictly = (shares * (values < thresholds[:, np.newaxis])).sum(axis=1)
    assert not is_rarely_below(strictly < tau - 1e-12, delta, rate)
    assert stats.ks_1samp(strictly, law.cdf, alternative="greater").statistic > bound


def test_success_score_of_one_for_hopeless_prompts_breaks_confidence() -> None:
    # A quarter of the prompts has no correct candidate, more than alpha: all thresholds but few are infinite.
    # With S = 1 for them the threshold is finite, and no set of theirs holds a correct answer.
    rng = np.random.default_rng(3)
    rule, ones, tau = GroupedThreshold("0.2", delta="0.1"), np.ones((60, 1)), 0.8
    kept, at_one = [], []
    for _ in range(1000):
        hopeless, scores = rng.random(60) < 0.25, rng.random(60)
        threshold, wrong = (
            rule.fit(ones, np.where(hopeless, without, scores)).threshold([1.0]) for without in (2.0, 1.0)
        )
        kept.append(1.0 if math.isinf(threshold) else 0.75 * threshold)
        at_one.append(0.75 * wrong)
    assert is_rarely_below(np.array(kept) < tau, 0.1, FALSE_ALARM)
    assert not is_rarely_below(np.array(at_one) < tau, 0.1, FALSE_ALARM)


def test_confidence_does_not_hold_for_exchangeable_dependent_prompts() -> None:
    # All 201 ways to leave one of 201 prompts out are equally likely: exchangeable, and without chance. The
    # 200 left decide whether the other is covered, and of these ways more than delta fail.
    size, delta, tau = 200, Fraction(1, 100), compute_tau("0.1")
    rule, pool = GroupedThreshold("0.1", delta="0.01"), np.arange(size + 1) / (size + 1)
    failed = sum(
        int(rule.fit(np.ones((size, 1)), np.delete(pool, last)).threshold([1.0]) < pool[last])
        for last in range(size + 1)
    )
    assert failed == size + 1 - compute_confident_rank(size, tau, "0.01")
    assert Fraction(failed, size + 1) > 4 * delta


# The rules ------------------------------------------------------------------------------------------------


@settings(derandomize=True, max_examples=repetitions(300, share=0.15))
@given(
    prompts=st.lists(st.tuples(st.integers(0, 3), st.integers(-2, 12)), min_size=1, max_size=80),
    alpha=levels,
    delta=levels,
)
def test_grouped_threshold_is_the_order_statistic_of_its_group(
    prompts: list[tuple[int, int]], alpha: str, delta: str
) -> None:
    # Five groups, of which the last is always empty; scores in tenths, those from 1.1 on are the cap.
    member, tenths = np.array(prompts).T
    scores = np.where(tenths > 10, 1.5, tenths / 10)
    fitted = GroupedThreshold(alpha, 1.5, delta=delta).fit(np.eye(5)[member], scores)
    for group in range(5):
        own = np.sort(scores[member == group])
        rank = compute_confident_rank(len(own), compute_tau(alpha), Fraction(delta) / 5)
        expected = own[rank - 1] if rank <= len(own) and own[rank - 1] < 1.5 else math.inf
        assert fitted.threshold(np.eye(5)[group]) == expected
    assert fitted.threshold(np.eye(5)[4]) == math.inf
    assert not fitted.solve(np.eye(5)).errors.any()


@settings(derandomize=True)
@given(
    prompts=st.lists(st.tuples(st.integers(0, 2), st.floats(-1.0, 2.0)), min_size=1, max_size=60),
    delta=levels,
)
def test_grouped_threshold_restored_from_its_state_is_bit_identical(
    prompts: list[tuple[int, float]], delta: str
) -> None:
    member, scores = [group for group, _ in prompts], [score for _, score in prompts]
    rule = GroupedThreshold("0.3", delta=delta)
    fitted = rule.fit(np.eye(3)[member], scores)
    state = fitted.get_state_data()
    restored = rule.restore({name: np.array(array.tolist()) for name, array in state.items()})
    assert np.isfinite(state["quantiles"]).all()
    asked = [*np.eye(3), np.zeros(3), np.ones(3)]
    assert restored.thresholds(asked).tobytes() == fitted.thresholds(asked).tobytes()
    assert restored.dimension == fitted.dimension == 3


def test_grouped_threshold_is_never_below_the_conditional_one() -> None:
    # The conditional rule takes the ordinary rank in every group.
    rng = np.random.default_rng(5)
    member, scores = rng.integers(0, 3, 300), rng.random(300)
    grouped, conditional = (
        rule.fit(np.eye(3)[member], scores).thresholds(np.eye(3))
        for rule in (GroupedThreshold(0.1, delta=0.1), ConditionalThreshold(0.1))
    )
    assert (grouped > conditional).all()


def test_threshold_rules_with_different_delta_are_not_equal() -> None:
    assert GroupedThreshold(0.1, delta=0.1) == GroupedThreshold(0.1, delta="0.10")
    assert GroupedThreshold(0.1, delta=0.1) != GroupedThreshold(0.1, delta=0.2)
    assert GroupedThreshold(0.1, delta=0.1) != GroupedThreshold(0.1)


@pytest.mark.parametrize(
    "row", [[0.0, 0.0], [1.0, 1.0], [0.5, 0.5], [2.0, 0.0], [1.0, -1.0], [1.0, 1e-9], [1.0 - 1e-9, 0.0]]
)
def test_grouped_threshold_refuses_prompts_in_no_group_or_in_several(row: list[float]) -> None:
    features = np.array([[1.0, 0.0], [0.0, 1.0]] * 20)
    scores = np.arange(40) / 40
    rule = GroupedThreshold("0.2", delta="0.2")
    with pytest.raises(InputError, match=r"disjoint groups.*row 40 .*Use one term"):
        rule.fit([*features, row], [*scores, 0.5])
    found = rule.fit(features, scores).thresholds([row, [1.0, 0.0]])
    assert found[0] == math.inf
    assert found[1] < 1.0


def test_grouped_threshold_refuses_invalid_data() -> None:
    rule = GroupedThreshold("0.5", cap=1.5, delta="0.5")
    for ask in (lambda: rule.threshold([1.0, 0.0]), lambda: rule.dimension, rule.get_state_data):
        with pytest.raises(NotFittedError, match=r"\.fit\("):
            ask()
    with pytest.raises(InputError, match="exceeds the cap"):
        rule.fit(np.eye(2), [0.1, 1.6])
    with pytest.raises(InputError, match="at least one"):
        rule.fit(np.empty((0, 2)), [])
    fitted = rule.fit(np.eye(2), [0.1, 1.5])
    for features in ([1.0], [1.0, 0.0, 0.0], [math.nan, 1.0]):
        with pytest.raises(InputError, match="finite"):
            fitted.threshold(features)
    assert fitted.thresholds(np.empty((0, 2))).shape == (0,)


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"quantiles": np.empty(0)},
        {"quantiles": np.ones((2, 2))},
        {"quantiles": np.array([0.5, 1.6])},
        {"quantiles": np.array([0.5, math.inf])},
        {"quantiles": np.array([0.5, math.nan])},
        {"quantiles": np.array([0.5]), "dimension": np.array([1.0])},
    ],
)
def test_grouped_threshold_refuses_an_invalid_state(wrong: dict[str, FloatArray]) -> None:
    with pytest.raises(InputError):
        GroupedThreshold("0.5", cap=1.5, delta="0.5").restore(wrong)


def test_grouped_threshold_copies_the_arrays_of_its_state() -> None:
    rule = GroupedThreshold("0.5", delta="0.4")
    given_state = {"quantiles": np.array([0.5, 0.7])}
    restored = rule.restore(given_state)
    given_state["quantiles"][:] = 0.0
    restored.get_state_data()["quantiles"][:] = 0.0
    assert restored.thresholds(np.eye(2)).tolist() == [0.5, 0.7]
