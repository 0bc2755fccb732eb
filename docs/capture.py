"""Draws `demo.svg`, the picture in the README: what `langchain-cfc demo` prints, in an 80-column terminal."""

from __future__ import annotations

import tempfile
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI

from langchain_cfc.cli.demo import print_report
from langchain_cfc.demo import run_demo


def main() -> None:
    """Run the demo and write the part that fits a picture: the promise, and what happened."""
    console = Console(record=True, width=80, force_terminal=True, highlight=False)
    with tempfile.TemporaryDirectory() as folder:
        seen = run_demo("0", Path(folder) / "artifact.json")
    print_report(console, seen)
    svg = console.export_svg(title="langchain-cfc demo", theme=MONOKAI)
    Path(__file__).with_name("demo.svg").write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main()
