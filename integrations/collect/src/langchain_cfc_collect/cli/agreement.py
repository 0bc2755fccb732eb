"""`langchain-cfc store agreement`: compare labels with people's, and bound what a promise is worth."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from langchain_cfc.artifact import CalibrationArtifact
from langchain_cfc.candidates import UNITS
from langchain_cfc.cli.formatting import make_table, print_list, print_result, report_errors, track_progress
from langchain_cfc.cli.inputs import AsJson
from langchain_cfc.errors import InputError
from langchain_cfc.guarantee import format_bound, format_share
from langchain_cfc.records import Records, read_records
from langchain_cfc_collect.review import ReviewReport, create_review_report


def agreement(
    records: Annotated[list[Path], typer.Argument(help="Labelled records that the sheet was sampled from.")],
    sheet: Annotated[Path, typer.Argument(help="Sheet that people filled in, CSV or JSON Lines.")],
    coverage: Annotated[
        list[float] | None,
        typer.Option(help="Coverage promised on the basis of these labels; repeatable. Default: 0.9."),
    ] = None,
    artifact_path: Annotated[
        Path | None,
        typer.Option("--artifact", metavar="ARTIFACT", help="Take the coverages from this artifact instead."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure how well the records' labels agree with people.

    It also bounds how often a promise made with these labels is truly kept. The sheet is a random sample of
    the records' candidates, or of answers with their claims, written by `store export --sample-for-review`
    or by `write_review`. Rows that are not filled in yet are left out.
    """
    with report_errors():
        source = read_records(*records)
        levels, n = coverage or [0.9], None
        if artifact_path is not None:
            if coverage:
                msg = "the artifact determines the coverage: leave out --coverage"
                raise InputError(msg)
            levels, n = _read_promise(CalibrationArtifact.load(artifact_path), source)
        read = track_progress(source.read_all(), "reading records")
        report = create_review_report(read, sheet, coverage=levels, n=n)
    print_result(report, partial(_print_report, sheet=sheet.name), as_json=as_json)


def _read_promise(artifact: CalibrationArtifact, source: Records) -> tuple[list[float], int | None]:
    """Return the coverages that an artifact promises, and its n; refuse records of another labeler.

    n is None for claims, since all claims of a prompt are from one answer.
    """
    promises = [artifact.make_guarantee(alpha) for alpha in artifact.alphas]
    if not promises or promises[0].kind == "heuristic":
        msg = "this artifact promises no coverage; state one with --coverage instead of --artifact"
        raise InputError(msg)
    own, theirs = (
        provenance.labeler if provenance else None for provenance in (source.provenance, artifact.provenance)
    )
    if own and theirs and own != theirs:
        msg = (
            f"the artifact was calibrated on labels by {theirs}, but the records are labelled by {own}, "
            "which makes other mistakes: review records with labels by the artifact's labeler"
        )
        raise InputError(msg)
    n = artifact.n if artifact.unit == "answers" else None
    return [promise.target_coverage for promise in promises], n


def _print_report(console: Console, report: ReviewReport, *, sheet: str) -> None:
    judged = report.rows - report.unfilled
    console.print(
        f"{escape(sheet)}: {judged} of {report.rows} rows filled in, from {report.prompts} independent "
        "prompts\n"
    )
    console.print(_make_confusion_table(report), "", _make_rates_table(report), "")
    if report.kappa is not None:
        low, high = report.kappa.low, report.kappa.high
        console.print(
            f"Cohen's kappa [bold]{report.kappa.value:.2f}[/], {format_share(report.confidence)} interval "
            f"{low:.2f} to {high:.2f} (0: chance, 1: full agreement)\n"
        )
    console.print(_make_promises_table(report), "")
    for sentence in _list_assumptions(report):
        console.print(sentence)
    notes = [*report.notes, *_list_empty_promises(report)]
    if notes:
        print_list(console, notes, "Warnings")


