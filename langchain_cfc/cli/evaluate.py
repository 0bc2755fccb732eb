"""`langchain-cfc evaluate`: measure an artifact on prompts that it has never seen."""

from __future__ import annotations

import typer
from rich.console import Console
from rich.markup import escape

from langchain_cfc import evaluation
from langchain_cfc.artifact import CalibrationArtifact, open_attempts, tabulate_draws
from langchain_cfc.cli.formatting import EXIT_NO, make_summary_table, print_result, report_errors
from langchain_cfc.cli.inputs import (
    ArtifactAlpha,
    ArtifactPath,
    AsJson,
    HeldOutRecords,
    open_records,
)
from langchain_cfc.cli.verdicts import (
    format_verdict,
    make_batches_table,
    record_evaluation,
)
from langchain_cfc.evaluation import EvaluationReport
from langchain_cfc.support.display import summarise
from langchain_cfc.support.text import format_percent


def evaluate(
    artifact_path: ArtifactPath,
    records: HeldOutRecords,
    alpha: ArtifactAlpha = None,
    as_json: AsJson = False,
) -> None:
    """Measure an artifact on labelled records.

    The marginal rule, calibrated on the same prompts, is measured next to it. If the records are the
    calibration file, only the part held out by --test-fraction is used. Exit code 1 if the results contradict
    the promise: if it was kept in some guaranteed group less often than chance explains (2.5 % for all groups
    together), or if bot mode is wrong more often than chance explains. Also if the records come from another
    generator or verifier, so that they do not test it.
    """
    with report_errors():
        artifact = CalibrationArtifact.load(artifact_path)
        with open_attempts(records) as kept, open_records(records) as dataset:
            table = tabulate_draws(artifact, dataset)
            report = evaluation.evaluate(artifact, table, alpha=alpha, provenance=dataset.provenance)
            record_evaluation(kept, artifact, table)
    print_result(report, _print_evaluation, as_json=as_json)
    raise typer.Exit(0 if report.is_passed else EXIT_NO)


def _print_evaluation(console: Console, report: EvaluationReport) -> None:
    shown, traits, drawn = summarise(report), report.traits, ""
    if report.claims is not None:
        drawn = f", {report.claims.per_answer:.1f} {traits.item}s each"
    elif report.subject is None:
        drawn = f", {report.describe_draws('candidates each')}"
        if report.promise == "alpha":
            drawn += f"; attainable coverage {format_percent(report.attainable_coverage, '.1f')}"
    console.print(f"{report.n_test} test {traits.prompt}s ({escape(report.test_prompts)}){drawn}\n")
    console.print(make_summary_table(shown.table), "")
    if report.batches:
        console.print(make_batches_table(report.batches), "")
    for sentence in shown.sentences[1:]:
        console.print(escape(sentence))
    console.print(format_verdict(report))
    for sentence in report.certified_by_people:
        console.print(escape(sentence))
