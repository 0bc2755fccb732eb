"""What plugins do not do for the site; mkdocs calls the functions named `on_...`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from nbconvert import MarkdownExporter

ROOT = Path(__file__).resolve().parents[1]
# Distributions whose README.md is a page; pages of docs/ describe the companions.
SYSTEMS = ("agents", "langgraph", "langsmith", "openai", "openevals", "ray", "server", "uqlm")
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
    "langchain_cfc/certificates/judged.py",
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


def _list_pages(entry: Any) -> Iterator[str]:
    """Yield the paths of the pages of one entry of the navigation."""
    if isinstance(entry, str):
        yield entry
    else:
        for inner in entry.values() if isinstance(entry, dict) else entry:
            yield from _list_pages(inner)
