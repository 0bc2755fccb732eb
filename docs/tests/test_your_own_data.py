"""The page "Your own data": its outputs are those of its commands, with recorded answers of a real model."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from examples.tests.quotations import Quotations, find_missing_parts, quote_outputs
from tests import pages

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "your-own-data.md").read_text(encoding="utf-8")
# Invisible blocks are run, too.
BLOCKS = re.findall(
    r"^(?:```|<!--- invisible-code-block: )(\w+)\n(.*?)^(?:```|-->)$", PAGE, re.DOTALL | re.MULTILINE
)


@pytest.fixture(scope="module")
def quotations() -> Iterator[Quotations]:
    namespace: dict[str, Any] = {}
    pages._set_up(namespace)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("COLUMNS", "80")
            yield quote_outputs(BLOCKS)
    finally:
        pages._tear_down(namespace)


def test_your_own_data_quotes_the_output_of_its_commands(quotations: Quotations) -> None:
    assert len(quotations) == 5
    for command, printed, quoted in quotations:
        assert find_missing_parts(quoted, printed) == [], command


def test_your_own_data_takes_at_most_five_commands() -> None:
    path = PAGE.partition("## Recipes")[0]
    commands = re.findall(r"^(?:python3|langchain-cfc) .*", path, re.MULTILINE)
    needed = [command for command in commands if not command.startswith("langchain-cfc store")]
    assert len(needed) == 5
    assert "pip install" in needed[0]


def test_control_find_missing_parts_finds_false_quotations() -> None:
    printed = "kept   88.5  \n\nflagged 5.8\nset 82.7\n"
    assert find_missing_parts("kept 88.5\n...\nset\n82.7\n", printed) == []
    assert find_missing_parts("kept 88.6\n...\nset 82.7\n", printed) == ["kept 88.6"]
    assert find_missing_parts("kept 88\n", printed) == ["kept 88"]
    assert find_missing_parts("kept 88.5\nset 82.7\n", printed) == ["kept 88.5 set 82.7"]
    assert find_missing_parts("set 82.7\n...\nkept 88.5\n", printed) == ["kept 88.5"]
