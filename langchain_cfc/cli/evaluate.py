"""`langchain-cfc evaluate`: what an artifact does on prompts it has never seen."""

from __future__ import annotations

import typer
from rich.markup import escape

from langchain_cfc import evaluation
from langchain_cfc.artifact import CalibrationArtifact
from langchain_cfc.cli._format import (
    EXIT_NO,
    emit_json,
    format_answers,
    format_verdict,
    get_console,
    get_verifier_names,
    make_report_tables,
    open_records,
    report_errors,
)
from langchain_cfc.cli._options import ArtifactPath, HeldAlpha, HeldOutPaths, ReportAsJson


def evaluate(
    artifact_path: ArtifactPath,
    records: HeldOutPaths,
    alpha: HeldAlpha = None,
    as_json: ReportAsJson = False,
) -> None:
    """Measure an artifact on labelled records.

    The marginal rule, calibrated on the same prompts, is measured beside it. Given the very file that it was
    calibrated on, only the part held out by --test-fraction is used. Exit code 1 if what is seen contradicts
    the promise: on some guaranteed group it was kept on fewer prompts than chance explains, at 2.5 % for all
    groups together; or if bot mode answers wrongly more often than chance explains.
    """
    with report_errors():
        artifact = CalibrationArtifact.load(artifact_path)
        with open_records(records, get_verifier_names(artifact)) as dataset:
            report = evaluation.evaluate(
                artifact, dataset.records, alpha=alpha, provenance=dataset.provenance
            )
    if as_json:
        emit_json(report.model_dump(mode="json"))
    else:
        console = get_console()
        console.print(
            f"{report.n_test} test prompts ({escape(report.test_prompts)}), {report.n_candidates} candidates "
            f"each; attainable coverage {100 * report.attainable_coverage:.1f} %\n"
        )
        for table in make_report_tables(report):
            console.print(table, "")
        console.print(format_verdict(report))
        if report.answers is not None:
            console.print(format_answers(report.answers))
    broken = report.contradicted or (report.answers is not None and report.answers.contradicted)
    raise typer.Exit(EXIT_NO if broken else 0)
