"""A figure as part of a page: inline SVG that reads on light and on dark pages.

Matplotlib's SVG is made for a file of its own. On a page its black would vanish at night, its style sheet
would rule every other picture, and the names of its parts would clash with those of the next figure. So black
becomes the colour of the text around the figure, the style sheet becomes attributes of the figure, and each
name gets a prefix made of the figure's content and title.
"""

from __future__ import annotations

import hashlib
import io
import warnings
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

from langchain_cfc._extras import require
from langchain_cfc.errors import InputError
from langchain_cfc.plots.labels import plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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
