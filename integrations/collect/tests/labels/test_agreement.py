"""Kappa against the published formula; its interval against exact enumeration and clustered draws.

Statistical tests draw independent repetitions; a false alarm, a failing assertion although the law holds, has
probability at most 1e-6 per test, and seeds are fixed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st
from langchain_cfc_collect import IntervalEstimate, compare_labels

from langchain_cfc.errors import InputError
from tests.lengths import repetitions

FALSE_ALARM = 1e-6
CELLS = [(True, True), (True, False), (False, True), (False, False)]


def make_labels(table: tuple[int, ...]) -> tuple[list[bool], list[bool]]:
    pairs = [cell for cell, count in zip(CELLS, table, strict=True) for _ in range(count)]
    return [judge for judge, _ in pairs], [people for _, people in pairs]


def compute_kappa(table: tuple[int, ...], confidence: float = 0.95) -> IntervalEstimate:
    found = compare_labels(*make_labels(table), confidence=confidence).kappa
    assert found is not None
    return found


def compute_published_kappa(shares: tuple[float, ...]) -> tuple[float, float]:
    """Kappa, and N times its variance as Fleiss, Cohen and Everitt (1969) write it, from shares of cells."""
    p = np.array(shares).reshape(2, 2)
    rows, columns = p.sum(axis=1), p.sum(axis=0)
    observed, expected = np.trace(p), rows @ columns
    kappa = (observed - expected) / (1 - expected)
    agreed = sum(p[i, i] * ((1 - expected) - (columns[i] + rows[i]) * (1 - observed)) ** 2 for i in range(2))
    differing = sum(p[i, j] * (columns[i] + rows[j]) ** 2 for i, j in product(range(2), range(2)) if i != j)
    rest = (observed * expected - 2 * expected + observed) ** 2
    return float(kappa), float((agreed + (1 - observed) ** 2 * differing - rest) / (1 - expected) ** 4)


@drawn(st.tuples(*[st.integers(1, 60)] * 4))
def test_kappa_interval_uses_the_published_variance(table: tuple[int, ...]) -> None:
    size = sum(table)
    shares = tuple(count / size for count in table)
    kappa, variance = compute_published_kappa(shares)
    # One prompt per candidate: N / (N - 1) of it. The scale is atanh(kappa), of slope 1 / (1 - kappa^2).
    half = NormalDist().inv_cdf(0.95) * math.sqrt(variance / (size - 1)) / (1 - kappa**2)
    low, high = (math.tanh(math.atanh(kappa) + sign * half) for sign in (-1, 1))
    observed, unseen = shares[0] + shares[3], 1 - 0.05 ** (1 / size)
    # p_o - p_e is kappa (1 - p_e), so 1 - p_e is (1 - p_o) / (1 - kappa).
    scale = unseen * (1 - kappa) / (1 - observed)
    found = compute_kappa(table, 0.9)
    assert found.value == pytest.approx(kappa, abs=1e-12)
    assert found.low == pytest.approx(max(-1.0, min(low, kappa - observed * scale)), abs=1e-9)
    assert found.high == pytest.approx(min(1.0, max(high, kappa + (1 - observed) * scale)), abs=1e-9)


def list_tables(size: int) -> Iterator[tuple[int, int, int, int]]:
    for a in range(size + 1):
        for b in range(size + 1 - a):
            for c in range(size + 1 - a - b):
                yield a, b, c, size - a - b - c


LAWS = [(0.45, 0.1, 0.05, 0.4), (0.3, 0.2, 0.2, 0.3), (0.7, 0.1, 0.1, 0.1)]


@pytest.mark.parametrize("law", LAWS)
def test_kappa_variance_and_coverage_by_exact_enumeration(law: tuple[float, ...]) -> None:
    """All 12,341 tables of 40 candidates with their multinomial probabilities: no draw, no false alarm.

    The delta method is right up to O(1/N), so N var(kappa) is within 25 percent, and the interval covers to
    within 3 points, at N = 40.
    """
    size, logs = 40, [math.log(share) for share in law]
    truth, variance = compute_published_kappa(law)
    mean = square = covered = 0.0
    for table in list_tables(size):
        chance = math.exp(
            math.lgamma(size + 1)
            + sum(count * log - math.lgamma(count + 1) for count, log in zip(table, logs, strict=True))
        )
        if chance < 1e-12:
            continue
        found = compare_labels(*make_labels(table)).kappa
        if found is not None:
            assert found.value is not None
            mean += chance * found.value
            square += chance * found.value**2
            covered += chance * (found.low <= truth <= found.high)
    assert size * (square - mean**2) == pytest.approx(variance, rel=0.25)
    assert mean == pytest.approx(truth, abs=0.03)
    assert covered == pytest.approx(0.95, abs=0.03)


def draw_clustered_labels(
    rng: np.random.Generator, prompts: int, n: int
) -> tuple[list[bool], list[bool], list[int]]:
    """Easy and hard prompts, on a fifth of which the judge contradicts people throughout."""
    truth = rng.random((prompts, n)) < rng.choice([0.2, 0.8], (prompts, 1))
    judge = np.where(rng.random((prompts, 1)) < 0.2, ~truth, truth)
    names = [prompt for prompt in range(prompts) for _ in range(n)]
    return [bool(one) for one in judge.ravel()], [bool(one) for one in truth.ravel()], names


@pytest.mark.long
def test_kappa_interval_covers_with_clustered_candidates() -> None:
    """Law: the interval covers kappa with probability 0.95, up to O(1/I) at I = 200 prompts.

    In truth half of the candidates are correct and the judge agrees with people on 0.8, so kappa is 0.6.
    Of R intervals (1,500 in the long tier), those that cover are binomial; z sqrt(0.95 * 0.05 / R) is for
    chance, two points are for O(1/I).
    """
    rng, rounds = np.random.default_rng(3), repetitions(1500, share=0.4)
    hits = naive = 0
    for _ in range(rounds):
        judge, people, names = draw_clustered_labels(rng, 200, 8)
        found, alone = compare_labels(judge, people, names), compare_labels(judge, people)
        assert found.kappa is not None
        assert alone.kappa is not None
        assert found.kappa.value == alone.kappa.value
        assert (found.prompts, alone.prompts) == (200, 1600)
        hits += found.kappa.low <= 0.6 <= found.kappa.high
        naive += alone.kappa.low <= 0.6 <= alone.kappa.high
    slack = NormalDist().inv_cdf(1 - FALSE_ALARM / 4) * math.sqrt(0.95 * 0.05 / rounds) + 0.02
    assert hits / rounds == pytest.approx(0.95, abs=slack)
    # The negative control: eight candidates of a prompt that err together say little more than one.
    assert naive / rounds < 0.7


def test_kappa_is_undefined_if_both_raters_are_constant() -> None:
    for constant in (True, False):
        found = compare_labels([constant] * 5, [constant] * 5)
        assert found.kappa is None
        known, unknown = found.error_on_correct, found.error_on_wrong
        if not constant:
            known, unknown = unknown, known
        assert (known.value, unknown.value, unknown.low, unknown.high) == (0.0, None, 0.0, 1.0)
    # Constant, but not the same.
    opposite = compare_labels([True] * 5, [False] * 5).kappa
    assert opposite is not None
    assert opposite.value == 0.0


def test_kappa_interval_of_perfect_agreement_has_a_lower_end_below_one() -> None:
    few, many = compute_kappa((5, 0, 0, 5)), compute_kappa((500, 0, 0, 500))
    assert (few.value, few.high, many.value, many.high) == (1.0, 1.0, 1.0, 1.0)
    # Clopper and Pearson's bound for no disagreement among 10, in kappa: 1 - 2 (1 - 0.025^(1/10)).
    assert few.low == pytest.approx(2 * 0.025**0.1 - 1, abs=1e-12)
    assert many.low == pytest.approx(2 * 0.025**0.001 - 1, abs=1e-12)
    # Ten candidates of one prompt are one observation.
    judge, people = make_labels((5, 0, 0, 5))
    alone = compare_labels(judge, people, ["p"] * 10).kappa
    assert alone is not None
    assert (alone.low, alone.high) == pytest.approx((2 * 0.025 - 1, 1.0))


INVALID_ARGUMENTS: list[tuple[Any, ...]] = [
    ([], [], None, 0.95),
    ([True], [True, False], None, 0.95),
    ([True], [True], [], 0.95),
    ([True], [True], ["a", "b"], 0.95),
    ([1], [True], None, 0.95),
    ([True], ["yes"], None, 0.95),
    ([True], [True], None, 0.0),
    ([True], [True], None, 1.0),
    ([True], [True], None, math.nan),
]


@pytest.mark.parametrize("arguments", INVALID_ARGUMENTS)
def test_compare_labels_refuses_invalid_arguments(arguments: tuple[Any, ...]) -> None:
    with pytest.raises(InputError, match=r"expected|strictly between"):
        compare_labels(*arguments)
