"""Split conformal prediction is one order statistic."""

from __future__ import annotations

import math

import numpy as np

from langchain_cfc.thresholds import MarginalThreshold
from tests.lengths import LONG, mostly_long

from .cases import KINDS, cases
from .oracles import compute_order_statistic

PERCENTS = [f"{k / 100}" for k in range(1, 100)]


def test_marginal_threshold_equals_the_order_statistic_to_the_bit() -> None:
    rng = np.random.default_rng(0)
    for size in range(1, 61, 1 if LONG else 3):
        scores = rng.random(size) if size % 2 else rng.integers(0, 11, size) / 10
        found = [
            MarginalThreshold(alpha).fit(np.ones((size, 1)), scores).threshold([1.0]) for alpha in PERCENTS
        ]
        assert found == [compute_order_statistic(scores, alpha) for alpha in PERCENTS]


def test_marginal_threshold_reads_seven_tenths_exactly() -> None:
    # In floats 10 * (1 - 0.7) exceeds 3 and the rank would be 4.
    scores = np.arange(1, 10) / 10
    assert MarginalThreshold(0.7).fit(np.ones((9, 1)), scores).threshold([1.0]) == 0.3


@mostly_long("kind", KINDS, quick=6)
def test_marginal_threshold_ignores_features_and_has_no_error(kind: str) -> None:
    for case in cases(kind, 5):
        found = (
            MarginalThreshold(case.alpha, cap=case.cap).fit(case.features, case.scores).solve(case.queries)
        )
        expected = compute_order_statistic(case.scores, case.alpha)
        assert set(found.values.tolist()) == {expected if expected < case.cap else math.inf}
        assert not found.errors.any()


def test_marginal_threshold_at_the_cap_is_infinite() -> None:
    rule = MarginalThreshold("0.5", cap=1.5).fit(np.ones((3, 1)), [0.1, 1.5, 1.5])
    assert rule.threshold([1.0]) == math.inf
