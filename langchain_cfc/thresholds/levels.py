"""Levels and ranks in exact arithmetic.

A level is decimal: 0.1 means one tenth, not the binary number next to it. Ranks such as ceil((N + 1) tau)
jump by one when (N + 1) tau is an integer, and binary floats miss that (10 * (1 - 0.7) is
3.0000000000000004), so they are computed in fractions made from the decimal string.
"""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from typing import TypeAlias

from langchain_cfc.errors import InputError

# Ranks of more decimals could not be told apart in the floats that the solver computes with.
DECIMALS = 12
Level: TypeAlias = str | float | Decimal


def alpha_text(alpha: Level) -> str:
    """The canonical decimal text of an error level.

    Args:
        alpha: Error level, 0 < alpha < 1; a float is read by its shortest decimal form.

    Returns:
        Plain decimal text without exponent or trailing zeros, such as `0.1`.

    Raises:
        InputError: If it is no number strictly between 0 and 1.

    >>> alpha_text(0.10), alpha_text("0.050"), alpha_text(1e-3)
    ('0.1', '0.05', '0.001')
    """
    try:
        number = Decimal(str(alpha))
    except ArithmeticError:
        number = Decimal("NaN")
    if isinstance(alpha, bool) or not number.is_finite() or not 0 < number < 1:
        msg = f"alpha must be a decimal number strictly between 0 and 1, such as 0.1 or '0.1'; got {alpha!r}"
        raise InputError(msg)
    text = f"{number:f}".rstrip("0")
    if len(text) > len("0.") + DECIMALS:
        msg = f"alpha may have {DECIMALS} decimals at most, got {text[:40]}"
        raise InputError(msg)
    return text


def exact_tau(alpha: Level) -> Fraction:
    """The target coverage tau = 1 - alpha as a fraction.

    >>> exact_tau(0.3)
    Fraction(7, 10)
    """
    return 1 - Fraction(alpha_text(alpha))


def conformal_rank(size: int, tau: Fraction) -> int:
    """The rank ceil((N + 1) tau) of split conformal prediction, from 1; N + 1 means "no score suffices".

    Args:
        size: Number of calibration scores N >= 0.
        tau: Target coverage in (0, 1).

    Returns:
        The rank, 1 ... N + 1.

    >>> conformal_rank(9, exact_tau(0.1)), conformal_rank(9, exact_tau(0.3))
    (9, 7)
    """
    return math.ceil((size + 1) * tau)
