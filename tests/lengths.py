"""How long the tests take: a short form by default, the long one with `CFC_LONG`."""

from __future__ import annotations

import os

LONG = os.environ.get("CFC_LONG")


def repetitions(full: int, share: float = 0.6) -> int:
    """How often to repeat, or how much of something to take.

    Args:
        full: In the long form; `CFC_LONG=10` takes ten times as much.
        share: Of it, what the short form takes.

    Returns:
        The number. In either form a control beside the claim must be caught.
    """
    return round(full * (float(LONG) if LONG else share))
