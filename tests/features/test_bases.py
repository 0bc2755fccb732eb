from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from langchain_cfc.candidates import CandidateBatch, Scalar
from langchain_cfc.errors import FeatureError
from langchain_cfc.features.parser import parse_terms
from langchain_cfc.features.statistics import Statistic
from langchain_cfc.features.terms import (
    Bins,
    Group,
    Hard,
    Hat,
    Polynomial,
    Term,
    compute_bernstein_coefficients,
)
from langchain_cfc.support.arrays import FloatArray
from tests.features.draws import make_draws
from tests.lengths import repetitions

X = Statistic("meta", "x")
Y = Statistic("meta", "y")


def make_draws_of_x(values: Sequence[Scalar]) -> CandidateBatch:
    return CandidateBatch.from_arrays([[0.0]] * len(values), metadata=[{"x": value} for value in values])


def make_draws_of_xy(x: Sequence[float], y: Sequence[float]) -> CandidateBatch:
    return CandidateBatch.from_arrays(
        [[0.0]] * len(x), metadata=[{"x": a, "y": b} for a, b in zip(x, y, strict=True)]
    )


def test_polynomial_columns_are_powers_clipped_to_the_fitted_range() -> None:
    term = Polynomial(X, 3).fit(make_draws_of_x([2.0, -1.0, 0.5]))
    assert term.learned == (-1.0, 2.0)
    assert term.names == ("meta(x)", "meta(x)^2", "meta(x)^3")
    columns = term.transform(make_draws_of_x([0.5, -1.5, 9.0]))
    assert columns.tolist() == [[0.5, 0.25, 0.125], [-1.0, 1.0, -1.0], [2.0, 4.0, 8.0]]


def test_polynomial_powers_are_repeated_products() -> None:
    # `np.power` may round differently in vector code, where a prompt stands among many.
    values = np.random.default_rng(0).random(500).tolist()
    columns = Polynomial(X, 5).fit(make_draws_of_x(values)).transform(make_draws_of_x(values))
    assert columns[:, 4].tolist() == [t * t * t * t * t for t in values]


def test_polynomial_refuses_a_single_value() -> None:
    with pytest.raises(FeatureError, match=r"at least two different values, but x is 0\.3 for every prompt"):
        Polynomial(X, 2).fit(make_draws_of_x([0.3, 0.3]))


@pytest.mark.parametrize(
    ("values", "degree"),
    [([1000.0, 1001.0], 4), ([0.0, 1e60], 2), ([0.0, 1e-60], 2), ([0.49, 0.51], 10)],
)
def test_polynomial_refuses_powers_that_floats_cannot_tell_apart(values: list[float], degree: int) -> None:
    with pytest.raises(
        FeatureError, match=r"cannot be computed accurately.*lower degree or hat\(meta\(x\), 5\)"
    ):
        Polynomial(X, degree).fit(make_draws_of_x(values))


@pytest.mark.parametrize(("values", "degree"), [([1000.0, 2000.0], 4), ([0.0, 1.0], 10), ([0.3, 0.6], 3)])
def test_polynomial_accepts_ordinary_ranges(values: list[float], degree: int) -> None:
    assert Polynomial(X, degree).fit(make_draws_of_x(values)).learned == tuple(values)


def test_bernstein_coefficients_equal_a_calculation_by_hand() -> None:
    # On [0, 2] with u = T / 2: (1 - u)^2 = 1 - T + T^2 / 4, 2 u (1 - u) = T - T^2 / 2, u^2 = T^2 / 4.
    assert compute_bernstein_coefficients(0.0, 2.0, 2) == [
        [1, -1, Fraction(1, 4)],
        [0, 1, Fraction(-1, 2)],
        [0, 0, Fraction(1, 4)],
    ]


