"""The command line. It needs the extra `[calibrate]`; without it, this says so."""

from __future__ import annotations

import io
import sys

from langchain_cfc._extras import require
from langchain_cfc.errors import MissingExtraError


def main() -> None:
    """Entry point of the console script `langchain-cfc`."""
    try:
        for module in ("typer", "rich"):
            require(module, "calibrate", "the command line")
    except MissingExtraError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)
    from langchain_cfc.cli.app import app

    for stream in (sys.stdout, sys.stderr):
        # Answers may hold characters that the terminal's encoding lacks; they are escaped, not fatal.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    app()
