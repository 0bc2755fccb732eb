"""Output that the commands share: consoles, progress, JSON, errors and exit codes, lists and tables."""

from __future__ import annotations

import json
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from typing import Any, NoReturn, TypeVar

import typer
from pydantic import BaseModel
from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
)
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from langchain_cfc.cli.commands import FLAGS
from langchain_cfc.errors import CFCError, CFCWarning, UnattainableTargetError
from langchain_cfc.features import name_group
from langchain_cfc.support.display import shorten
from langchain_cfc.support.text import escape_controls, redact_addresses

Item = TypeVar("Item")
Printed = TypeVar("Printed", bound=BaseModel)

# Longest text of a table cell, in characters; a longer one is cut, and what is left wraps in its column.
_LONGEST_CELL = 72

# What messages say of Python and of the command line.
_IN_PYTHON = re.compile(r" \(in Python (?:[^()]|\([^()]*\))*\)")
_OPTIONS = re.compile(r"\bCollectionOptions\((\w+=\w+)\)")
_ANNOTATED = re.compile(r"\S+ \(on the command line (--[^)]*)\)")
_KEYWORD = re.compile(
    r"[\w.]+\([^()]*\)|`[^`]*`"
    r"|(?<![-\w.'\"/])(?P<name>[a-z]\w+)\b(?!\.\w|[(/])"
    r"(?:(?P<sign> = |=)(?P<value>'[^']*'|[\w.]*\w)?(?:\.\.\.)?)?"
)

EXIT_NO = 1
EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130  # as shells report them; 1 would read as "no"


class _SafeConsole(Console):
    """A console that shows control characters in texts instead of sending them to the terminal.

    Escape sequences in answers, records or errors of providers could write to the clipboard, change the title
    or clear the screen. rich removes some control characters, but not the escape character.
    """

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Escape every text that is printed; rich's own control sequences stay."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(escape_controls(segment.text), segment.style)


def get_console() -> Console:
    """Return a console on standard output for results; a new one each time, to follow redirection."""
    return _SafeConsole(highlight=False, emoji=False)


def get_error_console() -> Console:
    """Return a console on standard error for notes, errors and progress."""
    return _SafeConsole(stderr=True, highlight=False, emoji=False)


def emit_json(data: Any) -> None:
    """Write strict JSON in ASCII, which every terminal shows, to standard output."""
    sys.stdout.write(json.dumps(data, indent=2, allow_nan=False) + "\n")


@contextmanager
def report_errors() -> Iterator[None]:
    """Print the package's errors as one line and exit with a code; print its warnings as notes."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", CFCWarning)
        try:
            yield
        except UnattainableTargetError as error:
            fail(error, EXIT_NO)
        except CFCError as error:
            fail(error, EXIT_BAD_INPUT)
        except OSError as error:  # such as a full disk; exit code 1 would read as "no"
            fail(f"{error.strerror or error}: {error.filename or 'file'}", EXIT_BAD_INPUT)
        finally:
            print_notes(get_error_console(), dict.fromkeys(str(warning.message) for warning in caught))


def name_flags(text: str) -> str:
    """Return a message with the flags of the command line for the keywords of Python that it names.

    `name=value` is a flag with that value, and a name that has an underscore is one on its own. Code, such as
    a call, is left as it is. Flags are those of the command that runs and of the options of `calibrate`.
    """
    from langchain_cfc.calibration import CalibrationConfig  # late: only messages need it

    options = {one.name: f"--{one.name.replace('_', '-')}" for one in fields(CalibrationConfig)}
    known = {**options, **FLAGS.get()}

    def replace(found: re.Match[str]) -> str:
        name, sign, value = found["name"], found["sign"], (found["value"] or "").strip("'")
        if name is None:  # code
            return found[0]
        switch = f"--{value}_{name}".replace("_", "-")
        if switch in known.values():  # for one value of the keyword
            return switch
        if name not in known or ("_" not in name and sign != "="):
            return found[0]
        return f"{known[name]} {value}" if value not in {"", "True"} else known[name]

    for form, shown in ((_IN_PYTHON, ""), (_ANNOTATED, r"\1"), (_OPTIONS, r"\1")):
        text = form.sub(shown, text)
    return _KEYWORD.sub(replace, redact_addresses(text))


def print_notes(console: Console, notes: Iterable[str]) -> None:
    """Print notes: those on results wrapped, those on standard error on one line each."""
    for note in notes:
        console.print(f"[yellow]note:[/] {escape(name_flags(note))}", soft_wrap=console.stderr)


def print_result(found: Printed, print_text: Callable[[Console, Printed], None], *, as_json: bool) -> None:
    """Print a result to standard output, as JSON or with `print_text`."""
    if as_json:
        emit_json(found.model_dump(mode="json"))
    else:
        print_text(get_console(), found)


def print_list(console: Console, sentences: Iterable[str], title: str = "") -> None:
    """Print sentences as a list, with their markup escaped, below the title if there is one."""
    if title:
        console.print(f"\n[bold]{title}[/]")
    for sentence in sentences:
        console.print(f"- {escape(name_flags(sentence))}")


def print_lines(console: Console, lines: Iterable[str]) -> None:
    """Print each text on one line, without wrapping it and with its markup escaped."""
    for line in lines:
        console.print(escape(redact_addresses(line)), soft_wrap=True)


def fail(error: Exception | str, code: int) -> NoReturn:
    """Print an error on standard error and exit with the code."""
    get_error_console().print(f"[bold red]error:[/] {escape(name_flags(str(error)))}", soft_wrap=True)
    raise typer.Exit(code)


class _CountColumn(ProgressColumn):
    """How many of a step's items are done, and of how many if that is known."""

    def render(self, task: Task) -> Text:
        """Return such as `12/20`, or `12`."""
        total = "" if task.total is None else f"/{int(task.total):,}"
        return Text(f"{int(task.completed):,}{total}")


