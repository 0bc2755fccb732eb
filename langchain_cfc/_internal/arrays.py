"""Array types of the numerical modules, and a checked conversion to floats."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from langchain_cfc.errors import InputError

FloatArray: TypeAlias = npt.NDArray[np.float64]
IntArray: TypeAlias = npt.NDArray[np.int64]
BoolArray: TypeAlias = npt.NDArray[np.bool_]


def to_float_array(numbers: npt.ArrayLike, name: str) -> FloatArray:
    """Convert to float64, without a copy if it already is; an InputError for other values or ragged rows."""
    try:
        return np.asarray(numbers, dtype=np.float64)
    except (TypeError, ValueError) as error:
        msg = f"{name} must be an array of numbers: {error}"
        raise InputError(msg) from error
