"""How each method looks, in every figure alike.

A style is a colour, a marker, a dash pattern and a hatch. The colours are those of Okabe and Ito (2008,
"Color universal design") that stand out from white and from near black: without yellow, which vanishes on
paper, and without black, which is the ink. The other three tell methods apart where colours do not: on a grey
print, and where two methods share a colour.

A figure as part of a page: inline SVG that reads on light and on dark pages.

Matplotlib's SVG is made for a file of its own. On a page its black would vanish at night, its style sheet
would rule every other picture, and the names of its parts would clash with those of the next figure. So black
becomes the colour of the text around the figure, the style sheet becomes attributes of the figure, and each
name gets a prefix made of the figure's content and title.
"""

from __future__ import annotations

import hashlib
import io
import math
import re
import unicodedata
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from xml.etree import ElementTree as ET

from langchain_cfc._internal.optional import require
from langchain_cfc.errors import InputError
from langchain_cfc.evaluation import MethodReport
from langchain_cfc.experiments.comparison_report import MethodComparison
from langchain_cfc.features import shorten_words

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


Shown = TypeVar("Shown")
Dash = tuple[float, tuple[float, ...]]

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7")
# Numbers of markers and of hatches have no divisor in common with six: a style comes again after 78 places,
# a marker or a hatch after 13.
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", "*", ">", "h", "d", "p")
# Hatches of lines only: circles and dots would make an SVG thirty times as long.
HATCHES = (
    "",
    "////",
    "|||",
    "\\\\\\\\",
    "xxxx",
    "---",
    "+++",
    "//",
    "\\\\",
    "xx",
    "||----",
    "//----",
    "||||||",
)
DASHES: tuple[Dash, ...] = (
    (0.0, ()),
    (0.0, (5.0, 2.0)),
    (0.0, (1.0, 1.5)),
    (0.0, (6.0, 2.0, 1.0, 2.0)),
    (0.0, (6.0, 1.5, 1.0, 1.5, 1.0, 1.5)),
)
PLACES = 78
MARK = 6.0  # points
# Places of their own, so that methods that are compared often look as different as can be: none of the first
# thirteen shares a marker or a hatch with another.
KNOWN = (
    "conditional",
    "marginal",
    "confident",
    "learned",
    "conditional:best_prefix",
    "marginal:rank",
    "TopK",
    "ICP",
    "Learnt CP",
    "CFC",
    "CFC-FULL",
    "CFC-PAC",
    "CFC-PAC-FULL",
    "sampling",
    "back-off",
    "TopK-reaching",
)


@dataclass(frozen=True)
class Style:
    """How one method looks.

    Attributes:
        colour: As `#rrggbb`.
        marker: Matplotlib's name of the marker of its points.
        dash: Offset and dashes of its line, in points times the line's width.
        hatch: Matplotlib's pattern of its bars.
    """

    colour: str
    marker: str
    dash: Dash
    hatch: str

    @classmethod
    def at(cls, place: int) -> Style:
        """The style of a place; those of any thirteen places in a row differ in marker and hatch."""
        return cls(
            COLOURS[place % len(COLOURS)],
            MARKERS[place % len(MARKERS)],
            DASHES[place % len(DASHES)],
            HATCHES[place % len(HATCHES)],
        )

    def points(self, ink: str, size: float = MARK) -> dict[str, Any]:
        """What matplotlib's `errorbar` needs to draw points in this style, joined by a line.

        Args:
            ink: Colour of the markers' edges, which light colours need on paper.
            size: Of the markers, in points.
        """
        return {
            "color": self.colour,
            "linestyle": self.dash,
            "linewidth": 1.3,
            "marker": self.marker,
            "markersize": size,
            "markeredgecolor": ink,
            "markeredgewidth": 0.6,
            "elinewidth": 0.9,
            "capsize": 2.0,
        }


def styles(names: Iterable[str]) -> dict[str, Style]:
    """The style of every method of a report.

    Methods of this package have places of their own. Others have one by their name; where it is taken, by
    another of the same report, the next that is free.

    Args:
        names: Names of all methods of the report, drawn or not, so that a choice of methods changes nothing.

    Returns:
        Styles by name, in the order given.
    """
    given = list(names)
    places = {name: KNOWN.index(name) for name in given if name in KNOWN}
    taken = set(range(len(KNOWN)))
    for name in sorted(set(given) - set(KNOWN)):
        start = int.from_bytes(hashlib.sha256(name.encode("utf-8", "replace")).digest()[:8], "big")
        turn = ((start + step) % PLACES for step in range(PLACES))
        places[name] = next((place for place in turn if place not in taken), start % PLACES)
        taken.add(places[name])
    return {name: Style.at(places[name]) for name in given}


