"""`langchain-cfc sign`: sign an artifact, so that others can check who made it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from langchain_cfc.artifact import CalibrationArtifact
from langchain_cfc.artifact.signatures import (
    format_public_key,
    load_private_key,
    write_signature,
)
from langchain_cfc.cli.formatting import emit_json, get_console, report_errors
from langchain_cfc.cli.inputs import ArtifactPath, AsJson

PASSWORD_VARIABLE = "LANGCHAIN_CFC_KEY_PASSWORD"  # noqa: S105 - the name of a variable


def sign(
    artifact_path: ArtifactPath,
    key: Annotated[
        Path,
        typer.Option(
            help="Ed25519 private key, PEM or OpenSSH. The password of an encrypted key is read from "
            f"the environment variable {PASSWORD_VARIABLE}."
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Sign an artifact with an Ed25519 key.

    The signature is written beside the artifact, as ARTIFACT.sig. To require it on loading, use
    load(path, require_signature=KEY) in Python, or --require-signature of `ask` and `inspect`.

        openssl genpkey -algorithm ed25519 -out key.pem

        openssl pkey -in key.pem -pubout -out key.pub

        langchain-cfc sign artifact.json --key key.pem

        langchain-cfc inspect artifact.json --require-signature key.pub
    """
    with report_errors():
        password = os.environ.get(PASSWORD_VARIABLE)
        private = load_private_key(key, None if password is None else password.encode())
        public = format_public_key(private)
        artifact = CalibrationArtifact.load(artifact_path)
        written = write_signature(artifact_path, artifact.to_bytes(), private)
        # Fails if the file was replaced since it was read, and is not what was signed.
        CalibrationArtifact.load(artifact_path, require_signature=public)
    if as_json:
        emit_json({"signature": str(written), "digest": artifact.digest, "public_key": public})
        return
    console = get_console()
    console.print(f"signature written to [bold]{escape(str(written))}[/]", soft_wrap=True)
    console.print(f"signed by {escape(public)}", soft_wrap=True)
