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
import math
import re
import unicodedata
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar
from xml.etree import ElementTree as ET

from langchain_cfc.errors import InputError
from langchain_cfc.evaluation import MethodReport
from langchain_cfc.features import name_group
from langchain_cfc.support.text import format_percent
from langchain_cfc_lab.comparison_report import MethodComparison

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


Shown = TypeVar("Shown")
Dash = tuple[float, tuple[float, ...]]

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7")
# The numbers of markers and of hatches (13) are coprime to that of colours (6): a marker or hatch repeats
# after 13 places, and together with its colour after 78.
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
STYLE_COUNT = 78
MARKER_SIZE = 6.0  # points
# Methods with fixed places, so that those often compared differ as much as possible: no two of the first
# thirteen share a marker or a hatch.
KNOWN_METHODS = (
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
    "conditional-back-off",
)

FONT_SIZE = 9.0  # points; font size of tick labels and of the key
ALL_PROMPTS = "all prompts"
LONGEST_LABEL = 32  # characters of one label
_DECIMAL_NUMBER = re.compile(r"\d+\.\d+(?:e[-+]?\d+)?")
_NOT_IN_PROPERTY_NAMES = re.compile(r"""['"\d\[(]""")

LINE_HEIGHT = 1.3 * FONT_SIZE  # points from one line of a label to the next
FIGURE_HEIGHT = 4.2  # inches
AXIS_MARGINS = 1.0  # inches around the axis, for its labels and the gap before the key
KEY_TEXT_WIDTH = 150.0  # points; width of a line of text in the key
SYMBOL_WIDTH = 0.5  # inches; width of a line with its marker in the key
MOST_LINES = 3  # of a horizontal label
SLANT = 40.0  # degrees
TARGET_LINE: dict[str, Any] = {"linestyle": (0.0, (4.0, 3.0)), "linewidth": 1.2, "marker": "", "zorder": 1.5}

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
        """Return the style of a place; any thirteen consecutive places differ in marker and hatch."""
        return cls(
            COLOURS[place % len(COLOURS)],
            MARKERS[place % len(MARKERS)],
            DASHES[place % len(DASHES)],
            HATCHES[place % len(HATCHES)],
        )

    def make_line_options(self, ax: Axes, size: float = MARKER_SIZE) -> dict[str, Any]:
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

    `KNOWN_METHODS` have fixed places. Others get one by the hash of their name, or the next free one. Pass
    the names of all methods, drawn or not, so that drawing only some of them changes no style.
    """
    given = list(names)
    places = {name: KNOWN_METHODS.index(name) for name in given if name in KNOWN_METHODS}
    taken = set(range(len(KNOWN_METHODS)))
    for name in sorted(set(given) - set(KNOWN_METHODS)):
        start = int.from_bytes(hashlib.sha256(name.encode("utf-8", "replace")).digest()[:8], "big")
        turn = ((start + step) % STYLE_COUNT for step in range(STYLE_COUNT))
        places[name] = next((place for place in turn if place not in taken), start % STYLE_COUNT)
        taken.add(places[name])
    return {name: Style.at(places[name]) for name in given}


def compute_marker_sizes(count: int) -> list[float]:
    """Return decreasing marker sizes in points, so that methods drawn over one another stay visible."""
    largest, smallest = min(MARKER_SIZE + 0.5 * (count - 1), 10.0), max(MARKER_SIZE - 0.25 * (count - 1), 3.5)
    return [largest - (largest - smallest) * place / max(count - 1, 1) for place in range(count)]


def make_key_label(name: str, method: MethodComparison | MethodReport) -> str:
    """Return a method's label in a key with a coverage target; it says if the method has another aim."""
    aims = not isinstance(method, MethodComparison) or method.aims_at_coverage
    return name if aims else f"{name} (aims at something else)"


def select_methods(there: Mapping[str, Shown], methods: Sequence[str] | None) -> dict[str, Shown]:
    """Return the methods with these names, in this order; all of them if `methods` is None."""
    names = list(there) if methods is None else list(methods)
    unknown = [name for name in names if name not in there]
    if unknown:
        msg = f"unknown method {unknown[0]!r}; the report holds {', '.join(there) or 'none'}"
        raise InputError(msg)
    return {name: there[name] for name in names}


