"""`langchain-cfc inspect`: what an artifact promises, and what it was made from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from langchain_cfc.artifact import CalibrationArtifact
from langchain_cfc.cli.calibrate import artifact_data, groups_table
from langchain_cfc.cli.output import emit_json, facts_lines, failures_explained, out


def inspect(
    artifact_path: Annotated[Path, typer.Argument(metavar="ARTIFACT", help="Calibration artifact.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print facts and promises as JSON.")] = False,
) -> None:
    """Verify an artifact's digest and say what it promises."""
    with failures_explained():
        artifact = CalibrationArtifact.load(artifact_path)
    if as_json:
        emit_json(artifact_data(artifact))
        return
    console = out()
    for line in facts_lines(artifact):
        console.print(escape(line), soft_wrap=True)
    for alpha in artifact.alphas:
        console.print(
            f"\n[bold]The promise at alpha = {alpha}[/]\n{escape(artifact.guarantee(alpha).sentence)}"
        )
    promise = artifact.guarantee(artifact.alphas[0])
    if promise.kind != "heuristic":
        _print_list(console, "It rests on", promise.assumptions)
        _print_list(console, "It does not say", promise.not_promised)
    console.print("", groups_table(artifact))


def _print_list(console: Console, title: str, sentences: Sequence[str]) -> None:
    console.print(f"\n[bold]{title}[/]")
    for sentence in sentences:
        console.print(f"- {escape(sentence)}")
