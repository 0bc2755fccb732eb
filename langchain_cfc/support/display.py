"""Show objects to people: a short `repr`, `str()` of a few lines, and HTML for notebooks.

A class says what it is about by a `Summary`, and the three forms follow from it. All text is escaped, since
answers and names come from models and files; the HTML has no script and takes colours from the page.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from langchain_cfc.support.imports import require
from langchain_cfc.support.text import escape_controls

_LONGEST_FIELD = 60
_LONGEST_REPR = 200
_LEFT = "text-align: left"  # notebooks align cells to the right


@dataclass(frozen=True)
class Summary:
    """What people see of an object.

    Attributes:
        heading: The first line, such as the answer.
        sentences: A line for each sentence below it.
        folded: What the table is about, which is folded at first.
        table: Rows of cells, the first row with the headings; without rows there is no table.
    """

    heading: str
    sentences: Sequence[str] = ()
    folded: str = "Details"
    table: Sequence[Sequence[str]] = ()


class Displayed:
    """Base of classes that people look at; by default it shows the fields of a pydantic model."""

    def _summarise(self) -> Summary:
        stated = getattr(self, "sentence", None)
        table = [("field", "value"), *((name, shorten(text)) for name, text in _list_fields(self))]
        return Summary(type(self).__name__, () if stated is None else (stated,), "Fields", table)

    def __repr__(self) -> str:
        """Return one line: the class and its fields, long ones as their length."""
        fields = ", ".join(f"{name}={text}" for name, text in _list_fields(self))
        return f"{type(self).__name__}({shorten(fields, _LONGEST_REPR)})"

    def __str__(self) -> str:
        """Return the heading and a line for each sentence."""
        shown = self._summarise()
        return escape_controls("\n".join([shown.heading, *shown.sentences]))

    def _repr_html_(self) -> str:
        """Return the summary as HTML, with its table folded."""
        shown = self._summarise()
        parts = [f"<strong><bdi>{_escape(shown.heading)}</bdi></strong>"]
        parts += [f"<div><bdi>{_escape(sentence)}</bdi></div>" for sentence in shown.sentences]
        if shown.table:
            parts.append(
                f"<details><summary>{_escape(shown.folded)}</summary>{make_table(shown.table)}</details>"
            )
        return f'<div dir="auto" style="max-width: 46em; white-space: pre-wrap">{"".join(parts)}</div>'


def summarise(one: Displayed) -> Summary:
    """Return what people see of an object, in a notebook as in a terminal."""
    return one._summarise()  # noqa: SLF001 - the function of its base class


def make_table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows of cells as an HTML table that scrolls if it is wide; the first row holds headings."""
    lines = []
    for place, row in enumerate(rows):
        tag = "td" if place else 'th scope="col"'
        cells = (f'<{tag} style="{_LEFT}"><bdi>{_escape(cell)}</bdi></{tag[:2]}>' for cell in row)
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return f'<div style="overflow-x: auto" tabindex="0"><table>{"".join(lines)}</table></div>'


def make_frame(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Return rows as a pandas DataFrame; raise a MissingExtraError if pandas is not installed."""
    return require("pandas", "", "a DataFrame").DataFrame.from_records(list(rows))


def shorten(text: str, most: int = _LONGEST_FIELD) -> str:
    """Return a text on one line, without control characters, cut to a number of characters.

    Examples:
        >>> shorten("one two", 20), shorten("one two", 5)
        ('one two', 'one …')
    """
    line = escape_controls(" ".join(text.split()))
    return line if len(line) <= most else f"{line[: most - 1]}…"


def _list_fields(one: Any) -> Iterator[tuple[str, str]]:
    """Yield the fields of a pydantic model that have a value; what holds others is shown by its size."""
    for name in type(one).model_fields:
        value = getattr(one, name)
        if isinstance(value, str | int | float):
            yield name, repr(value)
        elif value:
            yield name, f"[{len(value)}]" if hasattr(value, "__len__") else type(value).__name__


def _escape(text: str) -> str:
    return escape(escape_controls(text))
