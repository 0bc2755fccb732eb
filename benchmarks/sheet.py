"""One table, for the terminal and for the page, and how numbers are written."""

from __future__ import annotations

from dataclasses import dataclass

from rich.table import Table

NAMES = {
    "ours": "ours",
    "scipy": "SciPy HiGHS",
    "scipy ipm": "SciPy HiGHS ipm",
    "highspy": "highspy warm",
    "cvxpy": "cvxpy",
    "cvxpy ridge": "cvxpy Clarabel",
    "sklearn": "sklearn",
    "conditionalconformal exact": "c.c. exact",
    "conditionalconformal bisection": "c.c. bisection",
    "mapie exact": "MAPIE exact",
    "mapie bisection": "MAPIE bisection",
}
"""Names for headings; c.c. is conditionalconformal."""


@dataclass(frozen=True)
class Sheet:
    """A table.

    Attributes:
        title: One line.
        note: What its columns mean.
        headings: Columns.
        rows: Cells as text.
    """

    title: str
    note: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def table(self) -> Table:
        """For the terminal."""
        table = Table(
            title=self.title, caption=self.note, box=None, header_style="bold", title_justify="left"
        )
        table.caption_justify = "left"
        for heading, numeric in zip(self.headings, self._numeric(), strict=True):
            table.add_column(heading, justify="right" if numeric else "left")
        for row in self.rows:
            table.add_row(*row)
        return table

    def markdown(self) -> str:
        """For the page."""
        rules = tuple("--:" if numeric else ":--" for numeric in self._numeric())
        body = "\n".join("| " + " | ".join(line) + " |" for line in (self.headings, rules, *self.rows))
        return f"## {self.title}\n\n{self.note}\n\n{body}\n"

    def _numeric(self) -> list[bool]:
        columns = zip(*self.rows, strict=True) if self.rows else ((),) * len(self.headings)
        return [any(text[:1].isdigit() for text in column) for column in columns]


def number(value: float) -> str:
    """Three significant digits, thousands with commas; small counts and tiny numbers in one.

    >>> number(0), number(3), number(2.5813), number(12345.6), number(3.2e-9)
    ('0', '3', '2.58', '12,346', '3e-9')
    """
    if value == int(value) and abs(value) < 1000:  # noqa: PLR2004 - a small count
        return str(int(value))
    if abs(value) < 1e-3:  # noqa: PLR2004 - then only the size tells
        return f"{value:.0e}".replace("e-0", "e-")
    digits = max(3 - len(str(int(value))), 0) if value >= 1 else 3
    return f"{value:,.{digits}f}"


def span(seconds: float) -> str:
    """A time in the unit that reads best.

    >>> span(3.456e-5), span(0.0123), span(4.5)
    ('34.6 us', '12.3 ms', '4.50 s')
    """
    for factor, unit in ((1e6, "us"), (1e3, "ms")):
        if seconds * factor < 1000:  # noqa: PLR2004 - else the next unit
            return f"{number(seconds * factor)} {unit}"
    return f"{number(seconds)} s"
