"""Arguments and options that several commands declare alike."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

DATASET = "Labelled records: .jsonl, .jsonl.gz or .parquet; or the store of a collection"
STORE = "SQLite file, or URL of a PostgreSQL database."

ArtifactPath = Annotated[Path, typer.Argument(metavar="ARTIFACT", help="Calibration artifact.")]
RecordPaths = Annotated[list[str], typer.Argument(help=DATASET)]
HeldOutPaths = Annotated[list[str], typer.Argument(help=f"{DATASET}; not calibrated on.")]
OutArtifact = Annotated[Path, typer.Option("--out", "-o", help="Where to write the artifact.")]
ReportAsJson = Annotated[bool, typer.Option("--json", help="Print the report as JSON.")]
# One of the levels that an artifact holds.
HeldAlpha = Annotated[str | None, typer.Option(help="Error level, where the artifact holds several.")]
FirstCandidates = Annotated[
    int | None,
    typer.Option(
        help="Use the first n candidates; only for verifiers that score each by itself. Default all."
    ),
]
Jobs = Annotated[int | None, typer.Option(min=1, help="Processes; default one per core.")]
FigureFolder = Annotated[Path | None, typer.Option(help="Write the figures into a folder.")]
SplitsSeed = Annotated[str, typer.Option(help="Another seed gives other splits.")]

split_option = partial(typer.Option, rich_help_panel="Splits")
TestFraction = Annotated[float, split_option(help="Share of prompts held out for `evaluate`.")]
