"""What the site is made of beside the pages in this folder; mkdocs calls the functions named `on_...`.

Each text is written once. READMEs and results that stand elsewhere in the repository become pages under the
addresses that they have there, the command line describes itself, and the API is read from docstrings. Links
are written for readers of the repository; what they mean on the site is settled here.
"""

from __future__ import annotations

import importlib
import inspect
import logging
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit
from xml.etree.ElementTree import Element, SubElement

import typer.main
from markdown import Markdown
from markdown.extensions import Extension
from markdown.preprocessors import Preprocessor
from markdown.treeprocessors import Treeprocessor
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
DOCS = "docs"
# Files of the repository that are pages of the site, and pictures in them, under the same addresses.
BROUGHT = (
    "integrations/README.md",
    "integrations/*/README.md",
    "integrations/*/RESULTS.md",
    "examples/README.md",
    "examples/*/README.md",
    "benchmarks/*.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
)
# The README says in short what the site says at length.
START = {"README.md": "index.md"}
COMMANDS = "command-line.md"
PACKAGE = "langchain_cfc"
API = "api"


@dataclass(frozen=True)
class ReferencePage:
    """A page of the API reference.

    Attributes:
        title: Its title.
        modules: The modules of the package that it describes, in this order.
    """

    title: str
    modules: tuple[str, ...]


# By the names of their files, every module of the package that users import from.
REFERENCE = {
    "serving": ReferencePage("Serving", ("runnable", "decision", "sampling", "execution")),
    "calibration": ReferencePage(
        "Calibration", ("calibration", "artifact", "guarantee", "certificates", "records.splits")
    ),
    "thresholds": ReferencePage(
        "Thresholds and features", ("thresholds", "features", "set_rules", "scoring", "candidates")
    ),
    "verifiers": ReferencePage("Verifiers and fingerprints", ("verifiers", "sampling.fingerprints")),
    "records": ReferencePage("Records and collection", ("records", "collect", "labelers")),
    "evaluation": ReferencePage("Evaluation and reports", ("evaluation", "experiments", "report", "demo")),
    "monitoring": ReferencePage("Monitoring", ("monitor",)),
    "extending": ReferencePage("Extending, and errors", ("extend", "errors")),
}
_PICTURE = re.compile(r"!\[[^\]]*\]\(([^)\s:]+)\)|<img [^>]*src=\"([^\":]+)\"")
# What mkdocstrings breaks signatures into lines with, if it is installed; it does not say so if it is not.
_FORMATTERS = ("black", "ruff")
_LONGEST_VALUE = 80
_log = logging.getLogger("mkdocs.hooks.site")


@dataclass
class Site:
    """What is known of the site while it is built.

    Attributes:
        brought: Addresses of files that stand outside this folder; each is its path in the repository.
        addresses: Where files of the repository are on the site, by path.
        repository: Where the repository can be read; None if nowhere that is known.
        page: Path in the repository of the page at hand; None for pages that are generated.
    """

    brought: tuple[str, ...] = ()
    addresses: dict[str, str] = field(default_factory=dict)
    repository: str | None = None
    page: str | None = None


