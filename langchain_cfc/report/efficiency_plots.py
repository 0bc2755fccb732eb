"""Figures of the efficiency analysis: set sizes by alpha, convergence to the oracle, cost of coverage.

They follow the conventions of `plots.py`: each takes data and, if there is one, the axis to draw on, and
returns the axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from langchain_cfc.errors import InputError
from langchain_cfc.experiments.efficiency import Convergence, SizeCell
from langchain_cfc.experiments.efficiency_recordings import RecordedEfficiency
from langchain_cfc.report.drawing import (
    TARGET,
    Style,
    create_axes,
    finish_axes,
    format_tick,
    get_ink_colour,
    label_groups,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH = 4.8  # inches of an axis


def plot_sizes(cells: Sequence[SizeCell], ax: Axes | None = None) -> Axes:
    """Plot the predicted mean set size of each rule against alpha as a line, and the simulated as points.

    Error bars are three standard errors.

    Args:
        cells: Cells of one world and one number of candidates.
        ax: The axis to draw on.
    """
    if len({(cell.world, cell.n_candidates) for cell in cells}) != 1:
        msg = "set sizes are drawn for one world and one number of candidates"
        raise InputError(msg)
    rules = list(dict.fromkeys(cell.rule for cell in cells))
    ax = ax or create_axes(WIDTH, rules)
    handles: list[Any] = []
    for place, rule in enumerate(rules):
        of_rule = [cell for cell in cells if cell.rule == rule]
        alphas = [float(cell.alpha) for cell in of_rule]
        look = Style.at(place).line_options(get_ink_colour(ax))
        ax.plot(
            alphas, [cell.predicted for cell in of_rule], color=look["color"], linestyle=look["linestyle"]
        )
        errors = [3.0 * cell.standard_error for cell in of_rule]
        look |= {"linestyle": ""}
        handles.append(ax.errorbar(alphas, [cell.simulated for cell in of_rule], yerr=errors, **look))
    ax.set_xlabel("alpha")
    ax.set_ylabel("candidates per set\nline: integral, points: simulated")
    return finish_axes(ax, handles, rules, f"{cells[0].world}, M = {cells[0].n_candidates}")


def plot_convergence(several: Sequence[Convergence], ax: Axes | None = None) -> Axes:
    """Plot the relative error of E|C| of the learned rule against N, and of one threshold, dotted.

    Args:
        several: One for each world.
        ax: The axis to draw on.
    """
    if not several:
        msg = "there is no world whose convergence was measured"
        raise InputError(msg)
    names = [f"{one.world}: N^{one.size_rate:.2f}" for one in several]
    ax = ax or create_axes(WIDTH, [*names, "one threshold"])
    handles: list[Any] = []
    control: Any = None
    for place, one in enumerate(several):
        sizes = [point.n_calibration for point in one.points]
        look = Style.at(place).line_options(get_ink_colour(ax))
        handles.append(ax.errorbar(sizes, [point.size_error for point in one.points], **look))
        (control,) = ax.plot(
            sizes, [point.marginal_error for point in one.points], **{**TARGET, "color": look["color"]}
        )
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlabel("calibration prompts N")
    ax.set_ylabel("error of E|C|, relative to the oracle\nroot mean square over calibration sets")
    return finish_axes(ax, [*handles, control], [*names, "one threshold"])


def plot_costs(found: RecordedEfficiency, ax: Axes | None = None) -> Axes:
    """Plot what coverage costs in each group of a recording, with 95 % intervals.

    Hollow squares, not joined, mark what one threshold for all covers in each group.
    """
    shared, names = label_groups([group.words for group in found.groups])
    target = 1.0 - float(found.alpha)
    ax = ax or create_axes(WIDTH, [*names, "one threshold"])
    handles: list[Any] = []
    marker: Any = None
    for place, group in enumerate(found.groups):
        look = Style.at(place).line_options(get_ink_colour(ax))
        sizes = [point.size for point in group.curve]
        errors = [
            [max(size.value - size.interval[0], 0.0) for size in sizes],
            [max(size.interval[1] - size.value, 0.0) for size in sizes],
        ]
        handles.append(
            ax.errorbar(
                [point.coverage for point in group.curve], [size.value for size in sizes], yerr=errors, **look
            )
        )
        (marker,) = ax.plot(
            [group.marginal_coverage.value],
            [group.marginal_size.value],
            linestyle="",
            marker="s",
            markersize=9.0,
            markerfacecolor="none",
            markeredgecolor=look["color"],
        )
    ax.axvline(target, color=get_ink_colour(ax), **TARGET)
    ax.xaxis.set_major_formatter(format_tick)
    ax.set_xlabel("coverage in the group")
    ax.set_ylabel(f"{found.counted} per set")
    ax.set_ylim(bottom=0.0)
    return finish_axes(ax, [*handles, marker], [*names, "one threshold"], shared)
