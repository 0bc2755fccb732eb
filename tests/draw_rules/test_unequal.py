"""Unequal numbers of candidates: the same figures as prompt by prompt, and padding is never read."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from langchain_cfc.candidates import LabelledBatch
from langchain_cfc.errors import InputError
from langchain_cfc.features import FeatureMap, precompute_statistics
from langchain_cfc.features.statistics import STATISTICS
from langchain_cfc.records import tabulate
from langchain_cfc.set_rules import parse_set_rule

N = 5
SET_RULES = ["all", "best_prefix", "rank", "unique(rank)", "unique(best_prefix)"]


def make_batch(seed: int, size: int = 30) -> LabelledBatch:
    rng = np.random.default_rng(seed)
    answers = rng.choice(["a", "bb", "", "ccc"], (size, N))
    return LabelledBatch.from_arrays(
        [f"{row}" for row in range(size)],
        rng.random((size, N)).round(1),
        answers == "a",
        answers.tolist(),
    )


def make_short_batch(seed: int) -> LabelledBatch:
    labelled = make_batch(seed)
    return labelled.keep_drawn(np.random.default_rng(seed).integers(1, N + 1, len(labelled)))


@pytest.mark.parametrize("rule", SET_RULES)
@given(seed=st.integers(0, 10_000))
def test_set_rules_of_unequal_draws_equal_each_prompt_alone(rule: str, seed: int) -> None:
    labelled, set_rule = make_short_batch(seed), parse_set_rule(rule)
    levels, counts = set_rule.compute_levels(labelled.draws), labelled.draws.counts
    success = set_rule.compute_success_scores(labelled, 2.0)
    for row, count in enumerate(counts.tolist()):
        alone = make_batch(seed).take(np.array([row])).keep_first_candidates(count)
        np.testing.assert_array_equal(levels[row, :count], set_rule.compute_levels(alone.draws)[0])
        assert np.isinf(levels[row, count:]).all()
        assert success[row] == set_rule.compute_success_scores(alone, 2.0)[0]


@given(seed=st.integers(0, 10_000))
def test_statistics_of_unequal_draws_equal_each_prompt_alone(seed: int) -> None:
    labelled = make_short_batch(seed)
    measured = precompute_statistics(labelled.draws).precomputed
    assert set(measured) == set(STATISTICS)
    for row, count in enumerate(labelled.draws.counts.tolist()):
        alone = make_batch(seed).take(np.array([row])).keep_first_candidates(count).draws
        for name, values in measured.items():
            assert values[row] == STATISTICS[name](alone)[0]


@given(seed=st.integers(0, 10_000))
def test_padding_is_never_read(seed: int) -> None:
    labelled = make_short_batch(seed)
    draws = labelled.draws
    rng, padding = np.random.default_rng(seed + 1), ~draws.is_drawn
    assert draws.answer_codes is not None
    assert draws.lengths is not None
    other = replace(
        labelled,
        draws=replace(
            draws,
            scores=np.where(padding, rng.random(padding.shape), draws.scores),
            answer_codes=np.where(padding, 0, draws.answer_codes),
            lengths=np.where(padding, 9, draws.lengths),
        ),
    )
    features = FeatureMap.parse("mean_score^2 + entropy + bins(max_length, 2)").fit(draws)
    np.testing.assert_array_equal(features.transform(other.draws), features.transform(draws))
    for rule in SET_RULES:
        parsed = parse_set_rule(rule)
        np.testing.assert_array_equal(parsed.compute_levels(other.draws), parsed.compute_levels(draws))


def test_keep_drawn_overwrites_later_draws() -> None:
    labelled = make_batch(0, 2).keep_drawn(np.array([1, 4]))
    assert labelled.draws.scores[0, 1:].tolist() == [1.0] * 4
    assert not labelled.correct[0, 1:].any()
    assert labelled.draws.blank is not None
    assert labelled.draws.blank[0, 1:].all()


def test_keep_drawn_of_all_returns_the_same_batch() -> None:
    labelled = make_batch(0)
    assert labelled.keep_drawn(np.full(len(labelled), N)) is labelled


def test_concatenate_keeps_the_numbers_of_draws() -> None:
    whole = make_batch(0)
    short = whole.take(np.arange(3)).keep_drawn(np.array([1, 2, 3]))
    joined = LabelledBatch.concatenate([short, whole.take(np.arange(3, 5))])
    assert joined.draws.counts.tolist() == [1, 2, 3, N, N]
    assert LabelledBatch.concatenate([whole.take(np.arange(3))]).draws.drawn is None


def test_tabulate_refuses_a_table_shortened_by_a_draw_rule() -> None:
    with pytest.raises(InputError, match="can be used only with this rule"):
        tabulate(make_short_batch(0))
