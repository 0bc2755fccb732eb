"""Run the command line in this process, as in a terminal of 80 columns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from typer.testing import CliRunner

from langchain_cfc.cli.commands import app


class Ran(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        return json.loads(self.out)

    def assert_refused(self, *words: str) -> None:
        """Check that the command ended with exit code 2 and an error that holds these words."""
        assert self.code == 2, self
        for one in words:
            assert one in " ".join(self.err.split()), self


def run(*arguments: str | Path) -> Ran:
    result = CliRunner(env={"COLUMNS": "80", "TERM": "dumb"}).invoke(app, [str(one) for one in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Ran(result.exit_code, result.stdout, result.stderr)
