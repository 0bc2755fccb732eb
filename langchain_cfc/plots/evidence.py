"""Evidence of tests that may always be looked at, over time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from langchain_cfc.errors import InputError
from langchain_cfc.plots.axes import TARGET, finish, ink, new_axes
from langchain_cfc.plots.style import PLACES, Style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH = 6.0  # inches
_ALARM = "alarm"


def plot_evidence(
    curves: Mapping[str, Sequence[tuple[int, float]]],
    needed: float,
    ax: Axes | None = None,
    *,
    outcomes: str = "results",
) -> Axes:
    """The evidence of each test against the number of outcomes, and the line from which on it alarms.

    Args:
        curves: By name of a test, numbers of outcomes and the natural logarithm of the evidence after them.
        needed: The evidence that alarms, above 1.
        ax: The axis to draw on; None for one in a figure of its own.
        outcomes: What the outcomes are called.

    Returns:
        The axis, its evidence in powers of ten.

    Raises:
        InputError: If there is nothing to draw.
        MissingExtraError: If matplotlib is not installed.
    """
    drawn = {name: points for name, points in curves.items() if points}
    if not drawn:
        msg = "nothing to draw: no test has seen anything yet"
        raise InputError(msg)
    names = [_ALARM, *drawn]
    ax = ax or new_axes(WIDTH, names)
    last = max(points[-1][0] for points in drawn.values())
    handles: list[Any] = ax.plot([0, last], [math.log10(needed)] * 2, color=ink(ax), **TARGET)
    for place, points in enumerate(drawn.values()):
        style = Style.at(place % PLACES)
        handles += ax.plot(
            [0, *(seen for seen, _ in points)],
            [0.0, *(log / math.log(10.0) for _, log in points)],
            color=style.colour,
            linestyle=style.dash,
            linewidth=1.3,
        )
    ax.set_xlabel(outcomes)
    ax.set_ylabel("evidence, powers of ten")
    return finish(ax, handles, names)
