"""Each bound against independent sums, and how often it fails: exactly, without sampling, where that can be.

The bounds for a probability depend on one binomial count, so that the probability with which they fail is a
sum over the counts that make them fail. It is largest where the true probability is just beyond a bound, so
these places are part of every grid.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from scipy import special, stats

from langchain_cfc.certificates.bounds import (
    binomial_p_value,
    lower_bound,
    required_size,
    upper_bound,
)
from langchain_cfc.errors import MissingExtraError
from tests.lengths import mostly_long, repetitions

Bound = Callable[[int, int, float], float]

FALSE_ALARM = 1e-6
DELTAS = [1e-6, 0.01, 0.05, 0.1, 0.5, 0.9]


def compute_exact_tail(count: int, size: int, rate: Fraction) -> Fraction:
    """P(Binomial(size, rate) <= count), without round-off."""
    return sum(
        (math.comb(size, k) * rate**k * (1 - rate) ** (size - k) for k in range(count + 1)), Fraction(0)
    )


def compute_summed_tail(count: int, size: int, rate: float) -> float:
    """The same for many trials: the terms relative to that of the count nearest the mean, 15 sd either way.

    A term follows from its neighbour by one factor, which is good to 3e-16; so 3e4 of them, the most that the
    tests below ask for, are good to 1e-11 in any case.
    """
    mode, reach = int(size * rate), math.ceil(15 * math.sqrt(size * rate * (1 - rate)))
    up = np.arange(mode + 1, min(size, mode + reach) + 1, dtype=np.float64)
    down = np.arange(mode, max(0, mode - reach), -1, dtype=np.float64)
    odds = rate / (1.0 - rate)
    above = np.cumprod((size - up + 1) / up * odds)
    below = np.cumprod(down / (size - down + 1) / odds)
    counts = np.concatenate([down[::-1] - 1, [mode], up])
    terms = np.concatenate([below[::-1], [1.0], above])
    return math.fsum(terms[counts <= count]) / math.fsum(terms)


def list_rates_beyond(bounds: Sequence[float], end: float) -> list[float]:
    """A grid of true probabilities, and those just beyond each bound, where it fails most often."""
    return [p for p in (*np.linspace(0.0, 1.0, 41), *(math.nextafter(b, end) for b in bounds)) if 0 <= p <= 1]


def compute_upper_failure(bound: Bound, size: int, delta: float) -> float:
    """The largest probability with which an upper bound lies below the true probability."""
    bounds = np.array([bound(count, size, delta) for count in range(size + 1)])
    counts = np.arange(size + 1)
    return max(
        float(stats.binom.pmf(counts[bounds < p], size, p).sum())
        for p in list_rates_beyond(bounds.tolist(), 1.0)
    )


def compute_lower_failure(bound: Bound, size: int, delta: float) -> float:
    """The largest probability with which a lower bound lies above the true probability."""
    bounds = np.array([bound(count, size, delta) for count in range(size + 1)])
    counts = np.arange(size + 1)
    return max(
        float(stats.binom.pmf(counts[bounds > p], size, p).sum())
        for p in list_rates_beyond(bounds.tolist(), 0.0)
    )


def make_wald_bound(sign: float) -> Bound:
    """The bound by the normal approximation, which is in wide use but not valid."""

    def bound(count: int, size: int, delta: float) -> float:
        share = count / size
        half = stats.norm.isf(delta) * math.sqrt(share * (1 - share) / size)
        return float(min(1.0, max(0.0, share + sign * half)))

    return bound


# Probabilities --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("delta", DELTAS)
@pytest.mark.parametrize("size", [1, 2, 7, 30, 1000])
def test_one_sided_bounds_agree_with_scipy(size: int, delta: float) -> None:
    for count in range(0, size + 1, max(1, size // repetitions(30, share=0.3))):
        less, greater = (stats.binomtest(count, size, alternative=side) for side in ("less", "greater"))
        high = less.proportion_ci(1 - delta, method="exact").high
        low = greater.proportion_ci(1 - delta, method="exact").low
        assert upper_bound(count, size, delta) == pytest.approx(high, rel=1e-6)
        assert lower_bound(count, size, delta) == pytest.approx(low, rel=1e-6)


@mostly_long("delta", DELTAS, quick=3)
@pytest.mark.parametrize("size", [1, 2, 9, 25])
def test_bounds_are_the_tightest_with_a_tail_of_at_most_delta(size: int, delta: float) -> None:
    # In fractions, without tolerance; within 1e-7 of the bound the tail is larger than delta.
    for count in range(size):
        bound = Fraction(upper_bound(count, size, delta))
        assert compute_exact_tail(count, size, bound) <= Fraction(delta)
        assert compute_exact_tail(count, size, bound - (1 - bound) * bound / 10**7) > Fraction(delta)
        # At least size - count successes are at most count failures.
        bound = Fraction(lower_bound(size - count, size, delta))
        assert compute_exact_tail(count, size, 1 - bound) <= Fraction(delta)
        assert compute_exact_tail(count, size, 1 - bound - (1 - bound) * bound / 10**7) > Fraction(delta)


@mostly_long("delta", DELTAS, quick=2)
@pytest.mark.parametrize("size", [1, 5, 40, pytest.param(300, marks=pytest.mark.long)])
def test_bounds_fail_with_probability_at_most_delta(size: int, delta: float) -> None:
    for failure in (
        compute_upper_failure(upper_bound, size, delta),
        compute_lower_failure(lower_bound, size, delta),
    ):
        # Just beyond a bound the failure has all but probability delta, so the check can tell.
        assert delta * (1 - 1e-6) < failure <= delta


@pytest.mark.parametrize("size", [5, 40, 300])
def test_normal_approximation_fails_the_check_of_bounds(size: int) -> None:
    # With true probability just beyond 0, no success (all but sure) makes Wald's upper bound 0.
    assert compute_upper_failure(make_wald_bound(+1.0), size, 0.05) > 0.9
    assert compute_lower_failure(make_wald_bound(-1.0), size, 0.05) > 0.9
    # Also for probabilities that are not tiny: Wald's bound for 2 % and 40 trials.
    counts = np.arange(41)
    missing = np.array([make_wald_bound(+1.0)(int(count), 40, 0.05) < 0.02 for count in counts])
    assert stats.binom.pmf(counts[missing], 40, 0.02).sum() > 0.4


@pytest.mark.parametrize("delta", DELTAS)
def test_bounds_without_trials_say_nothing(delta: float) -> None:
    assert (lower_bound(0, 0, delta), upper_bound(0, 0, delta)) == (0.0, 1.0)
    assert all(binomial_p_value(0, 0, rate) == 1.0 for rate in (0.0, 0.3, 1.0))


@pytest.mark.parametrize("delta", DELTAS)
@pytest.mark.parametrize("size", [1, 10, 10_000, 10**8])
def test_bounds_at_no_and_all_successes_have_closed_forms(size: int, delta: float) -> None:
    assert (lower_bound(0, size, delta), upper_bound(size, size, delta)) == (0.0, 1.0)
    # (1 - p)^n = delta, and its mirror image.
    assert upper_bound(0, size, delta) == pytest.approx(-math.expm1(math.log(delta) / size), rel=1e-8)
    assert lower_bound(size, size, delta) == pytest.approx(math.exp(math.log(delta) / size), rel=1e-8)


def test_upper_bound_far_in_the_tail_is_within_1e_8_of_delta() -> None:
    # Ten million trials at p = 0.9, five standard deviations below the mean: there the inverse of the tail in
    # some versions of SciPy ends where the tail is off by a relative 2e-8 of delta, on either side.
    count, size = 8_995_256, 10**7
    delta = compute_summed_tail(count, size, 0.9)
    bound = upper_bound(count, size, delta)
    assert delta * (1 - 1e-8) < compute_summed_tail(count, size, bound) <= delta


# The p-value ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [Fraction(1, 1000), Fraction(1, 20), Fraction(1, 3), Fraction(9, 10)])
@pytest.mark.parametrize("size", [1, 2, 20, 60])
def test_binomial_p_value_is_exact_and_never_too_small(size: int, rate: Fraction) -> None:
    for count in range(size + 1):
        exact = compute_exact_tail(count, size, rate)
        value = binomial_p_value(count, size, rate)
        assert exact <= Fraction(value) <= exact * (1 + Fraction(1, 10**8))
        peer = stats.binomtest(count, size, float(rate), alternative="less").pvalue
        assert value == pytest.approx(peer, rel=1e-8)


@pytest.mark.parametrize(("count", "size", "rate"), [(49_300, 10**6, 0.05), (9_990, 10**8, 1e-4)])
def test_binomial_p_value_of_many_trials_is_a_sum_of_terms(count: int, size: int, rate: float) -> None:
    assert binomial_p_value(count, size, rate) == pytest.approx(
        compute_summed_tail(count, size, rate), rel=1e-8
    )


@pytest.mark.parametrize("size", [1, 30, pytest.param(500, marks=pytest.mark.long)])
def test_binomial_p_value_rejects_a_true_null_at_most_with_delta(size: int) -> None:
    # P(p <= delta) for a probability above the rate: exact, for each delta that is some count's p-value.
    counts = np.arange(size + 1)
    for rate in (0.0, 0.01, 0.05, 0.3, 0.99):
        values = np.array([binomial_p_value(int(count), size, rate) for count in counts])
        for truth in (math.nextafter(rate, 1.0), rate + 0.005, (1 + rate) / 2):
            for delta in (*values, *DELTAS):
                assert stats.binom.pmf(counts[values <= delta], size, truth).sum() <= delta + 1e-12
        # With half the rate as its truth, the check notices that the null is not true.
        if rate >= 0.3 and size >= 30:
            assert stats.binom.pmf(counts[values <= 0.05], size, rate / 2).sum() > 0.5


@pytest.mark.parametrize("delta", DELTAS)
@pytest.mark.parametrize("size", [1, 10, 200])
def test_binomial_p_value_rejects_exactly_the_rates_above_the_bound(size: int, delta: float) -> None:
    for count in range(0, size + 1, max(1, size // repetitions(20, share=0.25))):
        bound = upper_bound(count, size, delta)
        around = [bound, math.nextafter(bound, 0.0), math.nextafter(bound, 1.0)]
        for rate in (*around, *np.linspace(0.0, 1.0, 101).tolist(), Fraction(1, 3)):
            rejected = binomial_p_value(count, size, rate) <= delta
            # At a bound of 1 nothing has been shown, and nothing is above a rate of 1.
            assert rejected == (bound <= rate) or (count == size and rate == 1.0)
        assert count < size or binomial_p_value(count, size, 1.0) == 1.0


def test_binomial_p_value_does_not_reject_at_exactly_the_level() -> None:
    # P(Binomial(10, 1/2) = 0) = 1 / 1024.
    value = binomial_p_value(0, 10, 0.5)
    assert 1 / 1024 < value <= 1.00000001 / 1024


@pytest.mark.parametrize("size", [1, 7, 10**6])
def test_binomial_p_value_at_rates_of_zero_and_one(size: int) -> None:
    for count in (0, size // 2, size):
        # At a rate of 0 no count is too small.
        assert binomial_p_value(count, size, 0) == binomial_p_value(count, size, Fraction(0)) == 1.0
    # A probability above 1 is ruled out by any trial without the event; all events rule nothing out.
    assert binomial_p_value(size - 1, size, 1.0) == binomial_p_value(0, size, Fraction(1)) == 0.0
    assert binomial_p_value(size, size, 1) == 1.0


def test_binomial_p_value_rounds_a_rate_down_to_a_float() -> None:
    # 0.05 as a float is above one twentieth; its p-value, which falls with the rate, may not be smaller.
    assert Fraction(0.05) > Fraction(1, 20)
    assert binomial_p_value(3, 100, 0.05) == binomial_p_value(3, 100, Fraction(1, 20))
    assert binomial_p_value(3, 100, math.nextafter(0.05, 0.0)) == binomial_p_value(3, 100, 0.05)


# How many trials ------------------------------------------------------------------------------------------


def search_sizes(share: Fraction, rate: Fraction, delta: float) -> tuple[int, int]:
    """By trying every size: the first at which the p-value is at most delta, and the one from which on it is.

    P(Binomial(m, rate) <= share m) <= exp(-m K) with the relative entropy K of share to rate (Chernoff), so
    that no size beyond ln(1 / delta) / K can fail.
    """
    s, r = float(share), float(rate)
    entropy = (s * math.log(s / r) if s else 0.0) + (1 - s) * math.log((1 - s) / (1 - r))
    sizes = np.arange(1, math.ceil(math.log(1 / delta) / entropy) + 2)
    counts = sizes * share.numerator // share.denominator
    holds = np.asarray(stats.binom.cdf(counts, sizes, r)) <= delta
    return int(sizes[holds.argmax()]), int(sizes[~holds][-1]) + 1 if not holds.all() else 1


SHARES = [
    ("0", "0.05"),
    ("0.001", "0.05"),
    ("0.02", "0.05"),
    ("0.04", "0.05"),
    ("0.04", "0.1"),
    ("1/3", "0.35"),
    ("0.123456", "0.13"),
    ("0.49", "0.5"),
    ("0.5", "0.9"),
    ("0.9", "0.99"),
    ("0.995", "0.999"),
]


@pytest.mark.parametrize("delta", [1e-6, 0.03, 0.11, 0.51, 0.91])  # No p-value equals one of these.
@pytest.mark.parametrize(("share", "rate"), SHARES)
def test_required_size_is_the_one_from_which_every_size_passes(share: str, rate: str, delta: float) -> None:
    exact_share, exact_rate = Fraction(share), Fraction(rate)
    assert required_size(exact_share, exact_rate, delta) == search_sizes(exact_share, exact_rate, delta)[1]


def test_required_size_is_not_the_first_size_that_passes() -> None:
    # The negative control of the test above: a size that does by luck, before more prompts undo it.
    first, always = search_sizes(Fraction("0.04"), Fraction("0.1"), 0.05)
    assert (first, always) == (46, 76)
    assert binomial_p_value(1, 46, 0.1) <= 0.05 < binomial_p_value(2, 50, 0.1)


@pytest.mark.parametrize(("share", "rate", "delta"), [(0.0499, 0.05, 0.05), (0.4995, 0.5, 0.01)])
def test_required_size_for_a_share_just_below_the_rate(share: float, rate: float, delta: float) -> None:
    # Trying every size up to Chernoff's would take a minute; every step's beginning is tried instead.
    size = required_size(share, rate, delta)
    assert size is not None
    exact = Fraction(str(share))
    assert binomial_p_value(math.floor(exact * size), size, rate) <= delta
    assert binomial_p_value(math.floor(exact * (size - 1)), size - 1, rate) > delta
    first = math.floor(exact * size) + 1
    counts = np.arange(first, first + repetitions(200_000, share=0.1))
    begins = -(-counts * exact.denominator // exact.numerator)
    assert np.all(stats.binom.cdf(counts, begins, rate) <= delta)
    # As the normal approximation has it, up to its own error.
    rough = (stats.norm.isf(delta) / (rate - share)) ** 2 * rate * (1 - rate)
    assert size == pytest.approx(rough, rel=0.01)


def test_tail_for_fractional_counts_falls_with_the_size() -> None:
    # What the search by bisection rests on, proven beside the code.
    sizes = np.concatenate([np.linspace(0.01, 30, repetitions(3000, share=0.2)), np.geomspace(31, 1e5, 100)])
    for rate in (0.01, 0.05, 0.3, 0.5, 0.9, 0.999):
        for part in (1.0, 0.999, 0.9, 0.5, 0.01):
            share = part * rate
            tail = special.betaincc(share * sizes + 1, (1 - share) * sizes, rate)
            assert (np.diff(tail) <= 1e-14).all()
    # With a share above the rate it does not.
    assert (np.diff(special.betaincc(0.1 * sizes + 1, 0.9 * sizes, 0.05)) > 1e-14).any()


def test_required_size_is_none_if_no_size_passes() -> None:
    for share, rate in ((0.05, 0.05), (0.3, 0.1), (0.0, 0.0), (1.0, 1.0), (1, 0)):
        assert required_size(share, rate, 0.05) is None
    # A hundred million are too few here, but not for ten times the distance.
    assert required_size(0.04999, 0.05, 0.05) is None
    assert required_size(0.0499, 0.05, 0.05) is not None


def test_required_size_excludes_a_p_value_equal_to_delta() -> None:
    # 1 - 0.1 = 0.9, and of 1, 3, ..., 49 trials at 1/2 the smaller half has probability 1/2.
    assert (required_size(0.04, 0.1, 0.9), required_size(0.04, 0.1, 0.9 + 1e-6)) == (2, 1)
    assert (required_size(0.49, 0.5, 0.5), required_size(0.49, 0.5, 0.5 + 1e-6)) == (50, 1)


def test_required_size_at_the_ends() -> None:
    assert required_size(0.0, 1.0, 0.05) == required_size(0.999, 1.0, 1e-9) == 1
    assert required_size(0.0, 0.05, 0.05) == math.ceil(math.log(0.05) / math.log(0.95)) == 59


# Refusals -------------------------------------------------------------------------------------------------


def test_bounds_accept_numpy_numbers() -> None:
    assert upper_bound(np.int64(2), np.int64(9), np.float64(0.05)) == upper_bound(2, 9, 0.05)  # type: ignore[arg-type]
    assert binomial_p_value(2, 9, np.float64(0.3)) == binomial_p_value(2, 9, 0.3)
    assert required_size(np.float64(0.3), 0.5, 0.05) == required_size(0.3, 0.5, 0.05)


@pytest.mark.parametrize(
    "use",
    [
        lambda: lower_bound(1, 2, 0.05),
        lambda: upper_bound(1, 2, 0.05),
        lambda: binomial_p_value(1, 2, 0.05),
        lambda: required_size(0.1, 0.2, 0.05),
    ],
)
def test_bounds_without_scipy_name_the_extra(use: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.special", None)
    with pytest.raises(
        MissingExtraError, match=r"a certificate needs scipy, .* 'langchain-cfc\[calibrate\]'"
    ):
        use()
