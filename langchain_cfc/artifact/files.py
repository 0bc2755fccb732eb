"""The artifact's file: strict JSON in one canonical form, with a digest over its content.

A file is accepted only if writing its content again gives the same bytes, so any flipped byte is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from langchain_cfc.errors import ArtifactDigestError, ArtifactFormatError
from langchain_cfc.support import __version__
from langchain_cfc.support.serialization import compute_sha256

FORMAT = "langchain-cfc/artifact"
VERSION = 2
# Keys are sorted, so `format` and `version` are the last lines of a file.
_TAIL_BYTES = 256
# Far beyond any artifact: a million calibration prompts kept with twenty features take 200 MiB.
MAX_BYTES = 1 << 30
RELEASE_PATTERN = "^[0-9][0-9A-Za-z.+!-]{0,63}$"


def compute_digest(content: Mapping[str, Any]) -> str:
    """Return the SHA-256 over the canonical form of an artifact's content."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return compute_sha256(text)


def encode(content: Mapping[str, Any]) -> bytes:
    """Return the bytes of an artifact file: indented ASCII JSON with sorted keys."""
    file = {"format": FORMAT, "version": VERSION, "digest": compute_digest(content), "content": content}
    return (json.dumps(file, sort_keys=True, indent=1, ensure_ascii=True, allow_nan=False) + "\n").encode()


def decode(data: bytes, source: str) -> dict[str, Any]:
    """Return the content of an artifact file after checking its envelope and digest; not yet validated."""
    try:
        file = json.loads(data)
    except (ValueError, RecursionError) as error:
        msg = f"{source}: not JSON, perhaps truncated or damaged ({error})"
        if any(key in data[:2000] for key in (b"langchain-cfc/records", b'"candidates"', b'"claims"')):
            msg = f"{source} holds labelled records: `langchain-cfc calibrate` makes an artifact of them"
        raise ArtifactFormatError(msg) from error
    if not isinstance(file, dict) or file.get("format") != FORMAT:
        msg = f'{source}: not a calibration artifact: expected an object with "format": "{FORMAT}"'
        raise ArtifactFormatError(msg)
    if file.get("version") != VERSION:
        writer = (
            explain_writer(file.get("content")) or "; calibrate again or use another release of the library"
        )
        found = f"artifact version {file.get('version')!r}"
        msg = f"{source}: {found}; this library reads version {VERSION}{writer}"
        raise ArtifactFormatError(msg)
    if set(file) != {"format", "version", "digest", "content"} or not isinstance(file["content"], dict):
        msg = (
            f"{source}: expected the fields format, version, digest and content, found "
            f"{', '.join(sorted(file))}"
        )
        raise ArtifactFormatError(msg)
    content: dict[str, Any] = file["content"]
    try:
        intact = file["digest"] == compute_digest(content) and data == encode(content)
    except ValueError:  # NaN or infinity, which no artifact holds
        intact = False
    if not intact:
        msg = (
            f"{source}: the content does not match its digest: the file was changed or damaged after it was "
            "saved; calibrate again"
        )
        raise ArtifactDigestError(msg)
    return content


def explain_writer(content: object) -> str:
    """Explain which release wrote unreadable content; empty if it was this release, or is unknown."""
    release = content.get("library_version") if isinstance(content, dict) else None
    # The file is not trusted here: only a well-formed release is printed.
    if not isinstance(release, str) or not re.fullmatch(RELEASE_PATTERN, release) or release == __version__:
        return ""
    return (
        f"; langchain-cfc {release} wrote it, and this is {__version__}: use that release or a later one, or "
        "calibrate again"
    )


def looks_like_artifact(path: Path) -> bool:
    """Whether a file ends like an artifact of any version, so that it may be replaced by one."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
        return f'"format": "{FORMAT}"'.encode() in file.read()


def describe_first_error(error: Exception) -> str:
    """Describe an error in one line, with the field if pydantic names one."""
    errors = getattr(error, "errors", None)
    if errors is None:
        return str(error)
    first = errors()[0]
    return f"{'.'.join(map(str, first['loc'])) or 'content'}: {first['msg']}"
