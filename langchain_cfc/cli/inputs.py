"""Arguments and options that several commands share, and the opening of the records that they name."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from langchain_cfc.artifact import looks_like_artifact
from langchain_cfc.cli.formatting import StepDisplay, make_progress
from langchain_cfc.errors import InputError
from langchain_cfc.records import Records, read_records
from langchain_cfc.support.files import check_target
from langchain_cfc.support.progress import watch_steps

RECORDS_HELP = "Labelled records: .jsonl or .jsonl.gz"

ArtifactPath = Annotated[Path, typer.Argument(metavar="ARTIFACT", help="Calibration artifact.")]
RecordPaths = Annotated[list[str], typer.Argument(help=f"{RECORDS_HELP}.")]
HeldOutRecords = Annotated[
    list[str], typer.Argument(help=f"{RECORDS_HELP}. They must not have been used to calibrate the artifact.")
]
RequiredSignature = Annotated[
    list[str] | None,
    typer.Option(
        "--require-signature",
        metavar="KEY",
        help="Load the artifact only if it is signed with this Ed25519 public key (a file or its text); "
        "repeat to accept several keys.",
    ),
]
OutArtifact = Annotated[Path, typer.Option("--out", "-o", help="Where to write the artifact.")]
Details = Annotated[
    bool, typer.Option("--details", help="Show all assumptions, all groups, every cut and the full digest.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
# An error level that the artifact was calibrated for.
ArtifactAlpha = Annotated[str | None, typer.Option(help="Error level, if the artifact holds several.")]


_SQLITE_HEADER = b"SQLite format 3\0"


def check_output(path: Path) -> None:
    """Raise InputError if `path` cannot be written, or holds no artifact but, for example, the records."""
    if path.is_file() and not looks_like_artifact(path):
        msg = f"{path} exists and is not an artifact; it will not be overwritten: give --out another path"
        raise InputError(msg)
    check_target(path)


@contextmanager
def open_records(paths: Sequence[str]) -> Iterator[Records]:
    """Open records files, and show how many records were read, and the steps that follow."""
    for path in paths:
        if _is_store(path):
            export = f"langchain-cfc store export {shlex.quote(path)} records.jsonl"
            msg = f"{path} is a store: write its records to a file first, with `{export}`"
            raise InputError(msg)
    with make_progress() as progress:
        display = StepDisplay(progress)
        records = read_records(*paths)
        records = replace(records, on_read=lambda more: display.count("reading records", more))
        with watch_steps(display.begin):
            yield records


def _is_store(path: str) -> bool:
    if "://" in path:
        return True
    if not Path(path).is_file():
        return False
    with Path(path).open("rb") as file:
        return file.read(len(_SQLITE_HEADER)) == _SQLITE_HEADER
