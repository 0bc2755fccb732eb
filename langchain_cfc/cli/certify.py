"""`langchain-cfc certify`: certify a frozen artifact on held-out labelled prompts."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from langchain_cfc import certificates
from langchain_cfc.artifact import CalibrationArtifact, open_attempts
from langchain_cfc.cli._artifact import make_certificate_table
from langchain_cfc.cli._format import EXIT_NO, emit_json, get_console, print_result, report_errors
from langchain_cfc.cli._inputs import (
    RECORDS_HELP,
    ArtifactPath,
    FigureFolder,
    check_output,
    get_verifier_names,
    open_records,
    share_option,
)
from langchain_cfc.cli.compare import prepare_outputs, save_figures
from langchain_cfc.errors import InputError
from langchain_cfc.guarantee import format_bound, format_share
from langchain_cfc.report.plots import plot_running_bound

if TYPE_CHECKING:
    from langchain_cfc.collect import PeopleReport

_people_option = partial(typer.Option, rich_help_panel="People and a judge")


def certify(
    artifact_path: ArtifactPath,
    records: Annotated[
        list[str] | None,
        typer.Argument(
            help=f"{RECORDS_HELP}. They must not have been used to calibrate the artifact. "
            "Not with --people.",
            show_default=False,
        ),
    ] = None,
    out_path: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="Where to write the certified artifact. Default: overwrite ARTIFACT."
        ),
    ] = None,
    alpha: Annotated[str | None, typer.Option(help="Error level. Default: all of the artifact's.")] = None,
    delta: Annotated[
        str, typer.Option(help="Probability that any bound of a certificate is wrong.")
    ] = "0.05",
    min_kept: Annotated[
        float | None,
        share_option(help="Exit with 1 unless the promise is certified to be kept at least this often."),
    ] = None,
    people: Annotated[
        Path | None,
        _people_option(metavar="SHEET", help="Sheet of people's labels, CSV. Created if it does not exist."),
    ] = None,
    judge: Annotated[
        list[Path] | None,
        _people_option(metavar="RECORDS", help="New records with a judge's labels; repeatable."),
    ] = None,
    until: Annotated[
        float | None,
        _people_option(help="Certify that sets keep their promise with at least this probability."),
    ] = None,
    max_wrong_rate: Annotated[
        str | None, _people_option(help="Certify that bot mode's answers are wrong at most this often.")
    ] = None,
    share: Annotated[float, _people_option(help="Approximate share of the prompts on the sheet.")] = 0.1,
    figures: FigureFolder = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the certificates as JSON.")] = False,
) -> None:
    """Certify an artifact on held-out labelled records.

    The certificate is stored in the artifact. Bounds on how often the promise is kept, overall and in every
    group, and on the size of sets, hold together with confidence 1 - delta for this artifact. If the
    records are the calibration file, only the part held out by --certification-fraction is used. This is an
    attempt on these labels, kept in RECORDS.attempts.json: later ones are tested at a smaller part of delta.

    With --people and --judge, people label a random sample of what a judge labelled. They start at the top
    of a sheet and may stop at any time. The same command writes the sheet, shows the progress (exit code 1),
    and certifies once there are enough labels. A poor judge means that more labels are needed; it never
    invalidates the certificate.
    """
    target = out_path or artifact_path
    if people is not None or judge:
        with report_errors():
            if people is None or not judge or records or min_kept is not None:
                msg = (
                    "--people SHEET and --judge RECORDS need each other, and --until or --max-wrong-rate; "
                    "leave out other records and --min-kept"
                )
                raise InputError(msg)
            check_output(target)
            prepare_outputs(None, figures)
            artifact = CalibrationArtifact.load(artifact_path)
            # Imported late: it needs the extra `[collect]`.
            from langchain_cfc.collect.people import PeopleSample

            with open_records([str(one) for one in judge], get_verifier_names(artifact)) as dataset:
                sample = PeopleSample.draw(
                    artifact,
                    dataset.records,
                    until=until,
                    max_wrong_rate=max_wrong_rate,
                    alpha=alpha,
                    share=share,
                    provenance=dataset.provenance,
                )
            if not people.exists():
                sample.write_sheet(people)
            certified, report = sample.certify(people, delta=delta)
            if report.is_certified:
                certified.save(target)
            if figures is not None:
                save_figures({"running_bound": plot_running_bound(report.bounds, report.target)}, figures)
        shown = partial(_print_people, certified=certified, people=str(people), target=str(target))
        print_result(report, shown, as_json=as_json)
        raise typer.Exit(0 if report.is_certified else EXIT_NO)
    with report_errors():
        check_output(target)
        artifact = CalibrationArtifact.load(artifact_path)
        if not records or until is not None or max_wrong_rate is not None or figures is not None:
            msg = (
                "give the records to certify on; --until, --max-wrong-rate and --figures need --people SHEET "
                "and --judge RECORDS"
            )
            raise InputError(msg)
        names = get_verifier_names(artifact)
        with open_attempts(records, target) as kept, open_records(records, names) as dataset:
            kept.check_writable()
            certified = certificates.certify(
                artifact,
                dataset.records,
                alpha=alpha,
                delta=delta,
                provenance=dataset.provenance,
                after=kept.ledger,
            )
            kept.record(certified)
        certified.save(target)
    made = [one for one in certified.certificates if one not in artifact.certificates]
    if as_json:
        emit_json(
            {
                "artifact": str(target),
                "digest": certified.digest,
                "certificates": [one.model_dump(mode="json") for one in made],
            }
        )
    else:
        console = get_console()
        for one in made:
            console.print(f"[bold]alpha = {one.alpha}[/]: {escape(one.sentence)}\n")
            console.print(make_certificate_table(one), "")
        console.print(f"certified artifact written to [bold]{escape(str(target))}[/]", soft_wrap=True)
    short = min_kept is not None and any(one.shares[0].kept_at_least < min_kept for one in made)
    raise typer.Exit(EXIT_NO if short else 0)


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
    if report.next_ids:
        console.print(f"Next to label: {escape(', '.join(report.next_ids))}", soft_wrap=True)
