"""`langchain-cfc evaluate`: what an artifact does on prompts it has never seen."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from langchain_cfc import evaluation
from langchain_cfc.artifact import CalibrationArtifact
from langchain_cfc.cli._format import (
    DATASET,
    EXIT_NO,
    answers_line,
    emit_json,
    failures_explained,
    opened,
    out,
    report_tables,
    verdict,
)


def evaluate(
    artifact_path: Annotated[Path, typer.Argument(metavar="ARTIFACT", help="Calibration artifact.")],
    records: Annotated[list[str], typer.Argument(help=f"{DATASET}; not calibrated on.")],
    alpha: Annotated[str | None, typer.Option(help="Error level, where the artifact holds several.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Measure an artifact on labelled records.

    The marginal rule, calibrated on the same prompts, is measured beside it. Given the very file that it was
    calibrated on, only the part held out by --test-fraction is used. Exit code 1 if what is seen contradicts
    the promise: on some guaranteed group it was kept on fewer prompts than chance explains, at 2.5 % for all
    groups together; or if bot mode answers wrongly more often than chance explains.
    """
    with failures_explained():
        artifact = CalibrationArtifact.load(artifact_path)
        combination = artifact.combination
        with opened(records, () if combination is None else combination.names) as dataset:
            report = evaluation.evaluate(
                artifact, dataset.records, alpha=alpha, provenance=dataset.provenance
            )
    if as_json:
        emit_json(report.model_dump(mode="json"))
    else:
        console = out()
        console.print(
            f"{report.n_test} test prompts ({escape(report.test_prompts)}), {report.n_candidates} candidates "
            f"each; attainable coverage {100 * report.attainable_coverage:.1f} %\n"
        )
        for table in report_tables(report):
            console.print(table, "")
        console.print(verdict(report))
        if report.answers is not None:
            console.print(answers_line(report.answers))
    broken = report.contradicted or (report.answers is not None and report.answers.contradicted)
    raise typer.Exit(EXIT_NO if broken else 0)
