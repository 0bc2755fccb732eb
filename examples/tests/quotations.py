"""Run the blocks of a page in turn, and compare what they print with what the page quotes."""

from __future__ import annotations

import io
import re
import shlex
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from itertools import pairwise
from typing import Any

from tests.cli.running import run

# Of each block whose output a page quotes: the block, what it printed, and the quotation.
Quotations = list[tuple[str, str, str]]


def quote_outputs(blocks: Sequence[tuple[str, str]]) -> Quotations:
    """Run a page's blocks of Python and shell in the current folder; the quotation stands right behind."""
    return list(_quote(blocks))


def _quote(blocks: Sequence[tuple[str, str]]) -> Iterator[tuple[str, str, str]]:
    namespace: dict[str, Any] = {}
    for (language, block), (following, quoted) in pairwise([*blocks, ("", "")]):
        if language in {"shell", "python"}:
            printed = run_python(block, namespace) if language == "python" else run_block(block)
            if following == "text":
                yield block, printed, quoted


def run_python(block: str, namespace: dict[str, Any]) -> str:
    with io.StringIO() as out, redirect_stdout(out), redirect_stderr(out):
        exec(block, namespace)  # noqa: S102 - a page of this repository
        return out.getvalue()


def run_block(block: str) -> str:
    """Run the lines of a block; return their output, and the exit code if the page asks for it."""
    printed = []
    for line in block.replace("\\\n", "").strip().splitlines():
        command, _, asked = line.partition("||")
        words = shlex.split(command)
        if words[0] != "langchain-cfc":
            printed.append(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
            continue
        ran = run(*words[1:])
        assert bool(ran.code) is bool(asked), ran.err
        printed.append(ran.out + (f"exit code {ran.code}\n" if asked else ""))
    return "".join(printed)


def find_missing_parts(quoted: str, printed: str) -> list[str]:
    """Return quoted parts that are not in the output in this order; a line `...` stands for what is left out.

    Lines may be broken elsewhere.
    """
    absent, rest = [], f" {' '.join(printed.split())} "
    for part in re.split(r"^\.\.\.$", quoted, flags=re.MULTILINE):
        words = f" {' '.join(part.split())} "
        _, found, after = rest.partition(words)
        if found:
            rest = f" {after}"
        elif words.strip():
            absent.append(words.strip())
    return absent
