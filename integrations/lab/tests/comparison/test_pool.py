from __future__ import annotations

import numpy as np
import pytest
from langchain_cfc_lab.methods import Pool

from integrations.lab.tests.comparison.worlds import draw_world
from langchain_cfc.features import FeatureMap
from langchain_cfc.features.statistics import STATISTICS
from langchain_cfc.set_rules import parse_set_rule

RULES = ("all", "best_prefix", "rank", "unique(all)", "unique(rank)")
MAPS = ("1", "mean_score^2", "hat(entropy, 4)", "bins(max_score, 3) + group(topic)", "hard(entropy, 0.8)")


@pytest.mark.parametrize("decimals", [1, 9])
def test_pool_equals_direct_features_levels_and_success_scores(decimals: int) -> None:
    labelled = draw_world(1, decimals=decimals)
    measured, plain = Pool(labelled), Pool(labelled, measure=False)
    assert set(measured.draws.precomputed) == set(STATISTICS)
    assert not plain.draws.precomputed
    fitted_on = np.random.default_rng(2).permutation(200)[:70]
    for text in MAPS:
        expected = FeatureMap.parse(text)
        expected = expected.fit(labelled.draws.take(fitted_on)) if expected.needs_fit else expected
        for pool in (measured, plain):
            assert np.array_equal(
                pool.compute_features(text, fitted_on), expected.transform(labelled.draws), equal_nan=True
            )
    for text in RULES:
        rule = parse_set_rule(text)
        for pool in (measured, plain):
            for _ in range(2):  # made, and looked up
                assert np.array_equal(pool.compute_levels(text), rule.compute_levels(labelled.draws))
                for cap in (1.0, 2.0):
                    assert np.array_equal(
                        pool.compute_success_scores(text, cap), rule.compute_success_scores(labelled, cap)
                    )
