"""The documentation's site: built strictly, every link followed, and nothing fetched from elsewhere."""

from __future__ import annotations

import html
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from unittest import mock
from urllib.parse import unquote, urlsplit

import pytest
import typer.main
from markdown import Markdown

from langchain_cfc.cli.commands import app
from tests.test_public import PROMISED

ROOT = Path(__file__).resolve().parents[1]
# Of processor time: other things may run beside it.
MOST_SECONDS = 60.0
# Attributes that make a browser fetch something, by tag; of links only some kinds do.
FETCHED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href", "object": "data"}
NAMED_ONLY = {"canonical", "prev", "next", "alternate", "edit"}
IN_CSS = re.compile(r"url\(\s*[\"']?([^\"')]+)|@import\s+[\"']([^\"']+)")


@dataclass
class Seen(HTMLParser):
    """What one page holds and asks for."""

    ids: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    fetched: list[str] = field(default_factory=list)
    paragraphs: list[str] = field(default_factory=list)
    styles: list[str] = field(default_factory=list)
    _inside: str = ""

    def __post_init__(self) -> None:
        super().__init__()

    @classmethod
    def of(cls, path: Path) -> Seen:
        page = cls()
        page.feed(path.read_text(encoding="utf-8"))
        page.close()
        return page

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self._inside = tag
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

    def handle_data(self, data: str) -> None:
        if self._inside == "p":
            self.paragraphs[-1] += data
        if self._inside == "style":
            self.styles.append(data)


def build(configuration: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "-f",
        str(configuration),
        "-d",
        str(folder),
    ]
    # The theme prints an announcement about its maker's other work.
    quiet = {"NO_MKDOCS_2_WARNING": "1", "OPENBLAS_NUM_THREADS": "1"}
    return subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=ROOT, env={**os.environ, **quiet}
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("site")
    before = os.times()
    ran = build(ROOT / "mkdocs.yml", folder)
    after = os.times()
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "WARNING" not in ran.stderr
    taken = after.children_user - before.children_user + after.children_system - before.children_system
    assert taken < MOST_SECONDS
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Seen]:
    return {path: Seen.of(path) for path in sorted(site.rglob("*.html"))}


def broken(site: Path, pages: dict[Path, Seen]) -> list[str]:
    """Every link of the pages to a file or an anchor that is not there."""
    found = []
    for path, page in pages.items():
        for link in [*page.links, *page.fetched]:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            if parts.path:
                start = site if parts.path.startswith("/") else path.parent
                target = (start / unquote(parts.path).lstrip("/")).resolve()
            else:
                target = path.resolve()
            target = target / "index.html" if target.is_dir() else target
            there = target.is_relative_to(site.resolve()) and target.is_file()
            anchor = unquote(parts.fragment)
            known = pages.get(site / target.relative_to(site.resolve())) if there else None
            if not there or (anchor and known is not None and anchor not in known.ids):
                found.append(f"{path.relative_to(site)}: {link}")
    return found


def from_elsewhere(site: Path, pages: dict[Path, Seen]) -> list[str]:
    """Whatever pages or style sheets fetch from another host."""
    asked = [(path, link) for path, page in pages.items() for link in page.fetched]
    sheets = [(path, path.read_text(encoding="utf-8")) for path in site.rglob("*.css")]
    sheets += [(path, style) for path, page in pages.items() for style in page.styles]
    asked += [(path, "".join(url)) for path, text in sheets for url in IN_CSS.findall(text)]
    return [f"{path}: {link}" for path, link in asked if urlsplit(link).netloc]


def test_every_link_and_anchor_leads_somewhere(site: Path, pages: dict[Path, Seen]) -> None:
    assert sum(len(page.links) for page in pages.values()) > 1000
    assert not broken(site, pages)


def test_nothing_is_fetched_from_elsewhere(site: Path, pages: dict[Path, Seen]) -> None:
    assert sum(len(page.fetched) for page in pages.values()) > len(pages)
    assert not from_elsewhere(site, pages)


