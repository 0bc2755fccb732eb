"""`langchain-cfc store agreement` and `store certify`: compare with labels of people, and certify by them."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from langchain_cfc.artifact import CalibrationArtifact
from langchain_cfc.cli.formatting import EXIT_NO, make_table, print_result, report_errors
from langchain_cfc.cli.inputs import ArtifactPath, AsJson, check_output, open_records
from langchain_cfc.guarantee import format_bound, format_share
from langchain_cfc.support.units import UNITS
from langchain_cfc_collect.people import PeopleReport, PeopleSample
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
    print_result(report, partial(_print_agreement, sheet=sheet.name), as_json=as_json)


def _print_agreement(console: Console, report: ReviewReport, *, sheet: str) -> None:
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


def certify(
    artifact_path: ArtifactPath,
    sheet: Annotated[Path, typer.Argument(help="CSV sheet of people's labels, created if absent.")],
    judge: Annotated[
        list[Path], typer.Option(metavar="RECORDS", help="New records with a judge's labels; repeatable.")
    ],
    until: Annotated[
        float | None,
        typer.Option(help="Certify that sets keep their promise with at least this probability."),
    ] = None,
    max_wrong_rate: Annotated[
        str | None, typer.Option(help="Certify that the bot's answers are wrong at most this often.")
    ] = None,
    alpha: Annotated[str | None, typer.Option(help="Error level, if the artifact holds several.")] = None,
    delta: Annotated[str, typer.Option(help="Probability that the certificate is wrong.")] = "0.05",
    share: Annotated[float, typer.Option(help="Approximate share of the prompts on the sheet.")] = 0.1,
    out_path: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="Where to write the certified artifact. Default: overwrite ARTIFACT."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Certify an artifact by a judge's labels and a few of people's.

    People label a random sample of what a judge labelled. They start at the top of a sheet and may stop at
    any time. The same command writes the sheet, shows the progress (exit code 1), and certifies once there
    are enough labels. A poor judge means that more labels are needed; it never invalidates the certificate.
    """
    target = out_path or artifact_path
    with report_errors():
        check_output(target)
        artifact = CalibrationArtifact.load(artifact_path)
        with open_records([str(one) for one in judge]) as dataset:
            sample = PeopleSample.draw(
                artifact,
                dataset,
                until=until,
                max_wrong_rate=max_wrong_rate,
                alpha=alpha,
                share=share,
            )
        if not sheet.exists():
            sample.write_sheet(sheet)
        certified, report = sample.certify(sheet, delta=delta)
        if report.is_certified:
            certified.save(target)
    shown = partial(_print_people, certified=certified, people=str(sheet), target=str(target))
    print_result(report, shown, as_json=as_json)
    raise typer.Exit(0 if report.is_certified else EXIT_NO)


def _print_people(
    console: Console, report: PeopleReport, *, certified: CalibrationArtifact, people: str, target: str
) -> None:
    """Print the progress of people's labels, and the certificate or the prompts to label next."""
    console.print(
        f"{escape(people)}: {report.labelled} of {report.to_label} prompts labelled from the top, the judge "
        f"agrees on {report.agreed}; {report.prompts} prompts were judged."
    )
    if report.waiting:
        console.print(f"{report.waiting} more are labelled below a gap; they count once it is filled.")
    if report.is_certified:
        console.print(f"[bold]{escape(certified.people_certificates[-1].sentence)}[/]")
        console.print(f"certified artifact written to [bold]{escape(target)}[/]", soft_wrap=True)
        return
    event = "The promise is kept" if report.about == "sets" else "An answer is right"
    console.print(
        f"{event} with probability at least {format_bound(report.at_least)} so far, with confidence "
        f"{format_share(1.0 - float(report.delta))}; the target is {format_share(report.target)}."
    )
    if report.expected_labels is None:
        console.print(
            "This sheet is not expected to be enough: the true probability may be below the target, or more "
            "judged prompts are needed."
        )
    else:
        console.print(f"About {report.expected_labels} more labels are expected to be enough.")
