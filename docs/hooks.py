"""What plugins do not do for the site; mkdocs calls the functions named `on_...`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import typer.main
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from nbconvert import MarkdownExporter
from typer.cli import get_docs_for_click

from langchain_cfc.cli.commands import app

ROOT = Path(__file__).resolve().parents[1]
# Distributions whose README.md is a page; pages of docs/ describe the companions.
SYSTEMS = ("agents", "langgraph", "langsmith", "openai", "openevals", "ray", "server", "uqlm")
# Pages that only those look for who know that they exist.
UNSEARCHED = ("benchmarks/", "docs/reproduction.md", "integrations/server/RESULTS.md")
# Pages that stand outside docs/, and files that pages show or link to.
OUTSIDE = (
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "benchmarks/*.md",
    "examples/README.md",
    "examples/*/README.md",
    "examples/*/*.png",
    "examples/*/*.toml",
    "integrations/server/Containerfile",
    "integrations/server/compose/*.yaml",
    "langchain_cfc/certificates/cuts.py",
    "integrations/collect/src/langchain_cfc_collect/judged.py",
    "langchain_cfc/certificates/shown_claims.py",
    "langchain_cfc/artifact/batch.py",
    "langchain_cfc/artifact/attempts.py",
    "langchain_cfc/guarantee/paper_pac.py",
    "langchain_cfc/labelers/multiple_choice.py",
    "langchain_cfc/labelers/numeric.py",
    "integrations/README.md",
    *(f"integrations/{name}/README.md" for name in SYSTEMS),
    "integrations/*/RESULTS.md",
)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Make each tab of the navigation a section of llms.txt."""
    sections = {
        title: list(_list_pages(entries)) for tab in config.nav or [] for title, entries in tab.items()
    }
    config.plugins["llmstxt"].config["sections"] = sections
    return config


class Notebook(File):
    """A notebook as a page: mkdocs knows files of Markdown alone as pages."""

    def is_documentation_page(self) -> bool:
        """Return that it is a page."""
        return True


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages outside docs/, and name every page by its path in the repository, as links do."""
    settings = (str(ROOT), config.site_dir, config.use_directory_urls)
    found = []
    for file in files:
        if file.src_dir == config.docs_dir:  # not a file of the theme
            found.append(File(f"docs/{file.src_uri}", *settings, dest_uri=file.dest_uri))
        else:
            found.append(file)
    outside = (path for form in OUTSIDE for path in sorted(ROOT.glob(form)))
    found.extend(File(path.relative_to(ROOT).as_posix(), *settings) for path in outside)
    for path in sorted(ROOT.glob("examples/notebooks/*.ipynb")):
        page, _ = MarkdownExporter().from_filename(str(path))
        found.append(Notebook.generated(config, path.relative_to(ROOT).as_posix(), content=page))
    return Files(found)


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Put in commands where a comment asks for those of a distribution, and leave pages out of the search."""
    del config, files
    if page.file.src_uri.startswith(UNSEARCHED):
        page.meta["search"] = {"exclude": True}
    return re.sub(r"<!-- commands of (\S+) -->", lambda found: describe_commands(found[1]), markdown)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Empty heads of tables are no heads, and no line breaks between a number and its sign of percent."""
    del page, config, files
    html = re.sub(r"<th([^>]*)></th>", r"<td\1></td>", html)
    parts = re.split(r"(<pre.*?</pre>)", html, flags=re.DOTALL)
    parts[::2] = [re.sub(r"(?<=\d) %", "\u00a0%", text) for text in parts[::2]]
    return "".join(parts)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Name what the theme leaves without a name: its dialog of the search, and parts of the navigation."""
    del page, config
    named = output.replace('role="dialog"', 'role="dialog" aria-label="Search"')
    return re.sub(
        r'(<nav class="md-nav" data-md-level="\d") aria-labelledby="\w+"'
        r'([^>]*>\s*<label class="md-nav__title"[^>]*>\s*<span class="md-nav__icon md-icon"></span>\s*)'
        r"([^<]+?)(\s*</label>)",
        r'\1 aria-label="\3"\2\3\4',
        named,
    )


def describe_commands(distribution: str) -> str:
    """Describe each command of a distribution as Markdown, by its help text."""
    brought = {one.name: one.dist.name for one in entry_points(group="langchain_cfc.commands") if one.dist}
    group: Any = typer.main.get_command(app)
    context = typer.Context(group, info_name="langchain-cfc", **group.context_settings)
    return "\n".join(
        get_docs_for_click(
            obj=group.load_command(context, name), ctx=context, indent=1, call_prefix="langchain-cfc"
        )
        for name in group.list_commands(context)
        if brought.get(name, "langchain-cfc") == distribution
    )


def _list_pages(entry: Any) -> Iterator[str]:
    """Yield the paths of the pages of one entry of the navigation."""
    if isinstance(entry, str):
        yield entry
    else:
        for inner in entry.values() if isinstance(entry, dict) else entry:
            yield from _list_pages(inner)
