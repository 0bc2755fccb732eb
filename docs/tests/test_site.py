"""The documentation's site: built strictly, within its limits, and nothing fetched from elsewhere."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import typer.main

from integrations.lab.tests.report.browser import running
from langchain_cfc.cli.commands import app
from tests.test_public import PROMISED

ROOT = Path(__file__).resolve().parents[2]
MOST_PAGES, MOST_WORDS, MOST_WORDS_OF_A_PAGE = 36, 70_000, 2_500
# Attributes that make a browser fetch something, by tag; of links only some kinds do.
FETCHED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href", "object": "data"}
NAMED_ONLY = {"canonical", "prev", "next", "alternate", "edit"}
IN_CSS = re.compile(r"url\(\s*[\"']?([^\"')]+)|@import\s+[\"']([^\"']+)")


@dataclass
class ParsedPage(HTMLParser):
    """The contents of one page, and what it requests."""

    ids: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    fetched: list[str] = field(default_factory=list)
    paragraphs: list[str] = field(default_factory=list)
    styles: list[str] = field(default_factory=list)
    words: int = 0
    _inside: str = ""
    _in_article: bool = False

    def __post_init__(self) -> None:
        super().__init__()

    @classmethod
    def of(cls, path: Path) -> ParsedPage:
        page = cls()
        page.feed(path.read_text(encoding="utf-8"))
        page.close()
        return page

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self._inside = tag
        self._in_article |= tag == "article"
        self.ids |= {given[name] for name in ("id", "name") if given.get(name) and tag != "meta"}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag in FETCHED and given.get(FETCHED[tag]) and not set(given.get("rel", "").split()) & NAMED_ONLY:
            self.fetched.append(given[FETCHED[tag]])
        if tag == "p":
            self.paragraphs.append("")
        self.styles.append(given.get("style", ""))

    def handle_endtag(self, tag: str) -> None:
        self._inside = "" if tag == self._inside else self._inside
        self._in_article &= tag != "article"

    def handle_data(self, data: str) -> None:
        if self._inside == "p":
            self.paragraphs[-1] += data
        if self._inside == "style":
            self.styles.append(data)
        elif self._in_article:
            self.words += len(data.replace("¶", "").split())  # the sign of a permanent link


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    # The theme prints an announcement about its maker's other work.
    quiet = {"NO_MKDOCS_2_WARNING": "1", "OPENBLAS_NUM_THREADS": "1"}
    ran = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(folder)],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, **quiet},
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "WARNING" not in ran.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, ParsedPage]:
    return {path: ParsedPage.of(path) for path in sorted(site.rglob("*.html"))}


def find_external_fetches(site: Path, pages: dict[Path, ParsedPage]) -> list[str]:
    """Whatever pages or style sheets fetch from another host."""
    asked = [(path, link) for path, page in pages.items() for link in page.fetched]
    sheets = [(path, path.read_text(encoding="utf-8")) for path in site.rglob("*.css")]
    sheets += [(path, style) for path, page in pages.items() for style in page.styles]
    asked += [(path, "".join(url)) for path, text in sheets for url in IN_CSS.findall(text)]
    return [f"{path}: {link}" for path, link in asked if urlsplit(link).netloc]


@pytest.mark.long
def test_site_fetches_nothing_from_other_hosts(site: Path, pages: dict[Path, ParsedPage]) -> None:
    assert sum(len(page.fetched) for page in pages.values()) > len(pages)
    assert not find_external_fetches(site, pages)


def test_find_external_fetches_sees_scripts_and_styles(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text(
        '<script src="https://cdn.example/a.js"></script><a href="https://fine.example">words</a>'
        '<p style="background: url(//pictures.example/b.png)">- an item\n- another</p>'
    )
    (tmp_path / "style.css").write_text("@import 'https://fonts.example/c.css'; a { background: url(d.png) }")
    seen = {path: ParsedPage.of(path) for path in tmp_path.rglob("*.html")}
    assert len(find_external_fetches(tmp_path, seen)) == 3


@pytest.mark.long
def test_site_keeps_its_limits(site: Path, pages: dict[Path, ParsedPage]) -> None:
    # The reference is written by docstrings and help texts, and results by benchmarks.
    written = {
        path.parent.relative_to(site).as_posix(): page.words
        for path, page in pages.items()
        if page.words and not {"api", "benchmarks", "RESULTS"} & set(path.relative_to(site).parts)
    }
    assert len(written) <= MOST_PAGES, sorted(written)
    assert sum(written.values()) <= MOST_WORDS
    assert {name: words for name, words in written.items() if words > MOST_WORDS_OF_A_PAGE} == {}


@pytest.mark.long
def test_site_pages_render_lists_and_tables(site: Path, pages: dict[Path, ParsedPage]) -> None:
    # GitHub reads a list or a table also where no empty line stands before it; here it would be running text.
    for path, page in pages.items():
        for paragraph in page.paragraphs:
            lines = paragraph.strip().splitlines()
            odd = [line for line in lines if re.match(r"\s*([-*] \S|\| |\d+\. |>>> |```)", line)]
            assert not odd, f"{path.relative_to(site)}: {odd}"


def list_commands() -> Iterator[tuple[str, str]]:
    """The full name of every command, and its first sentence."""
    group: Any = typer.main.get_command(app)
    context = typer.Context(group)
    for name in group.list_commands(context):
        command = group.load_command(context, name)
        inner = {f"{name}-{one}": below for one, below in getattr(command, "commands", {}).items()}
        for full, one in {name: command, **inner}.items():
            yield full, " ".join(one.help.partition("\n\n")[0].split())


@pytest.mark.long
def test_site_describes_every_command(site: Path) -> None:
    # One page for the commands of the core, and one for each distribution that brings others.
    texts = [path.read_text(encoding="utf-8") for path in (site / "api").glob("command-line*/index.html")]
    assert len(texts) == 5
    page = "".join(texts)
    described = re.findall(r'<h\d id="langchain-cfc-([a-z0-9-]+)">.*?</h\d>\s*<p>(.*?)</p>', page, re.DOTALL)
    commands = dict(list_commands())
    assert {"demo", "store-status", "monitor-status"} <= set(commands)
    assert {name: " ".join(html.unescape(words).split()) for name, words in described} == commands


@pytest.mark.long
def test_site_documents_every_promised_name(pages: dict[Path, ParsedPage], site: Path) -> None:
    places = {anchor: path for path, page in pages.items() if path.parts[-3] == "api" for anchor in page.ids}
    promised = dict(PROMISED)
    short = promised.pop("langchain_cfc")
    assert not {f"{module}.{name}" for module, names in promised.items() for name in names} - set(places)
    # The index links to the names at the top of the package, each described with its module.
    links = pages[site / "api" / "index.html"].links
    assert not short - {link.rpartition(".")[2] for link in links if "#langchain_cfc." in link}


def test_api_pages_describe_every_public_module() -> None:
    described = set()
    for path in (ROOT / "docs" / "api").glob("*.md"):
        names = set(re.findall(r"^::: langchain_cfc\.(\w+)", path.read_text(encoding="utf-8"), re.MULTILINE))
        assert names <= {path.stem}  # one page a module
        described |= names
    found = {path.stem for path in (ROOT / "langchain_cfc").iterdir() if path.suffix in {"", ".py"}}
    assert found - described - {"__pycache__"} == {"__init__", "support", "cli"}


@pytest.mark.long
def test_search_leaves_out_benchmarks_and_reproduction(site: Path) -> None:
    entries = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))["docs"]
    found = {entry["location"].partition("#")[0] for entry in entries}
    assert "your-own-data/" in found
    assert not {
        one for one in found if re.match("benchmarks/|reproduction/|integrations/server/RESULTS", one)
    }


@pytest.mark.long
def test_llms_txt_lists_every_page_as_markdown(site: Path, pages: dict[Path, ParsedPage]) -> None:
    text = (site / "llms.txt").read_text(encoding="utf-8")
    assert text.startswith("# langchain-cfc\n\n> ")
    listed = re.findall(r"^- \[.+?\]\(/(.+?)\)", text, re.MULTILINE)
    assert set(listed) == {path.relative_to(site).with_suffix(".md").as_posix() for path in pages} - {
        "404.md"
    }
    for page in listed:
        content = (site / page).read_text(encoding="utf-8")
        assert re.search(r"^# ", content, re.MULTILINE), page
        assert not re.search(r"</?(div|h\d|p)\b", re.sub(r"`[^`]*`", "", content)), page


# Pages of each kind: text, tables, figures, a notebook, code, the reference, lists of commands.
LOOKED_AT = (
    *(".", "your-own-data", "how-it-works", "guarantees", "tutorial", "faq", "examples/notebooks/quickstart"),
    *("collecting", "serving", "integrations/server", "api", "api/runnable", "api/command-line"),
)


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The code of axe-core, which finds what people with a keyboard or a screen reader cannot use."""
    if not shutil.which("npm"):
        pytest.skip("axe-core comes from npm")
    folder = tmp_path_factory.mktemp("axe")
    install = ["npm", "install", "--silent", "--no-audit", "--no-fund", "axe-core@4"]
    subprocess.run(install, cwd=folder, check=True)
    return (folder / "node_modules" / "axe-core" / "axe.min.js").read_text(encoding="utf-8")


