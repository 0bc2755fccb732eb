"""The picture of cost against N, ours and the peers, as an SVG for light and dark pages.

Nothing is filled, and every colour is of middle lightness: contrast at least 3:1 against white and against
near black.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.lib.threshold_results import Cell, Results
from benchmarks.lib.threshold_tables import (
    Step,
    get_batch_time,
    get_calibrate_time,
    get_cold_time,
    get_prepare_time,
    get_query_time,
)

INK, GRID = "#7d8590", "#7d859055"
OUR_COLOUR = "#d9480f"
# Labels and colours; MAPIE runs the same code as conditionalconformal and would cover its lines.
PEER_LINES = {
    "scipy": ("SciPy HiGHS", "#1c7ed6"),
    "scipy ipm": ("SciPy HiGHS, ipm", "#1c7ed6"),
    "highspy": ("highspy, warm", "#0c8599"),
    "cvxpy": ("cvxpy", "#9c5fd6"),
    "sklearn": ("sklearn", "#c2559d"),
    "conditionalconformal exact": ("conditionalconformal, exact", "#74870b"),
    "conditionalconformal bisection": ("conditionalconformal, bisection", "#74870b"),
}
DASHED_PEERS = ("scipy ipm", "conditionalconformal bisection")
LABEL_MARGIN = 2.2  # labels begin at this multiple of the largest N
LABEL_SPACE = 120.0  # the axis goes on by this factor, for the labels
LABEL_DISTANCE = 0.052  # least distance of two labels, as a share of the axis


@dataclass(frozen=True)
class Line:
    """One line of N and seconds, with a label at its end."""

    label: str
    colour: str
    points: tuple[tuple[int, float], ...]
    style: str = "-"
    width: float = 1.2


def draw_costs(results: Results, path: Path) -> None:
    """Draw calibration and query for continuous scores and d = 3 features, and write the SVG."""
    cells = [cell for cell in results.cells if (cell.kind, cell.d, cell.ridge) == ("continuous", 3, 0.0)]
    if not cells:
        return
    matplotlib: Any = importlib.import_module("matplotlib")
    matplotlib.use("Agg")
    pyplot: Any = importlib.import_module("matplotlib.pyplot")
    style = {
        "svg.fonttype": "none",
        "svg.hashsalt": "thresholds",
        "font.family": "sans-serif",
        "font.size": 9,
        "text.color": INK,
        "axes.edgecolor": INK,
        "axes.labelcolor": INK,
        "xtick.color": INK,
        "ytick.color": INK,
    }
    queries = [
        _make_our_line("ours, cold", cells, get_cold_time),
        _make_our_line("ours, seen before", cells, lambda cell: cell.ours.warm.p50, ":"),
        _make_our_line("ours, in a batch", cells, get_batch_time, "--"),
        *_make_peer_lines(cells, get_query_time),
    ]
    calibrations = [
        _make_our_line("ours", cells, get_calibrate_time),
        _make_our_line("np.sort", cells, lambda cell: cell.ours.sort.p50, ":", INK),
        *_make_peer_lines(cells, get_prepare_time),
    ]
    with matplotlib.rc_context(style):
        figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 5.2), layout="constrained")
        _draw_panel(left, "one threshold, d = 3", queries)
        _draw_panel(right, "calibration or base regression, d = 3", calibrations)
        figure.savefig(path, transparent=True, metadata={"Date": None, "Creator": None})
        pyplot.close(figure)


def _make_our_line(
    label: str,
    cells: Sequence[Cell],
    seconds: Callable[[Cell], float | None],
    style: str = "-",
    colour: str = OUR_COLOUR,
) -> Line:
    found = ((cell.n, seconds(cell)) for cell in cells)
    points = tuple((n, value) for n, value in found if value is not None)
    return Line(label, colour, points, style, 2.4 if style == "-" else 1.8)


def _make_peer_lines(cells: Sequence[Cell], step: Step) -> list[Line]:
    lines = []
    for name, (label, colour) in PEER_LINES.items():
        found = ((cell.n, step(cell.peers[name])) for cell in cells if name in cell.peers)
        points = tuple((n, seconds[0]) for n, seconds in found if seconds is not None and not seconds[1])
        lines.append(Line(label, colour, points, "--" if name in DASHED_PEERS else "-"))
    return lines


def _draw_panel(axes: Any, title: str, lines: Sequence[Line]) -> None:
    drawn = [line for line in lines if line.points]
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_title(title, loc="left")
    axes.set_xlabel("calibration prompts N")
    sizes = sorted({n for line in drawn for n, _ in line.points})
    times = [seconds for line in drawn for _, seconds in line.points]
    low, high = math.floor(math.log10(min(times))), math.ceil(math.log10(max(times)))
    axes.set_xlim(sizes[0] / 1.3, sizes[-1] * LABEL_SPACE)
    axes.set_xticks(
        sizes, [f"$10^{{{round(math.log10(n))}}}$" if _is_power_of_ten(n) else f"{n:,}" for n in sizes]
    )
    decades = range(low, high + 1)
    axes.set_yticks([10.0**power for power in decades], [_format_decade(power) for power in decades])
    axes.minorticks_off()
    axes.hlines([10.0**power for power in decades], sizes[0] / 1.3, sizes[-1], color=GRID, linewidth=0.6)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for line in drawn:
        axes.plot(
            *zip(*line.points, strict=True),
            line.style,
            color=line.colour,
            linewidth=line.width,
            marker="o",
            markersize=3,
        )
    label_place = sizes[-1] * LABEL_MARGIN
    labels = _place_labels(drawn, low, high)
    axes.set_ylim(10.0**low, 10.0 ** max(high, *(height + 0.2 for _, height in labels)))
    for line, height in labels:
        end, seconds = line.points[-1]
        reach = ([end, label_place * 0.92], [seconds, 10.0**height])
        axes.plot(*reach, color=line.colour, linewidth=0.5, alpha=0.6)
        axes.text(label_place, 10.0**height, line.label, color=line.colour, va="center", fontsize=8.5)


def _place_labels(lines: Sequence[Line], low: int, high: int) -> list[tuple[Line, float]]:
    """Place labels at the lines' ends, as powers of ten, moved apart where they would touch."""
    ordered = sorted(lines, key=lambda line: line.points[-1][1])
    heights = [math.log10(line.points[-1][1]) for line in ordered]
    least = LABEL_DISTANCE * (high - low)
    for _ in range(200):
        for i in range(len(ordered) - 1):
            overlap = least - (heights[i + 1] - heights[i])
            if overlap > 0:
                heights[i] -= overlap / 2
                heights[i + 1] += overlap / 2
    return list(zip(ordered, heights, strict=True))


def _is_power_of_ten(n: int) -> bool:
    return math.log10(n).is_integer()


def _format_decade(power: int) -> str:
    unit, factor = ("s", 0) if power >= 0 else ("ms", 3) if power >= -3 else ("us", 6)  # noqa: PLR2004
    return f"{10.0 ** (power + factor):g} {unit}"
