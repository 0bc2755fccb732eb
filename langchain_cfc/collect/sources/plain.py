"""Values of arrays and tables as plain JSON values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np


def plain(value: Any) -> Any:
    """Unwrap the scalars and arrays of NumPy and of Arrow, at any depth; tuples become lists.

    Args:
        value: A cell of a dataset.

    Returns:
        The same with Python's own numbers, texts, lists and dicts; what is none of these stays what it is,
        for `check_json` to refuse.

    Raises:
        RecursionError: If it is nested without end.
        ValueError: If Arrow has a value for which Python has none.
    """
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        # An array of objects holds whatever it holds.
        return plain(value.tolist())
    # Before mappings: a struct of Arrow is one even where it is null.
    if hasattr(value, "as_py"):
        return plain(value.as_py())
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value