_SITE = Site()


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Find the pages, complete the navigation, and see to it that links are translated."""
    if not any(map(find_spec, _FORMATTERS)):
        _log.warning("signatures would be single lines: install ruff, as the extra [docs] does")
    pages = [path.relative_to(ROOT).as_posix() for form in BROUGHT for path in sorted(ROOT.glob(form))]
    _SITE.brought = tuple(dict.fromkeys([*pages, *_pictures(pages)]))
    _SITE.addresses = START | {path: path for path in _SITE.brought}
    _SITE.repository = config.repo_url
    generated = {f"{API}/{name}.md": page.title for name, page in REFERENCE.items()}
    config.nav = _completed(config.nav, dict.fromkeys(pages) | generated)
    config.markdown_extensions.append(Reading())  # type: ignore[arg-type]  # mkdocs hands them on as they are
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that do not stand in this folder."""
    for name, reference in REFERENCE.items():
        files.append(File.generated(config, f"{API}/{name}.md", content=_reference_page(reference)))
    # Pages that are written here are linked as if they stood here.
    _SITE.addresses |= {posixpath.join(DOCS, file.src_uri): file.src_uri for file in files}
    for path in _SITE.brought:
        files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Complete the pages that the code writes, and remember whose links are about to be read."""
    address = page.file.src_uri
    homes = {address: path for path, address in _SITE.addresses.items() if path not in START}
    _SITE.page = homes.get(address)
    if address == COMMANDS:
        return f"{markdown}\n{_command_line()}"
    return f"{markdown}\n{_top()}" if address == f"{API}/index.md" else markdown


def _pictures(pages: Iterable[str]) -> Iterator[str]:
    """Pictures that these pages show."""
    for page in pages:
        for shown in _PICTURE.findall((ROOT / page).read_text(encoding="utf-8")):
            path = posixpath.normpath(posixpath.join(posixpath.dirname(page), *shown))
            if not path.startswith(f"{DOCS}/") and (ROOT / path).is_file():
                yield path


def _completed(nav: Any, known: Mapping[str, str | None]) -> Any:
    """The navigation, with an entry such as `examples/*/README.md` replaced by the pages that it means."""
    if isinstance(nav, dict):
        return {title: _completed(entry, known) for title, entry in nav.items()}
    if not isinstance(nav, list):
        return nav
    entries: list[Any] = []
    for entry in nav:
        if isinstance(entry, str) and "*" in entry:
            found = [address for address in known if fnmatchcase(address, entry)]
            entries += [{known[address]: address} if known[address] else address for address in found]
        else:
            entries.append(_completed(entry, known))
    return entries


def _command_line() -> str:
    """What the application says of itself by topic, commands of installed integrations included."""
    from langchain_cfc.cli.commands import app

    group: Any = typer.main.get_command(app)
    root = typer.Context(group, info_name="langchain-cfc", **group.context_settings)
    topics: dict[str, list[typer.Context]] = {}
    for name in group.list_commands(root):
        context = typer.Context(group.load_command(root, name), info_name=name, parent=root)
        topics.setdefault(group.get_command(root, name).rich_help_panel, []).append(context)
    parts = [_listed(topic, contexts) for topic, contexts in topics.items()]
    parts.append(_described(root, "## `langchain-cfc`"))
    for topic, contexts in topics.items():
        parts += [f"## {topic}", *(_with_subcommands(context) for context in contexts)]
    return "\n\n".join(parts)


def _with_subcommands(context: typer.Context) -> str:
    inner = [
        typer.Context(command, info_name=name, parent=context)
        for name, command in getattr(context.command, "commands", {}).items()
    ]
    parts = [
        _described(context, f"### `{context.command_path}`"),
        *([_listed("Commands", inner)] if inner else []),
    ]
    return "\n\n".join([*parts, *(_described(one, f"#### `{one.command_path}`") for one in inner)])


def _listed(title: str, contexts: Iterable[typer.Context]) -> str:
    """Commands by their full names, each with its own first sentence and a link to where it is described."""
    rows = [
        f"| [`{one.command_path}`](#{one.command_path.replace(' ', '-')}) | {_paragraphs(one)[0]} |"
        for one in contexts
    ]
    return "\n".join([f"| {title} | |", "| --- | --- |", *rows])


def _paragraphs(context: typer.Context) -> list[str]:
    """The help of a command; its first paragraph in one line."""
    first, *others = inspect.cleandoc(context.command.help or "").split("\n\n")
    return [" ".join(first.split()), *others]


def _described(context: typer.Context, heading: str) -> str:
    """One command: its help, how it is called, and its parameters under the headings of `--help`."""
    usage = " ".join([context.command_path, *context.command.collect_usage_pieces(context)])
    panels: dict[str, list[str]] = {"Arguments": [], "Options": []}
    for parameter in context.command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None:
            usual = "Arguments" if parameter.param_type_name == "argument" else "Options"
            panel = getattr(parameter, "rich_help_panel", None) or usual
            panels.setdefault(panel, []).append(f"* `{record[0]}`: {record[1]}")
    listed = [f"**{panel}**\n\n" + "\n".join(lines) for panel, lines in panels.items() if lines]
    return "\n\n".join([heading, *_paragraphs(context), f"```console\n$ {usage}\n```", *listed])


def _top() -> str:
    """The modules by page, and the names at the top of the package."""
    rows = [
        f"| [`{PACKAGE}.{module}`]({name}.md#{PACKAGE}.{module}) | {_docstring(module).splitlines()[0]} |"
        for name, page in REFERENCE.items()
        for module in page.modules
    ]
    table = "\n".join(["| module | holds |", "| --- | --- |", *rows])
    package = importlib.import_module(PACKAGE)
    return "\n\n".join([table, *(_reference(package, name, level=2) for name in _at_the_top())])


def _reference_page(page: ReferencePage) -> str:
    """A page of the reference; names that stand at the top of the package are described there."""
    return "\n\n".join([f"# {page.title}", *map(_module, page.modules)])


def _module(name: str) -> str:
    module = importlib.import_module(f"{PACKAGE}.{name}")
    names = sorted(getattr(module, "__all__", None) or _own_names(module))
    at_the_top = [one for one in names if one in _at_the_top()]
    links = [
        f"- [`{one}`](index.md#{PACKAGE}.{one}){{ #{module.__name__}.{one} }} is described at the top."
        for one in at_the_top
    ]
    described = [_reference(module, one, level=3) for one in names if one not in at_the_top]
    heading = f"## `{module.__name__}` {{ #{module.__name__} }}"
    return "\n\n".join([heading, _docstring(name), *links, *described])


def _reference(module: ModuleType, name: str, *, level: int) -> str:
    """What mkdocstrings replaces by the description of a public name, under a heading of this level."""
    value = getattr(module, name)
    options = [f"heading_level: {level}"]
    if isinstance(value, str) and len(value) > _LONGEST_VALUE:
        # A text is no code: it is described without its value.
        options.append("show_attribute_values: false")
    settings = "".join(f"\n      {option}" for option in options)
    path = f"{module.__name__}.{name}"
    home = str(getattr(value, "__module__", ""))
    if home.endswith(f".{name}"):
        # By its public name, the module of the same name would be described instead.
        return f"[](){{ #{path} }}\n\n::: {home}.{name}\n    options:{settings}"
    return f"::: {path}\n    options:{settings}"


def _at_the_top() -> list[str]:
    return [name for name in importlib.import_module(PACKAGE).__all__ if not name.startswith("_")]


def _docstring(module: str) -> str:
    return (importlib.import_module(f"{PACKAGE}.{module}").__doc__ or "").strip()


def _own_names(module: ModuleType) -> list[str]:
    """The public names of a module without a list of its own."""
    return [
        name
        for name, thing in vars(module).items()
        if not name.startswith("_") and getattr(thing, "__module__", None) == module.__name__
    ]


class Reading(Extension):
    """How pages and docstrings are read beside what Markdown says."""

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802 - the name that Markdown calls
        """Fences stand before blocks of code are looked for (25), links before mkdocs reads them (0)."""
        md.preprocessors.register(_Doctests(md), "site-doctests", 30)
        md.treeprocessors.register(_Translation(md), "site-links", 1)


class _Doctests(Preprocessor):
    """Fences doctests, which Markdown would take for quotations and references."""

    def run(self, lines: list[str]) -> list[str]:
        written: list[str] = []
        fenced = doctest = False
        for line in [*lines, ""]:
            if line.startswith("```"):
                fenced = not fenced
            if not fenced and not doctest and line.startswith(">>> "):
                written.append("```pycon")
                doctest = True
            elif doctest and not line.strip():
                written.append("```")
                doctest = False
            written.append(line)
        return written


class _Translation(Treeprocessor):
    def run(self, root: Element) -> None:
        if _SITE.page is None:
            return
        for element in root.iter():
            name = {"a": "href", "img": "src"}.get(element.tag)
            if name and element.get(name):
                _translate(element, name, _SITE.page)


def _translate(element: Element, name: str, page: str) -> None:
    """Change one link of a page, unless it leads elsewhere or stays on the page."""
    link = urlsplit(element.get(name, ""))
    if link.scheme or link.netloc or not link.path:
        return
    path = posixpath.normpath(posixpath.join(posixpath.dirname(page), link.path))
    address = _SITE.addresses.get(path) or _SITE.addresses.get(f"{path}/README.md")
    if address is not None:
        here = posixpath.dirname(_SITE.addresses[page])
        element.set(name, link._replace(path=posixpath.relpath(address, here or ".")).geturl())
    elif not (ROOT / path).exists():
        _log.warning("%s links to '%s', and there is no such file in the repository", page, link.path)
    elif _SITE.repository:
        kind = "tree" if (ROOT / path).is_dir() else "blob"
        element.set(name, f"{_SITE.repository.rstrip('/')}/{kind}/HEAD/{path}")
    else:
        _name_the_file(element, path)


def _name_the_file(element: Element, path: str) -> None:
    """Say where a file is that the site does not hold."""
    words = "".join(element.itertext())
    element.attrib.clear()
    element.tag = "span"
    if words.strip("/") == path:
        for part in list(element):
            element.remove(part)
        element.text = None
    else:
        last = list(element)[-1] if len(element) else None
        if last is None:
            element.text = f"{element.text or ''} ("
        else:
            last.tail = f"{last.tail or ''} ("
    named = SubElement(element, "code")
    named.text = path
    named.tail = None if words.strip("/") == path else ")"
