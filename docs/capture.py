"""Draws `demo.svg` of the start page: what `langchain-cfc demo` prints, in columns that a phone can show."""

from __future__ import annotations

import io
import tempfile
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI

from langchain_cfc.cli.demo import print_bot
from langchain_cfc.demo import run_demo


def main() -> None:
    """Run the demo and write what it prints, without the commands to go on with."""
    console = Console(record=True, width=58, force_terminal=True, highlight=False, file=io.StringIO())
    with tempfile.TemporaryDirectory() as folder:
        seen = run_demo("0", Path(folder) / "artifact.json")
    print_bot(console, seen)
    console.print()  # descenders of the last line would be cut off
    svg = console.export_svg(title="langchain-cfc demo", theme=MONOKAI)
    Path(__file__).with_name("demo.svg").write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main()
