"""The `langchain-cfc` command line; it needs the extra `[calibrate]`."""

from __future__ import annotations

import errno
import io
import logging
import os
import sys
import traceback

from langchain_cfc.errors import MissingExtraError
from langchain_cfc.support.imports import require
from langchain_cfc.support.text import escape_controls, redact_secrets

# A full disk, a quota and a failing device.
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EIO)


class _EscapingFormatter(logging.Formatter):
    """Log formatter that escapes control characters: log records of other packages may quote a provider."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the formatted record, with control characters escaped."""
        return escape_controls(super().format(record))


def main() -> None:
    """Run the console script `langchain-cfc`; if its extra is missing, say which one to install."""
    try:
        for module in ("typer", "rich"):
            require(module, "calibrate", "the command line")
    except MissingExtraError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)
    from langchain_cfc.cli.commands import app

    for stream in (sys.stdout, sys.stderr):
        # Answers may hold characters that the terminal cannot encode: escape them instead of failing.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(_EscapingFormatter())
    try:
        app()
        sys.stdout.flush()
    except MissingExtraError as error:  # raised while a command's module was imported
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)
    except Exception as error:  # noqa: BLE001 - a bug or the user's code
        if isinstance(error, OSError) and error.errno in _NO_SPACE:  # exit code 1 would read as "no"
            # Python would flush standard output once more.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.stderr.write(f"error: {error.filename or 'standard output'}: {error.strerror}\n")
            sys.exit(2)
        # The text may hold control characters.
        sys.stderr.write(escape_controls(redact_secrets(traceback.format_exc())))
        sys.exit(1)
