"""The command line. It needs the extra `[calibrate]`; without it, this says so."""

from __future__ import annotations

import io
import logging
import sys
import traceback

from langchain_cfc._internal.optional import require
from langchain_cfc._internal.text import escape_controls
from langchain_cfc.errors import MissingExtraError


class _EscapingFormatter(logging.Formatter):
    """Writes what other packages log, which may quote a provider, without control characters."""

    def format(self, record: logging.LogRecord) -> str:
        """One record as text."""
        return escape_controls(super().format(record))


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
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(_EscapingFormatter())
    try:
        app()
    except Exception:  # noqa: BLE001 - a bug, or code of the user's own; its text may hold control characters
        sys.stderr.write(escape_controls(traceback.format_exc()))
        sys.exit(1)
