"""`langchain-cfc certify`: what held-out labelled prompts say about a frozen artifact."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from langchain_cfc import certificates
from langchain_cfc.artifact import CalibrationArtifact
from langchain_cfc.cli._format import EXIT_NO, emit_json, get_console, report_errors
from langchain_cfc.cli._inputs import (
    ArtifactPath,
    HeldOutPaths,
    check_output,
    get_verifier_names,
    open_records,
    share_option,
)
from langchain_cfc.cli.inspect import make_certificate_table


def certify(
    artifact_path: ArtifactPath,
    records: HeldOutPaths,
    out_path: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="Where to write the certified artifact. Default: over the given one."
        ),
    ] = None,
    alpha: Annotated[str | None, typer.Option(help="Error level. Default: all of the artifact's.")] = None,
    delta: Annotated[
        str, typer.Option(help="Probability that any bound of a certificate is wrong.")
    ] = "0.05",
    min_kept: Annotated[
        float | None,
        share_option(help="Exit with 1 unless the promise is certified to be kept this often."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the certificates as JSON.")] = False,
) -> None:
    """Certify an artifact on held-out labelled records.

    The certificate is stored in the artifact. Bounds on how often the promise is kept, overall and in every
    group, and on the size of sets, hold together with confidence 1 - delta for this very artifact. From the
    calibration file itself, only the part held out by --certification-fraction is used.
    """
    with report_errors():
        target = artifact_path if out_path is None else out_path
        check_output(target)
        artifact = CalibrationArtifact.load(artifact_path)
        with open_records(records, get_verifier_names(artifact)) as dataset:
            certified = certificates.certify(
                artifact, dataset.records, alpha=alpha, delta=delta, provenance=dataset.provenance
            )
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
            console.print(f"[bold]alpha = {one.alpha}[/]: {escape(one.sentence())}\n")
            console.print(make_certificate_table(one), "")
        console.print(f"certified artifact written to [bold]{escape(str(target))}[/]", soft_wrap=True)
    short = min_kept is not None and any(one.shares[0].kept_at_least < min_kept for one in made)
    raise typer.Exit(EXIT_NO if short else 0)
