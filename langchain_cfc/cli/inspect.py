"""`langchain-cfc inspect`: show what an artifact promises, and what it was made from."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any

import typer

from langchain_cfc.artifact import CalibrationArtifact
from langchain_cfc.certificates import verification
from langchain_cfc.certificates.recomputation import BoundCheck, recompute_certificates
from langchain_cfc.certificates.verification import LevelVerification
from langchain_cfc.cli._artifact import describe_artifact, print_artifact
from langchain_cfc.cli.formatting import (
    emit_json,
    fail,
    get_console,
    make_table,
    report_errors,
    track_progress,
)
from langchain_cfc.cli.inputs import (
    ArtifactPath,
    AsJson,
    Details,
    RequiredSignature,
)

_UNSIGNED = (
    "\nThe signature of this artifact was not checked. The checks above find damage and careless edits. A "
    "careful forger changes counts and calibration prompts too, and only a signature detects that: sign the "
    "artifact, and pass --require-signature KEY."
)


def inspect(
    artifact_path: ArtifactPath,
    details: Details = False,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify",
            help="Recompute all certificates from their counts, and a sample of thresholds with HiGHS.",
        ),
    ] = False,
    prompts: Annotated[int, typer.Option(min=1, help="Number of prompts that --verify samples.")] = 20,
    require_signature: RequiredSignature = None,
    as_json: AsJson = False,
) -> None:
    """Check an artifact's digest and show what it promises."""
    with report_errors():
        artifact = CalibrationArtifact.load(artifact_path, require_signature=require_signature)
        bounds = recompute_certificates(artifact) if verify else []
        # Order statistics need no solver: `verify` raises for them, which is right if there are no bounds.
        levels: Sequence[LevelVerification] = []
        if verify and (artifact.confidence is None or not bounds):
            track = partial(track_progress, what="solving again", total=prompts + 1)
            with _redirect_native_output():
                levels = verification.verify(artifact, prompts=prompts, progress=track)
    if as_json:
        found: dict[str, Any] = {}
        if verify:
            found["verification"] = [asdict(level) for level in levels]
            found["certificates_verified"] = [asdict(one) for one in bounds]
            found["signature_verified"] = require_signature is not None
        emit_json({**describe_artifact(artifact), **found})
    else:
        console = get_console()
        print_artifact(console, artifact, details=details)
        if bounds:
            _print_bounds(bounds)
        if levels:
            _print_verification(levels)
        if verify and require_signature is None:
            console.print(_UNSIGNED)
    if not all(one.agrees for one in bounds):
        fail("a certificate of this artifact contradicts its own counts: do not rely on it", 1)
    if not all(level.agrees for level in levels):
        fail("another solver contradicts a threshold of this artifact; please report it with the artifact", 1)


@contextmanager
def _redirect_native_output() -> Iterator[None]:
    """Redirect what compiled libraries print to standard error; HiGHS 1.16 always prints a banner."""
    sys.stdout.flush()
    stdout = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)


def _print_bounds(bounds: Sequence[BoundCheck]) -> None:
    """Print the bounds that their counts contradict, and how many bounds agree."""
    computed = [one for one in bounds if one.recomputed is not None]
    wrong = [one for one in bounds if not one.agrees]
    console = get_console()
    if wrong:
        title = "Certificates that their counts contradict"
        table = make_table("certificate", "bound", "stated", "by its counts", texts=2, title=title)
        for one in wrong:
            found = "impossible" if one.recomputed is None else f"{one.recomputed:.6g}"
            table.add_row(one.certificate, one.bound, f"{one.stated:.6g}", found)
        console.print("", table)
    rest = len(bounds) - len(computed)
    others = (
        f"; {rest} need more than counts, and are only checked for being possible"
        if rest and not wrong
        else ""
    )
    agree = f"{sum(one.agrees for one in computed)} agree"
    console.print(
        f"\nCertificates: {len(computed)} bounds and tests recomputed from counts, {agree}{others}."
    )


def _print_verification(levels: Sequence[LevelVerification]) -> None:
    console = get_console()
    for one in levels:
        verdict = "agree" if one.agrees else f"{one.contradicted} contradicted"
        console.print(
            f"Thresholds at alpha = {one.alpha}: {one.prompts} solved again, {one.infinite} of them infinite "
            f"and {one.outside} outside what was kept; off by {one.largest_difference:.0e}: {verdict}."
        )
    if not all(level.complete for level in levels):
        console.print(
            "Calibration prompts far from the fit entered only by their sums, which the artifact holds. That "
            "none of them changes sides rests on the artifact's own proof (see its radius).",
        )
