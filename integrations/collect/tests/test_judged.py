"""Bets on the labels of a judge and of people: fair, never ruinous, and of the fastest growth."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_cfc_collect.judged import (
    BROKEN,
    DOUBTED,
    KNOWN,
    SURE,
    JudgedEProcess,
    JudgedPrompts,
    assign_strata,
    compute_inclusion,
    compute_payoffs,
)

from langchain_cfc.support.arrays import FloatArray


def get_payoffs(fraction: float, target: float, prediction: float, inclusion: float) -> FloatArray:
    """Without a label, for a kept promise, for a broken one."""
    numbers = map(np.array, (fraction, target, prediction, inclusion))
    return np.array(compute_payoffs(*numbers))


@given(st.tuples(st.floats(0.0, 0.95), st.floats(0.01, 0.99), st.floats(0.001, 0.999), st.floats(0.01, 1.0)))
def test_payoffs_are_fair_for_every_prediction_and_never_ruinous(bet: tuple[float, ...]) -> None:
    fraction, target, _, inclusion = bet
    unlabelled, kept, broken = get_payoffs(*bet)
    assert min(unlabelled, kept, broken) > 0.0
    for label, pays in ((1.0, kept), (0.0, broken)):
        mean = inclusion * pays + (1.0 - inclusion) * unlabelled
        assert mean == pytest.approx(1.0 + fraction / target * (label - target), rel=1e-9)
    # Under the hypothesis at its edge the mean over labels is 1, and less below.
    for rate in (target, target / 2):
        mean = inclusion * (rate * kept + (1 - rate) * broken) + (1.0 - inclusion) * unlabelled
        assert mean <= 1.0 + 1e-9


@given(st.tuples(st.floats(0.01, 0.9), st.floats(0.1, 0.9), st.floats(0.05, 0.95), st.floats(0.05, 0.95)))
def test_payoff_without_a_label_grows_fastest(bet: tuple[float, ...]) -> None:
    fraction, target, prediction, inclusion = bet
    by_label = np.array([1.0 - fraction + fraction / target, 1.0 - fraction])
    best = get_payoffs(*bet)[0]

    def growth(unlabelled: float) -> float:
        with np.errstate(invalid="ignore", divide="ignore"):
            logs = np.log((by_label - (1.0 - inclusion) * unlabelled) / inclusion)
        labelled = inclusion * (prediction * logs[0] + (1.0 - prediction) * logs[1])
        return float(labelled + (1.0 - inclusion) * np.log(unlabelled))

    found = growth(best)
    for factor in (0.8, 0.99, 1.01, 1.2):
        assert not growth(factor * best) > found + 1e-12
    # The linear correction of a prediction is one of the others.
    assert not growth(1.0 + fraction / target * (prediction - target)) > found + 1e-12


def test_uninformative_judge_costs_nothing_at_the_best_bets() -> None:
    rate, target, inclusion = 0.85, 0.75, 0.1
    alone = (rate - target) / (1.0 - target)  # the best part to bet without a judge
    unlabelled, kept, broken = get_payoffs(inclusion * alone, target, rate, inclusion)
    assert unlabelled == pytest.approx(1.0)
    assert kept == pytest.approx(rate / target)
    assert broken == pytest.approx((1.0 - rate) / (1.0 - target))


def test_mean_wealth_over_all_labels_and_samples_is_one() -> None:
    """Of four prompts at the edge of the hypothesis, each of two kinds: 4 x 4 x 4 x 4 x 2^4 paths."""
    target, share = 0.6, 0.3
    kinds = {SURE: 0.9, BROKEN: 0.3}  # half of the prompts are of either, and 0.6 keep the promise
    total = 0.0
    for strata in product(kinds, repeat=4):
        paths = np.array(list(product((True, False), repeat=8)))
        chance = np.ones(len(paths))
        state = JudgedEProcess.start(share, np.array([target]))
        # Bets change with labels, which fitting after every prompt makes sure of.
        for place, stratum in enumerate(strata):
            sampled, kept = paths[:, 2 * place], paths[:, 2 * place + 1]
            inclusion = compute_inclusion(share, np.array(float(stratum == BROKEN)))
            chance *= np.where(sampled, inclusion, 1 - inclusion) * 0.5
            chance *= np.where(kept, kinds[stratum], 1 - kinds[stratum])
            one = np.full(len(paths), stratum)
            state = state.update(one, np.full(len(paths), inclusion), sampled, kept)
        total += float((chance * np.exp(state.wealth[:, 0])).sum())
    assert total == pytest.approx(1.0, abs=1e-12)


def update_with_labels(labels: list[bool]) -> JudgedEProcess:
    state = JudgedEProcess.start(1.0)
    for kept in labels:
        state = state.update(np.array(DOUBTED), np.array(1.0), np.array(True), np.array(kept))
    return state


def test_judged_bound_is_zero_at_first_and_never_falls() -> None:
    rng = np.random.default_rng(0)
    bounds = []
    state = JudgedEProcess.start(1.0)
    assert state.compute_bound(0.05) == 0.0
    for kept in rng.random(400) < 0.9:
        state = state.update(np.array(DOUBTED), np.array(1.0), np.array(True), np.array(kept))
        bounds.append(float(state.compute_bound(0.05)))
    assert bounds == sorted(bounds)
    assert 0.75 < bounds[-1] < 0.9
    assert state.compute_bound(0.001) < state.compute_bound(0.05)


def test_judged_bound_rejects_a_target_only_with_all_smaller_ones() -> None:
    state = update_with_labels([True] * 100)
    peak = state.peak.copy()
    peak[20] = 0.0
    held_back = state.__class__(**{**state.__dict__, "peak": peak})
    assert held_back.compute_bound(0.05) == state.targets[19]
    assert state.compute_bound(0.05) > 0.9


def test_prompts_that_need_no_label_form_their_own_stratum() -> None:
    strata = assign_strata(
        np.array([True, True, False, False]), np.array([0.1, 0.5, 1.0, 1.0]), np.arange(4) > 2
    )
    assert strata.tolist() == [SURE, DOUBTED, BROKEN, KNOWN]
    prompts = JudgedPrompts(strata, np.ones(4), np.array([True, False, True, True]))
    assert prompts.needs_label.tolist() == [True, False, True, False]


def test_inclusion_lies_above_zero_and_at_most_at_one() -> None:
    doubt = np.linspace(0.0, 1.0, 5)
    chances = compute_inclusion(0.1, doubt)
    assert chances[0] == pytest.approx(0.07)
    assert chances[-1] == pytest.approx(0.15)
    assert (np.diff(chances) > 0.0).all()
    assert compute_inclusion(0.9, doubt).max() == 1.0


def test_forecast_labels_is_within_a_factor_of_three() -> None:
    rng = np.random.default_rng(3)
    size = 4000
    kept = rng.random(size) < 0.9
    judged = kept ^ (rng.random(size) < 0.1)
    doubt = np.where(judged, 0.1, 1.0)
    strata = assign_strata(judged, doubt, np.zeros(size, dtype=np.bool_))
    inclusion = compute_inclusion(0.1, doubt)
    prompts = JudgedPrompts(strata, inclusion, rng.random(size) < inclusion)
    state = JudgedEProcess.start(0.1)
    needed = 0
    for row in range(size):
        if row == 200:
            early, so_far = state, needed
        state = state.update(strata[row], inclusion[row], prompts.sampled[row], kept[row])
        needed += bool(prompts.sampled[row])
        if row % 20 == 0 and state.compute_bound(0.05) >= 0.75:
            break
    rest = JudgedPrompts(strata[200:], inclusion[200:], prompts.sampled[200:])
    expected = early.forecast_labels(0.75, 0.05, rest)
    assert expected is not None
    assert (needed - so_far) / 3 < expected < 3 * (needed - so_far)
    assert state.forecast_labels(0.75, 0.05, rest) == 0
    # A rate of nine in ten does not reach 0.95, and ten prompts certify nothing.
    assert early.forecast_labels(0.95, 0.05, rest) is None
    short = JudgedPrompts(strata[:10], inclusion[:10], prompts.sampled[:10])
    assert early.forecast_labels(0.75, 0.05, short) is None
