"""How each method looks, in every figure alike.

A style is a colour, a marker, a dash pattern and a hatch. The colours are those of Okabe and Ito (2008,
"Color universal design") that stand out from white and from near black: without yellow, which vanishes on
paper, and without black, which is the ink. The other three tell methods apart where colours do not: on a grey
print, and where two methods share a colour.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from langchain_cfc.comparison.report import MethodComparison
from langchain_cfc.errors import InputError
from langchain_cfc.evaluation import MethodReport

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
