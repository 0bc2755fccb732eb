"""The `langchain-cfc` command line; it needs the extra `[calibrate]`."""

from __future__ import annotations

import io
import logging
import sys
import traceback

from langchain_cfc.errors import MissingExtraError
from langchain_cfc.support.imports import require
from langchain_cfc.support.text import escape_controls, redact_secrets


class _EscapingFormatter(logging.Formatter):
    """Log formatter that escapes control characters: log records of other packages may quote a provider."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the formatted record, with control characters escaped."""
        return escape_controls(super().format(record))


def main() -> None:
    """Run the console script `langchain-cfc`; if an extra is missing, say which one to install."""
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(_EscapingFormatter())
    for stream in (sys.stdout, sys.stderr):
        # Answers may hold characters that the terminal cannot encode: escape them instead of failing.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        for module in ("typer", "rich"):
            require(module, "calibrate", "the command line")
        from langchain_cfc.cli.commands import app

        try:
            app()
        finally:
            sys.stdout.flush()  # a full disk may show only here
    except MissingExtraError as error:  # also raised while a command's module is imported
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)
    except Exception:  # noqa: BLE001 - a bug, the user's code or a full disk below standard output
        # The text may hold control characters. Exit code 1 would read as "no".
        sys.stderr.write(escape_controls(redact_secrets(traceback.format_exc())))
        sys.stdout = io.StringIO()  # Python would try to write the rest again, and exit with 120
        sys.exit(2)