def nested(count: int) -> list[float]:
    """Sizes of markers of methods drawn one over the other: later ones are smaller, so that all are seen."""
    largest, smallest = min(MARK + 0.5 * (count - 1), 10.0), max(MARK - 0.25 * (count - 1), 3.5)
    return [largest - (largest - smallest) * place / max(count - 1, 1) for place in range(count)]


def as_aimed(name: str, method: MethodComparison | MethodReport) -> str:
    """What the key calls a method where a target for coverage is drawn, which may not be its own."""
    aims = not isinstance(method, MethodComparison) or method.aims_at_coverage
    return name if aims else f"{name} (aims at something else)"


def chosen(there: Mapping[str, Shown], methods: Sequence[str] | None) -> dict[str, Shown]:
    """The methods to draw.

    Args:
        there: All methods by name.
        methods: Names of those to draw, in this order; None for all.

    Returns:
        The chosen ones by name.

    Raises:
        InputError: If a name is not there.
    """
    names = list(there) if methods is None else list(methods)
    unknown = [name for name in names if name not in there]
    if unknown:
        msg = f"unknown method {unknown[0]!r}; the report holds {', '.join(there) or 'none'}"
        raise InputError(msg)
    return {name: there[name] for name in names}


SMALL = 9.0  # points; size of labels of ticks and of the key
ALL_PROMPTS = "all prompts"
LONGEST = 32  # characters of one label
_DECIMAL = re.compile(r"\d+\.\d+(?:e[-+]?\d+)?")
_NO_NAME_OF_A_PROPERTY = re.compile(r"""['"\d\[(]""")


def plain(text: str) -> str:
    """A text on one line, without characters that cannot be printed or stand in XML."""
    return " ".join("".join(sign if sign.isprintable() else " " for sign in text).split())


def group_labels(words: Sequence[str]) -> tuple[str, list[str]]:
    """Short labels for groups, and what they have in common.

    Args:
        words: What each group is, in words, such as `prompts whose mean score is below 0.1234`.

    Returns:
        What the axis is called, and a label for each group; labels of different words differ.

    >>> group_labels(["prompts whose score gap is below 0.12341", "prompts whose score gap lies in [0.1, 1)"])
    ('score gap', ['below 0.123', '[0.1, 1)'])
    """
    rounded = _rounded([plain(text) for text in words])
    texts = [shorten_words(text, digits=None).removesuffix(" (soft)") for text in rounded]
    shared, labels = _apart(texts)
    labels = [_trimmed(label) for label in labels]
    often = Counter(labels)
    if max(often.values(), default=1) > 1:
        labels = [
            f"{label} ({place})" if often[label] > 1 else label for place, label in enumerate(labels, start=1)
        ]
    return shared or "group" * (len(labels) > 1), labels


def wrapped(text: str, room: float) -> str:
    """A text on lines that fit into so many points; longer words stay whole."""
    lines: list[str] = []
    for word in text.split():
        if lines and text_width(f"{lines[-1]} {word}") <= room:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return "\n".join(lines)


def text_width(text: str) -> float:
    """An upper bound on the width in points of the widest line of a label.

    Made without a font, for matplotlib's own: to measure one would warn of every sign that it lacks, although
    a page may have others.
    """
    return SMALL * max((sum(map(_ems, line)) for line in text.split("\n")), default=0.0)


def _ems(sign: str) -> float:
    if unicodedata.east_asian_width(sign) in "WF" or sign in "mwMW%@&…—":
        return 1.0
    return 0.64 if sign.islower() or sign.isdigit() else 0.5 if sign in " .,:;'\"()[]/-|!" else 0.9


def _rounded(texts: list[str]) -> list[str]:
    """Numbers to three significant digits, or to as many as keep different ones different."""
    numbers = {found for text in texts for found in _DECIMAL.findall(text)}
    for digits in (3, 4, 6, 9):
        if len({_digits(found, digits) for found in numbers}) == len({float(found) for found in numbers}):
            return [_DECIMAL.sub(partial(_shortened, digits=digits), text) for text in texts]
    return texts


