from __future__ import annotations

import math
from functools import reduce
from operator import add
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from langchain_cfc.candidates import CandidateBatch, Scalar
from langchain_cfc.errors import FeatureError
from langchain_cfc.features.statistics import (
    ANSWER_STATISTICS,
    SCORE_STATISTICS,
    STATISTICS,
    Statistic,
    _compute_sum,
)
from tests.features.draws import make_draws
from tests.lengths import repetitions

EXAMPLE = CandidateBatch.from_arrays(
    [[0.5, 0.25, 1.0, 0.25], [0.0, 0.0, 0.0, 0.0]],
    [["a", "bbb", "a", "cc"], ["xx", "xx", "xx", "xx"]],
)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("mean_score", [0.5, 0.0]),
        ("min_score", [0.25, 0.0]),
        ("max_score", [1.0, 0.0]),
        # squared deviations 0, 1/16, 1/4, 1/16
        ("std_score", [math.sqrt(0.09375), 0.0]),
        ("score_gap", [0.0, 0.0]),
        ("count", [4.0, 4.0]),
        # shares 1/2, 1/4, 1/4
        ("entropy", [1.5 * math.log(2), 0.0]),
        ("distinct_answers", [3.0, 1.0]),
        ("top_share", [0.5, 1.0]),
        ("mean_length", [1.75, 2.0]),
        ("min_length", [1.0, 2.0]),
        ("max_length", [3.0, 2.0]),
        # squared deviations 9/16, 25/16, 9/16, 1/16
        ("std_length", [math.sqrt(0.6875), 0.0]),
    ],
)
def test_statistics_equal_a_calculation_by_hand(name: str, expected: list[float]) -> None:
    values = Statistic(name).compute_values(EXAMPLE)
    assert values.dtype == np.float64
    np.testing.assert_allclose(values, expected, rtol=0, atol=1e-15)
    # 0.0 stands for -0.0 too; a sign would travel into artifacts.
    assert not np.signbit(values).any()


def test_every_statistic_has_a_calculation_by_hand() -> None:
    names = test_statistics_equal_a_calculation_by_hand.pytestmark[0].args[1]  # type: ignore[attr-defined]
    assert {name for name, _ in names} == set(STATISTICS)


def test_score_gap_is_between_the_two_smallest() -> None:
    gaps = Statistic("score_gap").compute_values(
        CandidateBatch.from_arrays([[0.75, 0.25, 0.5], [1.0, 1.0, 0.0]])
    )
    assert gaps.tolist() == [0.25, 1.0]


def test_statistics_of_a_single_candidate() -> None:
    draws = CandidateBatch.from_arrays([[0.3]], [["four"]])
    values = {name: Statistic(name).compute_values(draws)[0] for name in STATISTICS}
    assert values == {
        "mean_score": 0.3,
        "min_score": 0.3,
        "max_score": 0.3,
        "std_score": 0.0,
        "score_gap": 0.0,
        "count": 1.0,
        "entropy": 0.0,
        "distinct_answers": 1.0,
        "top_share": 1.0,
        "mean_length": 4.0,
        "min_length": 4.0,
        "max_length": 4.0,
        "std_length": 0.0,
    }


@pytest.mark.parametrize("n", [3, 7, 10, 49])
def test_equal_scores_have_their_exact_mean_and_no_deviation(n: int) -> None:
    # 0.1 + 0.1 + 0.1 is not 0.3: without care, such prompts would differ in the last bit.
    draws = CandidateBatch.from_arrays([[0.1] * n, [0.7] * n])
    assert Statistic("mean_score").compute_values(draws).tolist() == [0.1, 0.7]
    assert Statistic("std_score").compute_values(draws).tolist() == [0.0, 0.0]


@settings(derandomize=True, max_examples=repetitions(25, share=0.3))
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([1, 2, 7, 8, 9, 16, 50, 130]),
    st.sampled_from([1, 3, 64, 3000]),
)
def test_statistics_are_the_same_to_the_bit_alone_and_in_a_batch(seed: int, n: int, size: int) -> None:
    batch = make_draws(seed, size, n)
    assert batch.answer_codes is not None
    assert batch.lengths is not None
    fortran = CandidateBatch(
        np.asfortranarray(batch.scores),
        np.asfortranarray(batch.answer_codes),
        np.asfortranarray(batch.lengths),
        batch.metadata,
    )
    strided = CandidateBatch(
        np.repeat(batch.scores, 2, axis=1)[:, ::2],
        np.repeat(batch.answer_codes, 2, axis=1)[:, ::2],
        np.repeat(batch.lengths, 2, axis=1)[:, ::2],
        batch.metadata,
    )
    rows = np.random.default_rng(seed).integers(0, size, 20)
    for name in STATISTICS:
        values = Statistic(name).compute_values(batch)
        alone = [Statistic(name).compute_values(batch.take(np.array([row])))[0] for row in rows]
        assert values[rows].tolist() == alone, name
        assert values.tolist() == Statistic(name).compute_values(fortran).tolist(), name
        assert values.tolist() == Statistic(name).compute_values(strided).tolist(), name


