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


def run(*arguments: str | Path) -> Ran:
    result = CliRunner(env={"COLUMNS": "80", "TERM": "dumb"}).invoke(app, [str(one) for one in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Ran(result.exit_code, result.stdout, result.stderr)
