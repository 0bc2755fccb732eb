"""What was drawn, read back from an axis."""

from __future__ import annotations

import io
from typing import Any
from xml.etree import ElementTree as ET

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.container import BarContainer
from matplotlib.figure import Figure


def key(ax: Axes) -> list[Any]:
    """The texts of the key."""
    legend = ax.get_legend()
    assert legend is not None
    return list(legend.get_texts())


def named(ax: Axes) -> list[str]:
    """What the key says."""
    return [text.get_text() for text in key(ax)]


def lines(ax: Axes) -> list[Any]:
    return list(ax.lines)


def containers(ax: Axes) -> list[Any]:
    """What `bar` and `errorbar` drew, in order; error bars of bars left out."""
    found: list[Any] = list(ax.containers)
    bars = [one for one in found if isinstance(one, BarContainer)]
    return bars or found


def by_name(ax: Axes) -> dict[str, Any]:
    """Bars or points by the names of the key, which says the target first where there is one."""
    drawn = containers(ax)
    return dict(zip(named(ax)[-len(drawn) :], drawn, strict=True))


def data(line: Any) -> tuple[list[float], list[float]]:
    return list(line.get_xdata()), list(line.get_ydata())


def error_bars(container: Any) -> list[list[float]]:
    """Lower and upper ends of vertical error bars."""
    (bars,) = container.lines[2]
    return [[float(y) for y in segment[:, 1]] for segment in bars.get_segments()]


def figure_of(ax: Axes) -> Figure:
    figure = ax.get_figure(root=True)
    assert figure is not None
    return figure


def canvas_of(figure: Figure) -> Any:
    """The canvas of a figure, drawn."""
    canvas: Any = FigureCanvasAgg(figure)
    canvas.draw()
    return canvas


def as_matplotlib_writes(ax: Axes) -> str:
    """The SVG file that matplotlib makes."""
    buffer = io.StringIO()
    figure_of(ax).savefig(buffer, format="svg")
    return buffer.getvalue()


def parsed(svg: str) -> ET.Element:
    return ET.fromstring(svg)  # noqa: S314 - written by the test itself
