"""Kappa against the published formula, and what cannot be compared."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st
from langchain_cfc_collect import compare_labels

from langchain_cfc.errors import InputError

CELLS = [(True, True), (True, False), (False, True), (False, False)]


@drawn(st.tuples(*[st.integers(1, 60)] * 4))
def test_kappa_is_the_published_one(table: tuple[int, ...]) -> None:
    pairs = [cell for cell, count in zip(CELLS, table, strict=True) for _ in range(count)]
    judge, people = map(list, zip(*pairs, strict=True))
    # As Cohen (1960) writes it, from the shares of the four cells.
    shares = np.array(table).reshape(2, 2) / sum(table)
    observed, expected = np.trace(shares), shares.sum(axis=1) @ shares.sum(axis=0)
    assert compare_labels(judge, people).kappa == pytest.approx((observed - expected) / (1 - expected))


def test_kappa_is_undefined_if_both_raters_are_constant() -> None:
    for constant in (True, False):
        found = compare_labels([constant] * 5, [constant] * 5)
        assert found.kappa is None
        known, unknown = found.error_on_correct, found.error_on_wrong
        if not constant:
            known, unknown = unknown, known
        assert (known.value, unknown.value, unknown.low, unknown.high) == (0.0, None, 0.0, 1.0)
    # Constant, but not the same.
    opposite = compare_labels([True] * 5, [False] * 5).kappa
    assert opposite == 0.0


INVALID_ARGUMENTS: list[tuple[Any, ...]] = [
    ([], [], None, 0.95),
    ([True], [True, False], None, 0.95),
    ([True], [True], [], 0.95),
    ([True], [True], ["a", "b"], 0.95),
    ([1], [True], None, 0.95),
    ([True], ["yes"], None, 0.95),
    ([True], [True], None, 0.0),
    ([True], [True], None, 1.0),
    ([True], [True], None, math.nan),
]


@pytest.mark.parametrize("arguments", INVALID_ARGUMENTS)
def test_compare_labels_refuses_invalid_arguments(arguments: tuple[Any, ...]) -> None:
    with pytest.raises(InputError, match=r"expected|strictly between"):
        compare_labels(*arguments)
