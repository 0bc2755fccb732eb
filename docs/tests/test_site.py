"""The documentation's site: built strictly, every link followed, and nothing fetched from elsewhere."""

from __future__ import annotations

import functools
import html
import os
import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
import typer.main

from integrations.lab.tests.report import browser
from langchain_cfc.cli.commands import app
from tests.test_public import PROMISED

ROOT = Path(__file__).resolve().parents[2]
# Of processor time: other things may run beside it.
MOST_SECONDS = 60.0
# Attributes that make a browser fetch something, by tag; of links only some kinds do.
FETCHED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href", "object": "data"}
NAMED_ONLY = {"canonical", "prev", "next", "alternate", "edit"}
FOUND_FIRST = {
    "hallucination": "/faq/",
    "install": "/install/",
    "abstain": "/faq/",
    "verifier": "/verifiers/",
    "monitor": "/monitoring/",
    "CFCRunnable": "/api/serving/",
    "langgraph": "/integrations/langgraph/",
}
IN_CSS = re.compile(r"url\(\s*[\"']?([^\"')]+)|@import\s+[\"']([^\"']+)")


@dataclass
class ParsedPage(HTMLParser):
    """The contents of one page, and what it requests."""

    ids: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    fetched: list[str] = field(default_factory=list)
    paragraphs: list[str] = field(default_factory=list)
    styles: list[str] = field(default_factory=list)
    _inside: str = ""

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


# Pages as Markdown, which llms.txt links to, take half of the time: most tests do without their text.
WITHOUT_MARKDOWN = """
from mkdocs.__main__ import cli
from mkdocs_llmstxt._internal import plugin
assert plugin._generate_page_markdown
plugin._generate_page_markdown = lambda html, **_: html
cli()
"""


def build(
    configuration: Path, folder: Path, program: Sequence[str] = ("-c", WITHOUT_MARKDOWN)
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *program, "build", "--strict", "-f", str(configuration), "-d", str(folder)]
    # The theme prints an announcement about its maker's other work.
    quiet = {"NO_MKDOCS_2_WARNING": "1", "OPENBLAS_NUM_THREADS": "1"}
    return subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=ROOT, env={**os.environ, **quiet}
    )


def check_built(ran: subprocess.CompletedProcess[str]) -> None:
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "WARNING" not in ran.stderr


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("site")
    check_built(build(ROOT / "mkdocs.yml", folder))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, ParsedPage]:
    return {path: ParsedPage.of(path) for path in sorted(site.rglob("*.html"))}


@contextmanager
def serve_folder(folder: Path) -> Iterator[str]:
    """Serve a folder over HTTP: browsers run no worker, and so no search, from files."""
    handler = functools.partial(QuietHandler, directory=folder)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Keep requests out of the test's output."""


def find_broken_links(site: Path, pages: dict[Path, ParsedPage]) -> list[str]:
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


def find_external_fetches(site: Path, pages: dict[Path, ParsedPage]) -> list[str]:
    """Whatever pages or style sheets fetch from another host."""
    asked = [(path, link) for path, page in pages.items() for link in page.fetched]
    sheets = [(path, path.read_text(encoding="utf-8")) for path in site.rglob("*.css")]
    sheets += [(path, style) for path, page in pages.items() for style in page.styles]
    asked += [(path, "".join(url)) for path, text in sheets for url in IN_CSS.findall(text)]
    return [f"{path}: {link}" for path, link in asked if urlsplit(link).netloc]


@pytest.mark.long
def test_site_has_no_broken_links_or_anchors(site: Path, pages: dict[Path, ParsedPage]) -> None:
    assert sum(len(page.links) for page in pages.values()) > 1000
    assert not find_broken_links(site, pages)


@pytest.mark.long
def test_site_fetches_nothing_from_other_hosts(site: Path, pages: dict[Path, ParsedPage]) -> None:
    assert sum(len(page.fetched) for page in pages.values()) > len(pages)
    assert not find_external_fetches(site, pages)


@pytest.mark.long
def test_site_pages_render_lists_and_tables(site: Path, pages: dict[Path, ParsedPage]) -> None:
    # GitHub reads a list or a table also where no empty line stands before it; here it would be running text.
    for path, page in pages.items():
        for paragraph in page.paragraphs:
            lines = paragraph.strip().splitlines()
            odd = [line for line in lines if re.match(r"\s*([-*] \S|\| |\d+\. |>>> |```)", line)]
            assert not odd, f"{path.relative_to(site)}: {odd}"


def list_commands() -> dict[str, str]:
    """The first sentence of every command, by its full name."""
    group: Any = typer.main.get_command(app)
    context = typer.Context(group)
    found = {name: group.load_command(context, name) for name in group.list_commands(context)}
    for name, command in list(found.items()):
        found |= {f"{name} {inner}": one for inner, one in getattr(command, "commands", {}).items()}
    return {name: " ".join(one.help.partition("\n\n")[0].split()) for name, one in found.items()}


