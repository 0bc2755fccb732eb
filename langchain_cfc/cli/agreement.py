"""`langchain-cfc agreement`: compare labels with people's, and bound what a promise is worth."""

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
from langchain_cfc.cli._format import make_table, print_list, print_result, report_errors, track_progress
from langchain_cfc.cli._inputs import ReportAsJson
from langchain_cfc.collect.review import ReviewReport, create_review_report
from langchain_cfc.errors import InputError
from langchain_cfc.guarantee import format_bound, format_share
from langchain_cfc.records import Records, read_records

# Words for a positive and a negative label, by unit.
_LABELS = {"answers": ("correct", "wrong"), "claims": ("supported", "unsupported")}


def agreement(
    records: Annotated[list[Path], typer.Argument(help="Labelled records that the sheet is a sample of.")],
    sheet: Annotated[Path, typer.Argument(help="Sheet that people filled in, CSV or JSON Lines.")],
    coverage: Annotated[
        list[float] | None,
        typer.Option(help="Coverage that was promised with these labels; give several. Default: 0.9."),
    ] = None,
    artifact_path: Annotated[
        Path | None,
        typer.Option("--artifact", metavar="ARTIFACT", help="Take the coverages from this artifact instead."),
    ] = None,
    as_json: ReportAsJson = False,
) -> None:
    """Measure how well the records' labels agree with people.

    It also bounds what a promise made with these labels is worth. The sheet is a random sample of
    the records' candidates, or of answers with their claims, written by --sample-for-review of `store export`
    or by `write_review`; rows that are not filled in yet are left out.
    """
    with report_errors():
        source = read_records(*records)
        levels, n = coverage or [0.9], None
        if artifact_path is not None:
            if coverage:
                msg = "an artifact says which coverage it promises: leave --coverage out"
                raise InputError(msg)
            levels, n = _read_promise(CalibrationArtifact.load(artifact_path), source)
        read = track_progress(source.iterate(), "reading records")
        report = create_review_report(read, sheet, coverage=levels, n=n)
    print_result(report, partial(_print_report, sheet=sheet.name), as_json=as_json)


def _read_promise(artifact: CalibrationArtifact, source: Records) -> tuple[list[float], int | None]:
    """Return the coverages that an artifact promises, and its n; refuse records of another labeler.

    n is None for claims, since all claims of a prompt are from one answer.
    """
    promises = [artifact.guarantee(alpha) for alpha in artifact.alphas]
    if promises[0].kind == "heuristic":
        msg = "this artifact promises nothing that labels could spoil; give --coverage for one that you state"
        raise InputError(msg)
    own, theirs = (
        provenance.labeler if provenance else None for provenance in (source.provenance, artifact.provenance)
    )
    if own and theirs and own != theirs:
        msg = (
            f"the artifact was calibrated on labels by {theirs}, and those of the records are by {own}, who "
            "makes other mistakes: review records that are labelled as the artifact's were"
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
            f"{low:.2f} to {high:.2f} (0 is chance, 1 agreement)\n"
        )
    console.print(_make_promises_table(report), "")
    for sentence in _list_assumptions(report):
        console.print(sentence)
    notes = [*report.notes, *_list_empty_promises(report)]
    if notes:
        print_list(console, notes, "Beware")


def _make_confusion_table(report: ReviewReport) -> Table:
    right, wrong = _LABELS[report.unit]
    heading = "claims" if report.unit == "claims" else "candidates"
    table = make_table(heading, f"people: {right}", f"people: {wrong}")
    table.add_row(f"labelled {right}", str(report.correct_called_correct), str(report.wrong_called_correct))
    table.add_row(f"labelled {wrong}", str(report.correct_called_wrong), str(report.wrong_called_wrong))
    return table


def _make_rates_table(report: ReviewReport) -> Table:
    table = make_table("mistakes of the labels, %", "share", f"{format_share(report.confidence)} interval")
    right, wrong = _LABELS[report.unit]
    of_all = (
        "answers with one of the former" if report.unit == "claims" else "wrong and labelled correct, of all"
    )
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
    headings = ("promised of labels, %", "mistakes", "true at least, %", "with no mistake seen, %")
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
    sure = format_share((1 + report.confidence) / 2)
    if report.unit == "claims":
        yield (
            "[bold]True at least[/]: in so many answers no more unsupported claims are left than promised. "
            "People are taken to be right, and the answers for a random sample. Each bound holds "
            f"with {sure} confidence, over all prompts together; the last column is the most that a sheet of "
            "this size can show."
        )
        yield (
            "- It assumes nothing of the mistakes. The promise holds for every answer without an unsupported "
            "claim that is labelled supported; the others are counted as broken, as many as the third share "
            "by the upper end of its interval."
        )
        yield (
            "- Supported claims labelled unsupported (e1) take nothing from the promise: more claims are "
            "dropped."
        )
        return
    yield (
        "[bold]True at least[/]: so many sets hold a correct candidate, or their prompts are flagged. People "
        "are taken to be right, and the rows for a random sample. Each bound holds with "
        f"{sure} confidence, over all prompts together; the last column is the most that a sheet of this "
        "size can show."
    )
    yield (
        "- [bold]independent[/] assumes that what a set holds, at most "
        f"{report.n} distinct answers, is mislabelled independently of each other, of scores and of "
        "features, a wrong answer with probability e0 at most, by the upper end of its interval. Labels that "
        "are fooled where the verifier is fooled break this."
    )
    yield (
        "- [bold]of any kind[/] assumes nothing of the mistakes. No more sets are flattered than there are "
        f"wrong candidates labelled correct, {report.n} times the third share per prompt, by the upper end "
        "of its interval. It holds for independent mistakes too, and may be the better bound."
    )
    yield (
        "- Correct candidates labelled wrong (e1) take nothing from the promise: they make answer sets "
        "larger."
    )


def _list_empty_promises(report: ReviewReport) -> Iterator[str]:
    """Yield notes on promises whose bounds are all zero: the sheet is too small, or mistakes too many."""
    for promise in report.promises:
        promised = f"of the {format_share(promise.coverage)} that are promised"
        if max(promise.independent_limit, promise.at_worst_limit) <= 0.0:
            yield f"The sheet is too small to say anything {promised}: have more candidates reviewed."
        elif max(promise.independent, promise.at_worst) <= 0.0:
            yield (
                f"The mistakes that were seen leave nothing {promised}: better labels are needed, or more "
                "rows."
            )
