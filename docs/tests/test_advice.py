"""Pages, help texts and messages advise no option that does not exist.

The examples of pages are run by `tests/pages.py`; here are the commands that no test runs, and the options
that sentences and messages name.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import shlex
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer.main

from langchain_cfc.cli.commands import app
from tests.test_public import PROMISED

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "examples/**/*.md", "integrations/*/*.md", "docs/langchain/*.mdx")
    for path in ROOT.glob(pattern)
    if path.name != "CHANGELOG.md"  # it also names what is gone
)
MODULES = sorted([*ROOT.glob("langchain_cfc/**/*.py"), *ROOT.glob("integrations/*/src/**/*.py")])
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
# Options of scripts of the repository, of podman and of promptfoo, which sentences name.
FOREIGN = {"--output", "--base-url", "--build-arg", "--questions", "--folder", "--chain", "--artifact"}
COMPANIONS = ("langchain_cfc_collect", "langchain_cfc_lab", "langchain_cfc_monitor")


@cache
def list_flags() -> dict[str, set[str]]:
    """The options of every command by its full name."""
    group: Any = typer.main.get_command(app)
    context = typer.Context(group)
    commands = {name: group.load_command(context, name) for name in group.list_commands(context)}
    for name, command in list(commands.items()):
        commands |= {f"{name} {inner}": one for inner, one in getattr(command, "commands", {}).items()}
    return {
        name: {flag for one in command.params for flag in (*one.opts, *one.secondary_opts)} | {"--help", "-h"}
        for name, command in commands.items()
    }


def find_commands(text: str) -> Iterator[list[str]]:
    """The words of each `langchain-cfc` command in blocks of a shell and in code within sentences."""
    blocks = re.findall(r"^```(?:bash|shell|text)[^\n]*\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    codes = re.findall(r"`([^`\n]+)`", text)
    named = [f"langchain-cfc {code}" for code in codes if code.partition(" ")[0] in list_flags()]
    for code in [*lines, *codes, *named]:
        for part in re.split(r"&&|\|\||[|>;#]", code):
            words = re.sub(r"^\S*bin/", "", part.strip())
            if words.startswith("langchain-cfc "):
                try:
                    yield shlex.split(words)[1:]
                except ValueError:  # the beginning of a line that goes on elsewhere
                    yield words.split()[1:]


def find_unknown_options(text: str) -> list[str]:
    """Commands that do not exist, and options that their command does not have."""
    known = list_flags()
    found = []
    for words in find_commands(text):
        name = " ".join(words[:2]) if " ".join(words[:2]) in known else words[0]
        if re.fullmatch(r"[a-z]+", name) and name not in known:
            found.append(f"no command {name}")
        found += [
            f"{name} {flag}"
            for flag in (word.partition("=")[0] for word in words if FLAG.match(word))
            if name in known and flag not in known[name]
        ]
    everywhere = set().union(*known.values()) | FOREIGN
    sentences = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    sentences = re.sub(r"`([^`\n]+)`", lambda code: code[1] if code[1].startswith("--") else "", sentences)
    return found + [flag for flag in FLAG.findall(sentences) if flag not in everywhere]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_page_advises_only_commands_and_options_that_exist(page: Path) -> None:
    assert find_unknown_options(page.read_text(encoding="utf-8")) == []


def list_strings(path: Path) -> Iterator[str]:
    """Docstrings and other texts of a module, with the constant parts of f-strings."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_texts_of_the_packages_advise_only_options_that_exist() -> None:
    found = {
        f"{path.relative_to(ROOT)}: {problem}"
        for path in MODULES
        for text in list_strings(path)
        if " " in text.strip()  # no key of a table
        for problem in find_unknown_options(text)
    }
    assert found == set()


@cache
def list_public() -> dict[str, Callable[..., Any]]:
    """Public functions and classes by name: those of the core, of `extend` and of the companions."""
    modules = [*PROMISED, "langchain_cfc.extend", *COMPANIONS]
    found = {}
    for name in modules:
        module = importlib.import_module(name)
        for one in getattr(module, "__all__", PROMISED.get(name, ())):
            member = getattr(module, one)
            if callable(member):
                found[one] = member
    return found


def find_unknown_keywords(text: str) -> list[str]:
    """Keywords of calls in code within sentences that the public function of that name does not take."""
    found = []
    for code in re.findall(r"`([^`\n]+\))`", text):
        try:
            tree = ast.parse(code.replace("(...,", "(").replace(", ...)", ")"), mode="eval")
        except SyntaxError:
            continue
        for call in ast.walk(tree):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name | ast.Attribute):
                name = call.func.id if isinstance(call.func, ast.Name) else call.func.attr
                if (public := list_public().get(name)) is None:
                    continue
                parameters = inspect.signature(public).parameters
                if not any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
                    found += [
                        f"{name}({one.arg}=)"
                        for one in call.keywords
                        if one.arg and one.arg not in parameters
                    ]
    return found


def test_sentences_name_only_keywords_that_exist() -> None:
    texts = {path: [path.read_text(encoding="utf-8")] for path in PAGES}
    texts |= {path: list(list_strings(path)) for path in MODULES}
    found = {
        f"{path.relative_to(ROOT)}: {problem}"
        for path, of_path in texts.items()
        for text in of_path
        for problem in find_unknown_keywords(text)
    }
    assert found == set()


# Options that were given up, by names with no other meaning: a sentence may name one without a call.
GIVEN_UP = re.compile(
    r"\b(certification_fraction|within_clusters|threshold_rule|never_empty|given_drawn|max_answers|min_agreement)\b"
)


def test_texts_of_the_packages_name_no_given_up_option() -> None:
    assert GIVEN_UP.search("raise certification_fraction, or add more records")
    found = {
        f"{path.relative_to(ROOT)}: {text}"
        for path in MODULES
        for text in list_strings(path)
        if " " in text.strip() and GIVEN_UP.search(text)
    }
    assert found == set()


def test_control_given_up_options_are_found() -> None:
    assert find_unknown_options("Use `langchain-cfc calibrate r.jsonl --cap 2`.") == ["calibrate --cap"]
    assert find_unknown_options("Use `evaluate --cap 2`.") == ["evaluate --cap"]
    assert find_unknown_options("```bash\nlangchain-cfc status a.db\n```") == ["no command status"]
    assert find_unknown_options("Pass --threshold-rule.") == ["--threshold-rule"]
    assert find_unknown_keywords("Use `calibrate(records, ridge=0.1)`.") == ["calibrate(ridge=)"]
    assert find_unknown_keywords("Use `calibrate(..., max_wrong_rate=0.1)`.") == []
