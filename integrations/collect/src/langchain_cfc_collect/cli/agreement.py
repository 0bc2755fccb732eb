"""`langchain-cfc store agreement`: compare labels with people's."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from langchain_cfc.cli.formatting import make_table, print_result, report_errors
from langchain_cfc.cli.inputs import AsJson, open_records
from langchain_cfc.support.units import UNITS
from langchain_cfc_collect.review import ReviewReport, create_review_report


def agreement(
    records: Annotated[list[str], typer.Argument(help="Labelled records that the sheet was sampled from.")],
    sheet: Annotated[Path, typer.Argument(help="Sheet that people filled in.")],
    as_json: AsJson = False,
) -> None:
    """Measure how well the records' labels agree with people.

    The sheet is a random sample of the records' candidates, or of answers with their claims, written by
    `store export --sample-for-review` or by `write_review`. Rows that are not filled in yet are left out. To
    certify by people's labels how often an artifact is right, use `store certify`.
    """
    with report_errors(), open_records(records) as opened:
        report = create_review_report(opened.read_all(), sheet)
    print_result(report, partial(_print_report, sheet=sheet.name), as_json=as_json)


def _print_report(console: Console, report: ReviewReport, *, sheet: str) -> None:
    judged, right, wrong = report.rows - report.unfilled, UNITS[report.unit].correct, UNITS[report.unit].wrong
    console.print(
        f"{escape(sheet)}: {judged} of {report.rows} rows filled in, from {report.prompts} independent "
        "prompts\n"
    )
    table = make_table("mistakes of the labels", "count", "%", "95 % interval")
    for truth, label, rate in (
        (wrong, right, report.error_on_wrong),
        (right, wrong, report.error_on_correct),
    ):
        share = "unknown" if rate.value is None else f"{100 * rate.value:.1f}"
        interval = f"{100 * rate.low:.1f} to {100 * rate.high:.1f}"
        table.add_row(f"{truth} ones labelled {label}", f"{rate.mistakes} of {rate.rows}", share, interval)
    console.print(table, "")
    console.print(
        f"A promise counts what these labels call {wrong}: {wrong} ones labelled {right} make it look better "
        f"than it is, {right} ones labelled {wrong} only cost answers. To certify an artifact by people's "
        "labels, use `store certify`."
    )
    if report.unfilled:
        console.print("Empty rows are left out: if they are the hard ones, these figures are too optimistic.")
