"""Split conformal prediction is one order statistic in each of disjoint groups."""

from __future__ import annotations

import math

import numpy as np
import pytest

from langchain_cfc.thresholds import ConditionalThreshold, GroupedThreshold
from tests.lengths import LONG, mostly_long, repetitions

from .oracles import compute_order_statistic

PERCENTS = [f"{k / 100}" for k in range(1, 100)]


def test_grouped_threshold_of_one_group_is_the_order_statistic_to_the_bit() -> None:
    rng = np.random.default_rng(0)
    for size in range(1, 61, 1 if LONG else 3):
        scores = rng.random(size) if size % 2 else rng.integers(0, 11, size) / 10
        found = [
            GroupedThreshold(alpha).fit(np.ones((size, 1)), scores).threshold([1.0]) for alpha in PERCENTS
        ]
        assert found == [compute_order_statistic(scores, alpha) for alpha in PERCENTS]


def test_grouped_threshold_reads_seven_tenths_exactly() -> None:
    # In floats 10 * (1 - 0.7) exceeds 3 and the rank would be 4.
    scores = np.arange(1, 10) / 10
    assert GroupedThreshold(0.7).fit(np.ones((9, 1)), scores).threshold([1.0]) == 0.3


def test_grouped_threshold_at_the_cap_is_infinite() -> None:
    rule = GroupedThreshold("0.5", cap=1.5).fit(np.ones((3, 1)), [0.1, 1.5, 1.5])
    assert rule.threshold([1.0]) == math.inf


@mostly_long("scores", ["continuous", "tenths", "few and hopeless"], quick=3)
@pytest.mark.parametrize("groups", [1, 2, 5])
def test_grouped_threshold_equals_the_conditional_one_to_the_bit(groups: int, scores: str) -> None:
    # The regression finds the order statistic of rank ceil((N_g + 1) tau) in every group, with windows too.
    rng = np.random.default_rng(groups)
    compared = 0
    for size in (1, 7, 60, 333, 5_000)[: 5 if LONG else 4]:
        for _ in range(repetitions(20, share=0.2)):
            alpha = str(rng.choice(PERCENTS))
            features = np.eye(groups)[rng.integers(0, groups, size)]
            drawn = rng.random(size)
            if scores != "continuous":
                drawn = rng.integers(0, 11, size) / 10
            if scores == "few and hopeless":
                drawn[rng.random(size) < 0.3] = 2.0
            closed = GroupedThreshold(alpha).fit(features, drawn).solve(np.eye(groups))
            for window in (None, 16):
                rule = ConditionalThreshold(alpha, window=window).fit(features, drawn)
                solved = rule.solve(np.eye(groups))
                known = ~solved.outside
                assert solved.values[known].tobytes() == closed.values[known].tobytes()
                compared += int(np.isfinite(closed.values[known]).sum())
                assert window or known.all()
            # The control: another level has other order statistics.
            if size > 300 and scores == "continuous":
                other = ConditionalThreshold(1.0 - float(alpha)).fit(features, drawn)
                assert alpha == "0.5" or other.thresholds(np.eye(groups)).tolist() != closed.values.tolist()
    assert compared >= 20
