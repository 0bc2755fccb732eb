"""`langchain-cfc certify`: certify a frozen artifact on held-out labelled prompts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from langchain_cfc import certificates
from langchain_cfc.artifact import CalibrationArtifact, open_attempts
from langchain_cfc.cli._artifact import make_certificate_table
from langchain_cfc.cli.formatting import emit_json, get_console, report_errors
from langchain_cfc.cli.inputs import (
    ArtifactPath,
    AsJson,
    HeldOutRecords,
    check_output,
    open_records,
)


def certify(
    artifact_path: ArtifactPath,
    records: HeldOutRecords,
    out_path: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="Where to write the certified artifact. Default: overwrite ARTIFACT."
        ),
    ] = None,
    alpha: Annotated[str | None, typer.Option(help="Error level. Default: all of the artifact's.")] = None,
    delta: Annotated[
        str, typer.Option(help="Probability that any bound of a certificate is wrong.")
    ] = "0.05",
    as_json: AsJson = False,
) -> None:
    """Certify an artifact on held-out labelled records.

    The certificate is stored in the artifact. Bounds on how often the promise is kept, overall and in every
    group, and on the size of sets, hold together with confidence 1 - delta for this artifact. If the
    records are the calibration file, only the part held out by --test-fraction is used. This is an
    attempt on these labels, kept in RECORDS.attempts.json: later ones are tested at a smaller part of delta.
    """
    target = out_path or artifact_path
    with report_errors():
        check_output(target)
        artifact = CalibrationArtifact.load(artifact_path)
        with open_attempts(records, target) as kept, open_records(records) as dataset:
            certified = certificates.certify(
                artifact,
                dataset,
                alpha=alpha,
                delta=delta,
                after=kept.ledger,
            )
            kept.record(certified)
        certified.save(target)
    made = [one for one in certified.certificates if one not in artifact.certificates]
    if as_json:
        emit_json(
            {
                "artifact": str(target),
                "digest": certified.digest,
                "certificates": [one.model_dump(mode="json") for one in made],
            }
        )
    else:
        console = get_console()
        for one in made:
            console.print(f"[bold]alpha = {one.alpha}[/]: {escape(one.sentence)}\n")
            console.print(make_certificate_table(one), "")
        console.print(f"certified artifact written to [bold]{escape(str(target))}[/]", soft_wrap=True)