def _make_confusion_table(report: ReviewReport) -> Table:
    right, wrong = UNITS[report.unit].correct, UNITS[report.unit].wrong
    heading = "claims" if report.unit == "claims" else "candidates"
    table = make_table(heading, f"people: {right}", f"people: {wrong}")
    table.add_row(f"labelled {right}", str(report.correct_called_correct), str(report.wrong_called_correct))
    table.add_row(f"labelled {wrong}", str(report.correct_called_wrong), str(report.wrong_called_wrong))
    return table


def _make_rates_table(report: ReviewReport) -> Table:
    table = make_table("mistakes of the labels, %", "share", f"{format_share(report.confidence)} interval")
    right, wrong = UNITS[report.unit].correct, UNITS[report.unit].wrong
    of_all = "answers with an e0 mistake" if report.unit == "claims" else "wrong but labelled correct, of all"
    rates = {
        f"{wrong} ones labelled {right} (e0)": report.error_on_wrong,
        f"{right} ones labelled {wrong} (e1)": report.error_on_correct,
        of_all: report.flattering,
    }
    for name, rate in rates.items():
        share = "unknown" if rate.value is None else f"{100 * rate.value:.1f}"
        table.add_row(name, share, f"{100 * rate.low:.1f} to {100 * rate.high:.1f}")
    return table


def _make_promises_table(report: ReviewReport) -> Table:
    headings = ("promised (labels), %", "mistakes", "true at least, %", "if no mistake seen, %")
    table = make_table(*headings, texts=2)
    for promise in report.promises:
        coverage = f"{100 * promise.coverage:g}"
        rows = [("of any kind", promise.at_worst, promise.at_worst_limit)]
        if report.unit == "answers":
            rows.insert(0, ("independent", promise.independent, promise.independent_limit))
        for kind, worth, limit in rows:
            table.add_row(coverage, kind, _format_bound(worth), _format_bound(limit))
    return table


def _format_bound(share: float) -> str:
    return format_bound(share).removesuffix(" %") if share > 0.0 else "nothing"


def _list_assumptions(report: ReviewReport) -> Iterator[str]:
    is_claims = report.unit == "claims"
    event = "prompts whose set holds a correct candidate, or that are flagged"
    if is_claims:
        event = "answers with no more unsupported claims left than promised"
    yield (
        f"[bold]True at least[/]: share of {event}. This assumes that people are right and the sheet is a "
        f"random sample. Each bound holds with {format_share((1 + report.confidence) / 2)} confidence, over "
        "all prompts together. The last column is the best bound that a sheet of this size can give."
    )
    if is_claims:
        yield (
            "- It assumes nothing about the mistakes. Each answer with an e0 mistake counts as broken; their "
            "share is the upper end of the third interval."
        )
    else:
        yield (
            "- [bold]independent[/] assumes that the distinct answers of a set, at most "
            f"{report.n}, are mislabelled independently of each other, of scores and of features, wrong ones "
            "with probability at most e0, at the upper end of its interval. This fails if labels and "
            "verifier err on the same answers."
        )
        yield (
            "- [bold]of any kind[/] assumes nothing about the mistakes. A prompt has at most "
            f"{report.n} times the third share of wrong candidates labelled correct, at the upper end of its "
            "interval."
        )
    traits = UNITS[report.unit]
    yield f"- {traits.correct} ones labelled {traits.wrong} (e1) do not weaken the promise."


def _list_empty_promises(report: ReviewReport) -> Iterator[str]:
    """Yield notes on promises whose bounds are all zero: the sheet is too small, or mistakes too many."""
    for promise in report.promises:
        promised = f"of the promised {format_share(promise.coverage)}"
        if max(promise.independent_limit, promise.at_worst_limit) <= 0.0:
            yield f"The sheet is too small to confirm any {promised}: review more candidates."
        elif max(promise.independent, promise.at_worst) <= 0.0:
            yield (
                f"With the mistakes found, nothing {promised} can be confirmed: use better labels, or "
                "review more rows."
            )
