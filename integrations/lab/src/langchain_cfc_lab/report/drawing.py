"""What all figures share: styles of methods, labels of groups, axes with a key, and inline SVG.

A style is a colour, a marker, a dash pattern and a hatch. The colours are those of Okabe and Ito (2008,
"Color universal design") that contrast with both white and near black. Yellow is left out because it vanishes
on paper, black because text and axes have it. Marker, dashes and hatch tell methods apart in grey prints, and
where two methods share a colour.

Matplotlib's SVG is meant to be a file of its own. Inlined in a page, its black would vanish on a dark
background, its style sheet would apply to every other picture, and its ids would clash with those of the next
figure. So black becomes the colour of the text around the figure, the style sheet becomes attributes of the
figure, and each id gets a prefix that is a hash of the figure's content and title.
"""

from __future__ import annotations

import hashlib
import io
import textwrap
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

from langchain_cfc.errors import InputError
from langchain_cfc.features import name_group
from langchain_cfc.support.text import format_percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Dash = tuple[float, tuple[float, ...]]

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7")
# The numbers of markers and of hatches (7) are coprime to that of colours (6): a marker or hatch repeats
# after 7 places, and together with its colour after 42.
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
# Hatches of lines only: circles and dots would make an SVG thirty times as long.
HATCHES = ("", "////", "|||", "\\\\\\\\", "xxxx", "---", "++")
DASHES: tuple[Dash, ...] = (
    (0.0, ()),
    (0.0, (5.0, 2.0)),
    (0.0, (1.0, 1.5)),
    (0.0, (6.0, 2.0, 1.0, 2.0)),
    (0.0, (6.0, 1.5, 1.0, 1.5, 1.0, 1.5)),
)
TARGET_LINE: dict[str, Any] = {"linestyle": (0.0, (4.0, 3.0)), "linewidth": 1.2, "marker": "", "zorder": 1.5}

ALL_PROMPTS = "all prompts"
FONT_SIZE = 9.0  # points; font size of tick labels and of the key
FIGURE_HEIGHT = 4.2  # inches
LABEL_WIDTH = 0.8  # inches beside the axis, for its labels
KEY_COLUMNS, KEY_CHARACTERS = 2, 26  # of the key above the axis; characters in a line
LEAST_SCALE = 0.75  # of a figure on a narrow screen; a wider figure scrolls
LONGEST_LABEL = 28  # characters of a group's label
MOST_LINES = 3  # of a horizontal label
CHARACTERS_PER_INCH = 10.0
LEAST_SLANTED = 0.26  # inches from one slanted label to the next; closer ones are upright
SLANT = 40.0  # degrees

_SVG_NAMESPACE = "http://www.w3.org/2000/svg"
_BLACK = "#000000"
_SVG_SETTINGS: dict[Any, str] = {"svg.fonttype": "none", "svg.hashsalt": "langchain-cfc"}
_SHARED_ATTRIBUTES = {
    # What matplotlib's style sheet sets for every element, and black, which it omits as SVG's default.
    "stroke-linejoin": "round",
    "stroke-linecap": "butt",
    "fill": "currentColor",
    # Narrow pages shrink the figure; other fonts may be wider than the one it was laid out with.
    "style": "max-width: 100%; height: auto; overflow: visible",
    "role": "img",
}


@dataclass(frozen=True)
class Style:
    """Colour, marker, hatch and dashes of one method."""

    colour: str  # `#rrggbb`
    marker: str  # matplotlib's name
    dash: Dash  # offset and dashes of the line, in points times the line's width
    hatch: str  # matplotlib's pattern of bars

    @classmethod
    def at(cls, place: int) -> Style:
        """Return the style of a place; any seven consecutive places differ in marker and hatch."""
        return cls(
            COLOURS[place % len(COLOURS)],
            MARKERS[place % len(MARKERS)],
            DASHES[place % len(DASHES)],
            HATCHES[place % len(HATCHES)],
        )

    def make_line_options(self, ax: Axes, size: float = 6.0) -> dict[str, Any]:
        """Return matplotlib's options for points joined by a line on an axis, with markers of this size."""
        return {
            "color": self.colour,
            "linestyle": self.dash,
            "linewidth": 1.3,
            "marker": self.marker,
            "markersize": size,
            "markeredgecolor": get_ink_colour(ax),
            "markeredgewidth": 0.6,
            "elinewidth": 0.9,
            "capsize": 2.0,
        }


