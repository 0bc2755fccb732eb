from __future__ import annotations

import numpy as np
import pytest
from langchain_cfc_lab.methods import Pool

from integrations.lab.tests.comparison.worlds import draw_world, make_split_by_hand
from langchain_cfc.candidates import LabelledBatch
from langchain_cfc.errors import FeatureError
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


def test_pool_success_scores_equal_a_calculation_by_hand() -> None:
    labelled = LabelledBatch.from_arrays(
        ["a", "b", "c"],
        [[0.5, 0.25, 0.75], [0.1, 0.2, 0.3], [0.25, 0.25, 0.0]],
        [[True, False, True], [False, False, False], [True, True, False]],
        [["x", "y", "x"], ["u", "v", "w"], ["x", "x", "y"]],
    )
    pool = Pool(labelled)
    assert pool.compute_success_scores("all", 2.0).tolist() == [0.5, 2.0, 0.25]
    assert pool.compute_success_scores("all", 1.0).tolist() == [0.5, 1.0, 0.25]
    assert pool.compute_success_scores("rank", 2.0).tolist() == [2 / 3, 2.0, 2 / 3]
    # The best candidate of the last prompt is its third, which is wrong; the right ones come before it.
    assert pool.compute_success_scores("best_prefix", 2.0).tolist() == [0.5, 2.0, 0.25]
    assert pool.attainable.tolist() == [True, False, True]


def test_pool_fits_a_map_on_the_given_rows_only() -> None:
    labelled = draw_world(3)
    some = np.arange(0, 200, 2)
    changed = np.array(labelled.draws.scores)
    changed[1::2] = changed[1::2] / 2
    other = LabelledBatch.from_arrays(
        labelled.ids, changed, labelled.correct, [["x"] * 4] * 200, metadata=labelled.draws.metadata
    )
    for text in ("bins(mean_score, 4)", "hat(max_score, 5)", "hard(max_score, 0.9)"):
        before, after = (Pool(one).compute_features(text, some)[some] for one in (labelled, other))
        assert np.array_equal(before, after)
        # The control: fitted on all rows, it moves.
        everything = np.arange(200)
        before, after = (Pool(one).compute_features(text, everything)[some] for one in (labelled, other))
        assert not np.array_equal(before, after)


def test_pool_errors_name_the_record() -> None:
    labelled = draw_world(4)
    rows = np.array([row for row, one in enumerate(labelled.draws.metadata) if one["topic"] != "law"])
    stranger = next(row for row, one in enumerate(labelled.draws.metadata) if one["topic"] == "law")
    with pytest.raises(FeatureError, match=f"topic of record '{labelled.ids[stranger]}' is 'law'"):
        Pool(labelled).compute_features("group(topic)", rows)


def test_split_computes_and_caches_its_parts() -> None:
    split = make_split_by_hand(draw_world(5), range(40), range(41, 100), [*range(120, 200), 40])
    assert split.development.tolist() == [*range(40), *range(41, 100)]
    assert split.get_rows("development") is split.development
    assert split.get_rows("fit").tolist() == list(range(40))
    assert split.test_candidates.scores.tolist() == split.pool.draws.scores[split.test].tolist()
    assert split.test_correct.tolist() == split.pool.correct[split.test].tolist()
    assert split.draw_counts.tolist() == [4] * 81
    numbers = iter(range(3))
    assert [split.get_or_make((key,), lambda: next(numbers)) for key in ("a", "b", "a")] == [0, 1, 0]
    first = split.compute_features("bins(mean_score, 3)", "fit")
    assert split.compute_features("bins(mean_score, 3)", "fit") is first
    assert not np.array_equal(split.compute_features("bins(mean_score, 3)", "development"), first)
    assert np.array_equal(split.compute_test_levels("rank"), split.pool.compute_levels("rank")[split.test])
