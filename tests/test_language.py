"""Names and docstrings are plain engineering English: CONTRIBUTING.md, rule 5.

This holds for the package, the integrations, the benchmarks and the examples. It looks for what a program can
see: words of a private language, functions named by a bare participle, and public docstrings of less than six
words. Commands are left out there: their docstrings are help texts. Tests are checked for the same words, and
for names that say too little, too much or leave out what is tested.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
FOLDERS = ("langchain_cfc", "integrations/*/src", "integrations/*/benchmarks", "benchmarks", "examples")
MODULES = sorted(
    path
    for folder in FOLDERS
    for path in REPOSITORY.glob(f"{folder}/**/*.py")
    if "tests" not in path.relative_to(REPOSITORY).parts
)
TEST_FOLDERS = ("tests", "docs/tests", "examples/tests", "integrations/tests", "integrations/*/tests")
TEST_MODULES = sorted(
    path
    for folder in TEST_FOLDERS
    for path in REPOSITORY.glob(f"{folder}/**/*.py")
    if path != Path(__file__)  # it has to spell the words
)
# Tests that replace a test of LangChain's suites, by which they are named.
INHERITED_TESTS = {"test_structured_output", "test_structured_output_async"}
# First words of a test's name that stand for its subject instead of naming it.
PRONOUNS = {"it", "its", "they", "these", "those", "this", "what", "whatever", "which", "whichever", "who"}
# Metaphors and archaisms, as words of docstrings, comments and names.
BANNED = (
    "foretold",
    "whoever",
    "nobody",
    "somebody",
    "anew",
    "hitherto",
    "thereof",
    "wherein",
    "witness",
    "witnessed",
)
WORD = re.compile(r"(?<![a-z])(?:" + "|".join(BANNED) + r")(?![a-z])", re.IGNORECASE)
# Participles that do not end in -ed.
IRREGULAR = {
    "begun",
    "brought",
    "built",
    "chosen",
    "done",
    "drawn",
    "found",
    "given",
    "gone",
    "heard",
    "held",
    "kept",
    "known",
    "laid",
    "left",
    "lent",
    "lost",
    "made",
    "meant",
    "met",
    "paid",
    "proven",
    "said",
    "seen",
    "sent",
    "shown",
    "sold",
    "sought",
    "spent",
    "spoken",
    "stood",
    "taken",
    "taught",
    "thought",
    "told",
    "understood",
    "withheld",
    "won",
    "written",
}
# Nouns and verbs that only look like participles.
VERBS = {"embed", "feed", "need", "proceed", "seed", "speed", "exceed", "shed", "succeed"}


def list_functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield the functions and methods of a module, without properties, which are named like data."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names = {
                ast.unparse(decorator).partition("(")[0].rpartition(".")[2]
                for decorator in node.decorator_list
            }
            if not names & {"property", "cached_property", "setter", "fixture"}:
                yield node


def list_banned_words(source: str) -> list[str]:
    """List where a source uses a banned word, on its own or within a name."""
    return [
        f"line {number}: {found[0]!r} is banned"
        for number, line in enumerate(source.splitlines(), 1)
        for found in WORD.finditer(line)
    ]


def find_fault_of_test_name(name: str) -> str | None:
    """Say what is wrong with the name of a test function, or return None."""
    words = name.split("_")[1:]
    if len(name) > 80:
        return "is longer than 80 characters"
    if len(words) < 3:
        return "has fewer than three words: name what is tested and what must hold"
    if words[0] in PRONOUNS:
        return f"begins with {words[0]!r} instead of what is tested"
    return None


def is_bare_participle(name: str) -> bool:
    """Whether a name is one word, and that word a participle."""
    word = name.strip("_")
    return "_" not in word and word not in VERBS and (word in IRREGULAR or word.endswith("ed"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_module_names_words_and_docstrings_are_plain(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source)
    problems = list_banned_words(source)
    problems += [
        f"line {node.lineno}: {node.name}() is a bare participle; use a verb phrase"
        for node in list_functions(tree)
        if is_bare_participle(node.name)
    ]
    if path.parent.name != "cli" and (not path.name.startswith("_") or path.name == "__init__.py"):
        problems += [f"{name} has a short docstring" for name in short_docstrings(tree)]
    assert not problems


@pytest.mark.parametrize("path", TEST_MODULES, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_modules_of_tests_have_plain_names_and_words(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    problems = list_banned_words(source)
    for node in list_functions(ast.parse(source)):
        if node.name.startswith("test_") and node.name not in INHERITED_TESTS:
            fault = find_fault_of_test_name(node.name)
            problems += [f"line {node.lineno}: {node.name} {fault}"] if fault else []
    assert not problems


def short_docstrings(tree: ast.Module) -> Iterator[str]:
    """Yield the names of public functions and classes whose docstring begins with fewer than six words."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            text = ast.get_docstring(node) or ""
            if len(text.split("\n\n")[0].split()) < 6:
                yield node.name


def test_every_folder_contains_modules() -> None:
    assert all(any(REPOSITORY.glob(f"{folder}/**/*.py")) for folder in (*FOLDERS, *TEST_FOLDERS))


def test_language_checks_find_forbidden_names_and_words() -> None:
    assert is_bare_participle("_told")
    assert is_bare_participle("scored")
    assert not is_bare_participle("score_all")
    assert not is_bare_participle("seed")
    assert WORD.search("Whoever asks")
    assert WORD.search("test_nobody_asks")
    assert not WORD.search("witnesses")
    assert find_fault_of_test_name("test_model_" + "answers_" * 9 + "x") == "is longer than 80 characters"
    assert "fewer than three words" in str(find_fault_of_test_name("test_parsing"))
    assert "begins with 'it'" in str(find_fault_of_test_name("test_it_serves_requests"))
    assert find_fault_of_test_name("test_parse_accepts_text") is None
    told = 'def told():\n    """Words."""\ndef telling():\n    """Return what was told to those who asked."""'
    assert list(short_docstrings(ast.parse(told))) == ["told"]