@pytest.mark.parametrize("order", ["C", "F"])
def test_total_adds_from_left_to_right(order: Literal["C", "F"]) -> None:
    # `np.sum` adds in blocks, whose borders it may move; most of these rows would then end in other bits.
    rows = np.random.default_rng(0).random((500, 37)).copy(order=order)
    assert _compute_sum(rows).tolist() == [reduce(add, row) for row in rows.tolist()]


@settings(derandomize=True, max_examples=repetitions(50, share=0.3))
@given(st.integers(0, 2**32 - 1), st.integers(1, 60))
def test_statistics_do_not_depend_on_the_order_of_candidates(seed: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    scores = rng.random(n).tolist()
    answers = ["abc"[k] * int(k) for k in rng.integers(0, 3, n)]
    order = rng.permutation(n)
    draws = CandidateBatch.from_arrays(
        [scores, [scores[k] for k in order]], [answers, [answers[k] for k in order]]
    )
    for name in STATISTICS:
        first, second = Statistic(name).compute_values(draws)
        assert first == second, name


@settings(derandomize=True, max_examples=repetitions(50, share=0.3))
@given(st.integers(0, 2**32 - 1), st.integers(1, 60))
def test_statistics_agree_with_numpy_and_stay_in_range(seed: int, n: int) -> None:
    draws = make_draws(seed, 30, n)
    assert draws.lengths is not None
    values = {name: Statistic(name).compute_values(draws) for name in STATISTICS}
    np.testing.assert_allclose(values["mean_score"], draws.scores.mean(axis=1), rtol=1e-13)
    np.testing.assert_allclose(values["std_score"], draws.scores.std(axis=1), rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(values["mean_length"], draws.lengths.mean(axis=1), rtol=1e-13)
    np.testing.assert_allclose(values["std_length"], draws.lengths.std(axis=1), rtol=1e-12, atol=1e-15)
    for name in SCORE_STATISTICS:
        assert (values[name] >= 0).all()
        assert (values[name] <= (n if name == "count" else 1)).all()
    assert (values["count"] == n).all()
    assert (values["min_score"] <= values["mean_score"]).all()
    assert (values["mean_score"] <= values["max_score"]).all()
    assert (values["std_score"] <= 0.5 + 1e-15).all()
    assert (values["entropy"] >= 0).all()
    assert (values["entropy"] <= math.log(n) + 1e-13).all()
    assert (values["top_share"] >= 1 / n).all()
    assert (values["top_share"] <= 1).all()


def test_meta_statistic_reads_metadata_numbers() -> None:
    draws = CandidateBatch.from_arrays([[0.0], [0.0]], metadata=[{"year": 1999}, {"year": 0.5}])
    assert Statistic("meta", "year").compute_values(draws).tolist() == [1999.0, 0.5]


@pytest.mark.parametrize(
    "value", [True, "7", math.nan, math.inf, -math.inf, 10**400, 1e101], ids=lambda value: str(value)[:8]
)
def test_meta_statistic_refuses_values_that_are_not_finite_numbers(value: Scalar) -> None:
    draws = CandidateBatch.from_arrays([[0.0], [0.0]], metadata=[{"year": 1}, {"year": value}])
    with pytest.raises(FeatureError, match=r"'year' of prompt 1 .* finite number.* group\(year\)"):
        Statistic("meta", "year").compute_values(draws)


def test_meta_statistic_refuses_missing_metadata() -> None:
    draws = CandidateBatch.from_arrays([[0.0], [0.0]], metadata=[{"year": 1}, {"month": 2, "day": 3}])
    with pytest.raises(FeatureError, match=r"prompt 1 has no metadata 'year'.* month and day"):
        Statistic("meta", "year").compute_values(draws)
    with pytest.raises(FeatureError, match=r"prompt 0 has no metadata 'year'.* none"):
        Statistic("meta", "year").compute_values(CandidateBatch.from_arrays([[0.0]]))


@pytest.mark.parametrize("name", sorted(ANSWER_STATISTICS))
def test_answer_statistics_refuse_missing_answers(name: str) -> None:
    statistic = Statistic(name)
    assert statistic.needs_answers
    with pytest.raises(FeatureError, match=r"need the candidates' answers.*mean_score, min_score"):
        statistic.compute_values(CandidateBatch.from_arrays([[0.0, 1.0]]))


def test_score_and_meta_statistics_need_no_answers() -> None:
    assert not any(Statistic(name).needs_answers for name in SCORE_STATISTICS)
    assert not Statistic("meta", "entropy").needs_answers
