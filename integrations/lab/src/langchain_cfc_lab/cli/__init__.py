"""Commands that langchain-cfc-lab adds to `langchain-cfc`, and the options that several of them share."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

CORE_COUNT = os.cpu_count() or 1
Jobs = Annotated[
    int, typer.Option(min=1, help="Number of processes. Default: one per core.", show_default=False)
]
FigureFolder = Annotated[
    Path | None, typer.Option(metavar="FOLDER", help="Write the figures into a folder, as PNG and SVG.")
]
split_option = partial(typer.Option, rich_help_panel="Splits")
SplitsSeed = Annotated[str, split_option(help="Seed of the random splits.")]


def print_command(console: Console, command: str) -> None:
    """Print the next command on one line, without wrapping it, so that it can be copied."""
    console.print(escape(command), "", soft_wrap=True, style="bold", sep="\n")
