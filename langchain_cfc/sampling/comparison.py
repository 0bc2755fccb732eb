"""Compare the fingerprints of serving parts with those of the calibrated ones.

If two fingerprints state different values, the part is refused. They match if they are equal and neither side
leaves anything unstated; otherwise they are unverified. Names of models are equal if they differ only in how
a model is reached (`simplify_model_name`). Four keys are special:

- An `id` given by the user vouches for what cannot be described and for what the other side does not state.
  It does not hide a stated difference.
- `address`: what answers at another address cannot be compared, and may be the same model. So another address
  is unverified, unless an id that the user gave vouches for it.
- `reasoning_text` is stated only if reasoning is kept; if it is absent, reasoning is removed.
- `model_version`, the name that a served model reports, may drift, so it only warns.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from typing import Any

from langchain_cfc.errors import FingerprintError, FingerprintWarning
from langchain_cfc.sampling.fingerprints import ADDRESS, CLASS, REASONING_TEXT, TOOLS_DIGEST, is_unnamed
from langchain_cfc.support.text import join_names

Fingerprint = Mapping[str, Any]

_OF_RUNS = "actions"  # the method in fingerprints of agents whose calls are guarded
_MODEL_VERSION = "model_version"
# Ollama's default tag, and OpenRouter's choices of a price or of speed.
_ROUTE = re.compile(r":(?:latest|free|nitro|floor)$")
# Gateways (LiteLLM, Gemini), and the regions of Bedrock's inference profiles.
_GATEWAY = re.compile(
    r"^(?:(?:models|azure|bedrock|vertex_ai|openrouter|ollama(?:_chat)?)/)?"
    r"(?:(?:us|us-gov|eu|apac|jp|au|ca|global)\.(?=[a-z0-9]+\.))?"
)
# Maximum number of keys that a message lists.
_MAX_KEYS = 4


def simplify_model_name(name: str) -> str:
    """Return a model's name without what only says by which gateway, region, price or default tag it answers.

    Dates, sizes, other tags and the accounts of publishers stay: they may name another model.

    Examples:
        >>> [simplify_model_name(one) for one in ("llama3.2:latest", "llama3.2:1b", "meta/llama-3:free")]
        ['llama3.2', 'llama3.2:1b', 'meta/llama-3']
        >>> simplify_model_name("us.anthropic.claude-3-haiku-20240307-v1:0")
        'anthropic.claude-3-haiku-20240307-v1:0'
    """
    return _ROUTE.sub("", _GATEWAY.sub("", name))


def _is_equal(key: str, calibrated: Any, serving: Any) -> bool:
    """Return whether two values of a key are equal; names of models may be written in several ways."""
    if key.rpartition(".")[2] == "model" and isinstance(calibrated, str) and isinstance(serving, str):
        return simplify_model_name(calibrated) == simplify_model_name(serving)
    return bool(calibrated == serving)


def compare_fingerprints(part: str, calibrated: Fingerprint | None, serving: Fingerprint) -> str | None:
    """Return why a serving part is not known to be the calibrated one, None if it is; refuse a difference.

    A shared `id` vouches for everything that the serving fingerprint does not state. It also vouches for what
    the records do not state, unless they describe the model: then settings added since are not covered.

    Args:
        part: `generator`, `verifier`, `answer` or `splitter`, for messages.
        calibrated: The artifact's fingerprint of the part; None if the records had none.
        serving: The fingerprint of the serving part.

    Returns:
        None if both state the same and leave nothing out: they match. Else the reason as a clause, for
            messages: the part is unverified.

    Raises:
        FingerprintError: If a key that both state has different values, or only one keeps reasoning.

    Warns:
        FingerprintWarning: If the served model reports a different version.
    """
    if calibrated is not None and REASONING_TEXT in calibrated.keys() | serving.keys():
        calibrated, serving = ({REASONING_TEXT: "removed", **stated} for stated in (calibrated, serving))
    calibrated = calibrated or {}
    if calibrated.get(TOOLS_DIGEST) is not None and serving.get(TOOLS_DIGEST) is None:
        # Tools may still be bound to each call.
        serving = {key: value for key, value in serving.items() if key != TOOLS_DIGEST}
    shared = [key for key in calibrated if key in serving and not is_unnamed(key)]
    different = [key for key in shared if not _is_equal(key, calibrated[key], serving[key])]
    if serving.get(TOOLS_DIGEST) and "model" in shared and not {"id", TOOLS_DIGEST} & set(calibrated):
        # A fingerprint that names a model but no tools means that the model had no tools.
        calibrated, different = {**calibrated, TOOLS_DIGEST: None}, [*different, TOOLS_DIGEST]
    if _MODEL_VERSION in different:
        msg = (
            f"the {part}'s model now reports version {serving[_MODEL_VERSION]!r}, in calibration it was "
            f"{calibrated[_MODEL_VERSION]!r}: calibrate again soon"
        )
        warnings.warn(msg, FingerprintWarning, stacklevel=3)
    refused = [key for key in different if key != _MODEL_VERSION and not _is_address(key)]
    if refused:
        listed = ", ".join(
            f"{key} is {serving[key]!r}, in calibration it was {calibrated[key]!r}" for key in refused
        )
        cure = f"Serve with the calibrated {part}, or calibrate with this one"
        if (calibrated.get("method"), part) == (_OF_RUNS, "generator") and serving.get("method") != _OF_RUNS:
            cure = "It promises about runs of an agent: serve it with GuardedActions of langchain-cfc-agents"
        msg = f"the {part} is not the one that the artifact was calibrated for: {listed}. {cure}"
        raise FingerprintError(msg)
    return _explain_doubt(calibrated, serving)


def _explain_doubt(calibrated: Fingerprint, serving: Fingerprint) -> str | None:
    """Return why two fingerprints that do not contradict each other fail to match; None if they match."""
    calibrated = {key: value for key, value in calibrated.items() if key != _MODEL_VERSION}
    serving = {key: value for key, value in serving.items() if key != _MODEL_VERSION}
    if not calibrated or not serving:
        return "the records do not identify it" if serving else "it does not identify itself"
    for stated, when in ((serving, "it has"), (calibrated, "the calibrated one had")):
        unnamed = [name for key, names in stated.items() if is_unnamed(key) for name in names]
        if unnamed:
            return f"{when} parts that cannot be compared ({', '.join(map(str, unnamed))})"
    # Beside `method`, the id is the user's; alone, in a verifier of this library, it names the method.
    is_vouched = "id" in calibrated and "id" in serving
    is_vouched_inside = is_vouched and "method" in calibrated
    for key in filter(_is_address, calibrated.keys() & serving.keys()):
        if calibrated[key] != serving[key] and not (is_vouched if key == ADDRESS else is_vouched_inside):
            return f"its {key} is not the calibrated one, and what answers there cannot be compared"
    new = [key for key in serving if key not in calibrated and key != "id"]
    missing = [key for key in calibrated if key not in serving]
    if is_vouched:
        describes_model = any(key.rpartition(".")[2] == "model" for key in calibrated)
        settings = [key for key in new if serving[key] is not None and key not in {CLASS, ADDRESS}]
        new, missing = settings if describes_model else [], []
    elif not new and not missing and not {CLASS, "model"} & calibrated.keys():
        return "neither an id nor a model is stated"
    if new:
        return f"the records do not state {join_names(new, _MAX_KEYS)}"
    return f"it does not state {join_names(missing, _MAX_KEYS)}, as the records do" if missing else None


def is_equal_or_named(known: Any, given: Any) -> bool:
    """Return whether two settings of a collection are equal, or differ only in an id given to a part since.

    The user then vouches for the part that drew, scored or labelled before as well.
    """
    if known == given or not isinstance(known, Mapping) or not isinstance(given, Mapping):
        return bool(known == given)
    named = {key: value for key, value in known.items() if not is_unnamed(key)}
    if "method" in given and "id" in named:
        named["method"] = named.pop("id")
    if "id" not in given:
        return False
    # An id without `method` names a method of this library, and does not vouch.
    is_vouched = "method" in given or not str(given.get(CLASS)).startswith("langchain_cfc")
    if is_vouched and named.items() <= {"id": given["id"]}.items():
        return True  # nothing else was known, as of imported answers
    return named == {key: value for key, value in given.items() if key != "id"}


def _is_address(key: str) -> bool:
    """Return whether a key states an address; those of the models in a verifier have a prefix."""
    return key.rpartition(".")[2] == ADDRESS
