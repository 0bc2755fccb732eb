"""Figures of the efficiency analysis: set sizes by alpha, and the cost of coverage.

They follow the conventions of `plots.py`: each takes data and optionally the axis to draw on, and returns the
axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from langchain_cfc.errors import InputError
from langchain_cfc_lab.efficiency import SizeCell
from langchain_cfc_lab.efficiency_recordings import RecordedEfficiency
from langchain_cfc_lab.report.drawing import (
    TARGET_LINE,
    Style,
    create_axes,
    draw_points,
    finish_axes,
    get_ink_colour,
    label_axes,
    label_groups,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH = 4.8  # inches of an axis


def plot_sizes(cells: Sequence[SizeCell], ax: Axes | None = None) -> Axes:
    """Plot each rule's mean set size against alpha: predicted as a line, simulated as points.

    Error bars are three standard errors.

    Args:
        cells: Cells of one world.
        ax: The axis to draw on.
    """
    if len({cell.world for cell in cells}) != 1:
        msg = "set sizes are drawn for one world"
        raise InputError(msg)
    rules = list(dict.fromkeys(cell.rule for cell in cells))
    ax = ax or create_axes(WIDTH)
    handles: list[Any] = []
    for place, rule in enumerate(rules):
        of_rule = [cell for cell in cells if cell.rule == rule]
        alphas = [float(cell.alpha) for cell in of_rule]
        style = Style.at(place)
        ax.plot(alphas, [cell.predicted for cell in of_rule], color=style.colour, linestyle=style.dash)
        errors = [3.0 * cell.standard_error for cell in of_rule]
        handles.append(draw_points(ax, place, alphas, [cell.simulated for cell in of_rule], yerr=errors))
    label_axes(ax, "alpha", "candidates per set\nline: integral, points: simulated")
    return finish_axes(ax, handles, rules, cells[0].world)


def plot_costs(found: RecordedEfficiency, ax: Axes | None = None) -> Axes:
    """Plot mean set size against coverage in each group of a recording.

    A hollow square marks each group's coverage and set size under one threshold for all.
    """
    shared, names = label_groups([group.words for group in found.groups])
    ax = ax or create_axes(WIDTH)
    handles: list[Any] = []
    marker: Any = None
    for place, group in enumerate(found.groups):
        coverages, sizes = list(group.costs), list(group.costs.values())
        handles.append(draw_points(ax, place, coverages, sizes, joined=True))
        look: dict[str, Any] = {"linestyle": "", "marker": "s", "markersize": 9.0, "markerfacecolor": "none"}
        colour = Style.at(place).colour
        (marker,) = ax.plot([group.marginal_coverage], [group.marginal_size], markeredgecolor=colour, **look)
    ax.axvline(1.0 - float(found.alpha), color=get_ink_colour(ax), **TARGET_LINE)
    label_axes(ax, "coverage in the group", f"{found.counted} per set", shares="x")
    ax.set_ylim(bottom=0.0)
    return finish_axes(ax, [*handles, marker], [*names, "one threshold"], shared)
