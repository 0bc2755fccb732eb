"""Payoffs and e-processes of the sequential tests: fair bets, peaks and storage."""

from __future__ import annotations

import json

import numpy as np
import pytest
from langchain_cfc_monitor.e_processes import EProcess
from langchain_cfc_monitor.sequential_tests import (
    RANK_EXPERT_COUNT,
    RATE_EXPERT_COUNT,
    add_to_counts,
    compute_rank_payoffs,
    compute_ranks,
    compute_rate_payoffs,
)


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