def assign_styles(names: Iterable[str]) -> dict[str, Style]:
    """Return the style of every method of a report by name.

    Pass the names of all its methods, drawn or not, so that drawing only some of them changes no style.
    """
    return {name: Style.at(place) for place, name in enumerate(names)}


def to_single_line(text: str) -> str:
    """Return a text on one line, with spaces for characters that cannot be printed or are invalid in XML."""
    return " ".join("".join(sign if sign.isprintable() else " " for sign in text).split())


def label_groups(words: Sequence[str]) -> tuple[str, list[str]]:
    """Return the title of an axis of groups, and a short label for each group.

    Examples:
        >>> label_groups(["all prompts", "mean score: 1 of 2", "mean score: 2 of 2"])
        ('mean score', ['all prompts', '1 of 2', '2 of 2'])
    """
    texts = [name_group(to_single_line(text)) for text in words]
    groups = [text for text in texts if text != ALL_PROMPTS]
    title, colon, _ = groups[0].partition(": ") if len(groups) > 1 else ("", "", "")
    if not colon or not all(text.startswith(title + colon) for text in groups):
        title = colon = ""
    labels = [text.removeprefix(title + colon) for text in texts]
    most = LONGEST_LABEL
    return title, [label if len(label) <= most else f"{label[: most - 1]}…" for label in labels]


def label_group_ticks(ax: Axes, words: Sequence[str], width: float) -> None:
    """Label groups, in words, along the horizontal axis, which is `width` inches wide; one unit for each.

    Labels are horizontal if they fit on a few lines, slanted if not, and upright if slanted ones would touch.
    """
    title, labels = label_groups(words)
    room = int(CHARACTERS_PER_INCH * width / len(labels))
    flat = [textwrap.fill(label, max(room, 1), break_long_words=False) for label in labels]
    turned: dict[str, Any] = {}
    if any(text.count("\n") >= MOST_LINES or max(map(len, text.split("\n"))) > room for text in flat):
        angle = SLANT if width / len(labels) > LEAST_SLANTED else 90.0
        flat, turned = labels, {"rotation": angle, "ha": "right", "va": "center", "rotation_mode": "anchor"}
    ax.set_xticks(range(len(labels)), flat, fontsize=FONT_SIZE, parse_math=False, **turned)
    ax.set_xlim(-0.5, len(labels) - 0.5)
    ax.tick_params(axis="x", length=0.0)
    ax.set_xlabel(title, parse_math=False)


def create_axes(width: float, names: Sequence[str] = ()) -> Axes:
    """Return an axis about `width` inches wide in a new figure, high enough for a key with these names."""
    import matplotlib.figure as figures  # late: it takes a second

    lines = sum(_wrap_for_key(name).count("\n") + 1.5 for name in names) / KEY_COLUMNS + 1.0
    size = width + LABEL_WIDTH, FIGURE_HEIGHT - 0.6 + lines * 1.3 * FONT_SIZE / 72.0
    axes: Axes = figures.Figure(figsize=size, layout="constrained").subplots()
    return axes


def get_ink_colour(ax: Axes) -> str:
    """Return the colour of an axis's labels; bars and target lines use it, to be visible on dark pages."""
    return str(ax.xaxis.label.get_color())


def format_tick(value: float, _place: float | None = None) -> str:
    """Format a share as a tick label of an axis."""
    return format_percent(value, ".4g")


