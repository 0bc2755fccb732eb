"""What all figures share: size, ink, grid, the key, and groups along an axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from langchain_cfc._extras import require
from langchain_cfc.plots.labels import SMALL, group_labels, plain, text_width, wrapped

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LINE = 1.3 * SMALL  # points from one line of a label to the next
HEIGHT = 4.2  # inches
MARGINS = 1.0  # inches beside the axis: its own labels, and what separates it from the key
KEY_ROOM = 150.0  # points of a line of the key
KEY_SIGN = 0.5  # inches that line and marker take in the key
MOST_LINES = 3  # of a label that lies flat
SLANT = 40.0  # degrees
TARGET: dict[str, Any] = {"linestyle": (0.0, (4.0, 3.0)), "linewidth": 1.2, "marker": "", "zorder": 1.5}


def new_axes(width: float, names: Sequence[str] = (), height: float = HEIGHT) -> Axes:
    """An axis in a figure of its own, which nothing else keeps open.

    Args:
        width: Of the axis, in inches.
        names: What the key will say, for which there is room beside it.
        height: Of the figure, in inches.

    Returns:
        The axis.

    Raises:
        MissingExtraError: If matplotlib is not installed.
    """
    figures: Any = require("matplotlib.figure", "calibrate", "drawing figures")
    lines = sum(_in_key(name).count("\n") + 1.5 for name in names) + 3.0
    size = width + MARGINS + key_width(names), max(height, lines * LINE / 72.0)
    axes: Axes = figures.Figure(figsize=size, layout="constrained").subplots()
    return axes


def ink(ax: Axes) -> str:
    """The colour of an axis's own labels: bars and target lines follow it, on dark pages too."""
    return str(ax.xaxis.label.get_color())


def percent(value: float, _place: float | None = None) -> str:
    """How an axis of shares writes them."""
    return f"{100 * value:.4g} %"


def key_width(names: Sequence[str]) -> float:
    """Width in inches that the key takes at most."""
    return KEY_SIGN + max(text_width(_in_key(name)) for name in names) / 72.0 if names else 0.0


def width_beside_key(ax: Axes, names: Sequence[str]) -> float:
    """Width in inches of an axis of the caller's, once the key has its place where a layout makes room."""
    width = ax.get_window_extent().width / ax.figure.dpi
    makes_room = ax.figure.get_layout_engine() is not None
    return max(width - key_width(names), 0.5) if makes_room else width


def _in_key(name: str) -> str:
    return wrapped(plain(name), KEY_ROOM)


def finish(ax: Axes, handles: Sequence[Any], names: Sequence[str], title: str | None = None) -> Axes:
    """Grid, spines and the key.

    Args:
        ax: The axis.
        handles: What the key explains.
        names: What it says of each.
        title: Of the key.

    Returns:
        The axis.
    """
    ax.grid(visible=True, axis="y", color=ink(ax), alpha=0.15)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
    key = ax.legend(
        list(handles),
        [_in_key(name) for name in names],
        title=title,
        loc="upper left",
        bbox_to_anchor=(1.01, 1.0),
        borderaxespad=0.0,
        frameon=False,
        fontsize=SMALL,
        title_fontsize=SMALL,
        alignment="left",
        handlelength=2.6,
    )
    # A name with two dollar signs is no formula.
    for text in (*key.get_texts(), key.get_title()):
        text.set_parse_math(False)
    return ax


@dataclass(frozen=True)
class GroupTicks:
    """Groups along the horizontal axis, one unit each.

    Labels lie flat on a few lines where they fit, are slanted where they do not, and stand upright where even
    slanted ones would touch.

    Attributes:
        labels: What stands under each group.
        title: What the axis is called.
        turned: Degrees by which the labels are turned.
    """

    labels: tuple[str, ...]
    title: str
    turned: float

    @classmethod
    def of(cls, words: Sequence[str], width: float) -> GroupTicks:
        """The ticks of groups given in words, on an axis of so many inches."""
        title, labels = group_labels(words)
        slot = 72.0 * width / len(labels)
        room = slot - 0.5 * SMALL
        flat = [wrapped(label, room) for label in labels]
        if max(map(text_width, flat)) <= room and max(label.count("\n") for label in flat) < MOST_LINES:
            return cls(tuple(flat), title, 0.0)
        slanted = cls(tuple(labels), title, SLANT)
        left = slot - 72.0 * slanted.overhang / len(labels)
        return slanted if left * math.sin(math.radians(SLANT)) > LINE else replace(slanted, turned=90.0)

    @property
    def depth(self) -> float:
        """Inches that turned labels take below the axis."""
        return math.sin(math.radians(self.turned)) * max(map(text_width, self.labels)) / 72.0

    @property
    def overhang(self) -> float:
        """Inches that the first of slanted labels reaches out to the left, beyond what stands there."""
        if self.turned != SLANT:
            return 0.0
        reach = math.cos(math.radians(SLANT)) * text_width(self.labels[0]) / 72.0
        return max(reach - MARGINS / 2.0, 0.0)

    def put_on(self, ax: Axes) -> None:
        """Label the axis."""
        turned: dict[str, Any] = {}
        if self.turned:
            turned = {"rotation": self.turned, "ha": "right", "va": "center", "rotation_mode": "anchor"}
        ax.set_xticks(range(len(self.labels)), self.labels, fontsize=SMALL, parse_math=False, **turned)
        ax.set_xlim(-0.5, len(self.labels) - 0.5)
        ax.tick_params(axis="x", length=0.0)
        ax.set_xlabel(self.title, parse_math=False)