def test_bins_are_equally_full_and_half_open() -> None:
    term = Bins(X, 5).fit(make_draws_of_x([5, 1, 9, 3, 7, 2, 4, 6, 8, 10]))
    assert term.learned == (3.0, 5.0, 7.0, 9.0)
    columns = term.transform(make_draws_of_x([-100, 2.999, 3, 4.999, 5, 9, 100]))
    assert columns.argmax(axis=1).tolist() == [0, 0, 1, 1, 2, 4, 4]
    assert columns.sum(axis=1).tolist() == [1.0] * 7


@settings(derandomize=True)
@given(st.integers(1, 12), st.integers(2, 8), st.integers(0, 2**32 - 1))
def test_bins_of_distinct_values_differ_in_size_by_at_most_one(factor: int, count: int, seed: int) -> None:
    size = count + factor
    values = np.random.default_rng(seed).permutation(size).astype(float)
    draws = make_draws_of_x(values.tolist())
    sizes = Bins(X, count).fit(draws).transform(draws).sum(axis=0)
    assert len(sizes) == count
    assert sizes.max() - sizes.min() <= 1


@settings(derandomize=True)
@given(st.lists(st.integers(0, 4), min_size=2, max_size=30), st.integers(2, 12))
def test_bins_are_never_empty_on_the_fit_split(values: list[int], count: int) -> None:
    draws = make_draws_of_x(values)
    try:
        term = Bins(X, count).fit(draws)
    except FeatureError as error:
        # The smallest value fills all the runs of the sorted values but the last.
        assert "only one bin" in str(error)  # noqa: PT017  (only some of the inputs raise)
        assert sorted(values)[(count - 1) * len(values) // count] == min(values)
        return
    assert (term.transform(draws).sum(axis=0) > 0).all()
    assert 2 <= len(term.names) <= count


def test_bins_merge_tied_cut_offs() -> None:
    term = Bins(X, 5).fit(make_draws_of_x([0, 0, 0, 0, 1, 1, 1, 1, 1, 2]))
    assert term.learned == (1.0,)
    assert term.names == ("bins(meta(x), 5)[0]", "bins(meta(x), 5)[1]")


def test_hat_columns_equal_a_calculation_by_hand() -> None:
    term = Hat(X, 3).fit(make_draws_of_x([4.0, 0.0, 1.0]))
    assert term.learned == (0.0, 1.0, 4.0)
    columns = term.transform(make_draws_of_x([0.0, 0.25, 1.0, 2.5, 4.0, -7.0, 70.0]))
    assert columns.tolist() == [
        [1.0, 0.0, 0.0],
        [0.75, 0.25, 0.0],
        [0.0, 1.0, 0.0],
        [0.0, 0.5, 0.5],
        [0.0, 0.0, 1.0],
        [1.0, 0.0, 0.0],
        [0.0, 0.0, 1.0],
    ]


def test_hat_knots_are_quantiles_with_duplicates_merged() -> None:
    assert Hat(X, 5).fit(make_draws_of_x(range(9))).learned == (0.0, 2.0, 4.0, 6.0, 8.0)
    assert Hat(X, 5).fit(make_draws_of_x([0, 0, 0, 0, 0, 0, 3, 4, 5])).learned == (0.0, 3.0, 5.0)
    with pytest.raises(FeatureError, match="at least two different values, but x is 7 for every prompt"):
        Hat(X, 5).fit(make_draws_of_x([7, 7, 7]))


@settings(derandomize=True)
@given(
    st.lists(st.floats(-1e100, 1e100), min_size=2, max_size=20).filter(
        lambda values: min(values) < max(values)
    ),
    st.lists(st.floats(-1e100, 1e100), min_size=1, max_size=20),
    st.integers(2, 9),
)
def test_hat_columns_are_a_partition_of_unity(fit: list[float], values: list[float], count: int) -> None:
    columns = Hat(X, count).fit(make_draws_of_x(fit)).transform(make_draws_of_x(fit + values))
    assert (columns >= 0).all()
    assert (columns <= 1).all()
    np.testing.assert_allclose(columns.sum(axis=1), 1.0, rtol=0, atol=2**-52)


def test_group_keeps_types_apart_and_in_order() -> None:
    values: list[Scalar] = ["b", 1, True, "1", "a", False, -3, "true", "b", "new york", "é"]
    term = Group("x").fit(make_draws_of_x(values))
    assert list(map(repr, term.learned)) == list(
        map(repr, [False, True, -3, 1, "1", "a", "b", "new york", "true", "é"])
    )
    assert [name.removeprefix("group(x)=") for name in term.names] == [
        "false",
        "true",
        "-3",
        "1",
        '"1"',
        "a",
        "b",
        '"new york"',
        '"true"',
        '"é"',
    ]
    assert term.transform(make_draws_of_x(values)).argmax(axis=1).tolist() == [
        6,
        3,
        1,
        4,
        5,
        0,
        2,
        8,
        6,
        7,
        9,
    ]


def test_group_refuses_unknown_missing_and_invalid_categories() -> None:
    term = Group("x").fit(make_draws_of_x(["b", "a", 1]))
    with pytest.raises(
        FeatureError, match=r"x of prompt 1 is 'c'.*fitted with 1, 'a' and 'b'.*Calibrate with such.*'other'"
    ):
        term.transform(make_draws_of_x(["a", "c"]))
    with pytest.raises(FeatureError, match="x of prompt 0 is true"):
        term.transform(make_draws_of_x([True]))
    with pytest.raises(FeatureError, match="prompt 0 has no metadata 'x'"):
        term.transform(CandidateBatch.from_arrays([[0.0]]))
    with pytest.raises(FeatureError, match=r"'x' of prompt 0 is 0.5.* bins\(meta\(x\), 5\)"):
        term.transform(make_draws_of_x([0.5]))


def test_group_error_lists_twenty_categories() -> None:
    term = Group("x").fit(make_draws_of_x([f"c{number:02}" for number in range(25)]))
    with pytest.raises(FeatureError, match="'c19' and 5 more"):
        term.transform(make_draws_of_x(["other"]))


def compute_hard_directly(fit: CandidateBatch, new: CandidateBatch, fraction: float) -> FloatArray:
    """The paper's construction, with ranks divided by N and NumPy's quantile: (N,) True where hard."""

    def largest_rank(draws: CandidateBatch) -> FloatArray:
        ranks = [
            (part.compute_values(fit)[None, :] <= part.compute_values(draws)[:, None]).mean(axis=1)
            for part in (X, Y)
        ]
        return np.asarray(np.max(ranks, axis=0))

    cut = np.quantile(largest_rank(fit), fraction)
    # Shares are multiples of 1 / N and the quantile is interpolated: equality is meant up to rounding.
    return np.asarray(largest_rank(new) >= cut - 1e-9)


@settings(derandomize=True, max_examples=repetitions(200, share=0.3))
@given(
    st.integers(0, 2**32 - 1),
    st.integers(2, 60),
    st.booleans(),
    st.sampled_from(["0.925", "0.5", "0.8", "0.99"]),
)
def test_hard_equals_ranks_computed_directly(seed: int, size: int, ties: bool, fraction: str) -> None:
    rng = np.random.default_rng(seed)
    x, y = rng.integers(0, 6, (2, size)).astype(float) if ties else rng.normal(size=(2, size))
    fit = make_draws_of_xy(x.tolist(), y.tolist())
    expected = compute_hard_directly(fit, fit, float(fraction))
    if expected.all():
        with pytest.raises(FeatureError, match="makes every prompt of the fit split hard"):
            Hard((X, Y), fraction).fit(fit)
        return
    columns = Hard((X, Y), fraction).fit(fit).transform(fit)
    assert columns[:, 1].tolist() == expected.astype(float).tolist()
    assert columns.sum(axis=1).tolist() == [1.0] * size


@settings(derandomize=True, max_examples=repetitions(100, share=0.3))
@given(st.integers(0, 2**32 - 1), st.integers(1, 30))
def test_hard_equals_ranks_computed_directly_on_new_prompts(seed: int, tens: int) -> None:
    # (N - 1) q is whole, so nothing is interpolated, and no rank of a new prompt can fall into a gap.
    size = 10 * tens + 1
    rng = np.random.default_rng(seed)
    fit = make_draws_of_xy(rng.normal(size=size).tolist(), rng.normal(size=size).tolist())
    new = make_draws_of_xy(rng.normal(size=50).tolist(), rng.normal(size=50).tolist())
    columns = Hard((X, Y), "0.9").fit(fit).transform(new)
    assert columns[:, 1].tolist() == compute_hard_directly(fit, new, 0.9).astype(float).tolist()


def test_hard_cuts_equal_a_calculation_by_hand() -> None:
    # Ranks of x are 1..5, of y 5..1; their maxima sorted are 3, 4, 4, 5, 5, and place 4 * 0.75 holds 5.
    fit = make_draws_of_xy([10, 20, 30, 40, 50], [5, 4, 3, 2, 1])
    term = Hard((X, Y), "0.75").fit(fit)
    assert term.learned == (50.0, 5.0)
    assert term.names == ("hard(meta(x), meta(y), 0.75)=easy", "hard(meta(x), meta(y), 0.75)=hard")
    assert term.transform(make_draws_of_xy([50, 49, 0, 0], [0, 4.9, 5, 0])).tolist() == [
        [0, 1],
        [1, 0],
        [0, 1],
        [1, 0],
    ]


def test_hard_reads_the_fraction_as_a_decimal() -> None:
    # With q in binary, (N - 1) q could land just above a whole number and the place be one too far.
    # 100 * 0.07 is 7.000000000000001.
    draws = make_draws_of_x(range(101))
    for hundredth in range(1, 100):
        assert Hard((X,), f"0.{hundredth:02}").fit(draws).learned == (float(hundredth),)


TERMS = [
    "mean_score^3",
    "bins(entropy, 4)",
    "hat(meta(year), 4)",
    "group(topic)",
    "hard(entropy, std_score, 0.8)",
]


@pytest.mark.parametrize("text", TERMS)
def test_terms_fit_transform_and_serialise(text: str) -> None:
    (term,) = parse_terms(text)
    assert not term.fitted
    fitted = term.fit(make_draws(1))
    assert fitted.fitted
    assert not term.fitted
    columns = fitted.transform(make_draws(2))
    assert columns.shape == (40, len(fitted.names))
    assert columns.dtype == np.float64
    assert len(set(fitted.names)) == len(fitted.names)
    assert all(len(weight.coefficients) == len(fitted.names) for weight in fitted.weights)
    if fitted.sums_to_one:
        np.testing.assert_allclose(columns.sum(axis=1), 1.0, rtol=0, atol=2**-52)
    assert term.from_data(fitted.to_data()) == fitted


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("mean_score", [0.5]),
        ("mean_score", [0.1, float("nan")]),
        ("bins(mean_score, 3)", []),
        ("bins(mean_score, 3)", [0.1, 0.2, 0.3]),
        ("bins(mean_score, 3)", [0.1, "0.2"]),
        ("bins(mean_score, 3)", [False, True]),
        ("hat(mean_score, 3)", [0.1]),
        ("hat(mean_score, 3)", [0.1, 10**400]),
        ("hat(mean_score, 3)", "12"),
        ("group(topic)", []),
        ("group(topic)", [0.5]),
        ("group(topic)", [None]),
        ("hard(entropy, max_score, 0.9)", [0.5]),
        ("hard(entropy, max_score, 0.9)", [0.5, float("inf")]),
    ],
)
def test_terms_refuse_invalid_learned_values(text: str, values: Any) -> None:
    term: Term[Any] = parse_terms(text)[0]
    with pytest.raises(FeatureError):
        term.from_data({term.learns: values})