@pytest.mark.long
def test_site_describes_every_command(site: Path) -> None:
    page = (site / "command-line" / "index.html").read_text(encoding="utf-8")
    described = re.findall(r'<h\d id="langchain-cfc-([a-z0-9-]+)">.*?</h\d>\s*<p>(.*?)</p>', page, re.DOTALL)
    commands = list_commands()
    assert {"demo", "status", "monitor status", "paper gsm8k"} <= set(commands)
    assert {name: " ".join(html.unescape(words).split()) for name, words in described} == {
        name.replace(" ", "-"): words for name, words in commands.items()
    }


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
    pages = [path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "api").glob("*.md")]
    assert len(pages) <= 10
    described = {
        name for page in pages for name in re.findall(r"^::: langchain_cfc\.(\w+)", page, re.MULTILINE)
    }
    found = {path.stem for path in (ROOT / "langchain_cfc").iterdir() if path.suffix in {"", ".py"}}
    assert found - described - {"__pycache__"} == {"__init__", "support", "cli"}


@pytest.mark.long
def test_site_shows_doctests_as_code(site: Path) -> None:
    shown = [path.read_text(encoding="utf-8") for path in (site / "api").rglob("*.html")]
    assert sum(page.count("&gt;&gt;&gt; ") for page in shown) > 20
    # Outside a section "Examples", Markdown takes `>>>` for a quotation.
    assert not any("<blockquote>" in page for page in shown)


@pytest.mark.long
def test_site_has_a_page_per_example_and_integration(site: Path) -> None:
    for readme in ROOT.glob("*/*/README.md"):
        if readme.parts[-3] in {"examples", "integrations"}:
            assert (site / readme.relative_to(ROOT).parent / "index.html").is_file()


def find_code_blocks(page: Path) -> list[str]:
    text = page.read_text(encoding="utf-8")
    return [
        html.unescape(re.sub(r"<[^>]+>", "", one)) for one in re.findall(r"<pre.*?</pre>", text, re.DOTALL)
    ]


@pytest.mark.long
def test_site_breaks_long_signatures_into_lines(site: Path) -> None:
    blocks = {page: find_code_blocks(page) for page in (site / "api").rglob("*.html")}
    assert any("calibrate(" in block for block in blocks[site / "api" / "calibration" / "index.html"])
    for page, found in blocks.items():
        assert [line for block in found for line in block.splitlines() if len(line) > 110] == [], page


