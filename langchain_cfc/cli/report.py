"""`langchain-cfc report`: what an artifact promises and what happened, as one page for people."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from langchain_cfc import evaluation, experiments
from langchain_cfc import report as reports
from langchain_cfc.artifact import CalibrationArtifact
from langchain_cfc.candidates import LabelledBatch
from langchain_cfc.cli._format import (
    DATASET,
    EXIT_NO,
    Dataset,
    emit_json,
    failures_explained,
    opened,
    out,
    track_progress,
    verdict,
)
from langchain_cfc.errors import CFCError, InputError
from langchain_cfc.experiments import ComparisonReport
from langchain_cfc.records import Provenance, Records, tabulate


def report(
    artifact_path: Annotated[Path, typer.Argument(metavar="ARTIFACT", help="Calibration artifact.")],
    records: Annotated[list[str], typer.Argument(help=f"{DATASET}; not calibrated on.")],
    out_path: Annotated[Path, typer.Option("--out", "-o", help="Where to write the page.")] = Path(
        "report.html"
    ),
    alpha: Annotated[str | None, typer.Option(help="Error level, where the artifact holds several.")] = None,
    show_text: Annotated[
        bool, typer.Option("--show-text", help="Show prompts and answers of the hardest prompts.")
    ] = False,
    prompts: Annotated[
        int, typer.Option(min=0, help="How many of the hardest prompts to show.")
    ] = reports.MOST_PROMPTS,
    compare: Annotated[
        int | None,
        typer.Option(min=1, metavar="SPLITS", help="Compare methods as well, over so many splits."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the path and the evaluation as JSON.")
    ] = False,
) -> None:
    """Write one HTML page: promise, data, results and next steps.

    The page is a single file that loads nothing and runs nothing. Prompts and answers are in it only with
    --show-text. Given the very file that the artifact was calibrated on, only the part held out by
    --test-fraction is tested on. Exit code 1 as for `evaluate`.
    """
    with failures_explained():
        reports.check_report(out_path)
        artifact = CalibrationArtifact.load(artifact_path)
        combination = artifact.combination
        with opened(records, () if combination is None else combination.names) as dataset:
            texts = _texts(dataset) if show_text else None
            table = tabulate(dataset.records, n=artifact.n, combination=combination)
            seen = evaluation.evaluate(artifact, table, alpha=alpha, provenance=dataset.provenance)
            hardest = reports.find_hardest_prompts(artifact, table, seen.alpha, texts=texts, most=prompts)
            verifiers = _verifiers(dataset.records)
        compared, failed = None, []
        if compare is not None:
            try:
                compared = _compared(artifact, table, seen.alpha, compare, dataset.provenance)
            except CFCError as error:  # what was asked for first is written all the same
                failed = [f"Methods are not compared: {error}"]
        reports.write_report(
            out_path,
            artifact=artifact,
            evaluation=seen,
            comparison=compared,
            hardest=hardest,
            sources=reports.Sources(str(artifact_path), tuple(records), verifiers),
            notes=failed
            + [
                f"These records come from another {part} than the calibration records; the artifact promises "
                "nothing about them."
                for part in artifact.differing_parts(dataset.provenance)
            ],
        )
    if as_json:
        emit_json({"report": str(out_path), **seen.model_dump(mode="json")})
    else:
        console = out()
        console.print(verdict(seen))
        console.print(f"report written to [bold]{escape(str(out_path))}[/]", soft_wrap=True)
    broken = seen.contradicted or (seen.answers is not None and seen.answers.contradicted)
    raise typer.Exit(EXIT_NO if broken else 0)


def _texts(dataset: Dataset) -> Records:
    """The records with their texts.

    Raises:
        InputError: If they come from a store, whose table holds none.
    """
    if isinstance(dataset.records, LabelledBatch):
        msg = "texts are read from records files: `langchain-cfc export` writes one from a store"
        raise InputError(msg)
    return dataset.records


def _verifiers(records: Records | LabelledBatch) -> tuple[str, ...]:
    """Names of the raw outputs that the first record holds."""
    return () if isinstance(records, LabelledBatch) else tuple(next(iter(records)).candidates[0].scores or ())


def _compared(
    artifact: CalibrationArtifact,
    table: LabelledBatch,
    alpha: float,
    splits: int,
    provenance: Provenance | None,
) -> ComparisonReport:
    """Methods compared on the same records, at the level and with the features of the artifact."""
    combination = artifact.combination
    return experiments.compare(
        table,
        alpha=alpha,
        features=artifact.feature_map.text,
        set_rule=artifact.set_rule,
        combine=None if combination is None else combination.names,
        splits=splits,
        provenance=provenance,
        progress=lambda items, total: track_progress(items, "comparing methods", total),
    )