def test_pages_are_read_as_they_were_meant(site: Path, pages: dict[Path, Seen]) -> None:
    # GitHub reads a list or a table also where no empty line stands before it; here it would be running text.
    for path, page in pages.items():
        for paragraph in page.paragraphs:
            lines = paragraph.strip().splitlines()
            odd = [line for line in lines if re.match(r"\s*([-*] \S|\| |\d+\. |>>> |```)", line)]
            assert not odd, f"{path.relative_to(site)}: {odd}"


def all_commands() -> dict[str, str]:
    """The first sentence of every command, by its full name."""
    group: Any = typer.main.get_command(app)
    context = typer.Context(group)
    found = {name: group.load_command(context, name) for name in group.list_commands(context)}
    for name, command in list(found.items()):
        found |= {f"{name} {inner}": one for inner, one in getattr(command, "commands", {}).items()}
    return {name: " ".join(one.help.partition("\n\n")[0].split()) for name, one in found.items()}


def test_every_command_is_described_under_its_full_name(site: Path) -> None:
    page = (site / "command-line" / "index.html").read_text(encoding="utf-8")
    described = re.findall(r'<h\d id="langchain-cfc-([a-z0-9-]+)">.*?</h\d>\s*<p>(.*?)</p>', page, re.DOTALL)
    commands = all_commands()
    assert {"demo", "status", "monitor status", "paper gsm8k"} <= set(commands)
    assert {name: html.unescape(words) for name, words in described} == {
        name.replace(" ", "-"): words for name, words in commands.items()
    }
    # Where commands are listed, each has its own first sentence as well.
    listed = dict(re.findall(r'<td><a href="#langchain-cfc-([a-z0-9-]+)">.*?</td>\s*<td>(.*?)</td>', page))
    for name, words in commands.items():
        assert html.unescape(listed[name.replace(" ", "-")]) == words


def test_every_promised_name_has_its_place(pages: dict[Path, Seen], site: Path) -> None:
    reference = loaded_hooks().REFERENCE
    assert len(reference) <= 8
    page_of = {module: name for name, page in reference.items() for module in page.modules}
    for module, names in PROMISED.items():
        page = page_of.get(module.partition(".")[2], "")
        anchors = pages[site / "api" / page / "index.html"].ids
        assert not {f"{module}.{name}" for name in names} - anchors


def test_every_module_that_users_import_from_is_described() -> None:
    described = {module for page in loaded_hooks().REFERENCE.values() for module in page.modules}
    found = {path.stem for path in (ROOT / "langchain_cfc").iterdir() if path.suffix in {"", ".py"}}
    assert found - described - {"__pycache__"} == {"__init__", "_internal", "cli"}


def test_examples_and_integrations_have_pages(site: Path) -> None:
    for readme in ROOT.glob("*/*/README.md"):
        if readme.parts[-3] in {"examples", "integrations"}:
            assert (site / readme.relative_to(ROOT).parent / "index.html").is_file()


def code_blocks(page: Path) -> list[str]:
    text = page.read_text(encoding="utf-8")
    return [
        html.unescape(re.sub(r"<[^>]+>", "", one)) for one in re.findall(r"<pre.*?</pre>", text, re.DOTALL)
    ]


def test_signatures_are_broken_into_lines(site: Path) -> None:
    blocks = {page: code_blocks(page) for page in (site / "api").rglob("*.html")}
    assert any("calibrate(" in block for block in blocks[site / "api" / "index.html"])
    for page, found in blocks.items():
        assert [line for block in found for line in block.splitlines() if len(line) > 110] == [], page


