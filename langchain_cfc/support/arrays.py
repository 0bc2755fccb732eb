"""Array types of the numerical modules, and functions to convert to floats and to find equal numbers."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from langchain_cfc.errors import InputError

FloatArray: TypeAlias = npt.NDArray[np.float64]
IntArray: TypeAlias = npt.NDArray[np.int64]
BoolArray: TypeAlias = npt.NDArray[np.bool_]
# Maximum number of pairs of candidates to compare at a time.
_MAX_PAIRS = 2**22


def to_float_array(numbers: npt.ArrayLike, name: str) -> FloatArray:
    """Return an array of float64, copied only if needed; an InputError for other values or ragged rows."""
    try:
        return np.asarray(numbers, dtype=np.float64)
    except (TypeError, ValueError) as error:
        msg = f"{name} must be an array of numbers: {error}"
        raise InputError(msg) from error


def find_first_equal(numbers: IntArray) -> IntArray:
    """Return, for each of (N, n) numbers, the first slot in its row with an equal number.

    Examples:
        >>> find_first_equal(np.array([[7, 3, 7], [3, 3, 5]])).tolist()
        [[0, 1, 0], [0, 0, 2]]
    """
    size, n = numbers.shape
    # Compare all pairs of candidates, for as many prompts at a time as fit into a few megabytes.
    rows = max(1, _MAX_PAIRS // n**2)
    first = np.empty_like(numbers)
    for start in range(0, size, rows):
        part = numbers[start : start + rows]
        first[start : start + rows] = (part[:, :, None] == part[:, None, :]).argmax(axis=2)
    return first
