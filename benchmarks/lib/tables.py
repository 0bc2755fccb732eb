"""Tables of results for the terminal and for pages, figures to reach, and how numbers are written."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Sheet:
    """A table with a title and a note that says what its columns mean."""

    title: str
    note: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def to_table(self) -> Table:
        """Return the table for the terminal."""
        table = Table(
            title=self.title, caption=self.note, box=None, header_style="bold", title_justify="left"
        )
        table.caption_justify = "left"
        for heading, numeric in zip(self.headings, self._find_numeric(), strict=True):
            table.add_column(heading, justify="right" if numeric else "left")
        for row in self.rows:
            table.add_row(*row)
        return table

    def to_markdown(self) -> str:
        """Return the table for a page."""
        rules = tuple("--:" if numeric else ":--" for numeric in self._find_numeric())
        body = "\n".join("| " + " | ".join(line) + " |" for line in (self.headings, rules, *self.rows))
        return f"## {self.title}\n\n{self.note}\n\n{body}\n"

    def _find_numeric(self) -> list[bool]:
        columns = zip(*self.rows, strict=True) if self.rows else ((),) * len(self.headings)
        return [any(text[:1].isdigit() for text in column) for column in columns]


def format_number(value: float) -> str:
    """Format three significant digits, thousands with commas; small counts and tiny numbers with one.

    >>> format_number(0), format_number(3), format_number(2.5813), format_number(12345.6), format_number(3e-9)
    ('0', '3', '2.58', '12,346', '3e-9')
    """
    if value == int(value) and abs(value) < 1000:  # noqa: PLR2004 - a small count
        return str(int(value))
    if abs(value) < 1e-3:  # noqa: PLR2004 - then only the size tells
        return f"{value:.0e}".replace("e-0", "e-")
    digits = max(3 - len(str(int(value))), 0) if value >= 1 else 3
    return f"{value:,.{digits}f}"


def format_seconds(seconds: float) -> str:
    """Format a time in the unit that reads best.

    >>> format_seconds(3.456e-5), format_seconds(0.0123), format_seconds(4.5)
    ('34.6 us', '12.3 ms', '4.50 s')
    """
    for factor, unit in ((1e6, "us"), (1e3, "ms")):
        if seconds * factor < 1000:  # noqa: PLR2004 - else the next unit
            return f"{format_number(seconds * factor)} {unit}"
    return f"{format_number(seconds)} s"


@dataclass(frozen=True)
class Measurement:
    """A measured value, and where; only a lower bound with `at_least`, because a peer was stopped."""

    value: float
    where: str
    at_least: bool = False


@dataclass(frozen=True)
class Target:
    """A bound to keep, an upper one with `most`, and what was measured over problems, if anything."""

    name: str
    limit: float
    found: tuple[Measurement, ...]
    most: bool = True
    unit: str = ""

    @property
    def worst(self) -> Measurement | None:
        """The measurement that is furthest on the wrong side of the bound."""
        choose = max if self.most else min
        return choose(self.found, key=lambda found: found.value) if self.found else None

    @property
    def verdict(self) -> str:
        """Met, not met, or not measured."""
        worst = self.worst
        if worst is None:
            return "not measured"
        met = worst.value <= self.limit if self.most else worst.value >= self.limit
        if not met and worst.at_least:
            return "unknown: the peer was stopped"
        return "met" if met else "not met"

    @property
    def cells(self) -> tuple[str, str, str, str, str]:
        """Name, bound, worst measurement, where that was, and verdict."""
        bound = f"{'at most' if self.most else 'at least'} {format_number(self.limit)}{self.unit}"
        worst = self.worst
        if worst is None:
            return self.name, bound, "-", "-", self.verdict
        value = f"{'over ' if worst.at_least else ''}{format_number(worst.value)}{self.unit}"
        return self.name, bound, value, worst.where if worst.value else "everywhere", self.verdict


def make_target_sheet(targets: Iterable[Target], note: str) -> Sheet:
    """Make the table of targets and what was measured."""
    headings = ("figure", "wanted", "measured", "worst at", "verdict")
    return Sheet("Figures to reach", note, headings, tuple(one.cells for one in targets))


def make_console(width: int = 200) -> Console:
    """Return a console on standard output; a file is wide enough for every table."""
    console = Console()
    return console if console.is_terminal else Console(width=width)


def print_sheets(sheets: Iterable[Sheet], width: int = 200) -> None:
    """Print tables of results to standard output."""
    console = make_console(width)
    for sheet in sheets:
        console.print(sheet.to_table())
        console.print()


def describe_machine() -> str:
    """Return system, architecture and number of cores, nothing that identifies the machine."""
    return f"{platform.system()} on {platform.machine()} with {os.cpu_count()} cores"


def find_versions(packages: Sequence[str]) -> dict[str, str]:
    """Return the versions of Python and of packages."""
    versions = {name: importlib.metadata.version(name) for name in packages}
    return {"python": platform.python_version()} | versions
