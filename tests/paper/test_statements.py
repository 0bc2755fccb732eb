"""The table "theorem by theorem" of the documentation: what it names exists, and the page holds it."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from types import ModuleType

import pytest

from tests.scripts import load_module

REPOSITORY = Path(__file__).parents[2]
VERDICTS = ("holds", "false", "reproduced within band", "not reproducible here")


@pytest.fixture(scope="module")
def table() -> ModuleType:
    return load_module(REPOSITORY / "docs" / "paper_statements.py", "paper_statements")


def test_code_and_tests_that_are_named_exist(table: ModuleType) -> None:
    for statement, code, test, verdict in table.STATEMENTS:
        assert not code or (REPOSITORY / "langchain_cfc" / code).is_file(), statement
        assert bool(code) == bool(test), statement
        assert verdict, statement
        if test:
            path, _, name = test.partition("::")
            tree = ast.parse((REPOSITORY / "tests" / path).read_text(encoding="utf-8"))
            assert name in {one.name for one in ast.walk(tree) if isinstance(one, ast.FunctionDef)}, test


def test_every_kind_of_verdict_and_every_numbered_statement_is_there(table: ModuleType) -> None:
    verdicts = [row[3] for row in table.STATEMENTS]
    for kind in VERDICTS:
        assert any(verdict.startswith(kind) for verdict in verdicts), kind
    said = " ".join(row[0] for row in table.STATEMENTS)
    for needed in (
        "Theorem 4.1",
        "Theorem 4.2",
        "Proposition 4.3",
        "Theorem 4.4",
        "Algorithm 1",
        "Algorithm 2",
    ):
        assert needed in said, needed
    for kind, last in (("Table", 13), ("Figure", 6)):
        listed = re.findall(rf"{kind}s? ((?:\d+(?:, | and )?)+)", said)
        assert {int(number) for one in listed for number in re.findall(r"\d+", one)} == set(
            range(1, last + 1)
        )


def test_the_page_holds_the_table(table: ModuleType) -> None:
    page = (REPOSITORY / "docs" / "reproduction.md").read_text(encoding="utf-8")
    for statement, _, _, verdict in table.STATEMENTS:
        assert f"| {statement} |" in page
        assert f"| {verdict} |" in page