def to_single_line(text: str) -> str:
    """Return a text on one line, with spaces for characters that cannot be printed or are invalid in XML."""
    return " ".join("".join(sign if sign.isprintable() else " " for sign in text).split())


def label_groups(words: Sequence[str]) -> tuple[str, list[str]]:
    """Return the title of an axis of groups, and a short and distinct label for each group.

    Examples:
        >>> low, high = "is below 0.12341", "lies in [0.1, 1)"
        >>> label_groups([f"prompts whose score gap {low}", f"prompts whose score gap {high}"])
        ('score gap', ['below 0.123', '[0.1, 1)'])
    """
    rounded = _round_numbers([to_single_line(text) for text in words])
    texts = [name_group(text, digits=None).removesuffix(" (soft)") for text in rounded]
    shared, labels = _split_common_start(texts)
    labels = [_shorten_label(label) for label in labels]
    often = Counter(labels)
    if max(often.values(), default=1) > 1:
        labels = [
            f"{label} ({place})" if often[label] > 1 else label for place, label in enumerate(labels, start=1)
        ]
    return shared or "group" * (len(labels) > 1), labels


def wrap_text(text: str, room: float) -> str:
    """Break a text into lines of at most `room` points; longer words stay whole."""
    lines: list[str] = []
    for word in text.split():
        if lines and estimate_width(f"{lines[-1]} {word}") <= room:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return "\n".join(lines)


def estimate_width(text: str) -> float:
    """Return an upper bound on the width in points of the widest line of a label.

    It does not measure with matplotlib's font, which would warn of every character that it lacks, although
    the page's fonts may have it.
    """
    return FONT_SIZE * max((sum(map(_estimate_ems, line)) for line in text.split("\n")), default=0.0)


def _estimate_ems(sign: str) -> float:
    if unicodedata.east_asian_width(sign) in "WF" or sign in "mwMW%@&…—":
        return 1.0
    return 0.64 if sign.islower() or sign.isdigit() else 0.5 if sign in " .,:;'\"()[]/-|!" else 0.9


def _round_numbers(texts: list[str]) -> list[str]:
    """Round numbers to three significant digits, or to as many as keep distinct numbers distinct."""
    numbers = {found for text in texts for found in _DECIMAL_NUMBER.findall(text)}
    for digits in (3, 4, 6, 9):
        rounded = {number: f"{float(number):.{digits}g}" for number in numbers}
        if len(set(rounded.values())) == len(set(map(float, numbers))):
            break
    else:
        return texts
    return [_DECIMAL_NUMBER.sub(lambda found: rounded[found[0]], text) for text in texts]


def _split_common_start(texts: list[str]) -> tuple[str, list[str]]:
    """Return the start that all groups share, as far as it names a property, and the rest of each group."""
    split = [text.split(" ") for text in texts if text != ALL_PROMPTS]
    count = 0
    if len(split) > 1:
        for column in zip(*split, strict=False):
            ends = any(count + 1 == len(row) for row in split)
            if ends or len(set(column)) > 1 or _NOT_IN_PROPERTY_NAMES.search(column[0]):
                break
            count += 1
            if column[0].endswith(":"):  # the rest names a category, even if all names begin alike
                break
    if not count:
        return "", texts
    shared = " ".join(split[0][:count])
    return shared.removesuffix(" is").removesuffix(":"), [
        text.removeprefix(f"{shared} ").removeprefix("is ").removeprefix("lies in ") for text in texts
    ]


def _shorten_label(label: str) -> str:
    if len(label) <= LONGEST_LABEL:
        return label
    head = (LONGEST_LABEL - 1) * 2 // 3
    return f"{label[:head].rstrip()}…{label[head + 1 - LONGEST_LABEL :].lstrip()}"


def create_axes(width: float, names: Sequence[str] = (), height: float = FIGURE_HEIGHT) -> Axes:
    """Return an axis `width` inches wide in a new figure, with room for a key with the labels `names`."""
    import matplotlib.figure as figures  # late: it takes a second

    lines = sum(_wrap_for_key(name).count("\n") + 1.5 for name in names) + 3.0
    size = width + AXIS_MARGINS + estimate_key_width(names), max(height, lines * LINE_HEIGHT / 72.0)
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


