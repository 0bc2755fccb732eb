"""`langchain-cfc report`: write an artifact's promise and results as one HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from langchain_cfc import evaluation
from langchain_cfc.artifact import CalibrationArtifact, open_attempts, tabulate_draws
from langchain_cfc.cli.formatting import (
    EXIT_NO,
    emit_json,
    get_console,
    get_error_console,
    report_errors,
)
from langchain_cfc.cli.inputs import (
    ArtifactAlpha,
    ArtifactPath,
    AsJson,
    HeldOutRecords,
    open_records,
)
from langchain_cfc.cli.verdicts import format_verdict, record_evaluation
from langchain_cfc_lab import report as reports


def report(
    artifact_path: ArtifactPath,
    records: HeldOutRecords,
    out_path: Annotated[Path, typer.Option("--out", "-o", help="Where to write the page.")] = Path(
        "report.html"
    ),
    alpha: ArtifactAlpha = None,
    show_text: Annotated[
        bool, typer.Option("--show-text", help="Include the texts of the hardest prompts and their answers.")
    ] = False,
    prompts: Annotated[
        int, typer.Option(min=0, help="How many of the hardest prompts to show.")
    ] = reports.MOST_PROMPTS,
    as_json: AsJson = False,
) -> None:
    """Write one HTML page: promise, data, results and next steps.

    The page is a single file without scripts or external resources. It shows prompts and answers only with
    --show-text. If the records are the calibration file, only the part held out by --test-fraction is used
    to test. Exit code 1 as for `evaluate`.
    """
    with report_errors():
        reports.check_report(out_path)
        artifact = CalibrationArtifact.load(artifact_path)
        with open_attempts(records) as kept, open_records(records) as dataset:
            texts = dataset if show_text else None
            table = tabulate_draws(artifact, dataset)
            seen = evaluation.evaluate(artifact, table, alpha=alpha, provenance=dataset.provenance)
            record_evaluation(kept, artifact, table)
            hardest = reports.find_hardest_prompts(artifact, table, seen.alpha, texts=texts, most=prompts)
        with get_error_console().status("drawing the report"):
            reports.write_report(
                out_path,
                artifact=artifact,
                evaluation=seen,
                hardest=hardest,
                sources=reports.Sources(str(artifact_path), tuple(records)),
            )
    if as_json:
        emit_json({"report": str(out_path), **seen.model_dump(mode="json")})
    else:
        console = get_console()
        console.print(format_verdict(seen))
        console.print(f"report written to [bold]{escape(str(out_path))}[/]", soft_wrap=True)
    raise typer.Exit(0 if seen.is_passed else EXIT_NO)
