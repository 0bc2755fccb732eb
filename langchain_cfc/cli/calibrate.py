"""`langchain-cfc calibrate`: build an artifact from labelled records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.markup import escape

from langchain_cfc import calibration
from langchain_cfc.artifact import open_attempts
from langchain_cfc.cli._artifact import describe_artifact, make_groups_table, print_artifact
from langchain_cfc.cli.calibration_options import add_calibration_options
from langchain_cfc.cli.formatting import emit_json, get_console, report_errors
from langchain_cfc.cli.inputs import (
    AsJson,
    Details,
    OutArtifact,
    RecordPaths,
    check_output,
    open_records,
)
from langchain_cfc.guarantee import PaperPAC


@add_calibration_options
def calibrate(
    records: RecordPaths,
    out_path: OutArtifact = Path("artifact.json"),
    details: Details = False,
    as_json: AsJson = False,
    **options: Any,
) -> None:
    """Build a calibration artifact from labelled records.

    What is certified with confidence is an attempt on these labels. Attempts are kept beside the records, in
    RECORDS.attempts.json, so that all of them together keep the failure probability: keep that file.
    """
    with report_errors():
        check_output(out_path)
        with open_attempts(records, out_path) as kept, open_records(records) as dataset:
            rates, of_all, pac = options["max_wrong_rate"], options["max_wrong_of_all"], options["pac"]
            given = {
                "alpha": options["alpha"] or (None if rates or of_all else ["0.1"]),
                "max_wrong_rate": rates or None,
                "max_wrong_of_all": of_all or None,
                "pac": None if pac is None else PaperPAC(pac),
            }
            artifact = calibration.calibrate(dataset, **options | given, after=kept.ledger)
            kept.record(artifact)
        artifact.save(out_path)
    if as_json:
        emit_json({"artifact": str(out_path), **describe_artifact(artifact)})
        return
    console = get_console()
    print_artifact(console, artifact, details=details)
    if not details and not artifact.is_bot_alone:
        console.print("", make_groups_table(artifact))
    console.print(f"\nartifact written to [bold]{escape(str(out_path))}[/]", soft_wrap=True)
