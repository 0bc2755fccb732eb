"""Read what was drawn on an axis."""

from __future__ import annotations

import io
from typing import Any
from xml.etree import ElementTree as ET

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.container import BarContainer
from matplotlib.figure import Figure


def read_legend(ax: Axes) -> list[str]:
    legend = ax.get_legend()
    assert legend is not None
    return [text.get_text() for text in legend.get_texts()]


def lines(ax: Axes) -> list[Any]:
    return list(ax.lines)


def containers(ax: Axes) -> list[Any]:
    """What `bar` and `errorbar` drew, in order; error bars of bars left out."""
    found: list[Any] = list(ax.containers)
    bars = [one for one in found if isinstance(one, BarContainer)]
    return bars or found


def map_legend_to_drawn(ax: Axes) -> dict[str, Any]:
    """Return bars or points by the names of the legend, without the target."""
    drawn = containers(ax)
    return dict(zip(read_legend(ax)[-len(drawn) :], drawn, strict=True))


def data(line: Any) -> tuple[list[float], list[float]]:
    return list(line.get_xdata()), list(line.get_ydata())


def error_bars(container: Any) -> list[list[float]]:
    """Lower and upper ends of vertical error bars."""
    (bars,) = container.lines[2]
    return [[float(y) for y in segment[:, 1]] for segment in bars.get_segments()]


def get_figure(ax: Axes) -> Figure:
    figure = ax.get_figure(root=True)
    assert figure is not None
    return figure


def draw_canvas(figure: Figure) -> Any:
    """Draw a figure and return its canvas."""
    canvas: Any = FigureCanvasAgg(figure)
    canvas.draw()
    return canvas


def write_matplotlib_svg(ax: Axes) -> str:
    buffer = io.StringIO()
    get_figure(ax).savefig(buffer, format="svg")
    return buffer.getvalue()


def parse_svg(svg: str) -> ET.Element:
    return ET.fromstring(svg)  # noqa: S314 - written by the test itself
