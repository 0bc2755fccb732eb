"""A page whose blocks are run as printed, in order, in this folder and one namespace."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

from tests.cli.running import run


def run_page(page: Path) -> int:
    """Run the Python and `shell` blocks of a page, write the `toml` ones, and return their number."""
    blocks = re.findall(r"```(python|shell|toml)\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    namespace: dict[str, Any] = {}
    for kind, text in blocks:
        if kind == "toml":
            name, _, content = text.partition("\n")
            Path(name.removeprefix("# ")).write_text(content, encoding="utf-8")
        elif kind == "shell":
            _run_commands(text)
        else:
            exec(compile(text, str(page), "exec"), namespace)  # noqa: S102 - the page's own words
    return len(blocks)


def _run_commands(text: str) -> None:
    """Run commands in this process, which has imported everything already."""
    for line in text.splitlines():
        program, *arguments = shlex.split(line)
        assert program == "langchain-cfc"
        ran = run(*arguments)
        assert ran.code == 0, ran.err
