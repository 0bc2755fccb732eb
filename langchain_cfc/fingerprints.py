"""Fingerprints: is what serves the same as what was calibrated?

A fingerprint is a flat mapping such as `{"id": "my-judge", "model": "gpt-4o-mini", "temperature": 0.7}`.
What both sides state must agree; `model_version`, the served model's own word about itself, may drift and
only warns. Parts are the same if everything that was calibrated is stated and agrees, or if both carry the
same `id`: whoever gives it vouches for the rest.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import warnings
from collections.abc import Mapping
from typing import Any, Literal

from langchain_core.language_models import BaseChatModel
from langchain_core.load import dumps
from langchain_core.prompts import BasePromptTemplate
from langchain_core.runnables import RunnableSequence, RunnableWithFallbacks
from langchain_core.runnables.base import RunnableBindingBase
from langchain_core.runnables.configurable import DynamicRunnable

from langchain_cfc.errors import FingerprintError, FingerprintWarning

Fingerprint = Mapping[str, Any]
Match = Literal["matched", "unverified"]

# How LangChain's tracing parameters are called here.
_LANGCHAIN_NAMES = {
    "ls_model_name": "model",
    "ls_temperature": "temperature",
    "ls_max_tokens": "max_tokens",
    "ls_stop": "stop",
}
# What LangChain's tracers do not ask for and models sample by, under the names that providers share; and the
# settings whose content goes into the request beside the others.
_SAMPLING = (
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repeat_penalty",
    "logit_bias",
    "reasoning_effort",
)
_PASSED_ON = ("model_kwargs", "extra_body", "options")
_DRIFTING = "model_version"
# Bound arguments that make another generator of a model.
_TOOLS = ("tools", "tool_choice", "functions", "response_format")
_TOOLS_DIGEST = "tools_digest"


def fingerprint(part: object, given_id: str | None = None) -> dict[str, Any]:
    """What a generator, verifier or extractor says of itself.

    Args:
        part: Anything; an attribute `fingerprint` (a mapping) is believed, a chat model is asked for its
            model and sampling parameters, also inside a binding or retries, or at the end of a sequence. One
            that is configured per call, or has fallbacks, says nothing: who answers is not settled yet.
        given_id: What the user calls it, stored as `id`.

    Returns:
        The fingerprint; empty where nothing is known.

    Raises:
        FingerprintError: If the part calls itself something else than the user does.
    """
    known = _known(part, {})
    if given_id is None:
        return known
    if known.get("id", given_id) != given_id:
        msg = f"called {given_id!r}, but it says that it is {known['id']!r}"
        raise FingerprintError(msg)
    return {**known, "id": given_id}


def _known(part: object, bound: Mapping[str, Any]) -> dict[str, Any]:
    """What a part says of itself when called with the `bound` arguments."""
    # Wrappers come first: they hand on the attributes of what they wrap, without what they change about it.
    if isinstance(part, RunnableBindingBase):
        return _known(part.bound, {**part.kwargs, **bound})
    if isinstance(part, (DynamicRunnable, RunnableWithFallbacks)):
        return {}
    # A model that is only made when called would be made to be asked for attributes that it does not have.
    own = getattr(part, "fingerprint", None) if inspect.getattr_static(part, "fingerprint", None) else None
    if isinstance(own, Mapping):
        stated = {key: value for key, value in bound.items() if key in own and key not in _TOOLS}
        return {**own, **stated, **_tools_digest(bound)}
    if isinstance(part, RunnableSequence):
        known = next((known for step in reversed(part.steps) if (known := _known(step, bound))), {})
        digest = _prompt_digest(part)
        return {**known, "prompt_digest": digest} if known and digest is not None else known
    if isinstance(part, BaseChatModel):
        params: Mapping[str, Any] = part._get_ls_params(**bound)  # noqa: SLF001 - the documented hook for tracing
        known = {name: params[key] for key, name in _LANGCHAIN_NAMES.items() if params.get(key) is not None}
        return {**known, **_sampling(part, bound), **_tools_digest(bound)}
    return {}


def _sampling(model: BaseChatModel, bound: Mapping[str, Any]) -> dict[str, Any]:
    """Sampling parameters beside those that tracers ask for; arguments of a call overrule the model's own."""
    said: dict[str, Any] = {}
    for settings in (vars(model), bound):
        inner = [settings[name] for name in _PASSED_ON if isinstance(settings.get(name), Mapping)]
        for part in (settings, *inner):
            said |= {name: part[name] for name in _SAMPLING if part.get(name) is not None}
    return said


def _tools_digest(bound: Mapping[str, Any]) -> dict[str, str]:
    """SHA-256 over the tools and formats that a model is bound to; empty without any."""
    tools = {name: bound[name] for name in _TOOLS if bound.get(name) is not None}
    if not tools:
        return {}
    # A class has no JSON; its name stands for it.
    written = json.dumps(
        tools, sort_keys=True, default=lambda part: getattr(part, "__name__", repr(type(part)))
    )
    return {_TOOLS_DIGEST: _sha256(written)}


def _prompt_digest(sequence: RunnableSequence[Any, Any]) -> str | None:
    """SHA-256 over the prompt templates of a sequence; None without any, or if one is not plain data."""
    templates = [step for step in sequence.steps if isinstance(step, BasePromptTemplate)]
    written = [dumps(template) for template in templates]
    # What cannot be written is written by its address in memory, which would never agree again.
    if not written or any('"not_implemented"' in text for text in written):
        return None
    return _sha256("\n".join(written))


def _sha256(text: str) -> str:
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def compare_fingerprints(part: str, calibrated: Fingerprint | None, serving: Fingerprint) -> Match:
    """Refuse a mismatch.

    Args:
        part: `generator`, `verifier` or `answer`, for messages.
        calibrated: What the artifact says; None where its records did not say.
        serving: What serves.

    Returns:
        `matched` if both carry the same id, or the same model and everything else calibrated is stated and
            agrees; else `unverified`.

    Raises:
        FingerprintError: If something that both state differs.

    Warns:
        FingerprintWarning: If the served model reports another version of itself.
    """
    calibrated = calibrated or {}
    shared = [key for key in calibrated if key in serving]
    different = [key for key in shared if calibrated[key] != serving[key]]
    if _TOOLS_DIGEST in serving and "model" in shared and not {"id", _TOOLS_DIGEST} & set(shared):
        # A model that was named without tools had none.
        calibrated, different = {**calibrated, _TOOLS_DIGEST: None}, [*different, _TOOLS_DIGEST]
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
    everything = set(calibrated) - {_DRIFTING} <= set(serving)
    return "matched" if "id" in shared or ("model" in shared and everything) else "unverified"
