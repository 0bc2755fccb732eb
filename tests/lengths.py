"""How often statistical tests repeat what they count: less in the quick tier, in full in the long one.

Tests with the marker `long` are left out of the quick tier. `CFC_LONG=1 pytest -m "long or not long"` runs
both tiers, all with full repetitions.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import pytest

LONG = os.environ.get("CFC_LONG")


def repetitions(full: int, share: float = 1.0) -> int:
    """Return how often to repeat, or how much of something to take.

    Args:
        full: In the long tier; `CFC_LONG=10` takes ten times as much.
        share: Of it, what the quick tier takes; tests with the marker `long` need none. In either tier the
            control beside the claim must be caught.

    Returns:
        The number.
    """
    return round(full * (float(LONG) if LONG else share))


def mostly_long(
    names: str | tuple[str, ...], values: Iterable[Any], *, quick: int, **options: Any
) -> pytest.MarkDecorator:
    """Parametrise a test, of which the quick tier runs a few evenly spaced cases and the long tier all.

    Args:
        names: Of the parameters, as for `pytest.mark.parametrize`.
        values: One value per case, or a tuple of them where there are several names.
        quick: Number of cases in the quick tier, at least 1.
        **options: Of `pytest.mark.parametrize`.

    Returns:
        The decorator.
    """
    every = list(values)
    kept = {round(place * (len(every) - 1) / max(1, quick - 1)) for place in range(quick)}
    several = not isinstance(names, str) or "," in names
    cases = [
        one if place in kept else pytest.param(*(one if several else (one,)), marks=pytest.mark.long)
        for place, one in enumerate(every)
    ]
    return pytest.mark.parametrize(names, cases, **options)
