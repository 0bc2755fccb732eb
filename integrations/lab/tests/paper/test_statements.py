"""The table "theorem by theorem" of the documentation: what it names exists, and the page holds it."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[4]


@pytest.fixture(scope="module")
def table() -> list[dict[str, str]]:
    rows: list[dict[str, str]] = json.loads((REPOSITORY / "docs" / "paper_statements.json").read_bytes())
    return rows


def test_paper_statements_name_existing_code_and_tests(table: list[dict[str, str]]) -> None:
    for statement, code, test, verdict in map(dict.values, table):
        assert not code or (REPOSITORY / code).is_file(), statement
        assert bool(code) == bool(test), statement
        assert verdict, statement
        if test:
            path, _, name = test.partition("::")
            tree = ast.parse((REPOSITORY / path).read_text(encoding="utf-8"))
            assert name in {one.name for one in ast.walk(tree) if isinstance(one, ast.FunctionDef)}, test


def test_reproduction_page_contains_the_table_of_statements(table: list[dict[str, str]]) -> None:
    page = (REPOSITORY / "docs" / "reproduction.md").read_text(encoding="utf-8")
    for row in table:
        assert f"| {row['statement']} |" in page
        assert f"| {row['verdict']} |" in page
