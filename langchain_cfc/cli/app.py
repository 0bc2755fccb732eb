"""The command-line application: one module per command."""

from __future__ import annotations

from typing import Annotated

import typer

from langchain_cfc._version import __version__
from langchain_cfc.cli.commands import CommandGroup, make_app

app = make_app(
    name="langchain-cfc",
    cls=CommandGroup,
    no_args_is_help=True,
    add_completion=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and end."),
    ] = False,
) -> None:
    """Conformal answer sets for LangChain: answer with a guarantee, or abstain.

    Every command takes --json for machine-readable output. Exit codes: 0 done, 1 the answer is no (a check
    failed, the target is out of reach, the question was abstained on), 2 wrong usage or bad input.
    """
    del version
