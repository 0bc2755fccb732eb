"""Precomputed statistics equal those that are computed when needed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from langchain_cfc.candidates import CandidateBatch, LabelledBatch
from langchain_cfc.errors import FeatureError
from langchain_cfc.features import FeatureMap, Statistic, precompute_statistics
from langchain_cfc.features.statistics import SCORE_STATISTICS, STATISTICS
from tests.features.draws import make_draws

TEXTS = (
    *STATISTICS,
    *(f"bins({name}, 3)" for name in ("mean_score", "entropy", "max_length")),
    "hat(std_score, 4) + top_share^2",
    "hard(entropy, max_score, 0.9)",
    "bins(meta(price), 3) + group(topic) + mean_score",
)


def fit_or_explain(given: FeatureMap, draws: CandidateBatch) -> FeatureMap | str:
    """The fitted map, or why there is none."""
    try:
        return given.fit(draws) if given.needs_fit else given
    except FeatureError as error:
        return str(error)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("n", [1, 6])
def test_precomputed_statistics_give_the_same_features_to_the_bit(text: str, n: int) -> None:
    for seed in range(4):
        draws = make_draws(seed, 60, n)
        known = precompute_statistics(draws)
        rows = np.random.default_rng(seed).permutation(60)[:25]
        given = FeatureMap.parse(text)
        plain, fitted = fit_or_explain(given, draws.take(rows)), fit_or_explain(given, known.take(rows))
        if isinstance(plain, str) or isinstance(fitted, str):
            assert plain == fitted  # refused for the same reason
            continue
        assert fitted.to_data() == plain.to_data()
        assert np.array_equal(plain.transform(draws), fitted.transform(known))
        assert np.array_equal(plain.transform(draws.take(rows)), fitted.transform(known.take(rows)))


def test_precompute_statistics_measures_every_possible_statistic() -> None:
    scores = [[0.5, 0.25], [0.0, 1.0]]
    assert set(
        precompute_statistics(CandidateBatch.from_arrays(scores, [["a", "b"], ["c", "c"]])).precomputed
    ) == set(STATISTICS)
    without = precompute_statistics(CandidateBatch.from_arrays(scores))
    assert set(without.precomputed) == set(SCORE_STATISTICS)
    with pytest.raises(FeatureError, match="need the candidates' answers"):
        Statistic("entropy").compute_values(without)
    assert Statistic("mean_score").compute_values(without).tolist() == [0.375, 0.5]
    # The value is looked up and not computed: a wrong one is returned as it is.
    wrong = replace(without, precomputed={"mean_score": np.array([7.0, 8.0])})
    assert Statistic("mean_score").compute_values(wrong).tolist() == [7.0, 8.0]
    assert Statistic("min_score").compute_values(wrong).tolist() == [0.25, 0.0]


def test_metadata_named_like_a_statistic_is_not_that_statistic() -> None:
    draws = make_draws(1, 10, 3)
    described = precompute_statistics(
        replace(draws, metadata=tuple({"mean_score": float(row)} for row in range(10)))
    )
    assert Statistic("meta", "mean_score").compute_values(described).tolist() == list(range(10))
    assert np.array_equal(
        Statistic("mean_score").compute_values(described), Statistic("mean_score").compute_values(draws)
    )


def test_precomputed_statistics_are_read_only() -> None:
    known = precompute_statistics(make_draws(2, 10, 3))
    for name in STATISTICS:
        with pytest.raises(ValueError, match="read-only"):
            Statistic(name).compute_values(known)[0] = 2.0


@pytest.mark.parametrize("rows", [[], [3], [5, 0, 5], list(range(9, -1, -1))])
def test_take_keeps_the_precomputed_statistics_of_its_rows(rows: list[int]) -> None:
    known = precompute_statistics(make_draws(3, 10, 4))
    taken = known.take(np.array(rows, dtype=np.int64))
    assert set(taken.precomputed) == set(STATISTICS)
    for name, values in taken.precomputed.items():
        assert values.tolist() == known.precomputed[name][rows].tolist()
        if rows:
            alone = replace(taken, precomputed={})
            assert values.tolist() == Statistic(name).compute_values(alone).tolist()


def label_all_correct(draws: CandidateBatch) -> LabelledBatch:
    size = len(draws)
    names = tuple(f"p{row}" for row in range(size))
    return LabelledBatch(draws, np.ones(draws.scores.shape, np.bool_), names, (None,) * size, draws.n, False)


def test_precomputed_statistics_are_dropped_for_other_candidates() -> None:
    known = precompute_statistics(make_draws(4, 10, 4))
    assert not CandidateBatch.concatenate([known, known]).precomputed
    fewer = label_all_correct(known).keep_first_candidates(2).draws
    assert not fewer.precomputed
    assert np.array_equal(Statistic("max_score").compute_values(fewer), known.scores[:, :2].max(axis=1))
    taken = label_all_correct(known).take(np.array([1, 2]))
    assert np.array_equal(taken.draws.precomputed["entropy"], known.precomputed["entropy"][[1, 2]])


def test_precompute_statistics_measures_again_after_a_change() -> None:
    known = precompute_statistics(make_draws(6, 10, 4))
    halved = precompute_statistics(replace(known, scores=known.scores / 2))
    assert np.array_equal(halved.precomputed["max_score"], (known.scores / 2).max(axis=1))


def test_precompute_statistics_works_without_lengths() -> None:
    draws = CandidateBatch.from_arrays([[0.5, 0.25]], [["a", "b"]])
    known = precompute_statistics(replace(draws, lengths=None)).precomputed
    assert known["entropy"].tolist() == precompute_statistics(draws).precomputed["entropy"].tolist()
    assert "mean_length" not in known