def _shortened(found: re.Match[str], digits: int) -> str:
    return _digits(found[0], digits)


def _digits(decimal: str, digits: int) -> str:
    return f"{float(decimal):.{digits}g}"


def _apart(texts: list[str]) -> tuple[str, list[str]]:
    """What all groups begin with, as far as it names a property, and what each goes on with."""
    split = [text.split(" ") for text in texts if text != ALL_PROMPTS]
    count = 0
    if len(split) > 1:
        for column in zip(*split, strict=False):
            ends = any(count + 1 == len(row) for row in split)
            if ends or len(set(column)) > 1 or _NO_NAME_OF_A_PROPERTY.search(column[0]):
                break
            count += 1
    if not count:
        return "", texts
    shared = " ".join(split[0][:count])
    return shared.removesuffix(" is").removesuffix(":"), [
        text.removeprefix(f"{shared} ").removeprefix("is ").removeprefix("lies in ") for text in texts
    ]


def _trimmed(label: str) -> str:
    if len(label) <= LONGEST:
        return label
    head = (LONGEST - 1) * 2 // 3
    return f"{label[:head].rstrip()}…{label[head + 1 - LONGEST :].lstrip()}"


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


_SVG = "http://www.w3.org/2000/svg"
_INK = "#000000"
_SETTINGS = {"svg.fonttype": "none", "svg.hashsalt": "langchain-cfc"}
_GIVEN_ONCE = {
    # What matplotlib's style sheet says of every element, and black, which it leaves out as the default.
    "stroke-linejoin": "round",
    "stroke-linecap": "butt",
    "fill": "currentColor",
    # Narrow pages shrink the figure; other fonts may be wider than the one it was laid out with.
    "style": "max-width: 100%; height: auto; overflow: visible",
    "role": "img",
}


def to_svg(drawn: Axes | Figure, *, title: str) -> str:
    """A figure as inline SVG for a page.

    Text stays text. Black ink takes the colour of the page's text (`currentColor`), the background is
    transparent, nothing outside is referred to, and the same data drawn anew give the same text. Figures of
    one page do not clash as long as they differ in content or title.

    Args:
        drawn: The figure, or an axis of it.
        title: What the figure shows, in words: read out to those who cannot see it.

    Returns:
        An `<svg>` element.

    Raises:
        InputError: If the axis was removed from its figure.
        MissingExtraError: If matplotlib is not installed.
    """
    root = ET.fromstring(_as_written(drawn))  # noqa: S314 - matplotlib has just written it
    for part in [*root.iter()]:
        part.tag = _local(part.tag)
        for child in [child for child in part if _local(child.tag) in {"metadata", "style"}]:
            part.remove(child)
    name = plain(title)
    digest = hashlib.sha256(ET.tostring(root) + name.encode()).hexdigest()
    for part in root.iter():
        _rewrite(part, f"cfc-{digest[:10]}-")
    root.attrib = {"xmlns": _SVG, **root.attrib, **_GIVEN_ONCE, "aria-label": name}
    heading = ET.Element("title")
    heading.text = name
    root.insert(0, heading)
    return ET.tostring(root, encoding="unicode")


def _as_written(drawn: Axes | Figure) -> str:
    matplotlib: Any = require("matplotlib", "calibrate", "drawing figures")
    figure = drawn.get_figure(root=True)
    if figure is None:
        msg = "the axis belongs to no figure any more, so there is nothing to draw"
        raise InputError(msg)
    buffer = io.StringIO()
    with matplotlib.rc_context(_SETTINGS), warnings.catch_warnings():
        # The page brings its own fonts.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    return buffer.getvalue()


def _rewrite(part: ET.Element, prefix: str) -> None:
    """Names with the prefix, black as the page's ink, and links as SVG 2 writes them."""
    written: dict[str, str] = {}
    for key, value in part.attrib.items():
        name = _local(key)
        if name == "id":
            written[name] = prefix + value
        elif name == "href" and value.startswith("#"):
            written[name] = f"#{prefix}{value[1:]}"
        else:
            written[name] = value.replace("url(#", f"url(#{prefix}").replace(_INK, "currentColor")
    part.attrib = written


def _local(name: str) -> str:
    return name.rpartition("}")[2]
