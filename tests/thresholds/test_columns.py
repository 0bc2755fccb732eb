"""Which columns are kept, and which prompts lie outside the row space."""

from __future__ import annotations

import numpy as np

from langchain_cfc.support.arrays import FloatArray
from langchain_cfc.thresholds._rows import Columns, find_independent_columns
from tests.lengths import mostly_long

from .cases import KINDS, cases


@mostly_long("kind", KINDS, quick=6)
def test_columns_rank_agrees_with_singular_values(kind: str) -> None:
    for case in cases(kind, 20):
        units = np.abs(case.features).max(axis=0)
        rank = np.linalg.matrix_rank(case.features / np.where(units > 0.0, units, 1.0), tol=1e-10)
        assert len(Columns.choose(case.features)[0].kept) == rank


@mostly_long("kind", KINDS, quick=6)
def test_columns_row_space_contains_every_calibration_row(kind: str) -> None:
    for case in cases(kind, 20):
        assert Columns.choose(case.features)[0].reduce(case.features)[1].all()


def draw_rows(*shape: int, seed: int = 0) -> FloatArray:
    return np.random.default_rng(seed).normal(size=shape)


def test_columns_row_space_contains_only_combinations_of_rows() -> None:
    span, other = draw_rows(3, 6), draw_rows(40, 6, seed=1)
    columns = Columns.choose(draw_rows(30, 3, seed=2) @ span)[0]
    inside = draw_rows(40, 3, seed=3) @ span
    assert len(columns.kept) == 3
    assert columns.reduce(inside)[1].all()
    assert not columns.reduce(other)[1].any()
    # Round-off of features is tolerated, but no larger difference, which a feature map could intend.
    assert columns.reduce(inside + 1e-13 * other)[1].all()
    assert not columns.reduce(inside + 1e-6 * other)[1].any()


def test_columns_reduce_keeps_every_digit() -> None:
    for case in cases("badly_scaled", 20):
        columns = Columns.choose(case.features)[0]
        reduced, _ = columns.reduce(case.features)
        np.testing.assert_array_equal(np.frexp(reduced)[0], np.frexp(case.features[:, columns.kept])[0])
        assert (np.abs(reduced).max(axis=0) <= 1.0).all()
        assert (np.abs(reduced).max(axis=0) > 0.5 - 1e-12).all()


def test_columns_rank_does_not_depend_on_units() -> None:
    rows = draw_rows(20, 4)
    rows = np.hstack([rows, rows[:, :1] + rows[:, 1:2]])
    for units in (np.ones(5), 10.0 ** np.array([-150.0, 0.0, 120.0, 3.0, -7.0])):
        assert len(Columns.choose(rows * units)[0].kept) == 4


def test_columns_drop_a_column_of_zeros() -> None:
    columns = Columns.choose(np.array([[1.0, 0.0], [1.0, 0.0]]))[0]
    assert columns.kept.tolist() == [0]
    assert columns.reduce(np.array([[1.0, 0.0], [1.0, 1e-3]]))[1].tolist() == [True, False]


def test_columns_of_zero_features_span_only_zero() -> None:
    columns = Columns.choose(np.zeros((3, 2)))[0]
    assert columns.kept.tolist() == []
    assert columns.reduce(np.array([[0.0, 0.0], [0.0, 1.0]]))[1].tolist() == [True, False]


def test_columns_keep_nearly_dependent_columns_above_round_off() -> None:
    rows = draw_rows(50, 2)
    for difference, rank in ((1e-6, 2), (1e-12, 1)):
        near = np.stack([rows[:, 0], rows[:, 0] + difference * rows[:, 1]], axis=1)
        assert len(find_independent_columns(near)) == rank