@pytest.mark.long
def test_the_extra_docs_brings_all_that_the_site_is_built_with(tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    python = str(tmp_path / "venv" / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python"))
    environment = {**os.environ, "PYTHONPATH": "", "NO_MKDOCS_2_WARNING": "1"}
    for command in (
        [python, "-m", "pip", "install", "-q", f"{ROOT}[docs]"],
        [python, "-m", "mkdocs", "build", "--strict", "-d", str(tmp_path / "site")],
    ):
        ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=environment)
        assert ran.returncode == 0, ran.stdout + ran.stderr


def test_functions_are_not_mistaken_for_modules_of_their_name(site: Path) -> None:
    for page in (site / "api").rglob("*.html"):
        assert "doc-symbol-heading doc-symbol-module" not in page.read_text(encoding="utf-8"), page


def test_what_a_function_returns_is_one_item(site: Path) -> None:
    sections = [
        section
        for page in (site / "api").rglob("*.html")
        for section in re.findall(
            r'doc-section-title">(?:Returns|Yields):</span></p>\s*<ul>(.*?)</ul>',
            page.read_text(encoding="utf-8"),
            re.DOTALL,
        )
    ]
    assert len(sections) > 100
    # Lines of one sentence, each with the type before it.
    assert [section for section in sections if section.count("doc-section-item") != 1] == []


def test_the_sidebar_lists_every_example_and_integration(site: Path) -> None:
    for folder in ("examples", "integrations"):
        page = (site / folder / "index.html").read_text(encoding="utf-8")
        sidebar = page.partition('data-md-type="navigation"')[2].partition('data-md-type="toc"')[0]
        for readme in (ROOT / folder).glob("*/README.md"):
            assert f'href="{readme.parent.name}/"' in sidebar, readme


def test_a_build_that_cannot_break_signatures_into_lines_warns(caplog: pytest.LogCaptureFixture) -> None:
    # Which makes a strict build fail.
    hooks = loaded_hooks()
    config = mock.Mock(nav=[], markdown_extensions=[], repo_url=None)
    hooks.on_config(config)
    assert not caplog.records
    with mock.patch.object(hooks, "find_spec", return_value=None):
        hooks.on_config(config)
    assert "install ruff" in caplog.text


def test_the_search_knows_the_pages(site: Path) -> None:
    index = (site / "search" / "search_index.json").read_text(encoding="utf-8")
    assert "CFCRunnable" in index
    assert "not certifiable" in index


def test_the_start_page_begins_as_the_readme_does() -> None:
    # What CI runs of the README is then what readers of the site run.
    block = re.compile(r"```bash\n(.*?)```", re.DOTALL)
    texts = [(ROOT / page).read_text(encoding="utf-8") for page in ("README.md", "docs/index.md")]
    first = [block.findall(text)[0].replace(" && ", "\n").splitlines() for text in texts]
    assert first[0] == first[1]


def loaded_hooks() -> Any:
    """The module docs/hooks.py, each time with a site of its own."""
    found = importlib.util.spec_from_file_location("site_hooks", ROOT / "docs" / "hooks.py")
    assert found is not None
    assert found.loader is not None
    hooks = importlib.util.module_from_spec(found)
    # Data classes look for their module there.
    with mock.patch.dict(sys.modules, {"site_hooks": hooks}):
        found.loader.exec_module(hooks)
    return hooks


def translated(page: str, text: str, repository: str | None = None) -> str:
    """What the hooks make of a text that stands in a page of the repository."""
    hooks = loaded_hooks()
    brought = ["benchmarks/RESULTS.md", "benchmarks/cost.svg", "integrations/ray/README.md"]
    there = {"README.md": "index.md", "docs/serving.md": "serving.md"} | {path: path for path in brought}
    vars(hooks)["_SITE"] = hooks.Site(addresses=there, repository=repository, page=page)
    return Markdown(extensions=["pymdownx.superfences", hooks.Reading()]).convert(text)


@pytest.mark.parametrize(
    ("page", "link", "meant"),
    [
        ("docs/serving.md", "../benchmarks/RESULTS.md#agreement", "benchmarks/RESULTS.md#agreement"),
        ("docs/serving.md", "../integrations/ray", "integrations/ray/README.md"),
        ("integrations/ray/README.md", "../../docs/serving.md", "../../serving.md"),
        ("integrations/ray/README.md", "../../README.md", "../../index.md"),
        ("benchmarks/RESULTS.md", "cost.svg", "cost.svg"),
        ("docs/serving.md", "https://elsewhere.example/../x.md", "https://elsewhere.example/../x.md"),
        ("docs/serving.md", "#results", "#results"),
    ],
)
def test_links_are_translated_to_the_site(page: str, link: str, meant: str) -> None:
    assert f'<a href="{meant}">words</a>' in translated(page, f"[words]({link})")


def test_files_that_are_no_pages_are_named_or_linked() -> None:
    text = "[tests](tests), [`docs/capture.py`](../../docs/capture.py)"
    named = translated("integrations/ray/README.md", text)
    assert "<a" not in named
    assert "tests (<code>integrations/ray/tests</code>)" in named
    assert "<span><code>docs/capture.py</code></span>" in named
    linked = translated("integrations/ray/README.md", text, "https://forge.example/us/it/")
    assert 'href="https://forge.example/us/it/tree/HEAD/integrations/ray/tests"' in linked
    assert 'href="https://forge.example/us/it/blob/HEAD/docs/capture.py"' in linked


def test_a_link_to_nothing_is_said(caplog: pytest.LogCaptureFixture) -> None:
    # A warning, which makes a strict build fail.
    translated("docs/serving.md", "[gone](../nowhere/gone.md)")
    assert "docs/serving.md links to '../nowhere/gone.md'" in caplog.text


def test_doctests_are_shown_as_code() -> None:
    shown = translated("docs/serving.md", "Words:\n\n>>> [0.1, 0.2]\n[0.1, 0.2]\n\nMore.")
    assert "<blockquote>" not in shown
    assert "<p>More.</p>" in shown


# Controls: what the checks above must not let pass.


def small(folder: Path, page: str) -> Path:
    """The site's own settings and hooks, on two small pages."""
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    head, _, _ = settings.partition("\nnav:")
    head = head.replace("docs_dir: docs", f"docs_dir: {folder / 'docs'}").replace(
        "hooks: [docs/hooks.py]", ""
    )
    head = head.replace("extra_css: [site.css]", "")
    (folder / "docs").mkdir()
    (folder / "docs" / "index.md").write_text(f"# Start\n\n{page}\n", encoding="utf-8")
    (folder / "docs" / "other.md").write_text("# Other\n\n## There\n", encoding="utf-8")
    (folder / "mkdocs.yml").write_text(head, encoding="utf-8")
    return folder / "mkdocs.yml"


@pytest.mark.parametrize("link", ["gone.md", "other.md#gone", "/other/", "#gone"])
def test_a_broken_link_fails_the_build(tmp_path: Path, link: str) -> None:
    ran = build(small(tmp_path, f"[a link]({link})"), tmp_path / "site")
    assert ran.returncode != 0
    assert link.rpartition("#")[2] in ran.stderr


@pytest.mark.parametrize("link", ["../gone/", "../other/#gone"])
def test_the_check_finds_what_the_build_does_not_see(tmp_path: Path, link: str) -> None:
    # Links in HTML are not the build's business.
    ran = build(small(tmp_path, f'<a href="{link}">one</a> [good](other.md#there)'), tmp_path / "site")
    assert ran.returncode == 0, ran.stderr
    seen = {path: Seen.of(path) for path in (tmp_path / "site").rglob("*.html")}
    assert broken(tmp_path / "site", seen) == [f"index.html: {link}"]


def test_the_check_finds_what_is_fetched_from_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text(
        '<script src="https://cdn.example/a.js"></script><a href="https://fine.example">words</a>'
        '<p style="background: url(//pictures.example/b.png)">- an item\n- another</p>'
    )
    (tmp_path / "style.css").write_text("@import 'https://fonts.example/c.css'; a { background: url(d.png) }")
    seen = {path: Seen.of(path) for path in tmp_path.rglob("*.html")}
    assert len(from_elsewhere(tmp_path, seen)) == 3
