"""The page and the entry for LangChain's documentation: their form, and the page's code as printed."""

from __future__ import annotations

import re
import shlex
import shutil
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from langchain_cfc import read_records
from tests import pages
from tests.cli.running import run

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "langchain"
PAGE = (FOLDER / "cfc.mdx").read_text(encoding="utf-8")
BLOCKS = [
    (language, title, textwrap.dedent(code))
    for _, language, title, code in re.findall(
        r"^( *)```(\w+) ([^\n]+)\n(.*?)^\1```$", PAGE, re.MULTILINE | re.DOTALL
    )
]
# The sections of LangChain's template for chat models that are in every page, in their order.
SECTIONS = ["Overview", "Setup", "Instantiation", "Invocation", "API reference"]


@pytest.fixture
def page_folder() -> Iterator[dict[str, Any]]:
    """The folder, the model and the files that pages of the documentation speak of."""
    namespace: dict[str, Any] = {}
    pages._set_up(namespace)
    try:
        yield namespace
    finally:
        pages._tear_down(namespace)


def test_langchain_page_has_the_sections_of_the_template() -> None:
    assert re.match(r'---\ntitle: "\w+ integration"\ndescription: ".+"\n---\n', PAGE)
    found = re.findall(r"^## (?:<.*?/> )?(.+)$", PAGE, re.MULTILINE)
    assert [one for one in found if one in SECTIONS] == SECTIONS
    assert PAGE.count("```") == 2 * len(BLOCKS)


@pytest.mark.long
@pytest.mark.usefixtures("page_folder")
def test_command_of_the_langchain_page_collects_its_records() -> None:
    (command,) = [code for _, title, code in BLOCKS if title.startswith("Label answers")]
    expected = read_records("records.jsonl").provenance
    shutil.move("records.jsonl", "expected.jsonl")
    program, *words = shlex.split(command.replace("\\\n", " "))
    assert program == "langchain-cfc"
    assert run(*words).code == 0
    found = read_records("records.jsonl").provenance
    assert found is not None
    assert expected is not None
    # The name under which the model answered is not known beforehand.
    generator = {name: value for name, value in (found.generator or {}).items() if name != "model_version"}
    assert (found.n, generator, found.verifier) == (expected.n, expected.generator, expected.verifier)


@pytest.mark.usefixtures("page_folder")
def test_code_of_the_langchain_page_prints_its_outputs(capsys: pytest.CaptureFixture[str]) -> None:
    namespace: dict[str, Any] = {}
    promised = {}
    for language, title, code in BLOCKS:
        if language == "python":
            exec(compile(code, "cfc.mdx", "exec"), namespace)  # noqa: S102 - code of this repository
            printed = capsys.readouterr().out.strip()
            if output := re.search(r"\n\n# (.+)\n\Z", code):
                promised[title] = output[1]
                assert printed == output[1]
    assert len(promised) == 4