class StepDisplay:
    """Shows the steps of a command below each other, each with its count: the last one is in progress."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def begin(self, name: str, total: int | None = 1) -> None:
        """End the step before, and begin another of `total` items; None if their number is not known."""
        for task in self._progress.tasks[-1:]:
            done = max(1, int(task.completed))
            self._progress.update(task.id, total=done, completed=done)
        self._progress.add_task(name, total=total)

    def count(self, name: str, more: int) -> None:
        """Count items of a step, which begins with the first of them."""
        if [name] != [task.description for task in self._progress.tasks[-1:]]:
            self.begin(name, None)
        self._progress.advance(self._progress.task_ids[-1], more)


def track_progress(items: Iterable[Item], what: str, total: int | None = None) -> Iterator[Item]:
    """Yield the items and show a progress bar meanwhile."""
    with make_progress(BarColumn(bar_width=24)) as progress:
        yield from progress.track(items, total=total, description=what)


def make_tracker(what: str) -> Callable[[Iterable[Any], int], Iterator[Any]]:
    """Return `track_progress` in the form that experiments take: a function of items and their number."""
    return lambda items, total: track_progress(items, what, total)


def make_progress(*columns: ProgressColumn) -> Progress:
    """Return a progress display on standard error; it shows nothing unless that is a terminal."""
    console = get_error_console()
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        *columns,
        _CountColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


def make_table(
    *headings: str, texts: int = 1, title: str | None = None, width: int | None = None, **numbers: Any
) -> Table:
    """Make a table without lines: `texts` columns of text, then columns of right-justified numbers.

    Columns of text are cut off at `width` characters. `numbers` are rich's settings of the number columns.
    """
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for heading in headings[:texts]:
        table.add_column(heading, no_wrap=width is not None, max_width=width)
    for heading in headings[texts:]:
        table.add_column(heading, justify="right", **numbers)
    return table


def make_summary_table(rows: Sequence[Sequence[str]]) -> Table:
    """Make a table of the rows of a `Summary`, the first of them headings; only the first column wraps."""
    table = make_table(*rows[0], no_wrap=True)
    for row in rows[1:]:
        table.add_row(*(escape(cell.replace("\n", " ")) for cell in row))
    return table


def format_answer_cell(value: Any, instruction: Any = None) -> str:
    """Format a prompt, answer or reference for a table cell, without the instruction before the question.

    Several right answers are joined with "or". `instruction` is the template of the prompt, if it is text.
    """
    if isinstance(value, list) and value and all(isinstance(one, str) for one in value):
        value = " or ".join(value)
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if isinstance(instruction, str):
        text = text.removeprefix(instruction.partition("{")[0])
    return escape(shorten(text, _LONGEST_CELL))


def format_interval(bounds: tuple[float, float]) -> str:
    """Format an interval of shares in percent, without the sign."""
    return f"{100 * bounds[0]:.0f}-{100 * bounds[1]:.0f}"


def format_group(words: str, name: str = "") -> str:
    """Return the readable name of a weighting's group, on one line and with markup escaped."""
    return escape(name_group(words, name).replace("\n", " "))