def label_axes(ax: Axes, x: str, y: str, *, shares: str = "") -> None:
    """Label both axes; those named in `shares`, such as `xy`, have ticks in percent."""
    ax.set_xlabel(x, parse_math=False)
    ax.set_ylabel(y, parse_math=False)
    for axis in shares:
        getattr(ax, f"{axis}axis").set_major_formatter(format_tick)


def _wrap_for_key(name: str) -> str:
    return textwrap.fill(to_single_line(name), KEY_CHARACTERS)


def finish_axes(ax: Axes, handles: Sequence[Any], names: Sequence[str], title: str | None = None) -> Axes:
    """Draw a grid and a key that names each handle, hide the top and right spines; return the axis."""
    ax.grid(visible=True, axis="y", color=get_ink_colour(ax), alpha=0.15)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
    key = ax.legend(
        list(handles),
        [_wrap_for_key(name) for name in names],
        title=title,
        loc="lower left",
        bbox_to_anchor=(0.0, 1.02),
        ncols=KEY_COLUMNS,
        borderaxespad=0.0,
        frameon=False,
        fontsize=FONT_SIZE,
        title_fontsize=FONT_SIZE,
        alignment="left",
        handlelength=2.6,
    )
    # Otherwise matplotlib would read a name with two dollar signs as a formula.
    for text in (*key.get_texts(), key.get_title()):
        text.set_parse_math(False)
    return ax


def to_svg(drawn: Axes | Figure, *, title: str) -> str:
    """Return a figure as an `<svg>` element for a page.

    Text stays text. Black takes the colour of the page's text (`currentColor`), the background is
    transparent, nothing outside is referred to, and the same data give the same SVG. Ids of a page's figures
    do not clash as long as the figures differ in content or title. Screen readers read the title out.
    """
    root = ET.fromstring(_write_svg(drawn))  # noqa: S314 - matplotlib has just written it
    for part in [*root.iter()]:
        part.tag = _get_local_name(part.tag)
        for child in [child for child in part if _get_local_name(child.tag) in {"metadata", "style"}]:
            part.remove(child)
    name = to_single_line(title)
    digest = hashlib.sha256(ET.tostring(root) + name.encode()).hexdigest()
    for part in root.iter():
        _rewrite_attributes(part, f"cfc-{digest[:10]}-")
    root.attrib = {"xmlns": _SVG_NAMESPACE, **root.attrib, **_SHARED_ATTRIBUTES, "aria-label": name}
    least = LEAST_SCALE * float(root.attrib["width"].removesuffix("pt"))
    root.attrib["style"] += f"; min-width: {least:.0f}pt"
    heading = ET.Element("title")
    heading.text = name
    root.insert(0, heading)
    return ET.tostring(root, encoding="unicode")


def _write_svg(drawn: Axes | Figure) -> str:
    import matplotlib as mpl  # late: it takes a second

    figure = drawn.get_figure(root=True)
    if figure is None:
        msg = "the axis belongs to no figure any more, so there is nothing to draw"
        raise InputError(msg)
    buffer = io.StringIO()
    with mpl.rc_context(_SVG_SETTINGS), warnings.catch_warnings():
        # The page brings its own fonts, which may have glyphs that matplotlib's font lacks.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    return buffer.getvalue()


def _rewrite_attributes(part: ET.Element, prefix: str) -> None:
    """Prefix ids and references to them, turn black into `currentColor`, and write links as in SVG 2."""
    written: dict[str, str] = {}
    for key, value in part.attrib.items():
        name = _get_local_name(key)
        if name == "id":
            written[name] = prefix + value
        elif name == "href" and value.startswith("#"):
            written[name] = f"#{prefix}{value[1:]}"
        else:
            written[name] = value.replace("url(#", f"url(#{prefix}").replace(_BLACK, "currentColor")
    part.attrib = written


def _get_local_name(name: str) -> str:
    return name.rpartition("}")[2]
