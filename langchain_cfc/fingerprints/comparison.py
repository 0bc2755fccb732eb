"""Whether the part that serves is the part that was calibrated."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from langchain_cfc.errors import FingerprintError, FingerprintWarning
from langchain_cfc.fingerprints.models import TOOLS_DIGEST
from langchain_cfc.fingerprints.parts import is_unnamed

Fingerprint = Mapping[str, Any]
Match = Literal["matched", "unverified"]

_DRIFTING = "model_version"
# How many keys a message names.
_SHOWN = 4


def compare_fingerprints(part: str, calibrated: Fingerprint | None, serving: Fingerprint) -> Match:
    """Refuse a part that states that it is not the calibrated one.

    Args:
        part: `generator`, `verifier` or `answer`, for messages.
        calibrated: The artifact's statement; None where its records made none.
        serving: What serves.

    Returns:
        `matched` if both state the same and leave nothing out; else `unverified`, for the reason that
            `explain_doubt` gives.

    Raises:
        FingerprintError: If something that both state differs.

    Warns:
        FingerprintWarning: If the served model reports another version of itself.
    """
    calibrated = calibrated or {}
    if calibrated.get(TOOLS_DIGEST) is not None:
        serving = _without_unset_tools(serving)
    shared = [key for key in calibrated if key in serving and not is_unnamed(key)]
    different = [key for key in shared if calibrated[key] != serving[key]]
    if serving.get(TOOLS_DIGEST) and "model" in shared and not {"id", TOOLS_DIGEST} & set(calibrated):
        # A model that was named without tools had none.
        calibrated, different = {**calibrated, TOOLS_DIGEST: None}, [*different, TOOLS_DIGEST]
    if _DRIFTING in different:
        msg = (
            f"the {part}'s model now reports version {serving[_DRIFTING]!r}, calibrated was "
            f"{calibrated[_DRIFTING]!r}: calibrate again soon"
        )
        warnings.warn(msg, FingerprintWarning, stacklevel=3)
    refused = [key for key in different if key != _DRIFTING]
    if refused:
        listed = ", ".join(
            f"{key} is {serving[key]!r}, calibrated was {calibrated[key]!r}" for key in refused
        )
        msg = (
            f"the {part} is not the one that the artifact was calibrated for: {listed}. Serve with the "
            f"calibrated {part}, or calibrate with this one"
        )
        raise FingerprintError(msg)
    return "matched" if explain_doubt(calibrated, serving) is None else "unverified"


def explain_doubt(calibrated: Fingerprint | None, serving: Fingerprint) -> str | None:
    """Return why two fingerprints that do not contradict each other fail to match; None if they match.

    An `id` that both share vouches for what serving does not state. It vouches for what the records do not
    state unless they describe the model: then a setting that was added since is not covered.

    Args:
        calibrated: The artifact's statement; None where its records made none.
        serving: What serves.

    Returns:
        The reason as a clause, for messages.
    """
    calibrated = {key: value for key, value in (calibrated or {}).items() if key != _DRIFTING}
    serving = {key: value for key, value in serving.items() if key != _DRIFTING}
    if calibrated.get(TOOLS_DIGEST) is not None:
        serving = _without_unset_tools(serving)
    if not calibrated or not serving:
        return "it does not say what it is" if calibrated else "the records do not say what it was"
    for stated, when in ((serving, "it has"), (calibrated, "the calibrated one had")):
        unnamed = [name for key, names in stated.items() if is_unnamed(key) for name in names]
        if unnamed:
            return f"{when} parts that cannot be compared ({', '.join(map(str, unnamed))})"
    new = [key for key in serving if key not in calibrated and key != "id"]
    missing = [key for key in calibrated if key not in serving]
    if "id" in calibrated and "id" in serving:
        describes_model = any(key.rpartition(".")[2] == "model" for key in calibrated)
        new, missing = [key for key in new if describes_model and serving[key] is not None], []
    elif not new and not missing and "model" not in calibrated:
        return "neither an id nor a model is stated"
    if new:
        return f"the records do not state {_listed(new)}"
    return f"it does not state {_listed(missing)}, as the records do" if missing else None


def _without_unset_tools(serving: Fingerprint) -> Fingerprint:
    """A fingerprint that does not deny having tools: they may still be bound to each call."""
    return {key: value for key, value in serving.items() if key != TOOLS_DIGEST or value is not None}


def _listed(keys: Sequence[str]) -> str:
    shown = ", ".join(keys[:_SHOWN])
    return shown if len(keys) <= _SHOWN else f"{shown} and {len(keys) - _SHOWN} more settings"