def find_violations(page: Any, path: Path, axe: str) -> list[str]:
    page.goto(path.as_uri())
    page.evaluate(axe)
    found = page.evaluate("axe.run()")["violations"]
    return [f"{path}: {one['id']} {one['nodes'][0]['html'][:200]}" for one in found]


@pytest.mark.long
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_site_is_accessible_and_fits_its_screen(site: Path, axe: str, width: int, scheme: Any) -> None:
    with running() as chromium:
        page = chromium.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        for name in LOOKED_AT:
            assert find_violations(page, site / name / "index.html", axe) == []
            assert page.evaluate("document.documentElement.scrollWidth") <= width, name


@pytest.mark.long
def test_control_axe_finds_a_dialog_without_a_name(tmp_path: Path, axe: str) -> None:
    (tmp_path / "index.html").write_text('<div role="dialog">words</div>', encoding="utf-8")
    with running() as chromium:
        found = find_violations(chromium.new_page(), tmp_path / "index.html", axe)
    assert any("aria-dialog-name" in one for one in found)


def test_start_page_begins_with_the_commands_of_the_readme() -> None:
    # What CI runs of the README is then what readers of the site run.
    block = re.compile(r"```bash\n(.*?)```", re.DOTALL)
    texts = [(ROOT / page).read_text(encoding="utf-8") for page in ("README.md", "docs/index.md")]
    first = [block.findall(text)[0].replace(" && ", "\n").splitlines() for text in texts]
    assert first[0] == first[1]
