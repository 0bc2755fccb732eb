"""What imports cost, each in a fresh interpreter, from start to exit."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

from benchmarks.alternate import Ratio, in_turn
from benchmarks.paired import ROOT
from benchmarks.serving_results import Import

BARE = "bare Python"
PROGRAMS = {
    BARE: "pass",
    "bare Python, again": "pass",
    "langchain_cfc": "import langchain_cfc",
    "RunnableSerializable": "from langchain_core.runnables import RunnableSerializable",
    "CFCRunnable": "from langchain_cfc import CFCRunnable",
}
COMPARED = (
    ("bare Python, again", BARE),
    ("langchain_cfc", BARE),
    ("CFCRunnable", "RunnableSerializable"),
)


def imports(rounds: int) -> list[Import]:
    """Each program against another.

    Args:
        rounds: How often each is started.
    """
    taken = dict(zip(PROGRAMS, in_turn([_run(text) for text in PROGRAMS.values()], rounds), strict=True))
    return [
        Import(program=program, against=against, ratio=Ratio.of(taken[program], taken[against]))
        for program, against in COMPARED
    ]


def _run(text: str) -> Callable[[int], object]:
    # Users' interpreters keep what they compiled.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-c", text]
    return lambda _: subprocess.run(command, cwd=ROOT, env=environment, check=True)  # noqa: S603 - our own text
