"""What the reference pages document, signature by signature, against `public_api.txt`.

A change of the public API is a decision: `python -m tests.test_public_api` rewrites the file, and the diff
shows what users will notice and CHANGELOG.md must say.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import unified_diff
from pathlib import Path
from typing import Any

import griffe
import pytest

ROOT = Path(__file__).parents[1]
LISTED = Path(__file__).with_name("public_api.txt")


def list_api() -> list[str]:
    """A line for each public name: its path, parameters with defaults, and bases of classes."""
    package: Any = griffe.load("langchain_cfc", search_paths=[ROOT], resolve_aliases=True)
    pages = "\n".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs/api").glob("*.md"))
    lines: set[str] = set()
    for path in re.findall(r"^::: langchain_cfc\.(\S+)$", pages, re.MULTILINE):
        found = package[path]
        if found.is_module:
            own = [name for name, one in found.members.items() if one.is_public and not one.is_alias]
            names = found.exports or own
            for name in names:
                lines.update(describe(f"{found.path}.{name}", found[str(name)]))
        else:
            lines.update(describe(found.path, found))
    return sorted(lines | {f"langchain_cfc.{name}" for name in package.exports})


def describe(path: str, found: Any) -> Iterator[str]:
    """Lines for a name and, if it is a class, its public members."""
    if found.is_alias and not found.target_path.startswith("langchain_cfc."):
        return  # of another library
    if found.is_function:
        yield f"{path}({', '.join(map(describe_parameter, found.parameters))})"
    elif found.is_class:
        bases = ", ".join(str(base) for base in found.bases)
        yield f"class {path}({bases})"
        for name, member in found.members.items():
            if not name.startswith("_") or name == "__init__":
                yield from describe(f"{path}.{name}", member)
    else:
        yield path


def describe_parameter(parameter: Any) -> str:
    marks = {griffe.ParameterKind.var_positional: "*", griffe.ParameterKind.var_keyword: "**"}
    keyword = "keyword " if parameter.kind is griffe.ParameterKind.keyword_only else ""
    default = "" if parameter.default is None or parameter.kind in marks else f"={parameter.default}"
    return f"{keyword}{marks.get(parameter.kind, '')}{parameter.name}{default}"


@pytest.fixture(scope="module")
def lines() -> list[str]:
    return list_api()


def test_public_api_matches_public_api_txt(lines: list[str]) -> None:
    listed = LISTED.read_text(encoding="utf-8").splitlines()
    changes = list(unified_diff(listed, lines, "listed", "now", n=0, lineterm=""))
    assert not changes, "\n".join(
        [*changes, "If this is meant: python -m tests.test_public_api, and a line in CHANGELOG.md"]
    )


def test_list_api_contains_parameters_defaults_and_members(lines: list[str]) -> None:
    """The control: the list tells parameters, defaults and members apart."""
    assert any("langchain_cfc.evaluation.evaluate(artifact, " in line for line in lines)
    assert any(line.startswith("class langchain_cfc.runnable.CFCRunnable(") for line in lines)
    assert any("keyword " in line and "=None" in line for line in lines)
    assert "langchain_cfc.runnable.CFCResult.abstained" in lines
    assert "langchain_cfc.CFCRunnable" in lines


if __name__ == "__main__":
    LISTED.write_text("\n".join(list_api()) + "\n", encoding="utf-8")