def draw_points(
    ax: Axes, place: int, x: Sequence[float], y: Sequence[float], *, joined: bool = False, **errors: Any
) -> Any:
    """Draw points in the style of a place, with matplotlib's `xerr` and `yerr`; return the key's handle."""
    look = Style.at(place).make_line_options(ax)
    return ax.errorbar(x, y, **(look if joined else {**look, "linestyle": ""}), **errors)


def estimate_key_width(names: Sequence[str]) -> float:
    """Return an upper bound on the width of the key, in inches."""
    return SYMBOL_WIDTH + max(estimate_width(_wrap_for_key(name)) for name in names) / 72.0 if names else 0.0


def estimate_axis_width(ax: Axes, names: Sequence[str]) -> float:
    """Return the width of the caller's axis in inches, less the key's if a layout makes room for it."""
    width = ax.get_window_extent().width / ax.figure.dpi
    makes_room = ax.figure.get_layout_engine() is not None
    return max(width - estimate_key_width(names), 0.5) if makes_room else width


def _wrap_for_key(name: str) -> str:
    return wrap_text(to_single_line(name), KEY_TEXT_WIDTH)


def finish_axes(ax: Axes, handles: Sequence[Any], names: Sequence[str], title: str | None = None) -> Axes:
    """Draw a grid and a key that names each handle, hide the top and right spines; return the axis."""
    ax.grid(visible=True, axis="y", color=get_ink_colour(ax), alpha=0.15)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
    key = ax.legend(
        list(handles),
        [_wrap_for_key(name) for name in names],
        title=title,
        loc="upper left",
        bbox_to_anchor=(1.01, 1.0),
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


@dataclass(frozen=True)
class GroupTicks:
    """Tick labels of groups along the horizontal axis, one unit apart.

    Labels are horizontal if they fit on a few lines, slanted if not, and vertical if even slanted ones would
    touch.
    """

    labels: tuple[str, ...]
    title: str
    angle: float  # degrees

    @classmethod
    def from_words(cls, words: Sequence[str], width: float) -> GroupTicks:
        """Lay out the labels of groups, given in words, on an axis `width` inches wide."""
        title, labels = label_groups(words)
        slot = 72.0 * width / len(labels)
        room = slot - 0.5 * FONT_SIZE
        flat = [wrap_text(label, room) for label in labels]
        if max(map(estimate_width, flat)) <= room and max(label.count("\n") for label in flat) < MOST_LINES:
            return cls(tuple(flat), title, 0.0)
        slanted = cls(tuple(labels), title, SLANT)
        left = slot - 72.0 * slanted.overhang / len(labels)
        return slanted if left * math.sin(math.radians(SLANT)) > LINE_HEIGHT else replace(slanted, angle=90.0)

    @property
    def depth(self) -> float:
        """Inches that slanted or vertical labels take below the axis; 0 for horizontal ones."""
        return math.sin(math.radians(self.angle)) * max(map(estimate_width, self.labels)) / 72.0

    @property
    def overhang(self) -> float:
        """Inches by which the first slanted label exceeds the margin to the left of the axis."""
        if self.angle != SLANT:
            return 0.0
        reach = math.cos(math.radians(SLANT)) * estimate_width(self.labels[0]) / 72.0
        return max(reach - AXIS_MARGINS / 2.0, 0.0)

    def label_axis(self, ax: Axes) -> None:
        """Set the limits, tick labels and title of the horizontal axis."""
        turned: dict[str, Any] = {}
        if self.angle:
            turned = {"rotation": self.angle, "ha": "right", "va": "center", "rotation_mode": "anchor"}
        ax.set_xticks(range(len(self.labels)), self.labels, fontsize=FONT_SIZE, parse_math=False, **turned)
        ax.set_xlim(-0.5, len(self.labels) - 0.5)
        ax.tick_params(axis="x", length=0.0)
        ax.set_xlabel(self.title, parse_math=False)


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
