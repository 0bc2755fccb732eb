"""How often statistical tests repeat what they count: less in the quick tier, in full in the long one.

Tests with the marker `long` are left out of the quick tier. `CFC_LONG=1 pytest -m "long or not long"` runs
both tiers, all with full repetitions.
"""

from __future__ import annotations

import os

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
