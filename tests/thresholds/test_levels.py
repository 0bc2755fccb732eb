"""Levels are decimals and ranks are exact."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

from langchain_cfc.errors import InputError
from langchain_cfc.thresholds import Level, compute_conformal_rank, compute_tau, format_alpha


@pytest.mark.parametrize(
    ("alpha", "text"),
    [
        (0.1, "0.1"),
        ("0.10", "0.1"),
        ("1e-3", "0.001"),
        (1e-05, "0.00001"),
        (Decimal("0.0500"), "0.05"),
        (np.float64(0.3), "0.3"),
        (0.123456789012, "0.123456789012"),
        ("0.999", "0.999"),
    ],
)
def test_format_alpha_reads_alpha_as_the_decimal_it_is_written_as(alpha: Level, text: str) -> None:
    assert format_alpha(alpha) == text
    assert format_alpha(text) == text
    assert compute_tau(alpha) == 1 - Fraction(text)


@pytest.mark.parametrize(
    ("alpha", "text"),
    [
        (1 - 0.8, "0.2"),  # 0.19999999999999996
        (1 - 0.7, "0.3"),
        (0.1 + 0.2, "0.3"),
        (1 / 3, "0.333333333333"),
        (2 / 3, "0.666666666667"),
        (np.float64(1) - np.float64(0.9), "0.1"),
        (1e-12, "0.000000000001"),
        (1 - 1e-12, "0.999999999999"),
    ],
)
def test_format_alpha_rounds_a_float_to_twelve_decimals(alpha: float, text: str) -> None:
    assert format_alpha(alpha) == text
    assert compute_tau(alpha) == 1 - Fraction(text)


def test_conformal_rank_of_a_computed_level_is_that_of_its_decimal() -> None:
    for size in range(201):
        assert compute_conformal_rank(size, compute_tau(1 - 0.8)) == compute_conformal_rank(
            size, compute_tau("0.2")
        )
    assert compute_conformal_rank(9, compute_tau(1 - 0.8)) == 8
    # Read to the last bit, the same float asks for one rank more.
    assert compute_conformal_rank(9, 1 - Fraction(1 - 0.8)) == 9


@pytest.mark.parametrize(
    "alpha",
    [
        "0.1234567890123",
        "0.19999999999999996",
        Decimal("0.1234567890123"),
        Decimal(1) / 3,
        1e-310,
        4e-13,
        1 - 4e-13,
        "0.0000000000001",
        "1e-999999999",
    ],
)
def test_format_alpha_refuses_more_than_twelve_decimals(alpha: Level) -> None:
    with pytest.raises(InputError, match="at most 12 decimals"):
        format_alpha(alpha)


@pytest.mark.parametrize(
    "alpha",
    [
        0,
        1,
        0.0,
        1.0,
        "0",
        "1",
        -0.1,
        1.5,
        "nan",
        "inf",
        "-inf",
        "sNaN",
        "",
        "a tenth",
        "1/10",
        True,
        float("nan"),
    ],
)
def test_format_alpha_refuses_alpha_outside_the_open_unit_interval(alpha: Level) -> None:
    with pytest.raises(InputError, match="strictly between 0 and 1"):
        format_alpha(alpha)


def test_conformal_rank_equals_whole_number_arithmetic() -> None:
    # ceil((N + 1)(100 - k) / 100) without a single fraction, for every alpha = k / 100.
    for k in range(1, 100):
        tau = compute_tau(f"{k / 100}")
        for size in range(201):
            assert compute_conformal_rank(size, tau) == -(-(size + 1) * (100 - k) // 100)


def test_conformal_rank_is_exact_where_floats_are_one_too_high() -> None:
    # 10 * (1 - 0.7) is 3.0000000000000004 in floats, and the float 0.3 lies just below three tenths.
    assert compute_conformal_rank(9, compute_tau(0.7)) == 3
    assert compute_conformal_rank(9, compute_tau(0.3)) == 7
    assert compute_conformal_rank(9, 1 - Fraction(0.3)) == 8
