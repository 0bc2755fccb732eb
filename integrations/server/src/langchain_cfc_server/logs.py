"""Write logs as one JSON object per line."""

from __future__ import annotations

import logging
import sys
import traceback
import warnings
from datetime import datetime, timezone
from typing import Any, TextIO

from langchain_cfc.errors import CFCWarning
from langchain_cfc_server.errors import encode_json

# Loggers whose messages never quote a prompt or answer.
_SAFE_LOGGERS = {"langchain_cfc", "langchain_cfc_server", "uvicorn"}


class JsonLines(logging.Formatter):
    """A formatter that writes each record as JSON on a single line.

    Of exceptions it writes only the type and the traceback, because their text may quote a prompt. Messages
    and warnings of other packages may do so as well; only their origin is written.

    Args:
        log_content: Whether to write messages and warnings of other packages in full.
    """

    def __init__(self, *, log_content: bool = False) -> None:
        super().__init__()
        self._log_content = log_content

    def format(self, record: logging.LogRecord) -> str:
        """Return one record as a line of JSON."""
        time = datetime.fromtimestamp(record.created, timezone.utc)
        line: dict[str, Any] = {
            "time": time.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": self._message(record),
            **getattr(record, "fields", {}),
        }
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            line["error"] = [type(error).__name__]
            line["where"] = [
                f"{frame.filename}:{frame.lineno} {frame.name}"
                for frame in traceback.extract_tb(error.__traceback__)
            ]
        return encode_json(line).decode()

    def _message(self, record: logging.LogRecord) -> str:
        if self._log_content or record.name.partition(".")[0] in _SAFE_LOGGERS:
            return record.getMessage()
        return f"withheld, from {record.pathname}:{record.lineno}"


def configure(*, log_content: bool) -> None:
    """Write all logs and warnings of this process as lines of JSON to standard error.

    Args:
        log_content: Whether to include messages of other packages, which may quote a prompt.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines(log_content=log_content))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("langchain_cfc_server").setLevel(logging.INFO)
    logging.captureWarnings(capture=True)
    log_warning = warnings.showwarning

    def show(  # noqa: PLR0917 - the signature of `warnings.showwarning`
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        # Warnings of langchain-cfc quote no prompt, and say what to do about the chain.
        if issubclass(category, CFCWarning):
            logging.getLogger("langchain_cfc").warning("%s", message)
        else:
            log_warning(message, category, filename, lineno, file, line)

    warnings.showwarning = show