@pytest.mark.long
def test_docs_extra_suffices_to_build_the_site(tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    python = str(tmp_path / "venv" / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python"))
    environment = {**os.environ, "PYTHONPATH": "", "NO_MKDOCS_2_WARNING": "1"}
    for command in (
        [python, "-m", "pip", "install", "-q", f"{ROOT}[docs]"],
        [python, "-m", "mkdocs", "build", "--strict", "-d", str(tmp_path / "site")],
    ):
        ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=environment)
        assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.long
def test_site_documents_functions_and_not_modules_of_their_name(site: Path) -> None:
    for page in (site / "api").rglob("*.html"):
        headings = re.findall(
            r"<h([2-6]) id=\"([\w.]+)\".{0,200}?doc-symbol-(\w+)\"", page.read_text(), re.DOTALL
        )
        assert [name for level, name, kind in headings if kind == "module" and level != "2"] == [], page


@pytest.mark.long
def test_site_shows_return_values_as_one_item(site: Path) -> None:
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


@pytest.mark.long
def test_site_tabs_and_examples_are_in_order(site: Path) -> None:
    page = (site / "index.html").read_text(encoding="utf-8")
    tabs = re.findall(r'class="md-tabs__link">\s*(.*?)\s*<', page, re.DOTALL)
    assert tabs == ["Get started", "Tutorials", "How-to", "Concepts", "Reference", "Research"]
    sidebar = (site / "examples" / "index.html").read_text(encoding="utf-8")
    sidebar = sidebar.partition('data-md-type="navigation"')[2].partition('data-md-type="toc"')[0]
    index = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
    order = re.findall(r"^\| \[\w+\]\((\w+)/README\.md\)", index, re.MULTILINE)
    assert {path.parent.name for path in (ROOT / "examples").glob("*/README.md")} == set(order)
    assert re.findall(r'href="(\w+)/"', sidebar) == order


@pytest.mark.long
def test_site_sidebar_lists_every_integration(site: Path) -> None:
    page = (site / "integrations" / "index.html").read_text(encoding="utf-8")
    sidebar = page.partition('data-md-type="navigation"')[2].partition('data-md-type="toc"')[0]
    for readme in (ROOT / "integrations").glob("*/README.md"):
        assert f'href="{readme.parent.name}/"' in sidebar, readme


def check_llms_txt(site: Path, pages: Iterable[Path]) -> list[Path]:
    """Return the pages as Markdown, which are those of the site."""
    text = (site / "llms.txt").read_text(encoding="utf-8")
    assert text.startswith("# langchain-cfc\n\n> ")
    listed = re.findall(r"^- \[.+?\]\(/(.+?)\)", text, re.MULTILINE)
    expected = {path.relative_to(site).with_suffix(".md").as_posix() for path in pages} - {"404.md"}
    assert set(listed) == expected
    found = [site / page for page in listed]
    assert [page for page in found if not page.stat().st_size] == []
    return found


@pytest.mark.long
def test_llms_txt_lists_every_page(site: Path, pages: dict[Path, ParsedPage]) -> None:
    check_llms_txt(site, pages)


@pytest.mark.long
def test_pages_of_llms_txt_are_markdown(tmp_path: Path) -> None:
    before = os.times()
    check_built(build(ROOT / "mkdocs.yml", tmp_path, ["-m", "mkdocs"]))
    after = os.times()
    taken = after.children_user - before.children_user + after.children_system - before.children_system
    assert taken < MOST_SECONDS
    for page in check_llms_txt(tmp_path, tmp_path.rglob("*.html")):
        text = page.read_text(encoding="utf-8")
        assert re.search(r"^# ", text, re.MULTILINE), page
        assert not re.search(r"</?(div|h\d|p)\b", re.sub(r"`[^`]*`", "", text)), page


@pytest.mark.long
def test_search_index_contains_the_pages(site: Path) -> None:
    index = (site / "search" / "search_index.json").read_text(encoding="utf-8")
    assert "CFCRunnable" in index
    assert "not certifiable" in index


@pytest.mark.long
def test_search_finds_the_right_page_first(site: Path) -> None:
    with serve_folder(site) as address, browser.running() as chromium:
        page = chromium.new_page()
        page.goto(address)
        found = {}
        for words in FOUND_FIRST:
            page.fill(".md-search__input", "")
            page.wait_for_selector(".md-search-result__item", state="detached")
            page.click(".md-search__input")
            page.keyboard.type(words)
            page.wait_for_selector(".md-search-result__item", timeout=30_000)
            page.wait_for_timeout(1000)  # results of a word half typed come first
            first = page.locator(".md-search-result__item > a").first
            found[words] = urlsplit(first.get_attribute("href") or "").path
    assert found == FOUND_FIRST


def test_start_page_begins_with_the_commands_of_the_readme() -> None:
    # What CI runs of the README is then what readers of the site run.
    block = re.compile(r"```bash\n(.*?)```", re.DOTALL)
    texts = [(ROOT / page).read_text(encoding="utf-8") for page in ("README.md", "docs/index.md")]
    first = [block.findall(text)[0].replace(" && ", "\n").splitlines() for text in texts]
    assert first[0] == first[1]


# Controls: what the checks above must not let pass.


def make_small_site(folder: Path, page: str) -> Path:
    """The site's own settings and hooks, on two small pages."""
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    head, _, _ = settings.partition("\nnav:")
    head = head.replace("docs_dir: docs", f"docs_dir: {folder / 'docs'}").replace(
        "hooks: [docs/hooks.py]", ""
    )
    head = head.replace("extra_css: [site.css]", "")
    head = re.sub(r"^watch: .*$", "", head, flags=re.MULTILINE)
    (folder / "docs").mkdir()
    (folder / "docs" / "index.md").write_text(f"# Start\n\n{page}\n", encoding="utf-8")
    (folder / "docs" / "other.md").write_text("# Other\n\n## There\n", encoding="utf-8")
    (folder / "mkdocs.yml").write_text(head, encoding="utf-8")
    return folder / "mkdocs.yml"


@pytest.mark.long
def test_broken_links_fail_the_build(tmp_path: Path) -> None:
    links = ["gone.md", "other.md#away", "/elsewhere/", "#missing"]
    ran = build(make_small_site(tmp_path, " ".join(f"[a link]({link})" for link in links)), tmp_path / "site")
    assert ran.returncode != 0
    assert f"{len(links)} warnings in strict mode" in ran.stdout + ran.stderr
    for link in links:
        assert link.rpartition("#")[2] in ran.stderr


@pytest.mark.long
def test_find_broken_links_sees_links_in_html(tmp_path: Path) -> None:
    # Links in HTML are not the build's business.
    links = ["../gone/", "../other/#gone"]
    unseen = " ".join(f'<a href="{link}">one</a>' for link in links)
    ran = build(make_small_site(tmp_path, f"{unseen} [good](other.md#there)"), tmp_path / "site")
    assert ran.returncode == 0, ran.stderr
    seen = {path: ParsedPage.of(path) for path in (tmp_path / "site").rglob("*.html")}
    assert find_broken_links(tmp_path / "site", seen) == [f"index.html: {link}" for link in links]


def test_find_external_fetches_sees_scripts_and_styles(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text(
        '<script src="https://cdn.example/a.js"></script><a href="https://fine.example">words</a>'
        '<p style="background: url(//pictures.example/b.png)">- an item\n- another</p>'
    )
    (tmp_path / "style.css").write_text("@import 'https://fonts.example/c.css'; a { background: url(d.png) }")
    seen = {path: ParsedPage.of(path) for path in tmp_path.rglob("*.html")}
    assert len(find_external_fetches(tmp_path, seen)) == 3
