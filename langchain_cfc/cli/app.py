"""The command-line application: one module per command."""

from __future__ import annotations

from typing import Annotated

import typer

from langchain_cfc._version import __version__
from langchain_cfc.cli import (
    agreement,
    ask,
    calibrate,
    certify,
    collect,
    compare,
    demo,
    evaluate,
    inspect,
    paper,
    plan,
    report,
    status,
    suggest,
)
from langchain_cfc.cli.plugged import PluggedGroup

app = typer.Typer(
    name="langchain-cfc",
    cls=PluggedGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
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


app.command("demo")(demo.demo)
app.command("plan")(plan.plan)
app.command("collect")(collect.collect)
app.command("status")(status.status)
app.command("export")(status.export)
app.command("import")(status.import_)
app.command("calibrate")(calibrate.calibrate)
app.command("certify")(certify.certify)
app.command("evaluate")(evaluate.evaluate)
app.command("compare")(compare.compare)
app.add_typer(paper.app, name="paper")
app.command("inspect")(inspect.inspect)
app.command("report")(report.report)
app.command("suggest")(suggest.suggest)
app.command("ask")(ask.ask)
app.command("agreement")(agreement.agreement)
