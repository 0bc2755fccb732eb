"""The frame of every HTML page: head and styles, escaping, figures, and writing the file."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from langchain_cfc.errors import InputError
from langchain_cfc.support import __version__
from langchain_cfc.support.files import atomic_writer, read_creation_time
from langchain_cfc_lab.report._text import escape_invisible
from langchain_cfc_lab.report.drawing import to_svg

if TYPE_CHECKING:
    from markupsafe import Markup

_GENERATOR = "langchain-cfc report"
# The tag by which a report is recognised is within this many bytes.
_HEAD_BYTES = 1024


@dataclass(frozen=True)
class Figure:
    """A figure of a page, drawn and escaped, with a caption that says how to read it."""

    id: str
    svg: Markup
    caption: str


def make_figure(name: str, axes: Any, title: str, words: str) -> Figure:
    """Convert an axis to a figure of a page; the caption is the title followed by the words."""
    return Figure(id=name, svg=_mark_safe(to_svg(axes, title=title)), caption=f"{title}. {words}")


def render_page(template: str, *, title: str, byline: str, **content: Any) -> str:
    """Return a page as HTML, rendered from a template that extends the frame.

    Args:
        template: The package of the template and its file, such as `langchain_cfc_lab.report/page.html.j2`.
        title: Title and heading.
        byline: The line below the heading.
        **content: What the template shows; `contents` holds ids and headings of its sections, for a list at
            the top.

    Returns:
        The page. All text is escaped; invisible characters in it are spelt out.
    """
    html: str = (
        _create_environment()
        .get_template(template)
        .render(
            title=title,
            byline=byline,
            generator=_GENERATOR,
            style=_mark_safe(_read_resource("langchain_cfc_lab.report/page.css")),
            version=__version__,
            today=f"{read_creation_time():%Y-%m-%d}",
            **{"contents": (), **content},
        )
    )
    return html


@cache
def _create_environment() -> Any:
    import jinja2 as jinja  # late: commands that write no page need not wait for it

    return jinja.Environment(
        loader=jinja.FunctionLoader(_read_resource),
        autoescape=True,
        undefined=jinja.StrictUndefined,
        finalize=_escape_value,
    )


def _escape_value(value: Any) -> Any:
    """Spell out invisible characters in plain strings; markup made by this package stays as it is."""
    return escape_invisible(value) if type(value) is str else value


def _mark_safe(text: str) -> Markup:
    from markupsafe import Markup

    return Markup(text)  # noqa: S704 - made by this package


def _read_resource(name: str) -> str:
    package, _, file = name.partition("/")
    return files(package).joinpath(file).read_text(encoding="utf-8")


def replace_page(path: str | os.PathLike[str], html: str) -> None:
    """Write a page to a new file, or over an earlier page.

    Raises:
        InputError: If `check_report` refuses the path, or the file cannot be written.
    """
    check_report(path)
    with atomic_writer(path) as file:
        file.write(html.encode())


def check_report(path: str | os.PathLike[str]) -> None:
    """Check that a report may be written to a path; no other file, such as the records, is overwritten.

    Args:
        path: Path that a report is to be written to.

    Raises:
        InputError: If the path is `-`, a folder, in no existing folder, or a file that is not a report.
    """
    target = Path(path)
    if str(target) == "-":
        msg = "a report cannot be written to standard output: give a path"
        raise InputError(msg)
    if target.is_dir() or not target.parent.is_dir():
        problem = "is a folder" if target.is_dir() else "lies in a folder that does not exist"
        msg = f"{target} {problem}: give another path"
        raise InputError(msg)
    if target.is_file() and not _is_report(target):
        msg = f"{target} exists and is not a report; it will not be overwritten: give another path"
        raise InputError(msg)


def _is_report(path: Path) -> bool:
    with path.open("rb") as file:
        return f'<meta name="generator" content="{_GENERATOR}">'.encode() in file.read(_HEAD_BYTES)
